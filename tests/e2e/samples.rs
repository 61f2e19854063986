//! Signed delivery sequences of providers, each with a trap of order, through HTTP on every engine.

use serde_json::Value;

use crate::support::{Engine, Role, System, data, post, source_of};

/// The samples, and for a delivery whose outcome the sample leaves open (a tie), what our rules make of it:
/// the rank decides, then the greater event id.
const SAMPLES: [(&str, &str, Option<&str>); 5] = [
    ("stripe-same-second-tie", "stripe", Some("stale")),
    ("stripe-updated-after-deleted", "stripe", None),
    ("github-form-content-type", "github", None),
    ("github-late-synchronize-and-redelivery", "github", Some("applied")),
    ("shopify-retry-with-old-payload", "shopify", Some("applied")),
];

/// The samples are older than Stripe's window, which is checked on its own.
const WIDE_WINDOW: &str = r#"
[source.declare.verify]
algorithm = "hmac-sha256"
signature = 'header:Stripe-Signature | split:, | strip:v1='
encoding = "hex"
signed = "{timestamp}.{body}"
timestamp = { from = 'header:Stripe-Signature | split:, | strip:t=', unit = "s", past_max_s = 1000000000 }
"#;

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
    let sources = SAMPLES.map(|(name, preset, _)| {
        let declare = if preset == "stripe" { WIDE_WINDOW } else { "" };
        source_of(name, preset, read(name)["secret"].as_str().expect("a secret"), declare)
    });
    let mut system = System::new(engine, &sources.concat());
    system.start(Role::All);
    for (name, preset, tie) in SAMPLES {
        let deliveries = run(&system, name, preset, tie);
        println!("{name:40} {engine:?}: {deliveries} deliveries as expected");
    }
}

fn read(name: &str) -> Value {
    serde_json::from_str(&data(&format!("samples/{name}.json"))).expect("JSON")
}

fn run(system: &System, name: &str, preset: &str, tie: Option<&str>) -> usize {
    let sample = read(name);
    let deliveries = sample["deliveries"].as_array().expect("deliveries");
    for delivery in deliveries {
        let headers: Vec<_> = delivery["headers"].as_object().expect("headers").iter().collect();
        let headers: Vec<_> = headers.iter().map(|(n, v)| (n.as_str(), v.as_str().expect("text"))).collect();
        let body = delivery["body"].as_str().expect("a body");
        assert_eq!(post(&system.url(name, preset), &headers, body.as_bytes()), 200, "{name}");
    }
    system.wait_processed();
    let mut seen: Vec<(String, usize)> = Vec::new();
    for delivery in deliveries {
        let expect = &delivery["expect"][0];
        let id = expect["event_id"].as_str().expect("an id");
        let nth = seen.iter().filter(|(i, _)| i == id).count();
        seen.push((id.to_owned(), nth));
        let arrivals = system.json(&["event", "trace", name, preset, id]);
        let arrival = &arrivals[nth];
        let expected = match expect["outcome"].as_str().expect("an outcome") {
            "apply" => "applied",
            "tie" => tie.expect("a rule for the tie"),
            other => other,
        };
        assert_eq!(arrival["outcome"], expected, "{name}: delivery {}, {arrivals}", delivery["arrival"]);
        // Some presets name the kind of an object before its id: ids are unique only within a kind.
        let object = arrival["object"].as_str().expect("an object");
        let wanted = expect["object"].as_str().expect("an object");
        assert!(object == wanted || object.ends_with(&format!(" {wanted}")), "{name}: {object}, not {wanted}");
    }
    deliveries.len()
}
