//! A log that does not take anything: the sender must not believe in a delivery. A store that is away: it may.
//! After argoproj/argo-events#3448 and openclaw/openclaw#42157.

use std::collections::HashSet;

use super::{Answer, BY_VERSION, assert_no_effect_twice, deliver, deliver_all, hmac_source, signed, statuses, text};
use crate::own_server::OwnServers;
use crate::support::{Engine, Role, System, wait_until};

fn assert_is_try_again(answers: &[Answer]) {
    for answer in answers {
        let after: Option<u32> = answer.retry_after.as_ref().and_then(|text| text.parse().ok());
        assert!(answer.status == 503 && after.is_some_and(|s| s > 0), "{answer:?}");
    }
}

#[test]
fn nothing_is_acknowledged_while_the_broker_is_down() {
    let broker = OwnServers::start(&["kafka"]);
    let settings = "[ingest]\npublish_timeout_ms = 2000\n";
    let address = broker.kafka();
    let variables = [("SERIATIM_KAFKA__BROKERS", address.as_str())];
    let mut system =
        System::with_variables(Engine::Distributed, &hmac_source("acme", "hmac", BY_VERSION), settings, &variables);
    system.start(Role::All);
    let events = |from: usize, to: usize| {
        let body = |n: usize| format!(r#"{{"id":"e{n}","o":"o{}","v":{n}}}"#, n % 10);
        (from..to).map(|n| signed(&system, "acme", "hmac", body(n))).collect::<Vec<_>>()
    };
    let before = deliver_all(events(0, 50), 8);
    assert_eq!(statuses(&before), vec![200; 50]);

    broker.stop("kafka");
    assert_is_try_again(&deliver_all(events(50, 150), 25));

    broker.start_again("kafka");
    wait_until("taking requests again", || deliver(&events(150, 151)[0]).status == 200);
    let after = deliver_all(events(150, 200), 8);
    assert_eq!(statuses(&after), vec![200; 50]);
    // Their senders deliver them again, as they were told to. Some may be in the log already: then they count once.
    let again = deliver_all(events(50, 150), 8);
    assert_eq!(statuses(&again), vec![200; 100]);
    system.wait_processed();
    let effects = system.effects();
    assert_no_effect_twice(&effects);
    for n in 0..200 {
        let trace = system.json(&["event", "trace", "acme", "hmac", &format!("e{n}")]);
        let arrivals = trace.as_array().unwrap_or_else(|| panic!("e{n} was acknowledged, and is lost"));
        assert!(arrivals.iter().all(|a| text(a, "outcome") != "dead"), "e{n}: {trace}");
    }
    for object in 0..10 {
        let stored = system.json(&["object", "get", "acme", "hmac", &format!("o{object}")]);
        assert_eq!(text(&stored, "version"), (190 + object).to_string());
    }
}

#[test]
fn nothing_is_lost_or_refused_while_the_store_is_away() {
    let store = OwnServers::start(&["cassandra"]);
    let nodes = format!(r#"["{}"]"#, store.cql());
    let variables = [("SERIATIM_CQL__NODES", nodes.as_str())];
    let mut system =
        System::with_variables(Engine::Distributed, &hmac_source("acme", "hmac", BY_VERSION), "", &variables);
    system.start(Role::All);
    let events = |from: usize, to: usize| {
        let body = |n: usize| format!(r#"{{"id":"e{n}","o":"o{}","v":{n}}}"#, n % 10);
        (from..to).map(|n| signed(&system, "acme", "hmac", body(n))).collect::<Vec<_>>()
    };
    // It goes away while the first are being processed, and comes back twice.
    let mut answers = deliver_all(events(0, 300), 8);
    for round in 1..=2 {
        store.stop("cassandra");
        answers.extend(deliver_all(events(round * 300, round * 300 + 300), 8));
        // Every other of them twice.
        answers.extend(deliver_all(events(round * 300, round * 300 + 150), 8));
        store.start_again("cassandra");
    }
    assert_eq!(statuses(&answers), vec![200; 1200], "the log takes what the store cannot");
    system.wait_processed();
    let effects = system.effects();
    assert_no_effect_twice(&effects);
    for n in (0..900).step_by(7) {
        let trace = system.json(&["event", "trace", "acme", "hmac", &format!("e{n}")]);
        let arrivals = trace.as_array().unwrap_or_else(|| panic!("e{n} was acknowledged, and is lost"));
        assert!(!arrivals.is_empty() && arrivals.iter().all(|a| text(a, "outcome") != "dead"), "e{n}: {trace}");
    }
    for object in 0..10 {
        let stored = system.json(&["object", "get", "acme", "hmac", &format!("o{object}")]);
        assert_eq!(text(&stored, "version"), (890 + object).to_string());
    }
}

#[test]
fn nothing_is_acknowledged_when_the_log_is_full() {
    const LOG_BYTES_MAX: u64 = 1_000_000;
    let settings = format!("[embedded]\nlog_bytes_max = {LOG_BYTES_MAX}\n");
    let mut system = System::with_settings(Engine::Embedded, &hmac_source("acme", "hmac", BY_VERSION), &settings);
    system.start(Role::All);
    let events = |from: usize, to: usize, bytes: usize| {
        let body = |n: usize| format!(r#"{{"id":"e{n}","o":"e{n}","v":1,"filler":"{}"}}"#, "-".repeat(bytes));
        (from..to).map(|n| signed(&system, "acme", "hmac", body(n))).collect::<Vec<_>>()
    };
    let mut answers = deliver_all(events(0, 200, 20_000), 8);
    // Large and small ones together, when hardly anything fits.
    answers.extend(deliver_all(events(200, 400, 100), 8));
    answers.extend(deliver_all(events(400, 440, 20_000), 8));
    let refused: Vec<_> = answers.iter().filter(|a| a.status != 200).cloned().collect();
    assert_is_try_again(&refused);
    let taken: HashSet<String> =
        answers.iter().enumerate().filter(|(_, a)| a.status == 200).map(|(n, _)| format!("e{n}")).collect();
    println!("{} taken, {} refused", taken.len(), refused.len());
    assert!(taken.len() > 10 && refused.len() > 100);
    assert_is_try_again(&answers[430..]);
    system.wait_processed();
    let applied = |system: &System| -> HashSet<String> {
        system.effects().iter().map(|e| text(e, "event_id").to_owned()).collect()
    };
    assert_eq!(applied(&system), taken, "what was acknowledged, and nothing else");

    // With more room it goes on, and nothing of before is lost or applied again.
    system.kill(Role::All);
    let config = std::fs::read_to_string(system.config()).expect("the configuration");
    let roomy = config.replace(&format!("log_bytes_max = {LOG_BYTES_MAX}"), "log_bytes_max = 100000000");
    std::fs::write(system.config(), roomy).expect("written");
    system.start(Role::All);
    let events: Vec<_> =
        (0..440).map(|n| signed(&system, "acme", "hmac", format!(r#"{{"id":"e{n}","o":"e{n}","v":1}}"#))).collect();
    assert_eq!(statuses(&deliver_all(events, 8)), vec![200; 440]);
    system.wait_processed();
    assert_eq!(applied(&system).len(), 440);
    assert_no_effect_twice(&system.effects());
}
