//! What the tests of this crate share, each its own part: an edge on a port of its own, with a log in memory and a clock that tests set.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use reqwest::Url;
use seriatim_ingest::body::InFlight;
use seriatim_ingest::config::IngestConfig;
use seriatim_ingest::fetch::{FetchError, Fetcher, Get};
use seriatim_ingest::log::memory::MemoryLog;
use seriatim_ingest::metrics::IngestMetrics;
use seriatim_ingest::server::serve;
use seriatim_ingest::sources::Sources;
use seriatim_ingest::webhook::Edge;
use seriatim_schemas::declaration::Declaration;
use seriatim_schemas::preset::Preset;
use seriatim_schemas::source::{SecretRef, Source, SourceConfig};
use seriatim_schemas::verification::{Algorithm, KeyStep, Recipe};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

/// The clock of the edge under test, in unix seconds.
pub static NOW: AtomicI64 = AtomicI64::new(1_767_225_600);

/// Stands in for the hosts of providers: documents by URL.
#[derive(Default)]
pub struct Documents(pub BTreeMap<String, Vec<u8>>);

#[async_trait]
impl Get for Documents {
    async fn get(&self, url: &Url) -> Result<Vec<u8>, FetchError> {
        let missing = || FetchError::Failed { url: url.to_string(), reason: "status 404".to_owned() };
        self.0.get(url.as_str()).cloned().ok_or_else(missing)
    }
}

pub struct Running {
    pub base: String,
    pub log: MemoryLog,
    pub client: reqwest::Client,
}

pub async fn start(sources: Vec<Source>, documents: Documents) -> Running {
    start_with(sources, documents, IngestConfig::default()).await
}

pub async fn start_with(sources: Vec<Source>, documents: Documents, config: IngestConfig) -> Running {
    let log = MemoryLog::default();
    let metrics = IngestMetrics::register(&mut Registry::default());
    let edge = Edge {
        sources: Arc::new(Sources::new(sources, [7; 32]).expect("good secrets")),
        log: Arc::new(log.clone()),
        fetcher: Fetcher::new(Arc::new(documents)),
        refused: Default::default(),
        filter: None,
        in_flight: InFlight::new(config.in_flight_bytes_max, metrics.in_flight_bytes.clone()),
        clock: || Timestamp::from_second(NOW.load(Ordering::SeqCst)).expect("a time"),
        publishing: TaskTracker::new(),
        config: Arc::new(config),
        metrics,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(serve(edge, listener, std::future::pending()));
    Running { base, log, client: reqwest::Client::new() }
}

/// A source of a preset; settings that it needs and that are not given are "x".
pub fn source(preset: &str, name: &str, secrets: Vec<SecretRef>, settings: &[(&str, &str)]) -> Source {
    let declaration = Preset::named(preset).unwrap_or_else(|| panic!("no preset {preset}")).declare;
    let mut all: BTreeMap<String, String> =
        declaration.setting_names().into_iter().map(|n| (n.to_owned(), "x".to_owned())).collect();
    all.extend(settings.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())));
    let config = SourceConfig {
        tenant: "t".to_owned(),
        name: name.to_owned(),
        preset: Some(preset.to_owned()),
        secrets,
        public_url: Some("https://hooks.example.com/in".to_owned()),
        settings: all,
        sinks: None,
        fetch: declaration.fetch.is_some().then(Default::default),
        declare: Declaration {
            object: (declaration.object.is_none() && declaration.events.is_none())
                .then(|| serde_json::from_value("const:object".into()).expect("an expression")),
            ..Declaration::default()
        },
    };
    config.resolve().unwrap_or_else(|problems| panic!("{preset}: {problems:#?}"))
}

/// A text that is a key for the recipe.
pub fn any_secret(recipe: &Recipe) -> String {
    const P256: &str = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEYIMe63uS6yod/YAuWK+3i2aPZbqRPEFdAOqFXrCUpV0S3GQcxxGCxcrv0aoeDsvWxfVyBeU1d0N36Q009Ms55w==";
    const ED25519: &str = "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";
    const RSA: &str = "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAu1SU1LfVLPHCozMxH2Mo4lgOEePzNm0tRgeLezV6ffAt0gunVTLw7onLRnrq0/IzW7yWR7QkrmBL7jTKEn5u+qKhbwKfBstIs+bMY2Zkp18gnTxKLxoS2tFczGkPLPgizskuemMghRniWaoLcyehkd3qqGElvW/VDL5AaWTg0nLVkjRo9z+40RQzuVaE8AkAFmxZzow3x+VJYKdjykkJ0iT9wCS0DRTXu269V264Vf/3jvredZiKRkgwlL9xNAwxXFg0x/XFw005UWVRIkdgcKWTjpBP2dPwVZ4WWC+9aGVd+Gyn1o0CLelf4rEjGoXbAAEgAqeGUxrcIlbjXfbcmwIDAQAB";
    let prefix = match recipe.key.first() {
        Some(KeyStep::Strip(prefix)) => prefix,
        _ => "",
    };
    let der = match recipe.algorithm {
        Algorithm::EcdsaP256Sha1 | Algorithm::EcdsaP256Sha256 => P256,
        Algorithm::Ed25519 => ED25519,
        Algorithm::RsaSha1 | Algorithm::RsaSha256 => RSA,
        // 32 hex digits are base64 as well.
        _ => return format!("{prefix}0123456789abcdef0123456789abcdef"),
    };
    if recipe.key == [KeyStep::Base64] {
        return der.to_owned();
    }
    let raw = STANDARD.decode(der).expect("base64");
    match recipe.key.first() {
        Some(KeyStep::Hex) => hex::encode(&raw[raw.len() - 32..]),
        Some(KeyStep::Strip(_)) | Some(KeyStep::Base64) => {
            format!("{prefix}{}", STANDARD.encode(&raw[raw.len() - 32..]))
        }
        _ => format!("-----BEGIN PUBLIC KEY-----\n{der}\n-----END PUBLIC KEY-----\n"),
    }
}
