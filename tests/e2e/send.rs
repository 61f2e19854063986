//! `send --verify`: much signed traffic, repeated and shuffled, compared with what became of it.

use crate::support::{Engine, Role, System, source};

/// Requests of one run. SERIATIM_TEST_REQUESTS=100000 for the full figure.
pub fn requests(default: &str) -> String {
    std::env::var("SERIATIM_TEST_REQUESTS").unwrap_or_else(|_| default.to_owned())
}

#[test]
fn nothing_is_lost_or_applied_twice_embedded() {
    run(Engine::Embedded, "20000");
}

#[test]
fn nothing_is_lost_or_applied_twice_distributed() {
    run(Engine::Distributed, "10000");
}

fn run(engine: Engine, count: &str) {
    let mut system = System::new(engine, &source("stripe", "whsec_send", ""));
    system.start(Role::All);
    let count = requests(count);
    let arguments = [
        "send",
        "--preset",
        "stripe",
        "--count",
        &count,
        "--objects",
        "1000",
        "--duplicates",
        "20%",
        "--shuffle",
        "--seed",
        "7",
        "--verify",
    ];
    let report = system.json(&arguments);
    println!("{engine:?}: {report}");
    for zero in ["missing", "applied_twice", "effects_missing", "states_differ", "out_of_order", "given_up", "dead"] {
        assert_eq!(report[zero], 0, "{zero}: {report}");
    }
    assert_eq!(report["answered_2xx"].to_string(), count);
    // Each event once, and then some came again.
    assert!(report["duplicates"].as_u64().expect("a count") > 0, "{report}");
    // A stop under no load is clean, and what was written is there after a new start.
    system.terminate(Role::All);
    system.start(Role::All);
    let again = system.json(&arguments);
    assert_eq!(again["applied"], report["applied"], "sending all of it again applies nothing: {again}");
}

#[test]
fn every_preset_can_be_sent_and_verified() {
    let sources = [
        source("stripe", "whsec_a", ""),
        source("github", "b", ""),
        source("shopify", "c", ""),
        source("standard_webhooks", "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX", "declare.object = 'body:/data/id'"),
        source(
            "hmac",
            "d",
            "declare = { object = 'body:/object', version = { from = 'body:/version', kind = 'integer' } }",
        ),
    ];
    let mut system = System::new(Engine::Embedded, &sources.concat());
    system.start(Role::All);
    for preset in ["stripe", "github", "shopify", "standard_webhooks", "hmac"] {
        let report = system.json(&[
            "send",
            "--preset",
            preset,
            "--count",
            "200",
            "--objects",
            "5",
            "--duplicates",
            "20%",
            "--shuffle",
            "--verify",
        ]);
        assert_eq!(
            (&report["missing"], &report["states_differ"], &report["dead"]),
            (&0.into(), &0.into(), &0.into()),
            "{preset}: {report}"
        );
        assert_eq!(report["answered_2xx"], 200);
    }
}

/// A source without a preset has no example: its user brings a body.
#[test]
fn a_body_of_ones_own_is_signed_for_any_source() {
    let declare = "[[source]]\ntenant = \"acme\"\nname = \"own\"\nsecrets = [{ value = \"s\" }]\n[source.declare]\n\
        object = \"body:/o\"\nevent_id = \"body:/id\"\n[source.declare.verify]\nalgorithm = \"hmac-sha512\"\n\
        signature = \"header:X-Own | strip:v=\"\nencoding = \"base64\"\nsigned = \"{header:X-Id}.{body}\"\n";
    let mut system = System::new(Engine::Embedded, declare);
    system.start(Role::All);
    let path = system.path("body.json");
    std::fs::write(&path, r#"{ "id": "e1", "o": "a" }"#).expect("written");
    let send = ["send", "--tenant", "acme", "--source", "own", "--body", path.to_str().expect("text")];
    let answers = system.json(&[&send[..], &["--header", "X-Id: 7"]].concat());
    assert_eq!(answers[0]["status"], 200, "{answers}");
    system.wait_processed();
    assert_eq!(system.json(&["event", "trace", "acme", "own", "e1"])[0]["outcome"], "applied");
}
