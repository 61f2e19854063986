//! Effects pushed over HTTP, beside a plain client loop that sends the same bodies with the same signature: in the
//! same run, turn by turn, to a receiver in a process of its own. Ratios hold, absolute figures drift.
//!
//! `cargo bench --bench emit -- [EFFECTS] [OBJECTS]`

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::routing::post;
use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use bytes::Bytes;
use hmac::{Hmac, Mac};
use seriatim_processor::config::ProcessorConfig;
use seriatim_processor::log::memory::MemoryLog;
use seriatim_processor::metrics::ProcessorMetrics;
use seriatim_processor::run::Processor;
use seriatim_processor::sink::push::{Push, PushConfig};
use seriatim_processor::sink::{NamedSink, SinkPolicy};
use seriatim_processor::store::memory::MemoryStore;
use seriatim_schemas::id::{IdFrom, RecordId, Sha256Digest};
use seriatim_schemas::key::{ObjectKey, RecordKey};
use seriatim_schemas::record::{Record, RecordKind};
use seriatim_schemas::source::SourceConfig;
use sha2::Sha256;
use tokio_util::sync::CancellationToken;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const RECEIVER: &str = "SERIATIM_BENCH_RECEIVER";
const CONCURRENCY: usize = 64;
const TURNS: usize = 3;
const BODY_BYTES: usize = 1024;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    if std::env::var_os(RECEIVER).is_some() {
        return runtime.block_on(receive());
    }
    let numbers: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let (effects, objects) = (numbers.first().copied().unwrap_or(20_000), numbers.get(1).copied().unwrap_or(1000));
    let (mut receiver, url) = start_receiver();
    let records = records(effects, objects);
    println!("{effects} effects of {BODY_BYTES} bytes over {objects} objects, {CONCURRENCY} at once");
    let mut ratios = Vec::new();
    for _ in 0..TURNS {
        let plain = measured(effects, || runtime.block_on(plain(&url, &records, objects)));
        let ours = measured(effects, || runtime.block_on(ours(&url, records.clone())));
        println!(
            "plain {:>7.0}/s {:>5.1} us   seriatim {:>7.0}/s {:>5.1} us of CPU an effect",
            plain.0, plain.1, ours.0, ours.1
        );
        ratios.push((ours.0 / plain.0, ours.1 / plain.1));
    }
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (rate, cpu) = ratios[TURNS / 2];
    println!("median: {rate:.2} of the plain loop's rate, {cpu:.2} of its CPU");
    let _ = receiver.kill();
    let _ = receiver.wait();
}

/// Effects a second, and microseconds of this process's CPU each.
fn measured(effects: usize, run: impl FnOnce()) -> (f64, f64) {
    let (cpu, begin) = (cpu_us(), Instant::now());
    run();
    (effects as f64 / begin.elapsed().as_secs_f64(), (cpu_us() - cpu) / effects as f64)
}

fn cpu_us() -> f64 {
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let us = |t: libc::timeval| t.tv_sec as f64 * 1e6 + t.tv_usec as f64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

async fn receive() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("{}", listener.local_addr().expect("an address").port());
    let answer = |_: Bytes| async { "" };
    axum::serve(listener, axum::Router::new().route("/", post(answer))).await.expect("it serves");
}

fn start_receiver() -> (Child, String) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let mut child = command.env(RECEIVER, "1").stdout(Stdio::piped()).spawn().expect("a receiver starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("its port");
    (child, format!("http://127.0.0.1:{}/", line.trim()))
}

fn records(effects: usize, objects: usize) -> Arc<Vec<Record>> {
    let record = |number: usize| {
        let head = format!(r#"{{"id":"e{number}","pad":""#);
        let value = Bytes::from(format!("{head}{}\"}}", "x".repeat(BODY_BYTES - head.len() - 2)));
        Record {
            kind: RecordKind::Event,
            id: RecordId { request: uuid::Uuid::from_u128(number as u128 + 1), item: 0 },
            key: RecordKey::Object(ObjectKey::new("bench", "source", format!("object-{}", number % objects))),
            declaration: String::new(),
            event_id: format!("e{number}"),
            id_from: IdFrom::Body,
            event_type: "thing.updated".to_owned(),
            version: None,
            time: None,
            recorded: jiff::Timestamp::UNIX_EPOCH,
            digest: Sha256Digest::of(&value),
            id_digest: None,
            secret: String::new(),
            method: "POST".to_owned(),
            target: "/in/bench/source".to_owned(),
            problem: None,
            content_type: Some("application/json".to_owned()),
            traceparent: None,
            range: None,
            context: None,
            http: Vec::new(),
            value,
        }
    };
    Arc::new((0..effects).map(record).collect())
}

/// As people write it: so many tasks, each with its share of the objects, one request after the other.
async fn plain(url: &str, records: &Arc<Vec<Record>>, objects: usize) {
    let client = reqwest::Client::builder().tcp_nodelay(true).no_proxy().build().expect("a client");
    let key = STANDARD.decode(SECRET.trim_start_matches("whsec_")).expect("base64");
    let tasks = (0..CONCURRENCY).map(|task| {
        let (client, key, url, records) = (client.clone(), key.clone(), url.to_owned(), records.clone());
        tokio::spawn(async move {
            for record in records.iter().enumerate().filter(|(n, _)| n % objects % CONCURRENCY == task).map(|(_, r)| r) {
                let (id, at) = (format!("msg_{}", record.event_id), jiff::Timestamp::now().as_second());
                let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("a key");
                mac.update(format!("{id}.{at}.").as_bytes());
                mac.update(&record.value);
                let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
                let request = client
                    .post(&url)
                    .header("content-type", "application/json")
                    .header("idempotency-key", &record.event_id)
                    .header("webhook-id", id)
                    .header("webhook-timestamp", at.to_string())
                    .header("webhook-signature", signature)
                    .body(record.value.to_vec());
                let answer = request.send().await.expect("an answer");
                assert!(answer.status().is_success());
                let _ = answer.bytes().await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("it ends well");
    }
}

/// The whole processor, from the log on, on a log and a store in memory: decide, commit, emit, record, advance.
async fn ours(url: &str, records: Arc<Vec<Record>>) {
    let source: SourceConfig = toml::from_str(
        "tenant = 'bench'\nname = 'source'\npreset = 'hmac'\nsecrets = [{ value = 's' }]\ndeclare = { object = 'body:/id', mode = 'delta' }",
    )
    .expect("a source");
    let push: PushConfig =
        toml::from_str(&format!("url = '{url}'\nallow_networks = ['127.0.0.1']")).expect("a sink");
    let push = Push::new(&push, &[SECRET.to_owned()], &[]).expect("a sink");
    let policy = SinkPolicy { concurrency: CONCURRENCY, ..SinkPolicy::default() };
    let (count, metrics) = (records.len(), ProcessorMetrics::default());
    let read = move |from: usize, max: usize| records.iter().skip(from).take(max).cloned().collect();
    let processor = Processor {
        config: ProcessorConfig::default(),
        log: Arc::new(MemoryLog::new(4, read)),
        store: Arc::new(MemoryStore::new(64)),
        sources: vec![source.resolve().expect("whole")],
        sinks: vec![NamedSink::new("push", policy, Arc::new(push))],
        metrics: metrics.clone(),
        fetches: Vec::new(),
        reducer: None,
    };
    let stop = CancellationToken::new();
    let running = tokio::spawn(processor.run(stop.clone()));
    while metrics.sent_to("push") < count as u64 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    stop.cancel();
    running.await.expect("it does not panic").expect("it ends well");
}
