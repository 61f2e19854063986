//! Rounds of `kill -9` under load. The sender is the oracle: what it was answered with success must be
//! there, once, and each object must be at its newest event.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Engine, Role, System, source};

/// SERIATIM_TEST_ROUNDS=20 for the full figure.
fn rounds(default: u32) -> u32 {
    std::env::var("SERIATIM_TEST_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn the_one_process_may_be_killed_at_any_time() {
    let mut system = System::new(Engine::Embedded, &source("stripe", "whsec_kill", ""));
    system.start(Role::All);
    let rounds = rounds(8);
    let report = under_load(&mut system, rounds, |system, round| {
        std::thread::sleep(Duration::from_millis(250 + u64::from(round * 137 % 500)));
        system.kill(Role::All);
        system.start(Role::All);
    });
    println!("embedded, {rounds} kills: {report}");
}

#[test]
fn a_processor_may_be_killed_at_any_time() {
    let mut system = System::new(Engine::Distributed, &source("stripe", "whsec_kill", ""));
    system.start(Role::Processor);
    system.start(Role::Ingest);
    let rounds = rounds(2);
    let report = under_load(&mut system, rounds, |system, round| {
        // The group gives a killed member's partitions away after 10 s; the next kill comes at any time later.
        std::thread::sleep(Duration::from_millis(11_000 + u64::from(round * 1370 % 4000)));
        system.kill(Role::Processor);
        system.start(Role::Processor);
    });
    println!("distributed, {rounds} kills of the processor: {report}");
}

fn under_load(system: &mut System, rounds: u32, mut round: impl FnMut(&mut System, u32)) -> Value {
    let is_embedded = system.engine == Engine::Embedded;
    // Enough that the load outlives the rounds: a round takes some 1 s embedded, some 15 s distributed.
    let count = if is_embedded { rounds * 1200 } else { rounds * 6000 };
    let rate = if is_embedded { "800" } else { "300" };
    let count = count.to_string();
    let arguments = [
        "send",
        "--preset",
        "stripe",
        "--count",
        &count,
        "--objects",
        "300",
        "--duplicates",
        "20%",
        "--shuffle",
        "--rate",
        rate,
        "--retry-s",
        "120",
        "--wait-s",
        "180",
        "--verify",
        "--output",
        "json",
    ];
    let sender =
        system.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the sender starts");
    for n in 0..rounds {
        round(system, n);
    }
    let output = sender.wait_with_output().expect("the sender ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{errors}"));
    for zero in ["missing", "applied_twice", "effects_missing", "states_differ", "out_of_order"] {
        assert_eq!(report[zero], 0, "{zero}: {report}\n{errors}");
    }
    assert!(report["applied"].as_u64().expect("a count") > 0);
    report
}
