//! A missing header or secret must never open the door.
//! After octos-org/octos#862, krkn-chaos/krkn#1277, corsairdev/corsair#594 and #595.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Answer, Delivery, deliver, hmac_source};
use crate::support::{Engine, Role, SECRET, System, post, sign, source};

const STANDARD_SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";
const BODY: &[u8] =
    br#"{"id":"e1","type":"thing.updated","timestamp":"2024-01-01T00:00:00Z","created":1,"o":"x","v":1}"#;

/// A preset, what its request must carry to be believed, and the parts of a header that verification takes apart.
struct Scheme {
    preset: &'static str,
    headers: Vec<(String, String)>,
    /// A header whose value has parts, each needed: separator and parts.
    parts: Option<(&'static str, &'static str, Vec<String>)>,
}

fn all_sources() -> String {
    let declare = "declare = { object = 'body:/o', mode = 'delta' }";
    let secrets = [
        ("github", SECRET),
        ("hmac", SECRET),
        ("shopify", SECRET),
        ("stripe", SECRET),
        ("standard_webhooks", STANDARD_SECRET),
    ];
    secrets.iter().map(|(preset, secret)| source(preset, secret, declare)).collect()
}

fn schemes() -> Vec<Scheme> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs().to_string();
    let with_time = [now.as_bytes(), b".", BODY].concat();
    let stripe = vec![format!("t={now}"), format!("v1={}", sign(SECRET, &with_time))];
    let with_id = [b"msg_1.", &with_time[..]].concat();
    let key = STANDARD.decode(STANDARD_SECRET.trim_start_matches("whsec_")).expect("base64");
    let own = |name: &str, value: String| (name.to_owned(), value);
    let scheme = |preset, headers| Scheme { preset, headers, parts: None };
    vec![
        scheme("hmac", vec![own("X-Signature", sign(SECRET, BODY))]),
        scheme("github", vec![own("X-Hub-Signature-256", format!("sha256={}", sign(SECRET, BODY)))]),
        scheme("shopify", vec![own("X-Shopify-Hmac-Sha256", base64_mac(SECRET.as_bytes(), BODY))]),
        Scheme {
            preset: "stripe",
            headers: vec![own("Stripe-Signature", stripe.join(","))],
            parts: Some(("Stripe-Signature", ",", stripe)),
        },
        scheme(
            "standard_webhooks",
            vec![
                own("webhook-id", "msg_1".to_owned()),
                own("webhook-timestamp", now),
                own("webhook-signature", format!("v1,{}", base64_mac(&key, &with_id))),
            ],
        ),
    ]
}

fn base64_mac(key: &[u8], body: &[u8]) -> String {
    use hmac::{Hmac, KeyInit, Mac};
    let mut mac: Hmac<sha2::Sha256> = KeyInit::new_from_slice(key).expect("any length");
    mac.update(body);
    STANDARD.encode(mac.finalize().into_bytes())
}

impl Scheme {
    fn delivery(&self, system: &System, headers: Vec<(String, String)>) -> Delivery {
        Delivery { url: system.url("acme", self.preset), headers, body: BODY.to_vec() }
    }

    /// What an honest request becomes when one thing that verification reads is missing, empty, doubled or wrong.
    fn spoiled(&self) -> Vec<(String, Vec<(String, String)>)> {
        let mut out = vec![("no headers".to_owned(), Vec::new())];
        for (at, (name, value)) in self.headers.iter().enumerate() {
            let mut without = self.headers.clone();
            without.remove(at);
            let replaced = |by: &str| {
                let mut headers = self.headers.clone();
                headers[at].1 = by.to_owned();
                headers
            };
            let doubled = |by: &str, first: bool| {
                let mut headers = self.headers.clone();
                headers.insert(if first { at } else { at + 1 }, (name.clone(), by.to_owned()));
                headers
            };
            let cut = &value[..value.len() - 1];
            out.push((format!("without {name}"), without));
            for by in ["", " ", ",", "null", "undefined", "0", "sha256=", "v1=", "v1,", "t=1,v1=", cut] {
                out.push((format!("{name} is {by:?}"), replaced(by)));
            }
            out.push((format!("{name} twice"), doubled(value, false)));
            out.push((format!("{name} and an empty one"), doubled("", false)));
            out.push((format!("an empty one and {name}"), doubled("", true)));
        }
        if let Some((name, separator, parts)) = &self.parts {
            for at in 0..parts.len() {
                let mut fewer = parts.clone();
                let gone = fewer.remove(at);
                let label = gone.split_once('=').map_or("", |(label, _)| label).to_owned();
                out.push((format!("{name} without {gone}"), vec![((*name).to_owned(), fewer.join(separator))]));
                fewer.push(format!("{label}="));
                out.push((format!("{name} with an empty {label}"), vec![((*name).to_owned(), fewer.join(separator))]));
            }
            let twice = [&parts[..1], &parts[..]].concat().join(separator);
            out.push((format!("{name} with its timestamp twice"), vec![((*name).to_owned(), twice)]));
        }
        out
    }
}

fn assert_is_refused(answer: &Answer, uniform: &mut Option<Answer>, what: &str) {
    assert_eq!(answer.status, 401, "{what}: {answer:?}");
    let first = uniform.get_or_insert_with(|| answer.clone());
    assert_eq!(answer, first, "{what}: the answer tells one cause from another");
}

#[test]
fn whatever_verification_reads_is_needed_once_and_whole() {
    let mut system = System::new(Engine::Embedded, &all_sources());
    system.start(Role::All);
    let mut uniform = None;
    for scheme in schemes() {
        for (what, headers) in scheme.spoiled() {
            let answer = deliver(&scheme.delivery(&system, headers));
            assert_is_refused(&answer, &mut uniform, &format!("{}, {what}", scheme.preset));
        }
    }
    system.wait_processed();
    assert_eq!(system.log_count(), 0, "a request that was not believed left a trace in the log");
    assert!(system.effects().is_empty() && system.json(&["dead", "list"]).as_array().expect("a list").is_empty());
    // The unspoiled request is believed: else the refusals above would prove nothing.
    for (nth, scheme) in schemes().iter().enumerate() {
        let answer = deliver(&scheme.delivery(&system, scheme.headers.clone()));
        assert_eq!((answer.status, system.log_count()), (200, nth as i64 + 1), "{}", scheme.preset);
    }
}

#[test]
fn a_signature_of_another_key_body_or_source_is_refused() {
    let declare = "declare = { object = 'body:/o', mode = 'delta' }";
    let other = hmac_source("other", "hmac", declare).replace(SECRET, "another secret");
    let mut system = System::new(Engine::Embedded, &(all_sources() + &other));
    system.start(Role::All);
    let valid = sign(SECRET, BODY);
    let other_body = String::from_utf8_lossy(BODY).replace("e1", "e2");
    let requests = [
        ("other", "hmac", valid.clone(), BODY),
        ("acme", "hmac", sign("", BODY), BODY),
        ("acme", "hmac", sign("another secret", BODY), BODY),
        ("acme", "hmac", valid.clone(), other_body.as_bytes()),
        ("acme", "hmac", valid.clone(), b""),
        ("acme", "unknown", valid.clone(), BODY),
        ("unknown", "hmac", valid.clone(), BODY),
        ("ACME", "hmac", valid.clone(), BODY),
        ("acme%00", "hmac", valid.clone(), BODY),
        ("acme", "hmac%20", valid.clone(), BODY),
    ];
    let mut uniform = None;
    for (tenant, source, signature, body) in &requests {
        let headers = vec![("x-signature".to_owned(), signature.clone())];
        let answer = deliver(&Delivery { url: system.url(tenant, source), headers, body: body.to_vec() });
        assert_is_refused(&answer, &mut uniform, &format!("{tenant}/{source}"));
    }
    assert_eq!(system.log_count(), 0);
    assert_eq!(post(&system.url("acme", "hmac"), &[("x-signature", &valid)], BODY), 200);
}

#[test]
fn a_secret_without_a_key_in_it_stops_the_start() {
    let empty_file = tempfile::NamedTempFile::new().expect("a file");
    let blank_file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(blank_file.path(), " \n\t\n").expect("written");
    let file = |f: &tempfile::NamedTempFile| format!("{{ file = \"{}\" }}", f.path().display());
    let value = |text: &str| format!("{{ value = \"{text}\" }}");
    let cases = [
        ("hmac", value("")),
        ("hmac", value("  ")),
        ("hmac", file(&empty_file)),
        ("hmac", file(&blank_file)),
        ("hmac", "{ file = \"there-is-no-such-file\" }".to_owned()),
        // The prefix is not part of the key: what is left of it is an empty key.
        ("standard_webhooks", value("whsec_")),
        ("standard_webhooks", value("whsec_not base64")),
        // One good secret does not make up for an empty one beside it.
        ("hmac", format!("{}, {}", value("good"), value(""))),
        ("standard_webhooks", format!("{}, {}", value(STANDARD_SECRET), value("whsec_"))),
    ];
    for (preset, secret) in cases {
        let text = source(preset, "x", "declare = { object = 'body:/o' }").replace("{ value = \"x\" }", &secret);
        let system = System::new(Engine::Embedded, &text);
        // `check` alone may not read secrets; a process that serves must not start. It would run on if it did.
        let mut child =
            system.command(&["run"]).stderr(std::process::Stdio::piped()).spawn().expect("the binary starts");
        let mut ended = None;
        crate::support::wait_until("ended or listening", || {
            ended = child.try_wait().expect("waited");
            ended.is_some() || std::net::TcpStream::connect(("127.0.0.1", system.edge)).is_ok()
        });
        let _ = child.kill();
        let output = child.wait_with_output().expect("it ended");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(ended.is_some_and(|status| !status.success()), "{preset} {secret}: it serves\n{err}");
        assert!(!err.contains("panicked"), "{preset} {secret}: {err}");
    }
}
