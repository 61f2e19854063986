//! The same event many times, at once and much later.

use super::{
    BY_VERSION, Delivery, WITH_TOMBSTONES, assert_no_effect_twice, deliver, deliver_all, get_object, hmac_source,
    signed, text, wait_for_edge,
};
use crate::support::{Engine, Role, System, wait_until};

const AT_ONCE: usize = 64;

/// After Devlaner/devlane#332 and stellarBank/StellarBank#39.
#[test]
fn of_64_identical_requests_at_once_one_is_applied_embedded() {
    let mut system = System::new(Engine::Embedded, &sources());
    system.start(Role::All);
    let edge = system.edge;
    all_at_once(&system, &[edge], 250);
}

#[test]
fn of_64_identical_requests_at_once_over_two_edges_one_is_applied_distributed() {
    let mut system = System::new(Engine::Distributed, &sources());
    system.start(Role::Processor);
    system.start(Role::Processor);
    // Both work: each owns half of the four partitions.
    wait_until("shared", || system.metric("seriatim_processor_assigned_partitions") == 2.0);
    system.start(Role::Ingest);
    wait_for_edge(&system);
    let first = system.edge;
    system.start(Role::Ingest);
    wait_for_edge(&system);
    assert_ne!(first, system.edge);
    all_at_once(&system, &[first, system.edge], 250);
}

/// A source whose events carry versions, and one whose events count.
fn sources() -> String {
    hmac_source("acme", "snapshot", BY_VERSION)
        + &hmac_source("acme", "delta", "declare = { object = 'body:/o', mode = 'delta' }")
}

fn all_at_once(system: &System, edges: &[u16], ids: usize) {
    let mut deliveries = Vec::new();
    for source in ["snapshot", "delta"] {
        for id in 0..ids {
            // Few objects: the deltas of one object meet in one group.
            let body = format!(r#"{{"id":"e{id}","o":"o{}","v":{id}}}"#, id % 7);
            for copy in 0..AT_ONCE {
                let delivery = signed(system, "acme", source, body.as_bytes());
                let url =
                    delivery.url.replace(&format!(":{}/", system.edge), &format!(":{}/", edges[copy % edges.len()]));
                deliveries.push(Delivery { url, ..delivery });
            }
        }
    }
    let sent = deliveries.len();
    let answers = deliver_all(deliveries, AT_ONCE);
    let bad = answers.iter().find(|a| a.status != 200);
    assert!(bad.is_none(), "{bad:?}");
    system.wait_processed();
    assert_eq!(system.log_count(), sent as i64, "each request is in the ledger");
    let effects = system.effects();
    let applied: Vec<_> = effects.iter().filter(|e| e["outcome"] == "applied").cloned().collect();
    let of = |source: &str| applied.iter().filter(|e| e["source"] == source).count();
    assert_no_effect_twice(&effects);
    assert_eq!(of("delta"), ids);
    // Ids of one object are not sent at once with those behind it, so each was the newest when it first came
    // except where two of an object overlapped; then the older may be stale, never applied twice.
    assert!(of("snapshot") <= ids && of("snapshot") >= 7, "{}", of("snapshot"));
    for object in 0..7 {
        let last = (0..ids).rev().find(|id| id % 7 == object).expect("an id").to_string();
        assert_eq!(text(&get_object(system, "acme", "snapshot", &format!("o{object}")), "version"), last);
    }
    for (source, id) in [("snapshot", ids - 1), ("delta", 0), ("delta", ids - 1)] {
        let trace = system.json(&["event", "trace", "acme", source, &format!("e{id}")]);
        let outcomes: Vec<_> = trace.as_array().expect("arrivals").iter().map(|a| text(a, "outcome")).collect();
        assert_eq!(outcomes.len(), AT_ONCE, "{source} e{id}");
        assert_eq!(outcomes.iter().filter(|o| **o == "applied").count(), 1, "{source} e{id}");
        assert_eq!(outcomes.iter().filter(|o| **o == "duplicate").count(), AT_ONCE - 1, "{source} e{id}");
    }
}

/// Short enough to wait for its end, long enough that the verdicts of a slow machine come within it.
const WINDOW_S: u32 = 20;
/// These tests wait for each event; the low watermark says when it is done.
const QUICK: &str = "[processor]\nadvance_interval_ms = 100\n";

fn windowed() -> String {
    let window = |declare: &str| declare.replace("declare = {", &format!("declare = {{ dedupe_window_s = {WINDOW_S},"));
    hmac_source("acme", "snapshot", &window(WITH_TOMBSTONES))
        + &hmac_source("acme", "delta", &window("declare = { object = 'body:/o', mode = 'delta' }"))
}

/// Source, event id, type, object, version, and what its arrival does.
type Verdict = (&'static str, &'static str, &'static str, &'static str, u32, &'static str);

const VERDICTS: [Verdict; 17] = [
    // The first of an object has nothing to be compared with: also version 0.
    ("snapshot", "a0", "x.updated", "a", 0, "applied"),
    ("snapshot", "a0", "x.updated", "a", 0, "duplicate"),
    ("snapshot", "a5", "x.updated", "a", 5, "applied"),
    ("snapshot", "a5", "x.updated", "a", 5, "duplicate"),
    ("snapshot", "a0", "x.updated", "a", 0, "duplicate"),
    ("snapshot", "a3", "x.updated", "a", 3, "stale"),
    ("snapshot", "a3", "x.updated", "a", 3, "stale"),
    // The same event id of another object is another event.
    ("snapshot", "a5", "x.updated", "b", 1, "applied"),
    ("snapshot", "a5", "x.updated", "b", 1, "duplicate"),
    ("snapshot", "c2", "x.deleted", "c", 2, "applied"),
    ("snapshot", "c1", "x.created", "c", 1, "stale"),
    ("snapshot", "c3", "x.created", "c", 3, "applied"),
    ("snapshot", "c2", "x.deleted", "c", 2, "duplicate"),
    ("delta", "d1", "x", "a", 1, "applied"),
    ("delta", "d2", "x", "a", 0, "applied"),
    ("delta", "d1", "x", "a", 1, "duplicate"),
    ("delta", "d1", "x", "b", 1, "applied"),
];

/// After scylladb/scylla-rust-driver#998, scylladb/scylladb#27955 and #13165.
#[test]
fn verdicts_are_right_and_an_old_version_stays_old_after_its_event_is_forgotten_embedded() {
    verdicts(System::with_settings(Engine::Embedded, &windowed(), QUICK));
}

#[test]
fn verdicts_are_right_and_an_old_version_stays_old_after_its_event_is_forgotten_distributed() {
    verdicts(System::with_variables(
        Engine::Distributed,
        &windowed(),
        QUICK,
        &[("SERIATIM_KAFKA__RETENTION_MS", "-1")],
    ));
}

fn verdicts(mut system: System) {
    system.start(Role::All);
    for row @ (source, id, kind, object, version, outcome) in VERDICTS {
        let body = format!(r#"{{"id":"{id}","type":"{kind}","o":"{object}","v":{version}}}"#);
        // The answer is the same whatever becomes of it.
        assert_eq!(deliver(&signed(&system, "acme", source, body)).status, 200);
        system.wait_processed();
        let last = last_outcome(&system, source, id, object);
        assert_eq!(last, outcome, "{row:?}");
    }
    let heads = |system: &System| ["a", "b", "c"].map(|object| get_object(system, "acme", "snapshot", object));
    let before = heads(&system);
    let is = before.each_ref().map(|o| (text(o, "version").to_owned(), o["deleted"].clone()));
    assert_eq!(is, [("5", false), ("1", false), ("3", false)].map(|(v, d)| (v.to_owned(), d.into())));
    let effects = system.effects();
    assert_no_effect_twice(&effects);

    wait_until("forgotten", || {
        // The embedded engine removes what has expired when it starts, and then only now and then.
        if system.engine == Engine::Embedded {
            system.terminate(Role::All);
            system.start(Role::All);
        }
        let rows = |object| system.json(&["object", "history", "acme", "snapshot", object]);
        ["a", "b", "c"].iter().all(|object| rows(object).as_array().is_none_or(Vec::is_empty))
    });
    assert_eq!(heads(&system), before, "what an object is must not expire with its events");
    // The old ones once more, under their ids and under new ones.
    let old = [
        ("a0", "a", 0),
        ("a3", "a", 3),
        ("new1", "a", 0),
        ("new2", "a", 4),
        ("c2", "c", 2),
        ("new3", "c", 2),
        ("new4", "b", 0),
    ];
    for (id, object, version) in old {
        let body = format!(r#"{{"id":"{id}","type":"x.deleted","o":"{object}","v":{version},"again":true}}"#);
        assert_eq!(deliver(&signed(&system, "acme", "snapshot", body)).status, 200);
    }
    // What is the newest already, again: its event is forgotten, but it is still what the object is.
    assert_eq!(
        deliver(&signed(&system, "acme", "snapshot", r#"{"id":"a5","type":"x.updated","o":"a","v":5}"#)).status,
        200
    );
    system.wait_processed();
    for (id, object, _) in old {
        assert_eq!(last_outcome(&system, "snapshot", id, object), "stale", "{id} of {object}");
    }
    assert_ne!(last_outcome(&system, "snapshot", "a5", "a"), "applied");
    assert_eq!(heads(&system), before);
    let applied = |effects: &[serde_json::Value]| effects.iter().filter(|e| e["outcome"] == "applied").count();
    assert_eq!(applied(&system.effects()), applied(&effects));
    // And a newer one is still applied.
    assert_eq!(
        deliver(&signed(&system, "acme", "snapshot", r#"{"id":"a6","type":"x.updated","o":"a","v":6}"#)).status,
        200
    );
    system.wait_processed();
    assert_eq!(text(&get_object(&system, "acme", "snapshot", "a"), "version"), "6");
}

/// What the last arrival of an event of an object did.
fn last_outcome(system: &System, source: &str, id: &str, object: &str) -> String {
    let trace = system.json(&["event", "trace", "acme", source, id]);
    let arrivals = trace.as_array().unwrap_or_else(|| panic!("{id} of {object} has not arrived"));
    let last = arrivals
        .iter()
        .rfind(|a| a["object"] == object)
        .unwrap_or_else(|| panic!("{id} of {object} is not in {trace}"));
    text(last, "outcome").to_owned()
}
