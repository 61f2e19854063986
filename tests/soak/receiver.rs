//! What effects are pushed to: it notes each with the life that sent it, and takes it, or is away.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// Header that names the life of the process that sends.
pub const LIFE: &str = "x-life";

/// One effect, as it was received.
#[derive(Debug, Clone)]
pub struct Receipt {
    pub at: Instant,
    /// Tenant, source, object, event.
    pub key: String,
    pub epoch: u64,
    pub rev: u64,
    pub is_resent: bool,
    /// Which life sent it, such as `processor-1.2`.
    pub life: String,
    pub body: Bytes,
    /// Answered with success.
    pub is_taken: bool,
}

impl Receipt {
    /// Tenant, source and object.
    pub fn object(&self) -> &str {
        self.parts().0
    }

    /// Event id.
    pub fn event(&self) -> &str {
        self.parts().1
    }

    fn parts(&self) -> (&str, &str) {
        self.key.rsplit_once('/').expect("tenant/source/object/event")
    }
}

#[derive(Default)]
struct Shared {
    receipts: Mutex<Vec<Receipt>>,
    is_away: AtomicBool,
}

pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Threads of its own: it answers while the test waits.
    _runtime: Runtime,
}

impl Receiver {
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared::default());
        let router = Router::new().fallback(receive).with_state(shared.clone());
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { address, shared, _runtime: runtime }
    }

    pub fn url(&self) -> String {
        format!("http://{}/app", self.address)
    }

    /// While it is away it notes what comes, and answers 503.
    pub fn set_away(&self, is_away: bool) {
        self.shared.is_away.store(is_away, Ordering::SeqCst);
    }

    pub fn receipts(&self) -> Vec<Receipt> {
        self.shared.receipts.lock().expect("no panic").clone()
    }

    /// When each effect came first, by its key, of those from number `from` on.
    pub fn first_since(&self, from: usize) -> HashMap<String, Instant> {
        let receipts = self.shared.receipts.lock().expect("no panic");
        let mut first = HashMap::new();
        for receipt in receipts.iter().skip(from) {
            first.entry(receipt.key.clone()).or_insert(receipt.at);
        }
        first
    }

    pub fn count(&self) -> usize {
        self.shared.receipts.lock().expect("no panic").len()
    }
}

async fn receive(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let is_taken = !shared.is_away.load(Ordering::SeqCst);
    let Some(receipt) = read(&headers, body, is_taken) else { return StatusCode::BAD_REQUEST };
    shared.receipts.lock().expect("no panic").push(receipt);
    if is_taken { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// None where a header is missing: then the effect is refused, and becomes a dead letter, which is found.
fn read(headers: &HeaderMap, body: Bytes, is_taken: bool) -> Option<Receipt> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    Some(Receipt {
        at: Instant::now(),
        key: text("idempotency-key")?.to_owned(),
        epoch: text("seriatim-epoch")?.parse().ok()?,
        rev: text("seriatim-rev")?.parse().ok()?,
        is_resent: text("seriatim-resent")?.parse().ok()?,
        life: text(LIFE)?.to_owned(),
        body,
        is_taken,
    })
}
