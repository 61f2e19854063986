//! Whatever order events come in, an object ends where its provider left it.

use std::collections::HashMap;

use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use serde_json::Value;

use super::{
    BY_VERSION, Delivery, WITH_TOMBSTONES, assert_no_effect_twice, dead_letters, deliver, deliver_lanes, get_object,
    hmac_source, signed, text,
};
use crate::support::{Engine, Role, System};

/// All orders of 0 to `n` - 1.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let insert = |order: &Vec<usize>, at: usize| [&order[..at], &[n - 1], &order[at..]].concat();
    permutations(n - 1).iter().flat_map(|order| (0..n).map(|at| insert(order, at)).collect::<Vec<_>>()).collect()
}

/// After laravel/cashier-stripe#1201, stripe/stripe-cli#418, TryGhost/Members#240, onetimesecret/onetimesecret#3692.
#[test]
fn every_order_of_five_versions_with_duplicates_ends_in_the_same_state() {
    const SEED: u64 = 27;
    println!("seed {SEED}");
    let mut random = SmallRng::seed_from_u64(SEED);
    let mut system = System::new(Engine::Embedded, &hmac_source("acme", "hmac", BY_VERSION));
    system.start(Role::All);
    let orders = permutations(5);
    assert_eq!(orders.len(), 120);
    let mut lanes = Vec::new();
    for (nth, order) in orders.iter().enumerate() {
        let mut sequence = order.clone();
        for _ in 0..random.random_range(0..6) {
            // A duplicate never comes before its first occurrence: that would be another permutation.
            let first = *order.choose(&mut random).expect("five versions");
            let earliest = sequence.iter().position(|v| *v == first).expect("it is there") + 1;
            sequence.insert(random.random_range(earliest..=sequence.len()), first);
        }
        let body = |v: &usize| format!(r#"{{"id":"p{nth}-{v}","o":"p{nth}","v":{v},"state":"state of {v}"}}"#);
        lanes.push(sequence.iter().map(|v| signed(&system, "acme", "hmac", body(v))).collect::<Vec<Delivery>>());
    }
    let sent: usize = lanes.iter().map(Vec::len).sum();
    let answers = deliver_lanes(lanes, 24);
    assert!(answers.iter().flatten().all(|a| a.status == 200));
    system.wait_processed();
    assert_eq!(system.log_count(), sent as i64);
    let effects = system.effects();
    assert_no_effect_twice(&effects);
    let mut by_object: HashMap<&str, Vec<&Value>> = HashMap::new();
    for effect in &effects {
        by_object.entry(text(effect, "object")).or_default().push(effect);
    }
    for (nth, order) in orders.iter().enumerate() {
        let object = format!("p{nth}");
        let applied = by_object[object.as_str()].iter().filter(|e| e["outcome"] == "applied");
        let versions: Vec<usize> = applied.map(|e| text(e, "version").parse().expect("a number")).collect();
        // Applied is what was the newest when it came, and nothing else.
        let newest = order.iter().enumerate().filter(|(i, v)| order[..*i].iter().all(|before| before < v));
        let newest: Vec<usize> = newest.map(|(_, v)| *v).collect();
        assert_eq!(versions, newest, "{object}: {order:?}");
        let revs: Vec<i64> = by_object[object.as_str()].iter().map(|e| e["rev"].as_i64().expect("a rev")).collect();
        assert!(revs.is_sorted_by(|a, b| a < b), "{object}: {revs:?}");
        let stored = get_object(&system, "acme", "hmac", &object);
        let last = (text(&stored, "version"), text(&stored, "event"), text(&stored["state"], "state"));
        assert_eq!(last, ("4", format!("p{nth}-4").as_str(), "state of 4"), "{object}: {order:?}");
        assert_eq!(stored["deleted"], false);
    }
}

/// Equal versions are decided by rank, then by event id, in any order of arrival.
#[test]
fn every_order_of_equal_versions_ends_in_the_same_state() {
    let mut system = System::new(Engine::Embedded, &hmac_source("acme", "hmac", WITH_TOMBSTONES));
    system.start(Role::All);
    let events = [("z", "x.created"), ("b", "x.updated"), ("c", "x.updated"), ("y", "x.created")];
    let lane = |(nth, order): (usize, &Vec<usize>)| -> Vec<Delivery> {
        let body =
            |at: &usize| format!(r#"{{"id":"{0}","type":"{1}","o":"t{nth}","v":7}}"#, events[*at].0, events[*at].1);
        order.iter().map(|at| signed(&system, "acme", "hmac", body(at))).collect()
    };
    let orders = permutations(4);
    let answers = deliver_lanes(orders.iter().enumerate().map(lane).collect(), 24);
    assert!(answers.iter().flatten().all(|a| a.status == 200));
    system.wait_processed();
    for (nth, order) in orders.iter().enumerate() {
        assert_eq!(get_object(&system, "acme", "hmac", &format!("t{nth}"))["event"], "c", "{order:?}");
    }
}

/// An event of the table: id, type, version; and after it: whether the object is deleted, its version, its event.
type Step = (&'static str, &'static str, u32, bool, &'static str, &'static str);

/// What comes to one object, in this order, and what it must be after each.
const LIVES: [(&str, &[Step]); 4] = [
    (
        "late update after a deletion",
        &[
            ("c1", "x.created", 1, false, "1", "c1"),
            ("d3", "x.deleted", 3, true, "3", "d3"),
            ("u2", "x.updated", 2, true, "3", "d3"),
            ("c1", "x.created", 1, true, "3", "d3"),
            // Of the same version, but of a lower rank; its id is greater, which must not count.
            ("u3", "x.updated", 3, true, "3", "d3"),
            ("z3", "x.created", 3, true, "3", "d3"),
            ("d3", "x.deleted", 3, true, "3", "d3"),
            ("c4", "x.created", 4, false, "4", "c4"),
            // The same old events once more, after the object lives again.
            ("d3", "x.deleted", 3, false, "4", "c4"),
            ("d2", "x.deleted", 2, false, "4", "c4"),
            ("u2", "x.updated", 2, false, "4", "c4"),
        ],
    ),
    (
        "deletion before everything else",
        &[
            ("d3", "x.deleted", 3, true, "3", "d3"),
            ("c1", "x.created", 1, true, "3", "d3"),
            ("u2", "x.updated", 2, true, "3", "d3"),
            ("u3", "x.updated", 3, true, "3", "d3"),
            ("u4", "x.updated", 4, false, "4", "u4"),
        ],
    ),
    (
        "deletion of the same version wins",
        &[
            ("z5", "x.updated", 5, false, "5", "z5"),
            ("a5", "x.deleted", 5, true, "5", "a5"),
            ("c5", "x.created", 5, true, "5", "a5"),
            ("z5", "x.updated", 5, true, "5", "a5"),
            ("c6", "x.created", 6, false, "6", "c6"),
        ],
    ),
    (
        "deleted twice and made again",
        &[
            ("d1", "x.deleted", 1, true, "1", "d1"),
            ("c2", "x.created", 2, false, "2", "c2"),
            ("d4", "x.deleted", 4, true, "4", "d4"),
            ("d3", "x.deleted", 3, true, "4", "d4"),
            ("c3", "x.created", 3, true, "4", "d4"),
            ("c5", "x.created", 5, false, "5", "c5"),
        ],
    ),
];

fn live(restart: bool) {
    let mut system = System::new(Engine::Embedded, &hmac_source("acme", "hmac", WITH_TOMBSTONES));
    system.start(Role::All);
    let longest = LIVES.iter().map(|(_, steps)| steps.len()).max().expect("lives");
    for nth in 0..longest {
        let now: Vec<_> = LIVES.iter().filter_map(|(object, steps)| Some((*object, steps.get(nth)?))).collect();
        for (object, (id, kind, version, ..)) in &now {
            let body = format!(r#"{{"id":"{id}","type":"{kind}","o":"{object}","v":{version},"from":"{id}"}}"#);
            assert_eq!(deliver(&signed(&system, "acme", "hmac", body)).status, 200);
        }
        system.wait_processed();
        if restart {
            system.kill(Role::All);
            system.start(Role::All);
            system.wait_processed();
        }
        for (object, (id, _, _, deleted, version, event)) in &now {
            let stored = get_object(&system, "acme", "hmac", object);
            let is = (stored["deleted"].as_bool(), text(&stored, "version"), text(&stored, "event"));
            assert_eq!(is, (Some(*deleted), *version, *event), "{object}: after {id}, step {nth}");
            assert_eq!(text(&stored["state"], "from"), *event, "{object}: after {id}, step {nth}");
        }
    }
    assert_no_effect_twice(&system.effects());
}

/// After nerdsane/temper#23, RedHatInsights/compliance-backend#2837, alphaonedev/ai-memory-mcp#3253, calimero-network/core#3123.
#[test]
fn only_a_newer_event_lifts_a_tombstone() {
    live(false);
}

#[test]
fn only_a_newer_event_lifts_a_tombstone_also_over_crashes() {
    live(true);
}

fn integer_ladder() -> Vec<String> {
    let powers = [31, 32, 53, 63].iter().flat_map(|bits| {
        let power = 1_u128 << bits;
        [power - 1, power, power + 1]
    });
    let nanoseconds = [1_700_000_000_000_000_000_u128, 1_700_000_000_000_000_001];
    let mut all: Vec<u128> =
        powers.chain(nanoseconds).chain([u128::from(u64::MAX) - 1, u128::from(u64::MAX)]).collect();
    all.sort_unstable();
    let negative = [
        "-9223372036854775808",
        "-9007199254740993",
        "-9007199254740992",
        "-10",
        "-9",
        "-1",
        "0",
        "9",
        "10",
        "11",
        "100",
    ];
    negative.iter().map(|n| (*n).to_owned()).chain(all.iter().map(u128::to_string)).collect()
}

/// After enviodev/hyperindex#1021, JasperFx/marten#4248, n8n-io/n8n#26925, supabase/supabase#16147.
#[test]
fn versions_keep_their_order_up_to_the_end_of_their_range() {
    let instants =
        |kind: &str| format!("declare = {{ object = 'body:/o', version = {{ from = 'body:/v', kind = '{kind}' }} }}");
    let kinds = ["integer", "decimal", "rfc3339", "unix_s", "unix_ms"];
    let sources: String = kinds.iter().map(|kind| hmac_source("acme", kind, &instants(kind))).collect();
    let mut system = System::new(Engine::Embedded, &sources);
    system.start(Role::All);
    let own = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
    let mut decimals = own(&["-1000000000000000000000000000000", "-0.5", "0.1", "0.11", "0.3", "9.99", "10"]);
    decimals.extend(integer_ladder().into_iter().filter(|n| n.len() > 3 && !n.starts_with('-')));
    decimals.extend(own(&[
        "18446744073709551616",
        "1000000000000000000000000000000",
        "1000000000000000000000000000001",
    ]));
    let ladders = [
        ("integer", integer_ladder()),
        ("decimal", decimals),
        (
            "rfc3339",
            own(&[
                "2024-02-29T23:59:59Z",
                // Text order and the order of instants differ.
                "2024-03-01T05:00:00+05:00",
                "2024-02-29T20:00:01-04:00",
                "2024-03-01T00:00:01.000000001Z",
                "2024-03-01T00:00:01.000000002Z",
                "2024-03-01T00:00:01.1Z",
            ]),
        ),
        ("unix_s", own(&["999999999", "1000000000", "1700000000", "1700000000.000000001", "1700000000.5"])),
        ("unix_ms", own(&["999999999999", "1000000000000", "1700000000000", "1700000000001"])),
    ];
    for (source, ladder) in &ladders {
        // Written as a number, and as a text.
        for quote in ["", "\""] {
            if *source == "rfc3339" && quote.is_empty() {
                continue;
            }
            let object = format!("up {}", quote.len());
            let up = ladder.iter().map(|v| (&object, v));
            // The same events to another object, the greatest first: all others are stale.
            let down = format!("down {}", quote.len());
            let all: Vec<_> = up.chain(ladder.iter().rev().map(|v| (&down, v))).collect();
            for (object, v) in all {
                let body = format!(r#"{{"id":"{v}","o":"{object}","v":{quote}{v}{quote}}}"#);
                assert_eq!(deliver(&signed(&system, "acme", source, body)).status, 200, "{v}");
            }
        }
    }
    system.wait_processed();
    assert!(dead_letters(&system).is_empty(), "{:?}", dead_letters(&system));
    let effects = system.effects();
    for (source, ladder) in &ladders {
        let last = ladder.last().expect("a ladder");
        let objects = if *source == "rfc3339" { &["1"][..] } else { &["0", "1"] };
        for quote in objects {
            let applied = |object: &str| -> Vec<&str> {
                let of_it = effects
                    .iter()
                    .filter(|e| e["source"] == *source && e["object"] == *object && e["outcome"] == "applied");
                of_it.map(|e| text(e, "version")).collect()
            };
            let (up, down) = (format!("up {quote}"), format!("down {quote}"));
            assert_eq!(applied(&up), *ladder, "{source}: each is newer than the one before");
            assert_eq!(applied(&down), [last], "{source}: each is older than the greatest");
            for object in [up, down] {
                assert_eq!(text(&get_object(&system, "acme", source, &object), "version"), last, "{source} {object}");
            }
        }
    }
}

#[test]
fn a_version_beyond_its_range_is_a_dead_letter_and_never_wraps() {
    let decimal = "declare = { object = 'body:/o', version = { from = 'body:/v', kind = 'decimal' } }";
    let mut system = System::new(
        Engine::Embedded,
        &(hmac_source("acme", "integer", BY_VERSION) + &hmac_source("acme", "decimal", decimal)),
    );
    system.start(Role::All);
    let too_large = "1".to_owned() + &"0".repeat(40);
    let beyond = [
        ("integer", "18446744073709551616"),
        ("integer", "18446744073709551617"),
        ("integer", "36893488147419103232"),
        ("integer", "1000000000000000000000000000000"),
        ("integer", "170141183460469231731687303715884105728"),
        ("integer", "-9223372036854775809"),
        ("integer", "1e30"),
        ("integer", "1e2"),
        ("integer", "1.0"),
        ("decimal", "1e400"),
        ("decimal", &too_large),
    ];
    for source in ["integer", "decimal"] {
        assert_eq!(deliver(&signed(&system, "acme", source, r#"{"id":"base","o":"x","v":5}"#)).status, 200);
    }
    for quote in ["", "\""] {
        for (source, version) in beyond {
            let body = format!(
                r#"{{"id":"{quote_len} {version}","o":"x","v":{quote}{version}{quote}}}"#,
                quote_len = quote.len()
            );
            assert_eq!(deliver(&signed(&system, "acme", source, body)).status, 200, "{version}");
        }
    }
    // The next good one is applied: no dead letter holds its object back.
    for source in ["integer", "decimal"] {
        assert_eq!(deliver(&signed(&system, "acme", source, r#"{"id":"next","o":"x","v":6}"#)).status, 200);
    }
    system.wait_processed();
    let dead = dead_letters(&system);
    for length in [0, 1] {
        for (source, version) in beyond {
            let id = format!("{length} {version}");
            let letter = dead.iter().find(|l| l["source"] == source && l["event_id"] == *id);
            let letter = letter.unwrap_or_else(|| panic!("{source}: {id} is no dead letter"));
            assert_eq!((text(letter, "cause"), text(letter, "object")), ("version", "x"), "{letter}");
        }
    }
    assert_eq!(dead.len(), beyond.len() * 2);
    for source in ["integer", "decimal"] {
        let history = system.json(&["object", "history", "acme", source, "x"]);
        let versions: Vec<_> = history.as_array().expect("rows").iter().map(|r| text(r, "version")).collect();
        assert_eq!(versions, ["5", "6"], "{source}");
    }
}

#[test]
fn neighbouring_large_numbers_as_ids_are_different_objects_and_events() {
    const SEED: u64 = 31;
    println!("seed {SEED}");
    let mut system = System::new(Engine::Embedded, &hmac_source("acme", "hmac", BY_VERSION));
    system.start(Role::All);
    let centres = [1_u64 << 53, 9_123_456_789_654_321, 7_615_917_337_495_251_231, (1 << 63) + 1, u64::MAX - 3];
    let mut ids: Vec<u64> = centres.iter().flat_map(|c| c - 3..=c + 3).collect();
    ids.shuffle(&mut SmallRng::seed_from_u64(SEED));
    for id in &ids {
        // The event id is that number too.
        let body = format!(r#"{{"id":{id},"o":{id},"v":1,"mine":"{id}"}}"#);
        assert_eq!(deliver(&signed(&system, "acme", "hmac", body)).status, 200);
    }
    system.wait_processed();
    assert_eq!(assert_no_effect_twice(&system.effects()), ids.len());
    for id in &ids {
        let id = id.to_string();
        let object = get_object(&system, "acme", "hmac", &id);
        assert_eq!((text(&object, "event"), text(&object["state"], "mine")), (id.as_str(), id.as_str()));
        assert_eq!(object["rev"], 1, "{id}: another object's event was taken for its own");
    }
}
