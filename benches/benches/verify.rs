//! Verification and identification of one event, beside HMAC alone and beside a full parse of the body, in the same
//! run: ratios hold, absolute figures drift.

use axum::http::{HeaderMap, HeaderValue, Method};
use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hmac::{Hmac, Mac};
use jiff::Timestamp;
use seriatim_ingest::records::{Content, content};
use seriatim_ingest::sources::{LiveSource, Sources};
use seriatim_ingest::webhook::Received;
use seriatim_schemas::id::Sha256Digest;
use seriatim_schemas::source::SourceConfig;
use sha2::Sha256;
use std::hint::black_box;
use std::sync::Arc;

const SECRET: &str = "whsec_bench";
const AT: i64 = 1_767_225_600;

/// A Stripe event of about `bytes`, as its provider writes it.
fn event(bytes: usize) -> Vec<u8> {
    let head = r#"{"id":"evt_1","object":"event","api_version":"2026-01-28","created":1767225600,"type":"customer.subscription.updated","livemode":false,"pending_webhooks":1,"data":{"object":{"id":"sub_1","object":"subscription","status":"active","items":["#;
    let item = r#"{"id":"si_1","object":"subscription_item","quantity":1,"price":{"id":"price_1","currency":"eur","unit_amount":1200},"metadata":{"note":"some text of a customer"}}"#;
    let tail = r#"]}}}"#;
    let mut body = head.to_owned();
    body.push_str(item);
    while body.len() + item.len() + tail.len() < bytes {
        body.push(',');
        body.push_str(item);
    }
    body.push_str(tail);
    body.into_bytes()
}

fn mac(signed: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).expect("a key");
    signed.iter().for_each(|piece| mac.update(piece));
    mac.finalize().into_bytes().to_vec()
}

fn source() -> Arc<LiveSource> {
    let config = SourceConfig {
        tenant: "acme".to_owned(),
        name: "billing".to_owned(),
        preset: Some("stripe".to_owned()),
        secrets: vec![seriatim_schemas::source::SecretRef::Value(SECRET.to_owned())],
        public_url: None,
        settings: Default::default(),
        sinks: None,
        fetch: None,
        declare: Default::default(),
    };
    let sources = Sources::new(vec![config.resolve().expect("a source")], [0; 32]).expect("a secret");
    sources.get("acme", "billing").expect("declared")
}

fn received(body: &[u8]) -> Received {
    let at = AT.to_string();
    let signature = format!("t={at},v1={}", hex::encode(mac(&[at.as_bytes(), b".", body])));
    let mut headers = HeaderMap::new();
    headers.insert("stripe-signature", HeaderValue::from_str(&signature).expect("text"));
    headers.insert("content-type", HeaderValue::from_static("application/json; charset=utf-8"));
    Received {
        tenant: "acme".to_owned(),
        name: "billing".to_owned(),
        method: Method::POST,
        target: "/in/acme/billing".to_owned(),
        query: String::new(),
        headers,
        body: Bytes::copy_from_slice(body),
        at: Timestamp::from_second(AT).expect("a time"),
    }
}

/// What the edge does with a request between its last byte and the record.
fn verify_and_identify(source: &LiveSource, received: &Received, digest: &Sha256Digest) {
    let view = received.view(&source.verifier);
    let verified = source.verifier.verify(&view, received.at).expect("a good signature");
    let Ok(Content::One(document)) = content(source, received) else { panic!("one event") };
    let derived = source.identifier.derive(&view, document.as_deref(), digest).expect("an event");
    black_box((verified, derived));
}

fn verify(c: &mut Criterion) {
    let source = source();
    for bytes in [1024, 4096] {
        let body = event(bytes);
        let request = received(&body);
        let mut group = c.benchmark_group(format!("{bytes} bytes"));
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function("HMAC alone", |b| b.iter(|| mac(&[b"1767225600", b".", black_box(&body)])));
        group.bench_function("HMAC and a full parse", |b| {
            b.iter(|| {
                let parsed: serde_json::Value = serde_json::from_slice(black_box(&body)).expect("JSON");
                (mac(&[b"1767225600", b".", &body]), parsed)
            })
        });
        let digest = Sha256Digest::of(&body);
        group.bench_function("verify and identify", |b| {
            b.iter(|| verify_and_identify(&source, black_box(&request), &digest))
        });
        group.bench_function("verify and identify, and the digest of the record", |b| {
            b.iter(|| verify_and_identify(&source, black_box(&request), &Sha256Digest::of(&request.body)))
        });
        group.finish();
    }
}

criterion_group!(benches, verify);
criterion_main!(benches);
