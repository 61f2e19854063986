//! The front filter: repeats reach the log without their bodies, the ledger stays whole, and when Redis is away every
//! event goes through as if there were no filter.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Engine, Role, System, free_port, send_hmac, source, wait_until};

const DECLARE: &str = "declare = { object = 'body:/o', version = { from = 'body:/v', kind = 'integer' } }";
const SECRET: &str = crate::support::SECRET;

/// A Redis of its own.
struct Redis {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Redis {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"])
            .arg(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server runs: Debian's package redis-server has it");
        wait_until("Redis listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { child, port, _folder: folder }
    }

    fn setting(&self) -> String {
        format!("[ingest.filter]\nredis = \"redis://127.0.0.1:{}/0\"\n", self.port)
    }

    /// SIGSTOP: it takes connections, and answers nothing.
    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn body(event: &str, object: &str) -> Vec<u8> {
    format!("{{\"id\":\"{event}\",\"o\":\"{object}\",\"v\":1}}").into_bytes()
}

/// Records in the log: kinds, and bytes of their values.
fn log(system: &System) -> Vec<(String, u64)> {
    let output = system.cli(&["tail", "--from-start", "--no-follow", "--output", "json"]);
    let lines = String::from_utf8(output.stdout).expect("text");
    let read = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        (line["kind"].as_str().expect("a kind").to_owned(), line["bytes"].as_u64().expect("a number"))
    };
    lines.lines().map(read).collect()
}

fn outcomes(system: &System, event: &str) -> Vec<String> {
    let all = system.json(&["event", "trace", "acme", "hmac", event]);
    all.as_array().expect("a list").iter().map(|a| a["outcome"].as_str().expect("text").to_owned()).collect()
}

fn repeats_lose_their_bodies(mut system: System) {
    system.start(Role::All);
    for _ in 0..5 {
        assert_eq!(send_hmac(&system, "acme", "hmac", &body("e1", "a")), 200);
    }
    // The same id with another body, and about another object, is not the same.
    assert_eq!(send_hmac(&system, "acme", "hmac", &body("e1", "b")), 200);
    system.wait_processed();
    let log = log(&system);
    let count = |kind: &str| log.iter().filter(|(k, _)| k == kind).count();
    assert_eq!((count("event"), count("repeat")), (2, 4), "{log:?}");
    assert!(log.iter().all(|(kind, bytes)| (*bytes == 0) == (kind == "repeat")), "{log:?}");
    assert_eq!(outcomes(&system, "e1").len(), 6);
    assert_eq!(outcomes(&system, "e1").iter().filter(|o| *o == "duplicate").count(), 4);
    assert_eq!(system.effects().len(), 2);
    assert_eq!(system.metric("seriatim_ingest_filtered_total"), 4.0);
}

#[test]
fn repeats_lose_their_bodies_in_process() {
    let hmac = source("hmac", SECRET, DECLARE);
    repeats_lose_their_bodies(System::with_settings(Engine::Embedded, &hmac, "[ingest.filter]\nwindow_s = 600\n"));
}

#[test]
fn repeats_lose_their_bodies_in_redis() {
    let redis = Redis::start();
    let hmac = source("hmac", SECRET, DECLARE);
    repeats_lose_their_bodies(System::with_settings(Engine::Embedded, &hmac, &redis.setting()));
}

/// What another edge took is known to this one.
#[test]
fn edges_share_what_they_saw() {
    let redis = Redis::start();
    let hmac = source("hmac", SECRET, DECLARE);
    let mut system = System::with_settings(Engine::Distributed, &hmac, &redis.setting());
    system.start(Role::Processor);
    system.start(Role::Ingest);
    assert_eq!(send_hmac(&system, "acme", "hmac", &body("e1", "a")), 200);
    system.start(Role::Ingest);
    assert_eq!(send_hmac(&system, "acme", "hmac", &body("e1", "a")), 200);
    system.wait_processed();
    let mut kinds: Vec<_> = log(&system).into_iter().map(|(kind, _)| kind).collect();
    kinds.sort();
    assert_eq!(kinds, ["event", "repeat"]);
    assert_eq!(outcomes(&system, "e1"), ["applied", "duplicate"]);
}

#[test]
fn with_redis_away_everything_goes_through_and_soon() {
    let redis = Redis::start();
    let hmac = source("hmac", SECRET, DECLARE);
    let mut system = System::with_settings(Engine::Embedded, &hmac, &redis.setting());
    system.start(Role::All);
    assert_eq!(send_hmac(&system, "acme", "hmac", &body("e1", "a")), 200);
    redis.signal("-STOP");
    let longest = slowest(&system, "stopped");
    redis.signal("-CONT");
    wait_until("filtered again", || {
        assert_eq!(send_hmac(&system, "acme", "hmac", &body("e1", "a")), 200);
        system.metric("seriatim_ingest_filtered_total") > 0.0
    });
    drop(redis);
    let longest = longest.max(slowest(&system, "gone"));
    println!("slowest answer without Redis: {longest:?}");
    assert!(longest < Duration::from_secs(2), "{longest:?}");
    system.wait_processed();
    for name in ["stopped", "gone"] {
        for n in 0..40 {
            assert_eq!(outcomes(&system, &format!("{name}-{n}")), ["applied", "duplicate"], "{name}-{n}");
        }
    }
}

fn slowest(system: &System, name: &str) -> Duration {
    let send = |n: usize| {
        let started = Instant::now();
        let event = format!("{name}-{}", n / 2);
        assert_eq!(send_hmac(system, "acme", "hmac", &body(&event, &event)), 200);
        started.elapsed()
    };
    (0..80).map(send).max().expect("some")
}

/// A process that starts while Redis is away takes requests all the same.
#[test]
fn a_start_needs_no_redis() {
    let hmac = source("hmac", SECRET, DECLARE);
    let setting = format!("[ingest.filter]\nredis = \"redis://127.0.0.1:{}/0\"\n", free_port());
    let mut system = System::with_settings(Engine::Embedded, &hmac, &setting);
    system.start(Role::All);
    assert_eq!(send_hmac(&system, "acme", "hmac", &body("e1", "a")), 200);
}
