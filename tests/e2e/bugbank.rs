//! Failures that people who run webhook receivers have reported in public, each as a test from outside.
//! A test covers the kind of a failure, not only the case that was reported.

mod batches;
mod bytes;
mod compression;
mod delivery;
mod duplicates;
mod effects;
mod identity;
mod order;
mod outage;
mod payload;
mod verification;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;

use crate::support::{PATIENCE, SECRET, System, block_on, sign, wait_until};

/// A request to be sent.
#[derive(Debug, Clone)]
struct Delivery {
    url: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// What a sender is told.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    status: u16,
    retry_after: Option<String>,
    /// Names and values of all headers but the date.
    headers: Vec<String>,
    body: String,
}

/// A source with preset `hmac`; names may hold any printable character.
fn hmac_source(tenant: &str, name: &str, declare: &str) -> String {
    let quoted = |text: &str| serde_json::to_string(text).expect("text");
    let (tenant, name) = (quoted(tenant), quoted(name));
    format!(
        "[[source]]\ntenant = {tenant}\nname = {name}\npreset = \"hmac\"\nsecrets = [{{ value = \"{SECRET}\" }}]\n{declare}\n"
    )
}

/// Object and version, as most of these tests declare them.
const BY_VERSION: &str = "declare = { object = 'body:/o', version = { from = 'body:/v', kind = 'integer' } }";

/// The same, with creations below and deletions above other types of the same version.
const WITH_TOMBSTONES: &str = "declare = { object = 'body:/o', version = { from = 'body:/v', kind = 'integer' }, \
    rank = ['*.created', '*', '*.deleted'], tombstones = ['*.deleted'] }";

/// A delivery to a source with preset `hmac`, signed with [`SECRET`].
fn signed(system: &System, tenant: &str, source: &str, body: impl Into<Vec<u8>>) -> Delivery {
    let body = body.into();
    let headers = vec![("x-signature".to_owned(), sign(SECRET, &body))];
    Delivery { url: system.url(tenant, source), headers, body }
}

/// Sends one request.
fn deliver(delivery: &Delivery) -> Answer {
    deliver_all(vec![delivery.clone()], 1).remove(0)
}

/// Sends all, up to `at_once` at a time; the answers are in the order of the deliveries.
fn deliver_all(deliveries: Vec<Delivery>, at_once: usize) -> Vec<Answer> {
    let lanes = deliver_lanes(deliveries.into_iter().map(|one| vec![one]).collect(), at_once);
    lanes.into_iter().flatten().collect()
}

/// Sends each lane in its order, one request after the answer to the other, and up to `at_once` lanes at a time.
fn deliver_lanes(lanes: Vec<Vec<Delivery>>, at_once: usize) -> Vec<Vec<Answer>> {
    block_on(async {
        let client = reqwest::Client::new();
        let lane = |deliveries: Vec<Delivery>| {
            let client = client.clone();
            async move {
                let mut answers = Vec::with_capacity(deliveries.len());
                for delivery in deliveries {
                    answers.push(deliver_one(&client, delivery).await);
                }
                answers
            }
        };
        futures::stream::iter(lanes).map(lane).buffered(at_once).collect().await
    })
}

async fn deliver_one(client: &reqwest::Client, delivery: Delivery) -> Answer {
    let mut request = client.post(&delivery.url).body(delivery.body).timeout(PATIENCE);
    for (name, value) in &delivery.headers {
        request = request.header(name, value);
    }
    let answer = request.send().await.unwrap_or_else(|e| panic!("{}: no answer: {e}", delivery.url));
    let text = |value: &reqwest::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let named = answer.headers().iter().filter(|(name, _)| *name != "date");
    let headers = named.map(|(name, value)| format!("{name}: {}", text(value))).collect();
    let retry_after = answer.headers().get("retry-after").map(text);
    Answer { status: answer.status().as_u16(), retry_after, headers, body: answer.text().await.expect("a body") }
}

fn statuses(answers: &[Answer]) -> Vec<u16> {
    answers.iter().map(|a| a.status).collect()
}

/// The head of a request as it goes over the wire; `length` may be a lie.
fn raw_head(delivery: &Delivery, length: &str) -> Vec<u8> {
    let path = delivery.url.splitn(4, '/').nth(3).expect("a path");
    let headers: String = delivery.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("POST /{path} HTTP/1.1\r\nhost: localhost\r\n{headers}{length}\r\n\r\n").into_bytes()
}

fn content_length(bytes: usize) -> String {
    format!("content-length: {bytes}")
}

fn connect(system: &System) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", system.edge)).expect("the edge listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_nodelay(true).expect("no delay");
    stream
}

/// Status of the answer that comes over a connection; none where the peer closes without one.
fn read_status(stream: &mut TcpStream) -> Option<u16> {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => line.push(byte[0]),
            _ => return None,
        }
    }
    String::from_utf8(line).ok()?.split(' ').nth(1)?.parse().ok()
}

fn write_raw(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).expect("written");
}

/// Waits until something listens at the port of the last edge.
fn wait_for_edge(system: &System) {
    wait_until("listening", || {
        TcpStream::connect_timeout(&([127, 0, 0, 1], system.edge).into(), Duration::from_secs(1)).is_ok()
    });
}

fn get_object(system: &System, tenant: &str, source: &str, object: &str) -> Value {
    system.json(&["object", "get", tenant, source, object])
}

fn dead_letters(system: &System) -> Vec<Value> {
    system.json(&["dead", "list"]).as_array().expect("a list").clone()
}

/// Text of a field.
fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_else(|| panic!("no text {field} in {value}"))
}

/// No effect twice: each idempotency key comes once. Returns their number.
fn assert_no_effect_twice(effects: &[Value]) -> usize {
    let mut keys = std::collections::HashSet::new();
    for effect in effects {
        assert!(keys.insert(text(effect, "idempotency_key")), "applied twice: {effect}");
    }
    keys.len()
}
