//! One request, many events: a bad one holds up no other, and a second delivery changes nothing.
//! After gopherium/AlphOne#36, simstudioai/sim#6245, OctopusDeploy/Issues#7216, contember/contember#436.

use serde_json::Value;

use super::{deliver, hmac_source, signed};
use crate::support::{Engine, Role, System};

const BATCH: &str = "[source.declare]\nobject = 'body:/o'\nversion = { from = 'body:/v', kind = 'integer' }\n\
    batch = { items = ['/*'] }\n";

/// A good one, one without an object, the first again, one whose version cannot be read, another good one.
const ITEMS: [&str; 5] = [
    r#"{ "id": "e1", "o": "a", "v": 1, "n": 1.0 }"#,
    "17",
    r#"{ "id": "e1", "o": "a", "v": 1, "n": 1.0 }"#,
    r#"{ "id": "e4", "o": "b", "v": "soon" }"#,
    r#"{ "id": "e5", "o": "c", "v": 1 }"#,
];

#[test]
fn one_bad_item_holds_up_no_other_embedded() {
    one_bad_item(Engine::Embedded);
}

#[test]
fn one_bad_item_holds_up_no_other_distributed() {
    one_bad_item(Engine::Distributed);
}

fn one_bad_item(engine: Engine) {
    let mut system = System::new(engine, &hmac_source("acme", "hmac", BATCH));
    system.start(Role::All);
    let body = format!("[ {} ]\r\n", ITEMS.join(" ,\n"));
    for delivery in 1..=3 {
        assert_eq!(deliver(&signed(&system, "acme", "hmac", body.clone())).status, 200);
        system.wait_processed();
        let mut effects: Vec<_> = system.effects().iter().map(|e| e["event_id"].clone()).collect();
        effects.sort_by_key(Value::to_string);
        assert_eq!(effects, ["e1", "e5"], "after delivery {delivery}");
        let arrivals = |id: &str| system.json(&["event", "trace", "acme", "hmac", id]);
        let outcomes = |id: &str| -> Vec<String> {
            let all = arrivals(id);
            all.as_array().expect("a list").iter().map(|a| a["outcome"].as_str().expect("text").to_owned()).collect()
        };
        let mut expected = vec!["applied".to_owned()];
        expected.extend(vec!["duplicate".to_owned(); delivery * 2 - 1]);
        assert_eq!(outcomes("e1"), expected);
        assert_eq!(outcomes("e5").len(), delivery);
        let dead = system.json(&["dead", "list"]);
        let causes: Vec<_> = dead.as_array().expect("a list").iter().map(|d| d["cause"].as_str()).collect();
        let count = |cause| causes.iter().filter(|c| **c == Some(cause)).count();
        // What has no id is a letter of its own each time; what has one is one letter.
        assert_eq!((count("unroutable"), causes.len() - count("unroutable")), (delivery, 1), "{dead}");
        // The evidence, and each item.
        assert_eq!(system.log_count(), 6 * delivery as i64);
    }
    let raw = system.cli(&["event", "raw", "acme", "hmac", "e1"]).stdout;
    assert_eq!(raw, ITEMS[0].as_bytes(), "an item is an exact slice");
}

#[test]
fn an_empty_batch_is_answered_and_leaves_no_trace() {
    let mut system = System::new(Engine::Embedded, &hmac_source("acme", "hmac", BATCH));
    system.start(Role::All);
    assert_eq!(deliver(&signed(&system, "acme", "hmac", "[]")).status, 200);
    assert_eq!(system.log_count(), 0);
    // What is no batch is one event.
    assert_eq!(deliver(&signed(&system, "acme", "hmac", ITEMS[0])).status, 200);
    assert_eq!(system.log_count(), 1);
}
