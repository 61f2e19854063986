//! Senders that hang up, that stop half way, and that send too much.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{
    BY_VERSION, Delivery, assert_no_effect_twice, connect, content_length, dead_letters, deliver, deliver_all,
    hmac_source, raw_head, read_status, signed, statuses, text, write_raw,
};
use crate::support::{Engine, Role, System, try_post, wait_until};

/// Few connections and few bytes in flight: what leaks a share of either is out of them soon.
const NARROW: &str = "[ingest]\nconnections_max = 40\nin_flight_bytes_max = 300000\n";
const BODY_MAX: &str = "body_bytes_max = 250000\n";
const ABANDONED: usize = 500;

fn filled(id: &str, bytes: usize) -> String {
    format!(r#"{{"id":"{id}","o":"{id}","v":1,"filler":"{}"}}"#, "-".repeat(bytes))
}

fn wait_for_no_bytes_in_flight(system: &System) {
    wait_until("back to zero bytes in flight", || system.metric("seriatim_ingest_in_flight_bytes") == 0.0);
}

/// All pass: nothing that was taken for earlier requests is still held.
fn assert_next_thousand_pass(system: &System) {
    let next = (0..1000).map(|n| signed(system, "acme", "hmac", filled(&format!("next{n}"), 2000))).collect();
    let answers = deliver_all(next, 16);
    assert!(answers.iter().all(|a| a.status == 200), "{:?}", answers.iter().find(|a| a.status != 200));
    wait_for_no_bytes_in_flight(system);
}

/// After divviup/janus#4857.
#[test]
fn a_sender_that_hangs_up_after_its_body_costs_nothing_and_counts_once() {
    let mut system = System::with_settings(
        Engine::Embedded,
        &hmac_source("acme", "hmac", BY_VERSION),
        &format!("{NARROW}{BODY_MAX}"),
    );
    system.start(Role::All);
    let deliveries: Vec<_> =
        (0..ABANDONED).map(|n| signed(&system, "acme", "hmac", filled(&format!("e{n}"), 2000))).collect();
    for (nth, delivery) in deliveries.iter().enumerate() {
        let mut stream = connect(&system);
        let whole = [raw_head(delivery, &content_length(delivery.body.len())), delivery.body.clone()].concat();
        write_raw(&mut stream, &whole);
        // Both ways of hanging up: no answer is wanted, or only nothing more is said.
        if nth % 2 == 0 {
            stream.shutdown(Shutdown::Write).expect("shut");
        }
    }
    wait_for_no_bytes_in_flight(&system);
    let answers = deliver_all(deliveries, 16);
    assert!(answers.iter().all(|a| a.status == 200), "{:?}", statuses(&answers));
    assert_next_thousand_pass(&system);
    system.wait_processed();
    let effects = system.effects();
    assert_eq!(assert_no_effect_twice(&effects), ABANDONED + 1000);
    assert!(dead_letters(&system).is_empty());
}

#[test]
fn a_body_that_ends_early_leaves_no_trace() {
    let mut system = System::with_settings(
        Engine::Embedded,
        &hmac_source("acme", "hmac", BY_VERSION),
        &format!("{NARROW}{BODY_MAX}"),
    );
    system.start(Role::All);
    let delivery = signed(&system, "acme", "hmac", filled("cut", 2000));
    let length = delivery.body.len();
    let chunk = |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let chunked = "transfer-encoding: chunked";
    // The body whole, and signed, but one byte or the last chunk is still to come; and less than that.
    let requests: [(&str, Vec<u8>); 7] = [
        (
            "all but its last byte",
            [raw_head(&delivery, &content_length(length)), delivery.body[..length - 1].to_vec()].concat(),
        ),
        (
            "whole, but more is announced",
            [raw_head(&delivery, &content_length(length + 1)), delivery.body.clone()].concat(),
        ),
        ("half of it", [raw_head(&delivery, &content_length(length)), delivery.body[..length / 2].to_vec()].concat()),
        ("nothing of it", raw_head(&delivery, &content_length(length))),
        ("half a head", raw_head(&delivery, &content_length(length))[..40].to_vec()),
        ("chunks without the last", [raw_head(&delivery, chunked), chunk(&delivery.body)].concat()),
        ("half a chunk", [raw_head(&delivery, chunked), chunk(&delivery.body)[..length / 2].to_vec()].concat()),
    ];
    for (what, bytes) in &requests {
        for _ in 0..30 {
            let mut stream = connect(&system);
            write_raw(&mut stream, bytes);
            stream.shutdown(Shutdown::Write).expect("shut");
            let status = read_status(&mut stream);
            assert!(status.is_none_or(|s| (400..500).contains(&s)), "{what}: {status:?}");
        }
        // And without a word more.
        drop(requests.iter().map(|_| write_raw(&mut connect(&system), bytes)).collect::<Vec<_>>());
    }
    wait_for_no_bytes_in_flight(&system);
    system.wait_processed();
    assert_eq!(system.log_count(), 0);
    assert!(system.effects().is_empty());
    assert_eq!(deliver(&delivery).status, 200);
    assert_next_thousand_pass(&system);
}

#[test]
fn a_request_that_is_refused_gives_its_bytes_back() {
    let settings = format!("{NARROW}body_bytes_max = 10000\n");
    let mut system = System::with_settings(Engine::Embedded, &hmac_source("acme", "hmac", BY_VERSION), &settings);
    system.start(Role::All);
    let delivery = signed(&system, "acme", "hmac", filled("e", 2000));
    let forged = Delivery { headers: vec![("x-signature".to_owned(), "00".repeat(32))], ..delivery.clone() };
    let unknown = Delivery { url: system.url("acme", "unknown"), ..delivery.clone() };
    let unsigned = Delivery { headers: Vec::new(), ..delivery.clone() };
    let large = signed(&system, "acme", "hmac", filled("large", 20_000));
    for (what, status, delivery) in
        [("forged", 401, forged), ("unknown", 401, unknown), ("unsigned", 401, unsigned), ("large", 413, large)]
    {
        let answers = deliver_all(vec![delivery; 200], 16);
        assert!(answers.iter().all(|a| a.status == status), "{what}: {:?}", statuses(&answers));
        println!("{what}: {} bytes in flight", system.metric("seriatim_ingest_in_flight_bytes"));
        wait_for_no_bytes_in_flight(&system);
    }
    assert_eq!(system.log_count(), 0);
    assert_next_thousand_pass(&system);
}

/// The largest body limit that the configuration allows.
const LIMIT: usize = 983_040;

/// A signed event of exactly `bytes`, of text that does not compress well.
fn random_event(random: &mut SmallRng, id: &str, bytes: usize) -> String {
    let head = format!(r#"{{"id":"{id}","o":"{id}","v":1,"filler":""#);
    let mut body = head;
    while body.len() < bytes - 2 {
        let c = random.random_range(b'#'..=b'~') as char;
        body.push(if c == '\\' { '!' } else { c });
    }
    body + "\"}"
}

/// After PostHog/posthog#3068, #66092 and #24000.
#[test]
fn what_is_too_large_is_refused_at_once_and_what_is_not_is_durable_embedded() {
    sizes(Engine::Embedded);
}

#[test]
fn what_is_too_large_is_refused_at_once_and_what_is_not_is_durable_distributed() {
    sizes(Engine::Distributed);
}

fn sizes(engine: Engine) {
    const SEED: u64 = 13;
    println!("seed {SEED}");
    let mut random = SmallRng::seed_from_u64(SEED);
    let settings = format!("[ingest]\nbody_bytes_max = {LIMIT}\n");
    let mut system = System::with_settings(engine, &hmac_source("acme", "hmac", BY_VERSION), &settings);
    system.start(Role::All);
    let mut deliveries = Vec::new();
    let mut expected = HashMap::new();
    for round in 0..4 {
        for (what, bytes, status) in
            [("below", LIMIT - 1, 200), ("at", LIMIT, 200), ("above", LIMIT + 1, 413), ("far", LIMIT * 2, 413)]
        {
            let id = format!("{what}{round}");
            let body = random_event(&mut random, &id, bytes);
            assert_eq!(body.len(), bytes);
            let mut delivery = signed(&system, "acme", "hmac", body);
            // Some 8 KB beside the body: of headers that nothing reads, and of one that is kept.
            delivery.headers.extend((0..7).map(|n| (format!("x-other-{n}"), "o".repeat(1024))));
            delivery
                .headers
                .push(("content-type".to_owned(), format!("application/json; padding={}", "p".repeat(1024))));
            deliveries.push(delivery);
            expected.insert(id, status);
            for n in 0..10 {
                let id = format!("small-{what}{round}-{n}");
                deliveries.push(signed(&system, "acme", "hmac", filled(&id, 100)));
                expected.insert(id, 200);
            }
        }
    }
    let started = Instant::now();
    // What is too large goes out between the others, by a sender that reads its answer whatever became of its body.
    let (large, fitting): (Vec<_>, Vec<_>) = deliveries.into_iter().partition(|d| d.body.len() > LIMIT);
    let answers = std::thread::scope(|scope| {
        let refused =
            scope.spawn(|| large.iter().for_each(|delivery| assert_eq!(send_stubbornly(&system, delivery), Some(413))));
        let answers = deliver_all(fitting, 8);
        refused.join().expect("all too large are refused");
        answers
    });
    println!("{} requests answered within {:?}", expected.len(), started.elapsed());
    assert!(answers.iter().all(|a| a.status == 200), "{:?}", answers.iter().find(|a| a.status != 200));
    system.wait_processed();
    let effects = system.effects();
    assert_no_effect_twice(&effects);
    for (id, status) in &expected {
        let effect = effects.iter().find(|e| text(e, "event_id") == id);
        assert_eq!(effect.is_some(), *status == 200, "{id}");
    }
    let at = system.cli(&["event", "raw", "acme", "hmac", "at0"]);
    assert_eq!(at.stdout.len(), LIMIT);
    assert_eq!(system.log_count(), expected.values().filter(|s| **s == 200).count() as i64);
    refused_before_its_end(&system);
    kept_headers_count_too(&system, &mut random);
}

/// Sends all of the body, and reads the answer also when the peer stops taking it.
fn send_stubbornly(system: &System, delivery: &Delivery) -> Option<u16> {
    let mut stream = connect(system);
    let whole = [raw_head(delivery, &content_length(delivery.body.len())), delivery.body.clone()].concat();
    let _ = stream.write_all(&whole);
    read_status(&mut stream)
}

/// A sender whose connection is reset while it still writes never sees its 413, and will try again for ever.
#[test]
fn a_sender_of_a_body_that_is_too_large_hears_so() {
    let mut system = System::with_settings(
        Engine::Embedded,
        &hmac_source("acme", "hmac", BY_VERSION),
        "[ingest]\nbody_bytes_max = 10000\n",
    );
    system.start(Role::All);
    for bytes in [10_001, 20_000, 100_000, 1_000_000, 3_000_000] {
        let delivery = signed(&system, "acme", "hmac", "x".repeat(bytes));
        let heard = (0..20)
            .filter(|_| {
                try_post(&delivery.url, &[("x-signature", &delivery.headers[0].1)], &delivery.body) == Some(413)
            })
            .count();
        println!("{bytes} bytes: {heard} of 20 heard 413");
        assert_eq!(heard, 20, "{bytes} bytes: the others saw a connection that broke");
    }
    assert_eq!(system.log_count(), 0);
}

/// Senders keep connections open. Either the edge goes on to listen on one after a refusal, or it says that it
/// does not: else a sender puts its next event on a connection that is about to be reset.
#[test]
fn a_connection_that_is_closed_after_a_refusal_is_announced_to_be() {
    let mut system = System::with_settings(
        Engine::Embedded,
        &hmac_source("acme", "hmac", BY_VERSION),
        "[ingest]\nbody_bytes_max = 10000\n",
    );
    system.start(Role::All);
    let small = signed(&system, "acme", "hmac", filled("small", 10));
    let next = [raw_head(&small, &content_length(small.body.len())), small.body.clone()].concat();
    for bytes in [10_001, 100_000, 1_000_000, 3_000_000] {
        let mut stream = connect(&system);
        write_raw(&mut stream, &raw_head(&small, &content_length(bytes)));
        let head = read_head(&mut stream).to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 413 "), "{head}");
        if head.contains("\r\nconnection: close\r\n") {
            continue;
        }
        // It stays open, then: after the rest of the body comes the next request.
        let sent = stream.write_all(&[vec![b'x'; bytes], next.clone()].concat());
        let mut body = vec![0; "body too large\n".len()];
        let answered = stream.read_exact(&mut body).is_ok() && read_status(&mut stream) == Some(200);
        assert!(
            sent.is_ok() && answered,
            "{bytes} bytes: the next request on this connection is lost, unannounced, after\n{head}"
        );
    }
}

/// The head of an answer.
fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        assert_eq!(stream.read(&mut byte).expect("an answer"), 1, "closed after {:?}", String::from_utf8_lossy(&head));
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("a head is text")
}

/// Over the limit the answer does not wait for the rest of the body.
fn refused_before_its_end(system: &System) {
    let before = system.log_count();
    let delivery = signed(system, "acme", "hmac", filled("never whole", 100));
    let mut stream = connect(system);
    write_raw(&mut stream, &raw_head(&delivery, &content_length(LIMIT + 1)));
    let started = Instant::now();
    assert_eq!(read_status(&mut stream), Some(413), "by its announced length");
    let mut stream = connect(system);
    write_raw(&mut stream, &raw_head(&delivery, "transfer-encoding: chunked"));
    for chunk in std::iter::repeat_n(vec![b'-'; LIMIT / 8], 9) {
        let framed = [format!("{:x}\r\n", chunk.len()).into_bytes(), chunk, b"\r\n".to_vec()].concat();
        write_raw(&mut stream, &framed);
    }
    assert_eq!(read_status(&mut stream), Some(413), "by its chunks so far");
    assert!(started.elapsed() < Duration::from_secs(5), "refused after {:?}", started.elapsed());
    assert_eq!(system.log_count(), before);
}

/// Headers that are kept with the body take of the same record: the request passes and is durable, or it is
/// refused for good. A 503 would be tried again for ever, and a 200 without the record would be a loss.
fn kept_headers_count_too(system: &System, random: &mut SmallRng) {
    for kilobytes in [8, 32, 60, 64, 72, 128, 256] {
        let id = format!("header of {kilobytes} KB");
        let mut delivery = signed(system, "acme", "hmac", random_event(random, &id, LIMIT));
        delivery
            .headers
            .push(("content-type".to_owned(), format!("application/json; padding={}", "p".repeat(kilobytes * 1024))));
        let before = system.log_count();
        let status = deliver(&delivery).status;
        println!("{:?}: {id}: {status}", system.engine);
        assert!([200, 413, 431].contains(&status), "{id}: {status}");
        assert!(status == 200 || kilobytes > 8, "{id} must pass");
        assert_eq!(system.log_count() - before, i64::from(status == 200), "{id}: {status}");
    }
    let small = signed(system, "acme", "hmac", filled("after all", 10));
    assert_eq!(deliver(&small).status, 200);
    system.wait_processed();
    assert!(dead_letters(system).is_empty());
}
