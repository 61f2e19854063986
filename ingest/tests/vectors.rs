//! Signed requests of providers, by their presets, through the real HTTP edge: those to accept are in the log with
//! the exact bytes, those to reject get 401 and leave no trace; handshakes are answered as their vectors say.
//! Where the vectors come from stands in each of them.

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use serde_json::Value;
use seriatim_schemas::declaration::Declaration;
use seriatim_schemas::record::{Record, RecordKind};
use seriatim_schemas::source::{SecretRef, Source, SourceConfig};
use sha2::Sha256;

use support::{Documents, NOW, Running, source, start};

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
    secret: Value,
    now: Option<i64>,
    expected: String,
    /// Which item of a batch is meant.
    item_pointer: Option<String>,
    expected_response: Option<ExpectedResponse>,
}

#[derive(Deserialize)]
struct VectorRequest {
    method: String,
    url: Option<String>,
    headers: BTreeMap<String, Value>,
    body_base64: String,
}

#[derive(Deserialize)]
struct ExpectedResponse {
    status: u16,
    body: Option<String>,
    json: Option<Value>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

/// Where a vector does not say what time it is.
const SOME_TIME: i64 = 1_767_225_600;
/// Its certificate is not to be had, so nobody can say whether it holds.
const UNVERIFIED: &str = "paypal-sdk-1";
/// What the vectors' senders were told beside their secrets, by vector or provider.
const SETTINGS: [(&str, &str, &str); 3] = [
    ("paypal-own-1", "webhook_id", "1JE4291016473214C"),
    ("pusher", "app_key", "278d425bdf160c739803"),
    ("aws_sns", "topic_arn", "arn:aws:sns:us-west-2:123456789012:MyTopic"),
];

fn vectors() -> Vec<Vector> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/vectors.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file: File = serde_json::from_str(&text).expect("the file is ours");
    file.vectors.into_iter().filter(|v| v.id != UNVERIFIED).collect()
}

impl Vector {
    fn secrets(&self) -> Vec<String> {
        match &self.secret {
            // The provider's library takes it as it is; beside public keys its kind must be named.
            Value::String(one) if self.id == "stdwh-secret-without-prefix" => vec![format!("whsec_{one}")],
            Value::String(one) => vec![one.clone()],
            other => serde_json::from_value(other.clone()).expect("a list of secrets"),
        }
    }

    fn body(&self) -> Vec<u8> {
        STANDARD.decode(&self.request.body_base64).expect("base64")
    }

    fn url_and_query(&self) -> (Option<String>, &str) {
        let url = self.request.url.as_deref();
        url.map_or((None, ""), |url| match url.split_once('?') {
            Some((base, query)) => (Some(base.to_owned()), query),
            None => (Some(url.to_owned()), ""),
        })
    }

    fn source(&self, folder: &std::path::Path) -> Source {
        let secrets = self.secrets().into_iter().map(SecretRef::Value).collect();
        let of_this = SETTINGS.iter().filter(|(of, ..)| *of == self.id || *of == self.provider);
        let mut settings: Vec<_> = of_this.map(|(_, name, value)| (*name, *value)).collect();
        let mut source = match (self.provider.as_str(), self.kind.as_str()) {
            ("generic", _) => generic(&self.id, &self.recipe, secrets),
            ("asana", "challenge") => {
                let file = folder.join("asana").display().to_string();
                source("asana", &self.id, vec![SecretRef::Handshake(file)], &[])
            }
            ("ebay", "challenge") => {
                let token = self.secrets().remove(0);
                settings.push(("verification_token", &token));
                // What signs events plays no part in it.
                let key = vectors().into_iter().find(|v| v.id == "ebay-valid").expect("a vector").secrets().remove(0);
                source("ebay", &self.id, vec![SecretRef::Value(key)], &settings)
            }
            (provider, _) => source(provider, &self.id, secrets, &settings),
        };
        if let (Some(url), _) = self.url_and_query() {
            source.public_url = Some(url);
        }
        source
    }

    /// Headers that the vector leaves out and its notes demand: "must be verified first", "signed like any other".
    fn own_signature(&self) -> Vec<(&'static str, String)> {
        let sign = |prefix: &str| {
            let mut mac = Hmac::<Sha256>::new_from_slice(self.secrets()[0].as_bytes()).expect("a key");
            mac.update(prefix.as_bytes());
            mac.update(&self.body());
            hex::encode(mac.finalize().into_bytes())
        };
        let at = SOME_TIME.to_string();
        match self.id.as_str() {
            "slack-challenge" => vec![
                ("X-Slack-Signature", format!("v0={}", sign(&format!("v0:{at}:")))),
                ("X-Slack-Request-Timestamp", at),
            ],
            "twitch-challenge" => {
                let at = "2026-01-01T00:00:00.123456789Z".to_owned();
                vec![
                    ("Twitch-Eventsub-Message-Signature", format!("sha256={}", sign(&format!("m1{at}")))),
                    ("Twitch-Eventsub-Message-Id", "m1".to_owned()),
                    ("Twitch-Eventsub-Message-Timestamp", at),
                ]
            }
            _ => Vec::new(),
        }
    }

    async fn send(&self, edge: &Running, more: &[(&'static str, String)]) -> reqwest::Response {
        NOW.store(self.now.unwrap_or(SOME_TIME), Ordering::SeqCst);
        let method: reqwest::Method = self.request.method.parse().expect("a method");
        let url = format!("{}/in/t/{}?{}", edge.base, self.id, self.url_and_query().1);
        let mut request = edge.client.request(method, url.trim_end_matches('?')).body(self.body());
        for (name, value) in &self.request.headers {
            request = request.header(name, value.as_str().expect("one value").as_bytes());
        }
        for (name, value) in more {
            request = request.header(*name, value);
        }
        request.send().await.expect("an answer")
    }

    /// Whether `record` holds what this vector is about: the request, or one item of it.
    fn is_in(&self, record: &Record) -> bool {
        match &self.item_pointer {
            None => record.value == self.body(),
            Some(pointer) => {
                let whole: Value = serde_json::from_slice(&self.body()).expect("JSON");
                let item = whole.pointer(pointer).expect("the item");
                record.kind == RecordKind::Event
                    && serde_json::from_slice::<Value>(&record.value).ok().as_ref() == Some(item)
            }
        }
    }

    /// The sender's check of the edge's answer, and ours of the log.
    async fn run(&self, edge: &Running) -> Result<(), String> {
        let before = edge.log.records().len();
        if let Some(expected) = &self.expected_response {
            let own = self.own_signature();
            if !own.is_empty() && self.send(edge, &[]).await.status() != 401 {
                return Err("unsigned, and not refused".to_owned());
            }
            let answer = self.send(edge, &own).await;
            let answered = expected.check(answer).await;
            return if edge.log.records().len() == before { answered } else { Err("published".to_owned()) };
        }
        let status = self.send(edge, &[]).await.status();
        let added = edge.log.records().split_off(before);
        let is_there = added.iter().any(|record| self.is_in(record));
        let is_right = match self.expected.as_str() {
            "accept" => status.is_success() && is_there,
            _ => status == 401 && !is_there,
        };
        if is_right { Ok(()) } else { Err(format!("{} wanted, {status}, {} records", self.expected, added.len())) }
    }
}

impl ExpectedResponse {
    async fn check(&self, answer: reqwest::Response) -> Result<(), String> {
        let (status, headers) = (answer.status(), answer.headers().clone());
        let body = answer.text().await.expect("a body");
        for (name, wanted) in &self.headers {
            if headers.get(name).and_then(|v| v.to_str().ok()) != Some(wanted) {
                return Err(format!("header {name}: {:?}", headers.get(name)));
            }
        }
        let is_body = self.body.as_ref().is_none_or(|wanted| *wanted == body);
        let is_json = self.json.as_ref().is_none_or(|w| serde_json::from_str::<Value>(&body).ok().as_ref() == Some(w));
        if status == self.status && is_body && is_json { Ok(()) } else { Err(format!("{status} {body:?}")) }
    }
}

/// A scheme that belongs to no provider: whoever uses it declares it.
fn generic(name: &str, recipe: &str, secrets: Vec<SecretRef>) -> Source {
    let encoding = if recipe.ends_with("b64") { "base64" } else { "hex" };
    let declare = format!(
        "object = 'const:object'\n[verify]\nalgorithm = 'hmac-sha512'\nsignature = 'header:X-Convoy-Signature'\n\
        encoding = '{encoding}'\nsigned = '{{body}}'\n"
    );
    let config = SourceConfig {
        tenant: "t".to_owned(),
        name: name.to_owned(),
        preset: None,
        secrets,
        public_url: None,
        settings: BTreeMap::new(),
        sinks: None,
        fetch: None,
        declare: toml::from_str::<Declaration>(&declare).expect("a declaration"),
    };
    config.resolve().expect("a source")
}

#[tokio::test]
async fn vectors_hold_through_the_edge() {
    let vectors = vectors();
    assert!(vectors.len() > 170, "{}", vectors.len());
    let folder = tempfile::tempdir().expect("a folder");
    let sources = vectors.iter().map(|v| v.source(folder.path())).collect();
    let edge = start(sources, Documents::default()).await;
    let mut passed: BTreeMap<&str, usize> = BTreeMap::new();
    let mut failed = Vec::new();
    for vector in &vectors {
        match vector.run(&edge).await {
            Ok(()) => *passed.entry(&vector.provider).or_default() += 1,
            Err(error) => failed.push(format!("{} ({}): {error}", vector.id, vector.recipe)),
        }
    }
    println!("passed {}, by provider: {passed:?}", passed.values().sum::<usize>());
    assert!(failed.is_empty(), "{failed:#?}");
}
