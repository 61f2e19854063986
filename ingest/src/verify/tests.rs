use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use seriatim_schemas::declaration::SecretRef;
use seriatim_schemas::preset::Preset;

use super::*;
use crate::secret::live_keys;

#[derive(Deserialize)]
struct Vector {
    id: String,
    recipe: String,
    request: VectorRequest,
    secret: serde_json::Value,
    now: Option<i64>,
    expected: String,
}

#[derive(Deserialize)]
struct VectorRequest {
    headers: std::collections::BTreeMap<String, serde_json::Value>,
    body_base64: String,
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a header name");
        map.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("a header value"));
    }
    map
}

fn verifier(preset: &str, secrets: &[&str]) -> Verifier {
    let rule = Preset::named(preset).expect("a preset").declare.verify.expect("verifies");
    let secrets: Vec<_> = secrets.iter().map(|s| SecretRef::Value((*s).to_owned())).collect();
    let keys = live_keys(&secrets, &rule).expect("good secrets");
    Verifier::new(rule, keys)
}

fn check(verifier: &Verifier, pairs: &[(&str, &str)], body: &[u8], now: i64) -> Result<String, Refusal> {
    let view = RequestView { headers: &headers(pairs), query: "", body };
    verifier.verify(&view, Timestamp::from_second(now).expect("a time")).map(str::to_owned)
}

#[test]
fn signed_vectors_of_providers_hold() {
    let text = include_str!("../../../tests/data/vectors.json");
    let vectors: Vec<Vector> = serde_json::from_str(text).expect("the file is ours");
    assert!(vectors.len() > 20, "{}", vectors.len());
    let mut wrong = Vec::new();
    for vector in vectors {
        let secrets: Vec<String> = match &vector.secret {
            serde_json::Value::String(one) => vec![one.clone()],
            other => serde_json::from_value(other.clone()).expect("a list of secrets"),
        };
        let verifier = verifier(&vector.recipe, &secrets.iter().map(String::as_str).collect::<Vec<_>>());
        let pairs: Vec<(&str, &str)> =
            vector.request.headers.iter().map(|(n, v)| (n.as_str(), v.as_str().expect("one value"))).collect();
        let body = STANDARD.decode(&vector.request.body_base64).expect("base64");
        let result = check(&verifier, &pairs, &body, vector.now.unwrap_or(1_767_225_600));
        if result.is_ok() != (vector.expected == "accept") {
            wrong.push(format!("{}: expected {}, got {result:?}", vector.id, vector.expected));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

const BODY: &[u8] = b"{\"id\":\"evt_1\"}";
const NOW: i64 = 1_767_225_600;

fn sign_stripe(secret: &str, at: i64) -> String {
    let mut mac = crate::secret::LiveKey::new(0, secret.as_bytes()).mac();
    mac.update(format!("{at}.").as_bytes());
    mac.update(BODY);
    hex::encode(mac.finalize().into_bytes())
}

#[test]
fn every_live_secret_is_tried_and_named() {
    let both = verifier("stripe", &["old", "new"]);
    for (secret, index) in [("old", "0:"), ("new", "1:")] {
        let header = format!("t={NOW},v1={}", sign_stripe(secret, NOW));
        let label = check(&both, &[("Stripe-Signature", &header)], BODY, NOW).expect("a live secret");
        assert!(label.starts_with(index), "{label}");
    }
    let (bad, good) = (sign_stripe("gone", NOW), sign_stripe("new", NOW));
    for pair in [
        format!("t={NOW},v1={bad},v1={good}"),
        format!("t={NOW},v1={good},v1={bad}"),
        format!("t={NOW},v1=zz,v1={good}"),
    ] {
        assert!(check(&both, &[("Stripe-Signature", &pair)], BODY, NOW).is_ok(), "{pair}");
    }
    let gone = format!("t={NOW},v1={bad}");
    assert_eq!(check(&both, &[("Stripe-Signature", &gone)], BODY, NOW), Err(Refusal::SignatureMismatch));
}

#[test]
fn whatever_is_missing_doubled_or_malformed_is_refused() {
    let stripe = verifier("stripe", &["s"]);
    let good = format!("t={NOW},v1={}", sign_stripe("s", NOW));
    let signature = sign_stripe("s", NOW);
    let table: [(&[(&str, &str)], Refusal); 9] = [
        (&[], Refusal::SignatureMissing),
        (&[("Stripe-Signature", "")], Refusal::SignatureMissing),
        (&[("Stripe-Signature", &good), ("Stripe-Signature", &good)], Refusal::HeaderDoubled),
        (&[("Stripe-Signature", &format!("v1={signature}"))], Refusal::TimestampMalformed),
        (&[("Stripe-Signature", &format!("t={NOW},t={NOW},v1={signature}"))], Refusal::HeaderDoubled),
        (&[("Stripe-Signature", &format!("t={NOW},v1=xyz"))], Refusal::SignatureMalformed),
        (&[("Stripe-Signature", &format!("t={NOW},v1="))], Refusal::SignatureMissing),
        (&[("Stripe-Signature", &format!("t={NOW},v0={signature}"))], Refusal::SignatureMissing),
        (&[("Stripe-Signature", &format!("t={NOW},v1={}", &signature[2..]))], Refusal::SignatureMismatch),
    ];
    for (pairs, refusal) in table {
        assert_eq!(check(&stripe, pairs, BODY, NOW), Err(refusal), "{pairs:?}");
    }
    assert_eq!(check(&stripe, &[("Stripe-Signature", &good)], b"{}", NOW), Err(Refusal::SignatureMismatch));
    let standard = verifier("standard_webhooks", &["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]);
    let without_id = [("webhook-timestamp", "1767225600"), ("webhook-signature", "v1,AAAA")];
    assert_eq!(check(&standard, &without_id, BODY, NOW), Err(Refusal::HeaderMissing));
}

#[test]
fn the_window_is_closed_at_its_limits() {
    let stripe = verifier("stripe", &["s"]);
    let at = |signed: i64| {
        let header = format!("t={signed},v1={}", sign_stripe("s", signed));
        check(&stripe, &[("Stripe-Signature", &header)], BODY, NOW).map(|_| ())
    };
    assert_eq!(at(NOW - 300), Ok(()));
    assert_eq!(at(NOW - 301), Err(Refusal::TimestampTooOld));
    assert_eq!(at(NOW + 86_400), Ok(()));
}

#[test]
fn an_empty_secret_never_becomes_a_key() {
    let rule = Preset::named("standard_webhooks").expect("a preset").declare.verify.expect("verifies");
    for text in ["", " ", "whsec_", "whsec_*"] {
        let secrets = [SecretRef::Value(text.to_owned())];
        assert!(live_keys(&secrets, &rule).is_err(), "{text:?}");
    }
    assert!(live_keys(&[SecretRef::Env("SERIATIM_TEST_NOT_SET".into())], &rule).is_err());
}
