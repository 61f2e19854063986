//! Signed requests of providers, through the real HTTP edge: those to accept are in the log with the exact
//! bytes, those to reject get 401 and leave no trace. Where the vectors come from stands in each of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde::Deserialize;
use seriatim_ingest::body::InFlight;
use seriatim_ingest::config::IngestConfig;
use seriatim_ingest::log::memory::MemoryLog;
use seriatim_ingest::metrics::IngestMetrics;
use seriatim_ingest::server::serve;
use seriatim_ingest::sources::Sources;
use seriatim_ingest::webhook::Edge;
use seriatim_schemas::declaration::{Declaration, SecretRef, Source};
use seriatim_schemas::selector::Expression;
use seriatim_schemas::verification::{Recipe, Verify};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

#[derive(Deserialize)]
struct File {
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    id: String,
    provider: String,
    recipe: String,
    kind: String,
    request: VectorRequest,
    secret: serde_json::Value,
    now: Option<i64>,
    expected: String,
}

#[derive(Deserialize)]
struct VectorRequest {
    method: String,
    url: Option<String>,
    headers: BTreeMap<String, serde_json::Value>,
    body_base64: String,
}

/// The clock of the edge under test, in unix seconds.
static NOW: AtomicI64 = AtomicI64::new(0);
/// Where a vector does not say what time it is.
const SOME_TIME: i64 = 1_767_225_600;
/// Verified item by item of a batch: not through the edge as one request.
const BY_ITEM: &str = "adyen_item";
/// Its certificate is not to be had, so nobody can say whether it holds.
const UNVERIFIED: &str = "paypal-sdk-1";

fn data(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn vectors() -> Vec<Vector> {
    let file: File = serde_json::from_str(&data("vectors.json")).expect("the file is ours");
    let is_covered = |v: &Vector| v.kind == "webhook" && v.recipe != BY_ITEM && v.id != UNVERIFIED;
    file.vectors.into_iter().filter(is_covered).collect()
}

impl Vector {
    fn secrets(&self) -> Vec<String> {
        match &self.secret {
            serde_json::Value::String(one) => vec![one.clone()],
            other => serde_json::from_value(other.clone()).expect("a list of secrets"),
        }
    }

    fn body(&self) -> Vec<u8> {
        STANDARD.decode(&self.request.body_base64).expect("base64")
    }

    fn url_and_query(&self) -> (Option<String>, &str) {
        let url = self.request.url.as_deref();
        let (base, query) = url.map_or((None, ""), |url| match url.split_once('?') {
            Some((base, query)) => (Some(base.to_owned()), query),
            None => (Some(url.to_owned()), ""),
        });
        (base, query)
    }

    fn source(&self, recipe: &Recipe) -> Source {
        let declaration = Declaration {
            verify: Some(Verify(vec![recipe.clone()])),
            object: Some("const:object".parse().map(Expression::One).expect("a selector")),
            ..Declaration::default()
        };
        Source {
            tenant: "vectors".to_owned(),
            name: self.id.clone(),
            preset: None,
            secrets: self.secrets().into_iter().map(SecretRef::Value).collect(),
            public_url: self.url_and_query().0,
            settings: BTreeMap::new(),
            revision: declaration.revision(),
            declaration,
        }
    }

    async fn send(&self, client: &reqwest::Client, base: &str) -> reqwest::Response {
        NOW.store(self.now.unwrap_or(SOME_TIME), Ordering::SeqCst);
        let method: reqwest::Method = self.request.method.parse().expect("a method");
        let url = format!("{base}/in/vectors/{}?{}", self.id, self.url_and_query().1);
        let mut request = client.request(method, url.trim_end_matches('?')).body(self.body());
        for (name, value) in &self.request.headers {
            request = request.header(name, value.as_str().expect("one value").as_bytes());
        }
        request.send().await.expect("an answer")
    }
}

/// An edge on a port of its own, and its log.
async fn start(sources: Vec<Source>) -> (String, MemoryLog) {
    let log = MemoryLog::default();
    let metrics = IngestMetrics::register(&mut Registry::default());
    let config = IngestConfig::default();
    let edge = Edge {
        sources: Arc::new(Sources::new(sources, [7; 32]).expect("good secrets")),
        log: Arc::new(log.clone()),
        in_flight: InFlight::new(config.in_flight_bytes_max, metrics.in_flight_bytes.clone()),
        clock: || Timestamp::from_second(NOW.load(Ordering::SeqCst)).expect("a time"),
        publishing: TaskTracker::new(),
        config: Arc::new(config),
        metrics,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(serve(edge, listener, std::future::pending()));
    (base, log)
}

#[tokio::test]
async fn signed_requests_of_providers_are_taken_and_forged_ones_refused() {
    let recipes: BTreeMap<String, Recipe> = toml::from_str(&data("recipes.toml")).expect("recipes");
    let wrong =
        recipes.iter().flat_map(|(name, r)| Verify(vec![r.clone()]).problems().into_iter().map(move |p| (name, p)));
    assert_eq!(wrong.collect::<Vec<_>>(), []);
    let vectors = vectors();
    assert!(vectors.len() > 150, "{}", vectors.len());
    let (base, log) = start(vectors.iter().map(|v| v.source(&recipes[&v.recipe])).collect()).await;
    let client = reqwest::Client::new();
    let mut passed: BTreeMap<&str, usize> = BTreeMap::new();
    let mut failed = Vec::new();
    for vector in &vectors {
        let before = log.records().len();
        let status = vector.send(&client, &base).await.status().as_u16();
        let added: Vec<_> = log.records().split_off(before);
        let is_right = match vector.expected.as_str() {
            "accept" => status == 200 && added.len() == 1 && added[0].value == vector.body(),
            _ => status == 401 && added.is_empty(),
        };
        match is_right {
            true => *passed.entry(&vector.provider).or_default() += 1,
            false => failed.push(format!("{} ({}): {} wanted, {status}", vector.id, vector.recipe, vector.expected)),
        }
    }
    println!("passed, by provider: {passed:?}");
    assert!(failed.is_empty(), "{failed:#?}");
}
