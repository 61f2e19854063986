//! Names that run into one another when they are joined carelessly. After hookdeck/outpost#955.

use std::collections::HashSet;

use serde_json::json;

use super::{BY_VERSION, Delivery, assert_no_effect_twice, deliver_all, get_object, hmac_source, signed, text};
use crate::support::{Engine, Role, System, get_text};

/// Tenant and source. Joined by `:`, `|`, `/`, by nothing or after a decoding too many, some are equal.
const SOURCES: [(&str, &str); 16] = [
    ("a", "b:c|d"),
    ("a:b", "c|d"),
    ("a|b:c", "d"),
    ("a", "b"),
    ("a", "b/c"),
    ("a/b", "c"),
    ("a%2Fb", "c"),
    ("a%252Fb", "c"),
    ("a/b/c", "d"),
    ("ab", "c"),
    ("A", "b"),
    ("a", "b "),
    ("a.b", "c"),
    ("é", "b"),
    ("e\u{301}", "b"),
    ("~unroutable", "b"),
];

const OBJECTS: [&str; 20] = [
    "d",
    "c/d",
    "c|d",
    "b:c|d",
    "x",
    "X",
    "x ",
    "x/y",
    "x%2Fy",
    "x%252Fy",
    "x%2fy",
    "/x",
    "x/",
    "x\0y",
    "x\0",
    "x\u{1f}y",
    "x\u{1f}",
    "\u{1f}",
    "~unroutable",
    "é",
];

/// RFC 3986: unreserved characters stay, all others are percent-encoded.
fn encoded(text: &str) -> String {
    let one = |b: u8| {
        if b.is_ascii_alphanumeric() || b"-._~".contains(&b) { (b as char).to_string() } else { format!("%{b:02X}") }
    };
    text.bytes().map(one).collect()
}

fn event(system: &System, tenant: &str, source: &str, object: &str, id: &str, version: u32) -> Delivery {
    let body = json!({ "id": id, "o": object, "v": version, "of": [tenant, source, object], "at": version });
    signed(system, &encoded(tenant), &encoded(source), body.to_string())
}

#[test]
fn names_that_are_equal_when_joined_are_different_objects() {
    let sources: String = SOURCES.iter().map(|(tenant, source)| hmac_source(tenant, source, BY_VERSION)).collect();
    let mut system = System::new(Engine::Embedded, &sources);
    system.start(Role::All);
    let all: Vec<_> =
        SOURCES.iter().flat_map(|(tenant, source)| OBJECTS.map(|object| (*tenant, *source, object))).collect();
    // The same event id everywhere: only within its object may it be a duplicate.
    let deliveries =
        all.iter().map(|(tenant, source, object)| event(&system, tenant, source, object, "evt/1", 1)).collect();
    let answers = deliver_all(deliveries, 32);
    assert!(answers.iter().all(|a| a.status == 200));
    system.wait_processed();
    let effects = system.effects();
    assert_eq!(assert_no_effect_twice(&effects), all.len(), "each of them is applied once");
    let place = |e: &serde_json::Value| [text(e, "tenant"), text(e, "source"), text(e, "object")].map(str::to_owned);
    let places: HashSet<_> = effects.iter().map(place).collect();
    assert_eq!(places.len(), all.len());
    for effect in &effects {
        assert_eq!(effect["rev"], 1, "{effect}");
        assert_eq!(json!(place(effect)), effect["data"]["of"], "{effect}");
    }

    // One object moves on: no other one does. Its events are new, then old, then again the first.
    let (tenant, source, object) = ("a", "b/c", "d");
    let more = [("evt/2", 5), ("evt/3", 3), ("evt/1", 1)];
    for (id, version) in more {
        assert_eq!(deliver_all(vec![event(&system, tenant, source, object, id, version)], 1)[0].status, 200);
    }
    system.wait_processed();
    for (t, s, o) in &all {
        // No command line argument can hold a NUL; for those objects the effects above speak.
        if o.contains('\0') {
            continue;
        }
        let stored = get_object(&system, t, s, o);
        let expected = if (*t, *s, *o) == (tenant, source, object) { "5" } else { "1" };
        assert_eq!(text(&stored, "version"), expected, "{t:?} {s:?} {o:?}");
        assert_eq!(stored["state"]["of"], json!([t, s, o]));
    }
    assert_eq!(system.effects().iter().filter(|e| e["data"]["at"] != 1 && e["outcome"] == "applied").count(), 1);

    let metrics = get_text(&format!("http://127.0.0.1:{}/metrics", system.admin)).expect("metrics");
    for (t, s) in SOURCES {
        let expected = OBJECTS.len() + if (t, s) == (tenant, source) { more.len() } else { 0 };
        let labels = format!("seriatim_ingest_accepted_total{{tenant=\"{t}\",source=\"{s}\"}} {expected}");
        assert!(metrics.lines().any(|line| line == labels), "{labels} is not in\n{metrics}");
    }
}

#[test]
fn event_ids_that_look_alike_are_different_events() {
    let mut system =
        System::new(Engine::Embedded, &hmac_source("a", "b", "declare = { object = 'body:/o', mode = 'delta' }"));
    system.start(Role::All);
    let long = "i".repeat(3000);
    let other_long = format!("{}j", &long[1..]);
    let ids = OBJECTS.iter().copied().chain([long.as_str(), other_long.as_str(), "1", "01", "1.0", "null"]);
    let mut deliveries = Vec::new();
    for id in ids {
        for object in ["x", "x/evt"] {
            deliveries.push(event(&system, "a", "b", object, id, 1));
        }
    }
    let count = deliveries.len();
    // Each of them twice.
    let answers = deliver_all([&deliveries[..], &deliveries[..]].concat(), 16);
    assert!(answers.iter().all(|a| a.status == 200));
    system.wait_processed();
    assert_eq!(assert_no_effect_twice(&system.effects()), count);
}
