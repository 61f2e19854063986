//! Compressed requests: signed as they are sent, or before. Each way verifies only where it is declared, and what
//! inflates without end is refused within bounds.
//! After GetStream/stream-chat-java#254.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::{Delivery, deliver, hmac_source, signed};
use crate::support::{Engine, Role, SECRET, System, sign};

const PLAIN: &[u8] = br#"{"id":"e1","o":"a","v":1}"#;

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(plain).expect("packed");
    encoder.finish().expect("packed")
}

/// `signed` is what the signature is over.
fn compressed(system: &System, source: &str, body: Vec<u8>, over: &[u8]) -> Delivery {
    let mut delivery = signed(system, "acme", source, body);
    delivery.headers = vec![("x-signature".to_owned(), sign(SECRET, over))];
    delivery.headers.push(("content-encoding".to_owned(), "gzip".to_owned()));
    delivery
}

/// Resident memory of a process, in KiB.
fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn each_way_of_signing_verifies_only_where_it_is_declared() {
    let sources = [
        hmac_source(
            "acme",
            "wire",
            "declare = { object = 'body:/o', version = { from = 'body:/v', kind = 'integer' }, decode = ['gzip'] }",
        ),
        hmac_source(
            "acme",
            "plain",
            "declare = { object = 'body:/o', version = { from = 'body:/v', kind = 'integer' }, inflate = true }",
        ),
    ];
    let mut system = System::new(Engine::Embedded, &sources.concat());
    system.start(Role::All);
    let wire = gzip(PLAIN);
    for (source, over, status) in
        [("wire", &wire[..], 200), ("wire", PLAIN, 401), ("plain", PLAIN, 200), ("plain", &wire[..], 401)]
    {
        let answer = deliver(&compressed(&system, source, wire.clone(), over));
        assert_eq!(answer.status, status, "{source}");
    }
    system.wait_processed();
    for (source, stored) in [("wire", &wire[..]), ("plain", PLAIN)] {
        assert_eq!(system.cli(&["event", "raw", "acme", source, "e1"]).stdout, stored, "{source}");
        let state = system.json(&["object", "get", "acme", source, "a"])["state"].clone();
        assert_eq!(state, serde_json::from_slice::<serde_json::Value>(PLAIN).expect("JSON"), "{source}");
    }
    let truncated = compressed(&system, "plain", wire[..15].to_vec(), PLAIN);
    assert_eq!(deliver(&truncated).status, 400);
}

/// 10 GB in 10 MB is beyond what a request may hold; the most that one may hold inflates to some hundreds of MB.
#[test]
fn what_inflates_without_end_is_refused_within_bounds() {
    let source = hmac_source("acme", "plain", "declare = { object = 'body:/o', inflate = true }");
    let mut system = System::new(Engine::Embedded, &source);
    system.start(Role::All);
    let bomb = gzip(&vec![b' '; 500 * 1024 * 1024]);
    let before = resident_kib(system.pid(Role::All));
    let larger = [&bomb[..], &bomb[..]].concat();
    for body in [bomb[..bomb.len().min(900_000)].to_vec(), bomb, larger] {
        let bytes = body.len();
        assert_eq!(deliver(&compressed(&system, "plain", body, PLAIN)).status, 413, "{bytes} bytes");
    }
    let grown = resident_kib(system.pid(Role::All)) - before;
    println!("memory grew by {grown} KiB");
    assert!(grown < 64 * 1024, "{grown} KiB");
}
