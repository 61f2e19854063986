use axum::http::{HeaderMap, HeaderName, HeaderValue};
use hmac::{Hmac, KeyInit, Mac};
use seriatim_schemas::preset::Preset;

use super::*;

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a header name");
        map.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("a header value"));
    }
    map
}

fn verifier(preset: &str, secrets: &[&str]) -> Verifier {
    let verify = Preset::named(preset).expect("a preset").declare.verify.expect("verifies");
    let secrets: Vec<_> = secrets.iter().map(|s| SecretRef::Value((*s).to_owned())).collect();
    Verifier::new(verify, &secrets).expect("good secrets")
}

fn check(verifier: &Verifier, pairs: &[(&str, &str)], body: &[u8], now: i64) -> Result<String, Refusal> {
    let settings = Settings::new();
    let view = RequestView {
        method: "POST",
        headers: &headers(pairs),
        query: "",
        body,
        claims: None,
        item: None,
        settings: &settings,
    };
    verifier.verify(&view, Timestamp::from_second(now).expect("a time")).map(|v| v.secret.to_owned())
}

const BODY: &[u8] = b"{\"id\":\"evt_1\"}";
const NOW: i64 = 1_767_225_600;

fn sign_stripe(secret: &str, at: i64) -> String {
    let mut mac: Hmac<Sha256> = KeyInit::new_from_slice(secret.as_bytes()).expect("any length");
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
        (&[("Stripe-Signature", &good), ("Stripe-Signature", &good)], Refusal::ValueDoubled),
        (&[("Stripe-Signature", &format!("v1={signature}"))], Refusal::TimestampMalformed),
        (&[("Stripe-Signature", &format!("t={NOW},t={NOW},v1={signature}"))], Refusal::ValueDoubled),
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
    assert_eq!(check(&standard, &without_id, BODY, NOW), Err(Refusal::ValueMissing));
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
    let verify = Preset::named("standard_webhooks").expect("a preset").declare.verify.expect("verifies");
    for text in ["", " ", "whsec_", "whsec_*"] {
        let secrets = [SecretRef::Value(text.to_owned())];
        assert!(Verifier::new(verify.clone(), &secrets).is_err(), "{text:?}");
    }
    assert!(Verifier::new(verify, &[SecretRef::Env("SERIATIM_TEST_NOT_SET".into())]).is_err());
}

#[test]
fn a_public_key_without_its_prefix_becomes_no_secret() {
    let verify = Preset::named("standard_webhooks").expect("a preset").declare.verify.expect("verifies");
    let new = |text: &str| Verifier::new(verify.clone(), &[SecretRef::Value(text.to_owned())]);
    let key = "A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=";
    let told = new(key).expect_err("which kind?").to_string();
    assert!(told.contains("whsec_ or whpk_") && !told.contains(key), "{told}");
    let kinds = |text: &str| new(text).expect("a key").recipes.iter().map(|keyed| keyed.keys.len()).collect::<Vec<_>>();
    assert_eq!(kinds(&format!("whpk_{key}")), [0, 1]);
    assert_eq!(kinds(&format!("whsec_{key}")), [1, 0]);
    // Where all are secrets, the prefix may be left out as ever.
    assert_eq!(verifier("resend", &[key]).keys().count(), 1);
}

#[test]
fn a_list_of_signed_headers_says_all_that_it_signs() {
    let contentful = verifier("contentful", &["s"]);
    let contentful = contentful.with_settings(Settings::new(), Some("https://hooks.example.com/hook".to_owned()));
    let (list, old, now) = ("x-contentful-signed-headers", (NOW - 3600) * 1000, NOW * 1000);
    let all = format!("x-contentful-crn,{list},x-contentful-timestamp");
    let rest = |at: i64| format!("crn:1;{list}:{all};x-contentful-timestamp:{at}");
    let signed = |headers: &str| {
        let mut mac: Hmac<Sha256> = KeyInit::new_from_slice(b"s").expect("any length");
        mac.update(format!("POST\n/hook\n{headers}\n").as_bytes());
        mac.update(BODY);
        hex::encode(mac.finalize().into_bytes())
    };
    let ask = |headers: &str, names: &str, crn: &str, at: i64| {
        let (signature, at) = (signed(headers), at.to_string());
        let pairs = [
            ("x-contentful-signature", signature.as_str()),
            (list, names),
            ("x-contentful-crn", crn),
            ("x-contentful-timestamp", &at),
            ("content-type", "application/json; charset=utf-8"),
        ];
        check(&contentful, &pairs, BODY, NOW).map(|_| ())
    };
    let good = format!("x-contentful-crn:{}", rest(now));
    assert_eq!(ask(&good, &all, "crn:1", now), Ok(()));
    let charset = format!("content-type,{all}");
    let with_charset =
        format!("content-type:application/json; charset=utf-8;x-contentful-crn:{}", rest(now)).replace(&all, &charset);
    assert_eq!(ask(&with_charset, &charset, "crn:1", now), Ok(()));
    // A signature of an hour ago, with a timestamp of now: what was signed stands in one value.
    let replayed = format!("x-contentful-crn:{}", rest(old));
    assert_eq!(ask(&replayed, &all, "crn:1", old), Err(Refusal::TimestampTooOld));
    assert_eq!(ask(&replayed, "x-contentful-crn", &rest(old), now), Err(Refusal::HeaderNotListed));
    assert_eq!(ask(&replayed, &all, &rest(old), now), Err(Refusal::SignatureMalformed));
    for names in [list.to_owned(), "x-contentful-timestamp".to_owned(), format!("x-contentful-crn,{list}")] {
        assert_eq!(ask(&good, &names, "crn:1", now), Err(Refusal::HeaderNotListed), "{names}");
    }
    assert_eq!(ask(&good, &format!("{all},X-Contentful-CRN"), "crn:1", now), Err(Refusal::ValueDoubled));
}

#[test]
fn an_older_signature_does_not_count_beside_a_newer() {
    let hubspot = verifier("hubspot", &["s"]);
    let old = hex::encode(Sha256::digest([b"s", BODY].concat()));
    let now = (NOW * 1000).to_string();
    let v1 = ("X-HubSpot-Signature", old.as_str());
    assert!(check(&hubspot, &[v1], BODY, NOW).is_ok());
    assert_eq!(
        check(&hubspot, &[v1, ("X-HubSpot-Request-Timestamp", &now)], BODY, NOW),
        Err(Refusal::SignatureMissing)
    );
    let bad = ("X-HubSpot-Signature-v3", "AAAA");
    let too_old = ((NOW - 301) * 1000).to_string();
    for at in [&now, &too_old] {
        let pairs = [v1, bad, ("X-HubSpot-Request-Timestamp", at)];
        assert_eq!(check(&hubspot, &pairs, BODY, NOW), Err(Refusal::SignatureMismatch));
    }
    assert!(check(&hubspot, &[v1, ("X-HubSpot-Signature-v3", "")], BODY, NOW).is_err());
}

#[test]
fn signatures_may_stand_in_several_headers() {
    let recipe = |place: &str| {
        let text = format!("algorithm = 'hmac-sha256'\nsignature = '{place}'\nencoding = 'hex'\nsigned = '{{body}}'");
        Verifier::new(toml::from_str(&text).expect("a recipe"), &[SecretRef::Value("s".into())]).expect("a key")
    };
    let good = {
        let mut mac: Hmac<Sha256> = KeyInit::new_from_slice(b"s").expect("any length");
        mac.update(BODY);
        hex::encode(mac.finalize().into_bytes())
    };
    let repeated = [("x-sign", "00"), ("x-sign", good.as_str())];
    assert!(check(&recipe("headers:X-Sign"), &repeated, BODY, NOW).is_ok());
    assert_eq!(check(&recipe("header:X-Sign"), &repeated, BODY, NOW), Err(Refusal::ValueDoubled));
    let numbered = [("x-sign-1", "00"), ("x-sign-2", good.as_str())];
    assert!(check(&recipe("headers:X-Sign-*"), &numbered, BODY, NOW).is_ok());
    assert_eq!(
        check(&recipe("headers:X-Sign-*"), &[("x-sig-1", good.as_str())], BODY, NOW),
        Err(Refusal::SignatureMissing)
    );
}
