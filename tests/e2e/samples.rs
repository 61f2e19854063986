//! Signed delivery sequences of providers, each with a trap of order, through HTTP on every engine.

use std::collections::HashMap;

use serde_json::Value;

use crate::support::{Engine, Role, System, data, exchange};

/// The samples, and for deliveries whose outcome the sample leaves open (a tie, a thin event to fetch), what our
/// rules make of them, in their order: the rank decides, then the greater event id.
const SAMPLES: [(&str, &[&str]); 15] = [
    ("stripe-same-second-tie", &["stale"]),
    ("stripe-updated-after-deleted", &[]),
    ("github-form-content-type", &[]),
    ("github-late-synchronize-and-redelivery", &["applied"]),
    ("shopify-retry-with-old-payload", &["applied"]),
    ("adyen-batch-capture-first", &[]),
    ("chargebee-resource-version", &[]),
    ("hubspot-batch-reversed", &[]),
    ("linear-update-after-remove", &[]),
    ("meta-whatsapp-status-order", &[]),
    ("paddle-microseconds", &[]),
    ("sendgrid-duplicate-inside-batch", &["applied"]),
    ("slack-challenge-retry-edit", &[]),
    ("telegram-update-id", &[]),
    ("xero-intent-and-sequence-gap", &["applied", "applied", "applied"]),
];

/// The samples are older than the windows of their presets, which are checked on their own.
const WIDE_S: u64 = 10_000_000_000;

#[test]
fn samples_of_providers_give_their_outcomes_embedded() {
    run_all(Engine::Embedded);
}

#[test]
fn samples_of_providers_give_their_outcomes_distributed() {
    run_all(Engine::Distributed);
}

/// One system, and a tenant for each sample: several are about the same object.
fn run_all(engine: Engine) {
    let presets = System::new(engine, "");
    let sources: String = SAMPLES.iter().map(|(name, _)| source(&presets, name)).collect();
    let mut system = System::new(engine, &sources);
    system.start(Role::All);
    for (name, open) in SAMPLES {
        let deliveries = run(&system, name, open);
        println!("{name:40} {engine:?}: {deliveries} deliveries as expected");
    }
}

fn read(name: &str) -> Value {
    serde_json::from_str(&data(&format!("samples/{name}.json"))).expect("JSON")
}

/// The preset with wide windows, what the sample says of its sender, and some text for each further setting.
fn source(presets: &System, name: &str) -> String {
    let sample = read(name);
    let text = |field: &str| sample[field].as_str().map(str::to_owned);
    let provider = text("provider").expect("a provider");
    let mut preset = presets.json(&["source", "presets", &provider]);
    let recipes: Vec<&mut Value> = match &mut preset["declare"]["verify"] {
        Value::Array(all) => all.iter_mut().collect(),
        one => vec![one],
    };
    for recipe in recipes {
        if let Some(timestamp) = recipe.get_mut("timestamp") {
            timestamp["past_max_s"] = WIDE_S.into();
        }
    }
    let verify = toml::Value::try_from(&preset["declare"]["verify"]).expect("TOML");
    let (secret, url) =
        (text("secret").expect("a secret"), text("url").unwrap_or("https://hooks.example.com".to_owned()));
    let settings = if provider == "meta" { "settings = { verify_token = \"t\" }" } else { "" };
    format!(
        "[[source]]\ntenant = \"{name}\"\nname = \"{provider}\"\npreset = \"{provider}\"\n\
        secrets = [{{ value = \"{secret}\" }}]\npublic_url = \"{url}\"\n{settings}\n\
        [source.declare]\nverify = {verify}\n"
    )
}

fn run(system: &System, name: &str, open: &[&str]) -> usize {
    let sample = read(name);
    let provider = sample["provider"].as_str().expect("a provider");
    let deliveries = sample["deliveries"].as_array().expect("deliveries");
    let mut expected = Vec::new();
    for delivery in deliveries {
        let headers: Vec<_> = delivery["headers"].as_object().expect("headers").iter().collect();
        let headers: Vec<_> = headers.iter().map(|(n, v)| (n.as_str(), v.as_str().expect("text"))).collect();
        let body = delivery["body"].as_str().expect("a body");
        let (status, answer) = exchange(&system.url(name, provider), &headers, body.as_bytes());
        let response = &delivery["expect"][0]["response"];
        assert_eq!(u64::from(status), response["status"].as_u64().unwrap_or(200), "{name}: {answer}");
        if let Some(wanted) = response["body"].as_str() {
            assert_eq!(answer, wanted, "{name}");
        }
        if response.is_null() {
            expected.extend(delivery["expect"].as_array().expect("a list").iter().cloned());
        }
    }
    system.wait_processed();
    check(name, &expected, &arrivals(system, name, provider), open);
    deliveries.len()
}

/// Every event of a source in the order of its arrival.
fn arrivals(system: &System, tenant: &str, source: &str) -> Vec<Value> {
    let output = system.cli(&["tail", "--tenant", tenant, "--from-start", "--no-follow", "--output", "json"]);
    let lines = String::from_utf8(output.stdout).expect("text");
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"));
    let mut events: Vec<_> = lines.filter(|line| line["kind"] != "evidence").collect();
    let place = |record: &Value| {
        let (request, item) = record["record"].as_str().expect("a record id").rsplit_once('.').expect("an item");
        (request.to_owned(), item.parse::<u32>().expect("a number"))
    };
    events.sort_by_key(place);
    let of = |event: &Value| {
        let all = system.json(&["event", "trace", tenant, source, event["event_id"].as_str().expect("an id")]);
        let all = all.as_array().unwrap_or_else(|| panic!("no arrivals of {event}"));
        let own = all.iter().find(|arrival| arrival["record"] == event["record"]);
        own.unwrap_or_else(|| panic!("{event} is not in {all:?}")).clone()
    };
    events.iter().map(of).collect()
}

/// Outcomes are equal; ids and objects name the same things, whatever our text for them is.
fn check(name: &str, expected: &[Value], found: &[Value], open: &[&str]) {
    assert_eq!(found.len(), expected.len(), "{name}: {found:#?}");
    let mut open = open.iter();
    let mut names: HashMap<(&str, &str), &Value> = HashMap::new();
    let mut dropped: Vec<&Value> = Vec::new();
    for (wanted, found) in expected.iter().zip(found) {
        let outcome = match wanted["outcome"].as_str().expect("an outcome") {
            "apply" => "applied",
            // What was dropped left no row, and is as stale the second time.
            "duplicate" if dropped.contains(&&found["event"]) => "stale",
            "tie" | "fetch" => open.next().unwrap_or_else(|| panic!("{name}: what becomes of {wanted}?")),
            other => other,
        };
        assert_eq!(found["outcome"], outcome, "{name}: {wanted}, {found}");
        if outcome == "stale" {
            dropped.push(&found["event"]);
        }
        for (theirs, ours) in [("event_id", "event"), ("object", "object")] {
            let Some(text) = wanted[theirs].as_str() else { continue };
            let named = *names.entry((theirs, text)).or_insert(&found[ours]);
            assert_eq!(*named, found[ours], "{name}: two names for {theirs} {text}");
        }
    }
    assert_eq!(open.next(), None, "{name}: more answers than questions");
    let mut ours: Vec<_> = names.iter().map(|((kind, _), name)| (*kind, name.to_string())).collect();
    ours.sort();
    ours.dedup();
    assert_eq!(ours.len(), names.len(), "{name}: one name for two things");
}
