//! Deltas that are numbered without gaps: each is applied once and in the order of its number, whatever order they come
//! in and whoever is killed meanwhile; what is missing is waited for as long as was declared, and then it is said so.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Engine, Role, SECRET, System, send_hmac, source_of, wait_until};

on_each_engine!(
    shuffled_deltas_are_applied_in_order_through_kills,
    a_gap_is_passed_when_its_time_is_over,
    a_strict_gap_waits_for_an_operator,
    one_number_has_one_event,
);

fn system(engine: Engine, sequence: &str) -> System {
    let of = "object = 'body:/o', event_type = 'body:/t', event_id = 'body:/id', mode = 'delta'";
    let declare = format!("declare = {{ {of}, sequence = {{ from = 'body:/n', start = 1, {sequence} }} }}");
    System::new(engine, &source_of("a", "hmac", SECRET, &declare))
}

fn send(system: &System, object: &str, id: &str, n: &str) {
    let body = format!(r#"{{"id":"{id}","o":"{object}","t":"paid","n":{n}}}"#);
    assert_eq!(send_hmac(system, "a", "hmac", body.as_bytes()), 200, "{id}");
}

fn send_number(system: &System, object: &str, n: u64) {
    send(system, object, &format!("{object}-{n}"), &n.to_string());
}

/// Numbers of an object's effects, each once, in the order in which they were first taken.
fn numbers(system: &System, object: &str) -> Vec<u64> {
    let mut seen = Vec::new();
    for effect in system.effects().into_iter().filter(|effect| effect["object"] == object) {
        let n = effect["data"]["n"].as_u64().expect("a number");
        if !seen.contains(&n) {
            seen.push(n);
        } else {
            assert_eq!(effect["resent"], true, "{effect}");
        }
        assert_eq!(effect["rev"].as_u64(), Some(seen.iter().position(|s| *s == n).expect("seen") as u64 + 1));
    }
    seen
}

fn object(system: &System, object: &str) -> Value {
    system.json(&["object", "get", "a", "hmac", object])
}

fn dead(system: &System) -> Vec<Value> {
    system.json(&["dead", "list"]).as_array().cloned().unwrap_or_default()
}

/// What the last arrival of an event came to.
fn outcome(system: &System, id: &str) -> Value {
    let arrivals = system.json(&["event", "trace", "a", "hmac", id]);
    arrivals.as_array().expect("arrivals").last().expect("one")["outcome"].clone()
}

fn shuffled_deltas_are_applied_in_order_through_kills(engine: Engine) {
    const OBJECTS: u64 = 6;
    const ROUNDS: u64 = 4;
    const EACH: u64 = 12;
    let mut system = system(engine, "hold_s = 600");
    system.start(Role::Ingest);
    for round in 0..ROUNDS {
        system.start(Role::Processor);
        // Backwards in each round, and some twice: only the last of a round lets the others go.
        for n in (round * EACH + 1..=(round + 1) * EACH).rev() {
            for o in 0..OBJECTS {
                send_number(&system, &format!("o{o}"), n);
                if (n + o) % 5 == 0 {
                    send_number(&system, &format!("o{o}"), n);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(40 * round));
        system.kill(Role::Processor);
    }
    system.start(Role::Processor);
    let all: Vec<u64> = (1..=ROUNDS * EACH).collect();
    for o in 0..OBJECTS {
        let name = format!("o{o}");
        wait_until("applied", || object(&system, &name)["rev"] == ROUNDS * EACH);
        wait_until("all sent", || numbers(&system, &name).len() == all.len());
        assert_eq!(numbers(&system, &name), all, "{name}");
        let sequence = object(&system, &name)["sequence"].clone();
        assert_eq!((&sequence["next"], &sequence["held"]), (&(ROUNDS * EACH + 1).into(), &0.into()), "{sequence}");
    }
    system.wait_processed();
    assert_eq!(dead(&system).len(), 0);
    assert_eq!(system.json(&["object", "parked", "--waiting"]).as_array().map(Vec::len), Some(0));
}

fn a_gap_is_passed_when_its_time_is_over(engine: Engine) {
    let mut system = system(engine, "hold_s = 1");
    system.start(Role::All);
    [1, 3, 4].into_iter().for_each(|n| send_number(&system, "x", n));
    // Another object does not wait for it.
    [1, 2].into_iter().for_each(|n| send_number(&system, "y", n));
    wait_until("the other goes on", || numbers(&system, "y") == [1, 2]);
    wait_until("passed", || numbers(&system, "x") == [1, 3, 4]);
    assert_eq!(object(&system, "x")["sequence"]["next"], 5);
    assert_eq!(outcome(&system, "x-3"), "applied");
    assert_eq!(system.metric("seriatim_processor_passed_gaps_total"), 1.0);
    // What comes too late is seen, and not taken for a duplicate.
    send_number(&system, "x", 2);
    wait_until("a dead letter", || dead(&system).len() == 1);
    assert_eq!(dead(&system)[0]["cause"], "passed");
    assert_eq!(outcome(&system, "x-2"), "dead");
    // One who was away when its time was over passes it all the same.
    [5, 7].into_iter().for_each(|n| send_number(&system, "x", n));
    wait_until("held", || object(&system, "x")["sequence"]["held"] == 1);
    system.kill(Role::All);
    std::thread::sleep(Duration::from_millis(1200));
    system.start(Role::All);
    wait_until("passed by the next owner", || numbers(&system, "x") == [1, 3, 4, 5, 7]);
}

fn a_strict_gap_waits_for_an_operator(engine: Engine) {
    let mut system = system(engine, "gap = 'park', hold_s = 1");
    system.start(Role::All);
    [1, 3, 4, 8].into_iter().for_each(|n| send_number(&system, "x", n));
    let parked = || system.json(&["object", "parked"]).as_array().cloned().unwrap_or_default();
    wait_until("parked", || parked().len() == 1);
    let row = parked().remove(0);
    assert_eq!((&row["object"], &row["sink"]), (&"x".into(), &"~sequence".into()), "{row}");
    assert!(row["cause"].as_str().is_some_and(|cause| cause.contains("number 2 is missing")), "{row}");
    wait_until("all held", || object(&system, "x")["sequence"]["held"] == 3);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(numbers(&system, "x"), [1], "no time passes it");
    assert_eq!(outcome(&system, "x-3"), "parked");

    let run = |arguments: &[&str]| {
        let output = system.cli(&[&["object"], arguments].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, err) = run(&["redrive", "a", "hmac", "x"]);
    assert!(code == Some(3) && err.contains("object pass"), "{err}");
    let (code, err) = run(&["pass", "a", "hmac", "x", "--to", "2"]);
    assert!(code == Some(2) && err.contains("above the next one, which is 2"), "{err}");
    let (code, err) = run(&["pass", "a", "hmac", "x", "--dry-run"]);
    assert!(code == Some(0) && err.contains("would pass a/hmac/x to 3"), "{err}");
    assert_eq!(run(&["pass", "a", "hmac", "x", "--reason", "lost at the provider"]).0, Some(0));
    wait_until("released", || numbers(&system, "x") == [1, 3, 4]);
    wait_until("the next gap is parked", || parked().len() == 1 && object(&system, "x")["sequence"]["held"] == 1);
    // The missing ones come after all: no operator is needed.
    [5, 6, 7].into_iter().for_each(|n| send_number(&system, "x", n));
    wait_until("all", || numbers(&system, "x") == [1, 3, 4, 5, 6, 7, 8]);
    wait_until("nothing is parked", || parked().is_empty());
    let (code, err) = run(&["pass", "a", "hmac", "x"]);
    assert!(code == Some(3) && err.contains("nothing is missing"), "{err}");
}

fn one_number_has_one_event(engine: Engine) {
    let mut system = system(engine, "hold_s = 600");
    system.start(Role::All);
    send(&system, "x", "first", "1");
    send(&system, "x", "held", "3");
    wait_until("held", || object(&system, "x")["sequence"]["held"] == 1);
    // Applied, or held: whichever event it has, another one of that number is none.
    send(&system, "x", "second", "1");
    send(&system, "x", "another", "3");
    for (id, n) in [("none", "null"), ("text", "\"x\""), ("float", "2.5"), ("negative", "-1"), ("early", "0")] {
        send(&system, "x", id, n);
    }
    send(&system, "x", "held", "3");
    wait_until("dead letters", || dead(&system).len() == 7);
    let causes: BTreeMap<String, String> = dead(&system)
        .iter()
        .map(|l| [&l["event_id"], &l["cause"]].map(|v| v.as_str().expect("text").to_owned()).into())
        .collect();
    let taken = causes.iter().filter(|(_, cause)| *cause == "sequence_taken").map(|(id, _)| id.as_str());
    assert_eq!(taken.collect::<Vec<_>>(), ["another", "second"], "{causes:?}");
    assert_eq!(causes.values().filter(|cause| *cause == "sequence").count(), 5, "{causes:?}");
    assert_eq!(outcome(&system, "held"), "duplicate");
    send(&system, "x", "between", "2");
    wait_until("all", || numbers(&system, "x") == [1, 2, 3]);
}
