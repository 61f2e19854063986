//! Handshakes as the providers' public documentation describes them, through the real HTTP edge: the good side is
//! answered as the provider demands, the bad side gets an empty 401, and neither is ever published. The vectors hold
//! recorded handshakes of some providers only; each of the others is written here from the document that it names.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::Url;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use seriatim_schemas::preset::Preset;
use seriatim_schemas::record::RecordKind;
use seriatim_schemas::source::{SecretRef, Source};
use sha1::Sha1;
use sha2::{Sha256, Sha512};

use support::{Documents, Running, source, start};

/// Its start is the clock of the edge under test.
const AT: &str = "1767225600";
const AT_ISO: &str = "2026-01-01T00:00:00Z";
const SECRET: &str = "s3cret-of-the-test";
const FORM: (&str, &str) = ("Content-Type", "application/x-www-form-urlencoded");
const JSON: (&str, &str) = ("Content-Type", "application/json");
const TOPIC: &str = "arn:aws:sns:us-west-2:123456789012:MyTopic";
/// Settings of the sources: what was typed at the provider.
const SETTINGS: [(&str, &str, &str); 3] = [
    ("meta", "verify_token", "meatyhamhock"),
    ("braintree", "public_key", "integration_public_key"),
    ("aws_sns", "topic_arn", TOPIC),
];

type Fields = Vec<(&'static str, String)>;

/// A request that asks, where nobody signs it.
struct Unsigned {
    preset: &'static str,
    docs: &'static str,
    method: &'static str,
    query: &'static str,
    header: Option<(&'static str, &'static str)>,
    body: &'static str,
    content_type: Option<&'static str>,
    answer: &'static str,
}

const UNSIGNED: [Unsigned; 10] = [
    Unsigned {
        preset: "meta",
        docs: "https://developers.facebook.com/docs/graph-api/webhooks/getting-started",
        method: "GET",
        query: "hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=meatyhamhock",
        header: None,
        body: "",
        content_type: Some("text/plain"),
        answer: "1158201444",
    },
    Unsigned {
        preset: "microsoft_graph",
        docs: "https://learn.microsoft.com/en-us/graph/change-notifications-delivery-webhooks",
        method: "POST",
        query: "validationToken=Validation%3A+Testing+client+application+reachability+%26+%3Cb%3E+%C3%A9+100%25%2B",
        header: Some(("Content-Type", "text/plain; charset=utf-8")),
        body: "",
        content_type: Some("text/plain"),
        answer: "Validation: Testing client application reachability & <b> \u{e9} 100%+",
    },
    Unsigned {
        preset: "dropbox",
        docs: "https://www.dropbox.com/developers/reference/webhooks",
        method: "GET",
        query: "challenge=%3Cscript%3Ealert(1)%3C%2Fscript%3E",
        header: None,
        body: "",
        content_type: Some("text/plain"),
        answer: "<script>alert(1)</script>",
    },
    Unsigned {
        preset: "lark",
        docs: "https://open.larksuite.com/document/server-docs/event-subscription-guide/overview",
        method: "POST",
        query: "",
        header: Some(JSON),
        body: r#"{"challenge":"ajls384kdjx98XX","token":"s3cret-of-the-test","type":"url_verification"}"#,
        content_type: Some("application/json"),
        answer: r#"{"challenge":"ajls384kdjx98XX"}"#,
    },
    Unsigned {
        preset: "lark",
        docs: "https://open.larksuite.com/document/server-docs/event-subscription-guide/overview",
        method: "POST",
        query: "",
        header: Some(JSON),
        body: r#"{"challenge":"a\"b\\c\n</script>","token":"anyone","type":"url_verification"}"#,
        content_type: Some("application/json"),
        answer: r#"{"challenge":"a\"b\\c\n</script>"}"#,
    },
    Unsigned {
        preset: "trello",
        docs: "https://developer.atlassian.com/cloud/trello/guides/rest-api/webhooks",
        method: "HEAD",
        query: "memberID=14&mainModel=true",
        header: None,
        body: "",
        content_type: None,
        answer: "",
    },
    Unsigned {
        preset: "mandrill",
        docs: "https://mandrill.zendesk.com/hc/en-us/articles/360038740014",
        method: "HEAD",
        query: "",
        header: None,
        body: "",
        content_type: None,
        answer: "",
    },
    Unsigned {
        preset: "intercom",
        docs: "https://developers.intercom.com/docs/webhooks/setting-up-webhooks",
        method: "HEAD",
        query: "",
        header: None,
        body: "",
        content_type: None,
        answer: "",
    },
    Unsigned {
        // deliver_ping sends the text "webhook_id=N", and wants exactly 200.
        preset: "woocommerce",
        docs: "https://github.com/woocommerce/woocommerce, plugins/woocommerce/includes/class-wc-webhook.php",
        method: "POST",
        query: "",
        header: Some(FORM),
        body: "webhook_id=17",
        content_type: None,
        answer: "",
    },
    Unsigned {
        preset: "woocommerce",
        docs: "https://github.com/woocommerce/woocommerce, plugins/woocommerce/includes/class-wc-webhook.php",
        method: "POST",
        query: "",
        header: Some(("Content-Type", "application/x-www-form-urlencoded; charset=UTF-8")),
        body: "webhook_id=17",
        content_type: None,
        answer: "",
    },
];

/// What looks like a handshake and is none: preset, method, query, header, body.
type Lookalike = (&'static str, &'static str, &'static str, Option<(&'static str, &'static str)>, &'static str);

const LOOKALIKES: [Lookalike; 22] = [
    ("meta", "GET", "hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=wrong", None, ""),
    ("meta", "GET", "hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=", None, ""),
    ("meta", "GET", "hub.mode=subscribe&hub.challenge=1158201444", None, ""),
    ("meta", "GET", "hub.mode=unsubscribe&hub.challenge=1158201444&hub.verify_token=meatyhamhock", None, ""),
    ("meta", "GET", "hub.mode=subscribe&hub.verify_token=meatyhamhock", None, ""),
    ("meta", "GET", "hub.mode=subscribe&hub.challenge=1&hub.verify_token=x&hub.verify_token=meatyhamhock", None, ""),
    ("meta", "POST", "hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=meatyhamhock", Some(JSON), "{}"),
    ("microsoft_graph", "POST", "validationToken=", None, ""),
    ("microsoft_graph", "POST", "", Some(JSON), r#"{"value":[{"clientState":"wrong","resource":"r"}]}"#),
    ("dropbox", "GET", "", None, ""),
    ("dropbox", "POST", "challenge=abc", Some(JSON), r#"{"list_folder":{"accounts":["dbid:1"]}}"#),
    ("lark", "POST", "", Some(JSON), r#"{"challenge":"c","type":"event_callback"}"#),
    ("lark", "POST", "", Some(JSON), r#"{"type":"url_verification"}"#),
    ("trello", "POST", "", Some(JSON), r#"{"action":{"id":"1"},"model":{"id":"2"}}"#),
    ("trello", "GET", "", None, ""),
    ("mandrill", "POST", "", Some(FORM), "mandrill_events=%5B%5D"),
    ("mandrill", "POST", "", Some(FORM), "mandrill_events=%5B%7B%22event%22%3A%22send%22%2C%22_id%22%3A%221%22%7D%5D"),
    ("woocommerce", "POST", "", Some(FORM), "other=17"),
    ("woocommerce", "POST", "", Some(FORM), "webhook_id="),
    ("woocommerce", "POST", "", Some(JSON), r#"{"webhook_id":17}"#),
    ("braintree", "GET", "bt_challenge=", None, ""),
    ("twitter", "GET", "crc_token=", None, ""),
];

/// A request that asks, signed like any other.
struct Signed {
    preset: &'static str,
    docs: &'static str,
    header: (&'static str, &'static str),
    body: &'static str,
    status: u16,
    content_type: Option<&'static str>,
    answer: &'static str,
}

const SIGNED: [Signed; 10] = [
    Signed {
        preset: "slack",
        docs: "https://docs.slack.dev/reference/events/url_verification",
        header: JSON,
        body: r#"{"token":"Jhj5","challenge":"3eZbrw1aBm2rZgRNFdxV2595","type":"url_verification"}"#,
        status: 200,
        content_type: Some("text/plain"),
        answer: "3eZbrw1aBm2rZgRNFdxV2595",
    },
    Signed {
        preset: "slack",
        docs: "https://docs.slack.dev/interactivity/implementing-slash-commands",
        header: FORM,
        body: "token=Jhj5&ssl_check=1",
        status: 200,
        content_type: None,
        answer: "",
    },
    Signed {
        preset: "zoom",
        docs: "https://developers.zoom.us/docs/api/webhooks/",
        header: JSON,
        body: r#"{"payload":{"plainToken":"qgg8vlvZRS6UYooatFL8Aw"},"event":"endpoint.url_validation"}"#,
        status: 200,
        content_type: Some("application/json"),
        // HMAC-SHA256 of the plain token, made with Python's hmac.
        answer: r#"{"plainToken":"qgg8vlvZRS6UYooatFL8Aw",
            "encryptedToken":"b0d72986a7988ee1ed908b4988da04e378dba2365c2a8b2d8d722a998808748c"}"#,
    },
    Signed {
        preset: "discord",
        docs: "https://docs.discord.com/developers/interactions/overview",
        header: JSON,
        body: r#"{"application_id":"1","id":"2","token":"t","type":1,"user":{"id":"3"},"version":1}"#,
        status: 200,
        content_type: Some("application/json"),
        answer: r#"{"type":1}"#,
    },
    Signed {
        // "You must provide a valid Content-Type when responding to PINGs", and no body.
        preset: "discord",
        docs: "https://docs.discord.com/developers/events/webhook-events",
        header: JSON,
        body: r#"{"version":1,"application_id":"1234560123453231555","type":0}"#,
        status: 204,
        content_type: Some("application/json"),
        answer: "",
    },
    Signed {
        preset: "intercom",
        docs: "https://developers.intercom.com/docs/webhooks",
        header: JSON,
        body: r#"{"type":"notification_event","topic":"ping","data":{"item":{"type":"ping","message":"hi"}}}"#,
        status: 200,
        content_type: None,
        answer: "",
    },
    Signed {
        preset: "hcp_terraform",
        docs: "https://developer.hashicorp.com/terraform/cloud-docs/api-docs/notification-configurations",
        header: JSON,
        body: r#"{"payload_version":1,"notification_configuration_id":"nc-1","run_url":null,"run_id":null,
            "notifications":[{"message":"Verification of test","trigger":"verification","run_status":null}]}"#,
        status: 200,
        content_type: None,
        answer: "",
    },
    Signed {
        preset: "google_push",
        docs: "https://developers.google.com/workspace/calendar/api/guides/push",
        header: ("X-Goog-Resource-State", "sync"),
        body: "",
        status: 200,
        content_type: None,
        answer: "",
    },
    Signed {
        preset: "twitch",
        docs: "https://dev.twitch.tv/docs/eventsub/handling-webhook-events/",
        header: ("Twitch-Eventsub-Message-Type", "webhook_callback_verification"),
        body: r#"{"challenge":"pogchamp-kappa-360noscope-vohiyo","subscription":{"type":"channel.follow"}}"#,
        status: 200,
        content_type: Some("text/plain"),
        answer: "pogchamp-kappa-360noscope-vohiyo",
    },
    Signed {
        // Intent to receive: 200 or 401, never with a body.
        preset: "xero",
        docs: "https://developer.xero.com/documentation/guides/webhooks/configuring-your-server",
        header: JSON,
        body: r#"{"events":[],"firstEventSequence":0,"lastEventSequence":0,"entropy":"S0m3r4Nd0mt3xt"}"#,
        status: 200,
        content_type: None,
        answer: "",
    },
];

/// Handshakes that need more than a row of a table.
const BY_THEMSELVES: [&str; 5] = ["asana", "notion", "aws_sns", "braintree", "twitter"];
/// Handshakes that vectors hold, the bad side with the good one.
const BY_VECTORS: [&str; 1] = ["ebay"];

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn all(&self, name: &str) -> Vec<&str> {
        self.headers.get_all(name).iter().map(|v| v.to_str().expect("text")).collect()
    }

    /// One answer for every refusal: it tells nothing.
    fn assert_refused(&self, what: &str) {
        assert_eq!((self.status, self.body.as_str()), (401, ""), "{what}");
    }

    fn assert_answer(&self, what: &str, status: u16, content_type: Option<&str>, body: &str) {
        assert_eq!(self.status, status, "{what}: {}", self.body);
        let types: Vec<&str> = content_type.into_iter().collect();
        assert_eq!(self.all("content-type"), types, "{what}");
        if body.is_empty() || content_type != Some("application/json") {
            assert_eq!(self.body, body, "{what}");
        } else {
            assert_eq!(parsed(&self.body), parsed(body), "{what}");
        }
        // What is echoed comes from outside: no browser may take it for a page.
        let sniffing = if body.is_empty() { Vec::new() } else { vec!["nosniff"] };
        assert_eq!(self.all("x-content-type-options"), sniffing, "{what}");
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// `target` is the name of a source, with a query or without.
async fn ask(edge: &Running, method: &str, target: &str, headers: &[(&str, String)], body: &str) -> Answer {
    let method: reqwest::Method = method.parse().expect("a method");
    let url = format!("{}/in/t/{}", edge.base, target.trim_end_matches('?'));
    let request = edge.client.request(method, url).body(body.to_owned());
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
    let answer = request.send().await.expect("an answer");
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    Answer { status, headers, body: answer.text().await.expect("a body") }
}

/// As [`ask`], of what must never be published.
async fn ask_quietly(edge: &Running, method: &str, target: &str, headers: &[(&str, String)], body: &str) -> Answer {
    let before = edge.log.records().len();
    let answer = ask(edge, method, target, headers, body).await;
    assert_eq!(edge.log.records().len(), before, "published: {method} {target} {body}");
    answer
}

fn owned(header: (&'static str, &'static str)) -> (&'static str, String) {
    (header.0, header.1.to_owned())
}

fn mac<M: Mac + KeyInit>(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mac = <M as KeyInit>::new_from_slice(key).expect("a key of any length");
    Mac::chain_update(mac, message).finalize().into_bytes().to_vec()
}

fn hex_mac<M: Mac + KeyInit>(key: &str, message: &str) -> String {
    hex::encode(mac::<M>(key.as_bytes(), message.as_bytes()))
}

fn base64_mac<M: Mac + KeyInit>(key: &str, message: &str) -> String {
    STANDARD.encode(mac::<M>(key.as_bytes(), message.as_bytes()))
}

/// What a provider signs with.
struct Keys {
    text: &'static str,
    pair: Ed25519KeyPair,
}

impl Keys {
    fn of(text: &'static str) -> Self {
        Self { text, pair: Ed25519KeyPair::generate().expect("a key pair") }
    }

    fn secret(&self, preset: &str) -> String {
        match preset {
            "discord" => hex::encode(self.pair.public_key()),
            _ => self.text.to_owned(),
        }
    }

    /// The headers by which `preset`'s provider signs `body`.
    fn sign(&self, preset: &str, body: &str) -> Fields {
        let key = self.text;
        match preset {
            "slack" => {
                let signature = hex_mac::<Hmac<Sha256>>(key, &format!("v0:{AT}:{body}"));
                vec![("X-Slack-Signature", format!("v0={signature}")), ("X-Slack-Request-Timestamp", AT.to_owned())]
            }
            "zoom" => {
                let signature = hex_mac::<Hmac<Sha256>>(key, &format!("v0:{AT}:{body}"));
                vec![("x-zm-signature", format!("v0={signature}")), ("x-zm-request-timestamp", AT.to_owned())]
            }
            "discord" => {
                let signature = hex::encode(self.pair.sign(format!("{AT}{body}").as_bytes()));
                vec![("X-Signature-Ed25519", signature), ("X-Signature-Timestamp", AT.to_owned())]
            }
            "intercom" => vec![("X-Hub-Signature", format!("sha1={}", hex_mac::<Hmac<Sha1>>(key, body)))],
            "hcp_terraform" => vec![("X-TFE-Notification-Signature", hex_mac::<Hmac<Sha512>>(key, body))],
            "google_push" => vec![
                ("X-Goog-Channel-Token", key.to_owned()),
                ("X-Goog-Channel-ID", "c-1".to_owned()),
                ("X-Goog-Message-Number", "1".to_owned()),
                ("X-Goog-Resource-ID", "r-1".to_owned()),
            ],
            "twitch" => {
                let signature = hex_mac::<Hmac<Sha256>>(key, &format!("m-1{AT_ISO}{body}"));
                vec![
                    ("Twitch-Eventsub-Message-Signature", format!("sha256={signature}")),
                    ("Twitch-Eventsub-Message-Id", "m-1".to_owned()),
                    ("Twitch-Eventsub-Message-Timestamp", AT_ISO.to_owned()),
                ]
            }
            "xero" => vec![("x-xero-signature", base64_mac::<Hmac<Sha256>>(key, body))],
            "woocommerce" => vec![("X-WC-Webhook-Signature", base64_mac::<Hmac<Sha256>>(key, body))],
            "notion" => vec![("X-Notion-Signature", format!("sha256={}", hex_mac::<Hmac<Sha256>>(key, body)))],
            "asana" => vec![("X-Hook-Signature", hex_mac::<Hmac<Sha256>>(key, body))],
            other => panic!("nobody signs for {other}"),
        }
    }
}

/// A source of `preset` under its name, with the settings of the tests.
fn plain(preset: &str, secrets: Vec<SecretRef>) -> Source {
    let settings: Vec<_> = SETTINGS.iter().filter(|(of, ..)| *of == preset).map(|(_, n, v)| (*n, *v)).collect();
    source(preset, preset, secrets, &settings)
}

/// An edge with a source for every preset that the tables name.
async fn tables_edge(keys: &Keys) -> Running {
    let unsigned = UNSIGNED.iter().map(|case| case.preset);
    let names: BTreeSet<_> =
        unsigned.chain(SIGNED.iter().map(|case| case.preset)).chain(LOOKALIKES.iter().map(|case| case.0)).collect();
    let sources = names.into_iter().map(|preset| plain(preset, vec![SecretRef::Value(keys.secret(preset))]));
    start(sources.collect(), Documents::default()).await
}

#[test]
fn every_preset_with_a_handshake_is_tested() {
    let rows = UNSIGNED.iter().map(|case| case.preset).chain(SIGNED.iter().map(|case| case.preset));
    let tested: BTreeSet<_> = rows.chain(BY_THEMSELVES).chain(BY_VECTORS).collect();
    let has_one = |preset: &Preset| preset.declare.handshakes.as_ref().is_some_and(|all| !all.is_empty());
    let with_one = Preset::all().into_iter().filter(has_one);
    let missing: Vec<_> = with_one.map(|p| p.name).filter(|name| !tested.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let docs = UNSIGNED.iter().map(|case| case.docs).chain(SIGNED.iter().map(|case| case.docs));
    assert!(docs.into_iter().all(|url| url.starts_with("https://")));
}

#[tokio::test]
async fn unsigned_handshakes_are_answered() {
    let edge = tables_edge(&Keys::of(SECRET)).await;
    for case in &UNSIGNED {
        let headers: Fields = case.header.map(owned).into_iter().collect();
        let target = format!("{}?{}", case.preset, case.query);
        let answer = ask_quietly(&edge, case.method, &target, &headers, case.body).await;
        let what = format!("{} ({})", case.preset, case.docs);
        answer.assert_answer(&what, 200, case.content_type, case.answer);
    }
}

#[tokio::test]
async fn lookalikes_of_unsigned_handshakes_are_refused() {
    let edge = tables_edge(&Keys::of(SECRET)).await;
    for (preset, method, query, header, body) in LOOKALIKES {
        let headers: Fields = header.map(owned).into_iter().collect();
        let answer = ask_quietly(&edge, method, &format!("{preset}?{query}"), &headers, body).await;
        answer.assert_refused(&format!("{preset} {method} {query} {body}"));
    }
}

#[tokio::test]
async fn signed_handshakes_are_answered() {
    let keys = Keys::of(SECRET);
    let edge = tables_edge(&keys).await;
    for case in &SIGNED {
        let headers = [keys.sign(case.preset, case.body), vec![owned(case.header)]].concat();
        let answer = ask_quietly(&edge, "POST", case.preset, &headers, case.body).await;
        let what = format!("{} ({})", case.preset, case.docs);
        answer.assert_answer(&what, case.status, case.content_type, case.answer);
    }
}

#[tokio::test]
async fn handshakes_for_after_verification_are_not_reached_without_it() {
    let keys = Keys::of(SECRET);
    let edge = tables_edge(&keys).await;
    let forger = Keys::of("not-the-secret");
    for case in &SIGNED {
        let (preset, header) = (case.preset, owned(case.header));
        let refused = |headers: Fields, body: String| {
            let edge = &edge;
            async move {
                let what = format!("{preset} {headers:?} {body}");
                ask_quietly(edge, "POST", preset, &headers, &body).await.assert_refused(&what);
            }
        };
        refused(vec![header.clone()], case.body.to_owned()).await;
        refused([forger.sign(preset, case.body), vec![header.clone()]].concat(), case.body.to_owned()).await;
        // A signature of the right key, of something else.
        if preset != "google_push" {
            refused([keys.sign(preset, case.body), vec![header]].concat(), format!("{} ", case.body)).await;
        }
    }
}

/// https://docs.discord.com/developers/events/webhook-events: Discord sends invalid signatures on purpose.
#[tokio::test]
async fn discord_gets_401_for_every_bad_signature() {
    let keys = Keys::of(SECRET);
    let edge = tables_edge(&keys).await;
    let body = r#"{"version":1,"application_id":"1","type":0}"#;
    let good = keys.sign("discord", body);
    let signature = good[0].1.clone();
    let at = || ("X-Signature-Timestamp", AT.to_owned());
    let bad: [Fields; 6] = [
        vec![("X-Signature-Ed25519", signature.clone())],
        vec![("X-Signature-Ed25519", signature.clone()), ("X-Signature-Timestamp", "1767225601".to_owned())],
        vec![("X-Signature-Ed25519", signature[..126].to_owned()), at()],
        vec![("X-Signature-Ed25519", "0".repeat(128)), at()],
        vec![("X-Signature-Ed25519", "no hex".to_owned()), at()],
        vec![at()],
    ];
    for headers in bad {
        ask_quietly(&edge, "POST", "discord", &headers, body).await.assert_refused(&format!("{headers:?}"));
    }
    assert_eq!(ask_quietly(&edge, "POST", "discord", &good, body).await.status, 204);
}

/// The same documents: what is no handshake is an event. Discord's type 1 is a PING of interactions, and an event of
/// webhook events; Google's first message of a channel is no change; WooCommerce signs all but its ping.
#[tokio::test]
async fn events_beside_handshakes_are_published() {
    let keys = Keys::of(SECRET);
    let edge = tables_edge(&keys).await;
    let discord = r#"{"version":1,"application_id":"1","type":1,"event":{"type":"APPLICATION_DEAUTHORIZED",
        "timestamp":"2024-10-18T14:42:53.064834","data":{"user":{"id":"2"}}}}"#;
    let google = ("X-Goog-Resource-State", "exists");
    let events = [
        ("discord", JSON, discord, 204),
        ("google_push", google, "", 200),
        ("woocommerce", JSON, r#"{"id":17,"webhook_id":"17"}"#, 200),
    ];
    for (count, (preset, header, body, status)) in events.into_iter().enumerate() {
        let headers = [keys.sign(preset, body), vec![owned(header)]].concat();
        let answer = ask(&edge, "POST", preset, &headers, body).await;
        assert_eq!((answer.status, answer.body.as_str()), (status, ""), "{preset}");
        assert_eq!(edge.log.records().len(), count + 1, "{preset}");
        assert_eq!(edge.log.records()[count].value, body.as_bytes(), "{preset}");
    }
}

#[tokio::test]
async fn a_head_is_refused_where_nobody_asks_with_it() {
    let edge = tables_edge(&Keys::of(SECRET)).await;
    for target in ["unknown", "unknown?challenge=abc", "slack", "meta", "dropbox?challenge=abc"] {
        ask_quietly(&edge, "HEAD", target, &[], "").await.assert_refused(target);
    }
    ask_quietly(&edge, "GET", "unknown?challenge=abc", &[], "").await.assert_refused("unknown");
}

/// https://mandrill.zendesk.com/hc/en-us/articles/360038740014: where HEAD fails, a POST comes, signed with a key that
/// everyone knows.
#[tokio::test]
async fn mandrills_test_key_is_no_secret() {
    let edge = tables_edge(&Keys::of(SECRET)).await;
    let signed = "https://hooks.example.com/inmandrill_events[]";
    let headers = vec![owned(FORM), ("X-Mandrill-Signature", base64_mac::<Hmac<Sha1>>("test-webhook", signed))];
    let answer = ask_quietly(&edge, "POST", "mandrill", &headers, "mandrill_events=%5B%5D").await;
    answer.assert_refused("test-webhook");
}

/// https://developer.paypal.com/braintree/docs/guides/webhooks/create; the values are those of the test of
/// https://github.com/braintree/braintree_python, tests/unit/test_webhooks.py.
#[tokio::test]
async fn braintrees_challenge_is_answered() {
    let secrets = vec![SecretRef::Value("integration_private_key".to_owned()), SecretRef::Value("older".to_owned())];
    let edge = start(vec![plain("braintree", secrets)], Documents::default()).await;
    let target = "braintree?bt_challenge=20f9f8ed05f77439fe955c977e4c8a53";
    let answer = ask_quietly(&edge, "GET", target, &[], "").await;
    let wanted = "integration_public_key|d9b899556c966b3f06945ec21311865d35df3ce4";
    answer.assert_answer("braintree", 200, Some("text/plain"), wanted);
}

/// https://docs.x.com/x-api/webhooks/quickstart: base64 of the HMAC of crc_token. The value was made with Python's
/// hmac out of the secret and the token of X's own example.
#[tokio::test]
async fn x_is_answered_with_the_first_of_several_secrets() {
    let first = "z3ZX4v7mAAUGykl3EcmkqbartmuW8VFOOzCloLx9Q45P0hLrFu";
    let secrets = vec![SecretRef::Value(first.to_owned()), SecretRef::Value("older".to_owned())];
    let edge = start(vec![plain("twitter", secrets)], Documents::default()).await;
    let target = "twitter?crc_token=9b4507b3-9040-4669-9ca3-6b94edb50553&nonce=MTUx";
    let answer = ask_quietly(&edge, "GET", target, &[], "").await;
    let wanted = r#"{"response_token":"sha256=Cytd4Sq+NvEcV3MMrXxWJGJx5A+y/lXzzU2Maartkx8="}"#;
    answer.assert_answer("twitter", 200, Some("application/json"), wanted);
}

/// Braintree and X sign events and answers to challenges with one key, and anyone may send a challenge: without a
/// bound on what is a challenge, the answer to one is the signature of any event. Braintree's own libraries take
/// 20 to 32 hex digits only (https://github.com/braintree/braintree_python,
/// braintree/webhook_notification_gateway.py).
#[tokio::test]
async fn the_answer_to_braintrees_challenge_signs_no_event() {
    let edge = start(vec![plain("braintree", vec![SecretRef::Value(SECRET.to_owned())])], Documents::default()).await;
    let xml = "<notification><kind>subscription_canceled</kind><timestamp type=\"datetime\">2026-01-01T00:00:00Z\
        </timestamp><subject><subscription><id>s1</id></subscription></subject></notification>";
    let payload = STANDARD.encode(xml);
    let challenge = encoded(&payload);
    let answer = ask_quietly(&edge, "GET", &format!("braintree?bt_challenge={challenge}"), &[], "").await;
    let body = format!("bt_signature={}&bt_payload={challenge}", encoded(&answer.body));
    let forged = ask(&edge, "POST", "braintree", &[owned(FORM)], &body).await;
    assert_eq!((forged.status, edge.log.records().len()), (401, 0), "a forged event, by the answer {:?}", answer.body);
    answer.assert_refused("no challenge");
}

/// As above: https://docs.x.com/x-api/webhooks/quickstart.
#[tokio::test]
async fn the_answer_to_xs_challenge_signs_no_event() {
    let edge = start(vec![plain("twitter", vec![SecretRef::Value(SECRET.to_owned())])], Documents::default()).await;
    let event = r#"{"for_user_id":"1","tweet_create_events":[{"id_str":"2","text":"forged"}]}"#;
    let answer = ask_quietly(&edge, "GET", &format!("twitter?crc_token={}", encoded(event)), &[], "").await;
    let token =
        serde_json::from_str::<Value>(&answer.body).ok().and_then(|v| Some(v["response_token"].as_str()?.into()));
    let headers = vec![owned(JSON), ("X-Twitter-Webhooks-Signature", token.unwrap_or_else(|| "sha256=".to_owned()))];
    let forged = ask(&edge, "POST", "twitter", &headers, event).await;
    assert_eq!((forged.status, edge.log.records().len()), (401, 0), "a forged event, by the answer {:?}", answer.body);
    answer.assert_refused("no challenge");
}

/// What the edge signs for anyone is no event either: the challenge itself, sent as a request.
#[tokio::test]
async fn a_signed_challenge_is_no_request() {
    let sources = ["braintree", "twitter"].map(|preset| plain(preset, vec![SecretRef::Value(SECRET.to_owned())]));
    let edge = start(sources.to_vec(), Documents::default()).await;
    for token in ["1", "eyJhIjoxfQ==", "a.b-c_d"] {
        let answer = ask_quietly(&edge, "GET", &format!("twitter?crc_token={}", encoded(token)), &[], "").await;
        let signature = parsed(&answer.body)["response_token"].as_str().expect("a signature").to_owned();
        let headers = vec![owned(JSON), ("X-Twitter-Webhooks-Signature", signature)];
        ask_quietly(&edge, "POST", "twitter", &headers, token).await.assert_refused(token);
    }
    let event = r#"{"for_user_id":"1","tweet_create_events":[{"id_str":"2"}]}"#;
    let signature = format!("sha256={}", base64_mac::<Hmac<Sha256>>(SECRET, event));
    let headers = vec![owned(JSON), ("X-Twitter-Webhooks-Signature", signature)];
    assert_eq!(ask(&edge, "POST", "twitter", &headers, event).await.status, 200, "events are");
    let challenge = "20f9f8ed05f77439fe955c977e4c8a53";
    let answer = ask_quietly(&edge, "GET", &format!("braintree?bt_challenge={challenge}"), &[], "").await;
    let body = format!("bt_signature={}&bt_payload={challenge}", encoded(&answer.body));
    ask_quietly(&edge, "POST", "braintree", &[owned(FORM)], &body).await.assert_refused("braintree");
    for challenge in ["abcd", "0123456789abcdef012", "0123456789abcdef0123456789abcdef0", "0123456789abcdefghij"] {
        let target = format!("braintree?bt_challenge={challenge}");
        ask_quietly(&edge, "GET", &target, &[], "").await.assert_refused(challenge);
    }
}

fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// A source whose secret a handshake brings.
fn awaiting(preset: &str, file: &Path) -> Source {
    plain(preset, vec![SecretRef::Handshake(file.display().to_string())])
}

fn kept(file: &Path) -> String {
    std::fs::read_to_string(file).expect("the secret was kept")
}

/// An event signed with `secret`, and whether it was taken.
async fn deliver(edge: &Running, preset: &str, secret: &'static str, body: &str) -> bool {
    let before = edge.log.records().len();
    let answer = ask(edge, "POST", preset, &Keys::of(secret).sign(preset, body), body).await;
    let values: Vec<_> = edge.log.records().split_off(before).into_iter().map(|record| record.value).collect();
    match answer.status {
        200 => assert!(values.contains(&body.as_bytes().to_vec().into()), "{preset}: answered and not published"),
        _ => {
            answer.assert_refused(preset);
            assert!(values.is_empty(), "{preset}: refused and published");
        }
    }
    answer.status == 200
}

const NOTION_TOKEN: &str = "secret_tMrlL1qK5vuQAh1b6cZGhFChZTSYJlce98V0pYn7yBl";
const NOTION_EVENT: &str = r#"{"id":"367cba44","timestamp":"2026-01-01T00:00:00.000Z","type":"page.created",
    "entity":{"id":"153104cd","type":"page"},"attempt_number":1}"#;

/// https://developers.notion.com/reference/webhooks: one POST with verification_token, which signs all that follows.
#[tokio::test]
async fn notions_token_is_kept_once_and_signs_from_then_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("notion");
    let edge = start(vec![awaiting("notion", &file)], Documents::default()).await;
    let brings = |token: &str| json!({ "verification_token": token }).to_string();
    assert!(!deliver(&edge, "notion", NOTION_TOKEN, NOTION_EVENT).await, "nothing signs yet");
    let answer = ask_quietly(&edge, "POST", "notion", &[owned(JSON)], &brings(NOTION_TOKEN)).await;
    answer.assert_answer("notion", 200, None, "");
    assert_eq!(kept(&file), NOTION_TOKEN);
    let mode = std::fs::metadata(&file).expect("the file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "a secret is its owner's");
    for token in ["secret_of_another", NOTION_TOKEN] {
        let second = ask_quietly(&edge, "POST", "notion", &[owned(JSON)], &brings(token)).await;
        second.assert_refused("a second token");
    }
    assert_eq!(kept(&file), NOTION_TOKEN);
    assert!(!deliver(&edge, "notion", "secret_of_another", NOTION_EVENT).await);
    assert!(deliver(&edge, "notion", NOTION_TOKEN, NOTION_EVENT).await, "without a restart");
    let restarted = start(vec![awaiting("notion", &file)], Documents::default()).await;
    assert!(deliver(&restarted, "notion", NOTION_TOKEN, NOTION_EVENT).await, "after a restart");
}

/// A secret that the next start would refuse must not be kept: one anonymous request would end all sources.
#[tokio::test]
async fn a_blank_token_is_not_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("notion");
    let edge = start(vec![awaiting("notion", &file)], Documents::default()).await;
    for body in [r#"{"verification_token":" "}"#, r#"{"verification_token":"\n\t"}"#, r#"{"verification_token":""}"#] {
        ask_quietly(&edge, "POST", "notion", &[owned(JSON)], body).await.assert_refused(body);
        assert!(!file.exists(), "{body} was kept as {:?}", kept(&file));
    }
}

#[tokio::test]
async fn a_token_without_a_place_for_it_is_refused() {
    let sources = ["notion", "asana"].map(|preset| plain(preset, vec![SecretRef::Value(SECRET.to_owned())]));
    let edge = start(sources.to_vec(), Documents::default()).await;
    let token = r#"{"verification_token":"secret_of_anyone"}"#;
    ask_quietly(&edge, "POST", "notion", &[owned(JSON)], token).await.assert_refused("notion");
    let secret = [("X-Hook-Secret", "secret-of-anyone".to_owned())];
    let answer = ask_quietly(&edge, "POST", "asana", &secret, "").await;
    answer.assert_refused("asana");
    assert!(answer.all("x-hook-secret").is_empty());
}

const ASANA_SECRET: &str = "b537207f20cbfa02357cf448134da559e8bd39d61597dcd5631b8012eae53e81";
const ASANA_EVENT: &str = r#"{"events":[{"action":"changed","created_at":"2026-01-01T00:00:00.000Z",
    "resource":{"gid":"1337","resource_type":"task"},"user":{"gid":"1123"}}]}"#;

/// https://developers.asana.com/docs/webhooks-guide: X-Hook-Secret is echoed, and signs all that follows.
#[tokio::test]
async fn asanas_secret_is_echoed_and_kept_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("asana");
    let edge = start(vec![awaiting("asana", &file)], Documents::default()).await;
    let brings = |secret: &str| [("X-Hook-Secret", secret.to_owned())];
    assert!(!deliver(&edge, "asana", ASANA_SECRET, ASANA_EVENT).await, "nothing signs yet");
    let answer = ask_quietly(&edge, "POST", "asana", &brings(ASANA_SECRET), "{}").await;
    answer.assert_answer("asana", 200, None, "");
    assert_eq!(answer.all("x-hook-secret"), [ASANA_SECRET]);
    assert_eq!(kept(&file), ASANA_SECRET);
    assert!(deliver(&edge, "asana", ASANA_SECRET, ASANA_EVENT).await, "without a restart");
    let events = edge.log.records().into_iter().filter(|record| record.kind == RecordKind::Event);
    assert_eq!(events.count(), 1);
    let second = ask_quietly(&edge, "POST", "asana", &brings("another"), "{}").await;
    second.assert_refused("a second secret");
    assert!(second.all("x-hook-secret").is_empty());
    assert_eq!(kept(&file), ASANA_SECRET);
    // A sign of life is no event.
    let heartbeat = r#"{"events":[]}"#;
    let headers = Keys::of(ASANA_SECRET).sign("asana", heartbeat);
    assert_eq!(ask_quietly(&edge, "POST", "asana", &headers, heartbeat).await.status, 200);
}

#[tokio::test]
async fn of_handshakes_at_one_time_one_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("asana");
    let edge = start(vec![awaiting("asana", &file)], Documents::default()).await;
    let one = |n: usize| {
        let edge = &edge;
        async move {
            let secret = format!("secret-{n}");
            let answer = ask_quietly(edge, "POST", "asana", &[("X-Hook-Secret", secret.clone())], "{}").await;
            (answer.status == 200).then_some(secret)
        }
    };
    let answers = futures::future::join_all((0..16).map(one)).await;
    let echoed: Vec<_> = answers.into_iter().flatten().collect();
    assert_eq!(echoed, [kept(&file)]);
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 1, "no drafts are left");
}

/// Amazon SNS, by https://docs.aws.amazon.com/sns/latest/dg/http-subscription-confirmation-json.html and
/// https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html (SignatureVersion 2).
struct Sns {
    key: RsaKeyPair,
}

const CERTIFICATE_URL: &str = "https://sns.us-west-2.amazonaws.com/SimpleNotificationService-f3ecfb72.pem";
const SUBSCRIBE_URL: &str = "https://sns.us-west-2.amazonaws.com/?Action=ConfirmSubscription&Token=2336412f37";
/// Where no confirmation and no certificate may be fetched.
const ELSEWHERE: [&str; 8] = [
    "https://evil.example/?Action=ConfirmSubscription",
    "https://sns.s3.amazonaws.com/?Action=ConfirmSubscription",
    "https://sns.s3-us-west-2.amazonaws.com/certificate.pem",
    "http://sns.us-west-2.amazonaws.com/?Action=ConfirmSubscription",
    "https://sns.us-west-2.amazonaws.com.evil.example/?Action=ConfirmSubscription",
    "https://sns.us-west-2.amazonaws.com@evil.example/?Action=ConfirmSubscription",
    "https://sns.us-west-2.amazonaws.com:8443/?Action=ConfirmSubscription",
    "https://evil.example/sns.us-west-2.amazonaws.com?Action=ConfirmSubscription",
];

impl Sns {
    fn new() -> Self {
        Self { key: RsaKeyPair::generate(KeySize::Rsa2048).expect("a key pair") }
    }

    /// The public key as PEM.
    fn pem(&self) -> String {
        let der = self.key.public_key().as_der().expect("a public key");
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der.as_ref()))
    }

    fn signed(&self, fields: &[(&str, &str)], certificate: &str) -> String {
        // Names in byte order, each with its value, on lines of their own.
        let fields: BTreeMap<_, _> = fields.iter().copied().collect();
        let text: String = fields.iter().map(|(name, value)| format!("{name}\n{value}\n")).collect();
        let mut signature = vec![0; self.key.public_modulus_len()];
        let random = SystemRandom::new();
        self.key.sign(&RSA_PKCS1_SHA256, &random, text.as_bytes(), &mut signature).expect("a signature");
        let signature = STANDARD.encode(signature);
        let more = [("SignatureVersion", "2"), ("Signature", signature.as_str()), ("SigningCertURL", certificate)];
        let whole: BTreeMap<_, _> = fields.into_iter().chain(more).collect();
        serde_json::to_string(&whole).expect("JSON")
    }

    fn confirmation(&self, topic: &str, subscribe_url: &str, certificate: &str) -> String {
        let fields = [
            ("Type", "SubscriptionConfirmation"),
            ("MessageId", "165545c9-2a5c-472c-8df2-7ff2be2b3b1b"),
            ("Token", "2336412f37"),
            ("TopicArn", topic),
            ("Message", "You have chosen to subscribe to the topic.\nTo confirm, visit the SubscribeURL."),
            ("SubscribeURL", subscribe_url),
            ("Timestamp", "2026-01-01T00:00:00.000Z"),
        ];
        self.signed(&fields, certificate)
    }

    fn notification(&self, certificate: &str) -> String {
        let fields = [
            ("Type", "Notification"),
            ("MessageId", "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324"),
            ("TopicArn", TOPIC),
            ("Subject", "My First Message"),
            ("Message", "Hello world!"),
            ("Timestamp", "2026-01-01T00:00:00.000Z"),
        ];
        self.signed(&fields, certificate)
    }

    /// An edge that knows the key, or only where to fetch it; all of `urls` are there to be fetched.
    async fn edge(&self, knows_key: bool, urls: &[&str]) -> Running {
        let secrets = if knows_key { vec![SecretRef::Value(self.pem())] } else { Vec::new() };
        let document = |url: &&str| (Url::parse(url).expect("a URL").to_string(), self.pem().into_bytes());
        start(vec![plain("aws_sns", secrets)], Documents(urls.iter().map(document).collect())).await
    }
}

/// SNS sends JSON under this type.
fn sns_headers() -> Fields {
    vec![("Content-Type", "text/plain; charset=UTF-8".to_owned())]
}

#[tokio::test]
async fn sns_subscriptions_are_confirmed_at_amazons_hosts_only() {
    let sns = Sns::new();
    let edge = sns.edge(true, &[&[SUBSCRIBE_URL], &ELSEWHERE[..]].concat()).await;
    let confirm = sns.confirmation(TOPIC, SUBSCRIBE_URL, CERTIFICATE_URL);
    let answer = ask_quietly(&edge, "POST", "aws_sns", &sns_headers(), &confirm).await;
    answer.assert_answer("aws_sns", 200, None, "");
    for url in ELSEWHERE {
        // Each of them is there: had it been fetched, this would be a 200.
        let confirm = sns.confirmation(TOPIC, url, CERTIFICATE_URL);
        ask_quietly(&edge, "POST", "aws_sns", &sns_headers(), &confirm).await.assert_refused(url);
    }
}

#[tokio::test]
async fn an_sns_subscription_that_cannot_be_confirmed_now_comes_again() {
    let sns = Sns::new();
    let edge = sns.edge(true, &[]).await;
    let confirm = sns.confirmation(TOPIC, SUBSCRIBE_URL, CERTIFICATE_URL);
    assert_eq!(ask_quietly(&edge, "POST", "aws_sns", &sns_headers(), &confirm).await.status, 503);
}

/// A fetch that fails is no verdict: Amazon would not deliver again what got 401. What a forger names at a host that
/// is not Amazon's, or for a topic that is not ours, is not fetched at all.
#[tokio::test]
async fn a_certificate_that_is_not_to_be_had_is_no_refusal() {
    let sns = Sns::new();
    let edge = sns.edge(false, &[]).await;
    let ask = |body: String| {
        let edge = &edge;
        async move { ask_quietly(edge, "POST", "aws_sns", &sns_headers(), &body).await }
    };
    ask(sns.notification(ELSEWHERE[0])).await.assert_refused("not Amazon's");
    let other_topic = sns.confirmation("arn:aws:sns:us-west-2:1:Other", SUBSCRIBE_URL, CERTIFICATE_URL);
    for n in 0..100 {
        // Had these been fetched, they would get 503.
        ask(other_topic.replace(".pem", &format!("-{n}.pem"))).await.assert_refused("another topic");
    }
    assert_eq!(ask(sns.notification(CERTIFICATE_URL)).await.status, 503);
}

#[tokio::test]
async fn sns_subscriptions_of_others_are_not_confirmed() {
    let sns = Sns::new();
    let edge = sns.edge(true, &[SUBSCRIBE_URL]).await;
    let forged = Sns::new().confirmation(TOPIC, SUBSCRIBE_URL, CERTIFICATE_URL);
    let unsigned = json!({ "Type": "SubscriptionConfirmation", "TopicArn": TOPIC, "SubscribeURL": SUBSCRIBE_URL });
    let other_topic = sns.confirmation("arn:aws:sns:us-west-2:1:Other", SUBSCRIBE_URL, CERTIFICATE_URL);
    for confirm in [forged, unsigned.to_string(), other_topic] {
        ask_quietly(&edge, "POST", "aws_sns", &sns_headers(), &confirm).await.assert_refused(&confirm);
    }
}

#[tokio::test]
async fn sns_messages_are_believed_by_certificates_of_amazons_hosts_only() {
    let sns = Sns::new();
    let edge = sns.edge(false, &[&[CERTIFICATE_URL, SUBSCRIBE_URL], &ELSEWHERE[..]].concat()).await;
    let confirm = sns.confirmation(TOPIC, SUBSCRIBE_URL, CERTIFICATE_URL);
    assert_eq!(ask_quietly(&edge, "POST", "aws_sns", &sns_headers(), &confirm).await.status, 200);
    let event = sns.notification(CERTIFICATE_URL);
    let answer = ask(&edge, "POST", "aws_sns", &sns_headers(), &event).await;
    assert_eq!((answer.status, edge.log.records().len()), (200, 1));
    assert_eq!(edge.log.records()[0].value, event.as_bytes());
    for url in ELSEWHERE {
        let event = sns.notification(url);
        ask_quietly(&edge, "POST", "aws_sns", &sns_headers(), &event).await.assert_refused(url);
    }
    let forged = Sns::new().notification(CERTIFICATE_URL);
    ask_quietly(&edge, "POST", "aws_sns", &sns_headers(), &forged).await.assert_refused("another key");
}

/// Whoever gives the key does not believe whoever else has a certificate at an address of the provider.
#[tokio::test]
async fn where_a_key_is_given_no_certificate_is_fetched() {
    let (sns, other) = (Sns::new(), Sns::new());
    let documents = Documents([(CERTIFICATE_URL.to_owned(), other.pem().into_bytes())].into());
    let edge = start(vec![plain("aws_sns", vec![SecretRef::Value(sns.pem())])], documents).await;
    let event = other.notification(CERTIFICATE_URL);
    ask_quietly(&edge, "POST", "aws_sns", &sns_headers(), &event).await.assert_refused("another key");
    let event = sns.notification(CERTIFICATE_URL);
    assert_eq!(ask(&edge, "POST", "aws_sns", &sns_headers(), &event).await.status, 200);
}
