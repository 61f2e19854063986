//! A provider's API, for documents that are fetched: it answers as a test says, and remembers who asked when.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// One request.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Path and query.
    pub target: String,
    pub headers: HeaderMap,
    pub at: Instant,
}

type Behaviour = Arc<dyn Fn(&Asked) -> Response + Send + Sync>;

#[derive(Clone)]
struct Shared {
    asked: Arc<Mutex<Vec<Asked>>>,
    behaviour: Arc<Mutex<Behaviour>>,
}

pub struct Provider {
    address: SocketAddr,
    shared: Shared,
    /// Threads of its own: it answers while the test waits.
    _runtime: Runtime,
}

impl Provider {
    /// Listens at a free port, and has no documents.
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let nothing: Behaviour = Arc::new(|_| status(404));
        let shared = Shared { asked: Arc::default(), behaviour: Arc::new(Mutex::new(nothing)) };
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let own = shared.clone();
        let router = Router::new().fallback(move |request: Request| {
            let shared = own.clone();
            async move { shared.answer(request) }
        });
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { address, shared, _runtime: runtime }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// From now on requests are answered so.
    pub fn answer(&self, behaviour: impl Fn(&Asked) -> Response + Send + Sync + 'static) {
        *self.shared.behaviour.lock().expect("no panic") = Arc::new(behaviour);
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().expect("no panic").clone()
    }

    /// Requests for one target.
    pub fn asked_for(&self, target: &str) -> usize {
        self.asked().iter().filter(|asked| asked.target == target).count()
    }
}

impl Shared {
    fn answer(&self, request: Request) -> Response {
        let target = request.uri().path_and_query().map_or_else(String::new, ToString::to_string);
        let asked = Asked { target, headers: request.headers().clone(), at: Instant::now() };
        let behaviour = self.behaviour.lock().expect("no panic").clone();
        let answer = behaviour(&asked);
        self.asked.lock().expect("no panic").push(asked);
        answer
    }
}

pub fn status(status: u16) -> Response {
    StatusCode::from_u16(status).expect("a status").into_response()
}

pub fn with_header(code: u16, name: &'static str, value: String) -> Response {
    let mut answer = status(code);
    answer.headers_mut().insert(name, value.parse().expect("a header"));
    answer
}

/// A document of JSON.
pub fn document(text: impl Into<String>) -> Response {
    ([("content-type", "application/json")], text.into()).into_response()
}
