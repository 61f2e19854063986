//! What was signed is what is stored, byte for byte.
//! After octokit/webhooks.js#71, jonpulice/node-shopify-auth#2, adcontextprotocol/adcp-client#313.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::{BY_VERSION, Delivery, dead_letters, deliver, hmac_source, signed, text};
use crate::support::{Engine, Role, SECRET, System, sign, source};

/// Bodies that a reader and a writer of JSON would not give back as they came. `{}` is the event's id.
const BODIES: [&str; 12] = [
    r#"{"id":"{}","t":"\u001B\u001b \u2028 é \u00e9","n":1.0,"z": 1e2 }"#,
    "{ \"id\" :\t\"{}\" ,\r\n\"t\":\"\\u0000\\u001f\\/\\b\u{7f}\u{2028}\u{2029}\"  }\r\n",
    "\n\t {\"z\":1,\"a\":2,\"id\":\"{}\",\"m\":{\"b\":1,\"a\":2}}  \n\n",
    r#"{"id":"{}","emoji":"😀 \ud83d\ude00 \uD83D\uDE00","half":"\ud83d"}"#,
    r#"{"id":"{}","n":[1.0,1.00,-0,-0.0,1E2,1e+2,0.1e-1,100000000000000000000000,9007199254740993,1e400]}"#,
    r#"{"id":"{}","html":"<a href='x'>&amp;</a>\u003cscript\u003e","slash":"a\/b"}"#,
    r#"{"id":"{}","e\u0301":"e\u0301","é":"é","":"","a":null}"#,
    r#"{"id":"{}","twice":1,"twice":2}"#,
    "{\"\\u0069d\":\"{}\",\"nbsp\":\" \",\"zero width\":\"\u{200B}\u{200D}\u{FEFF}\"}",
    r#"{"id":"{}","empty":{},"list":[ ],"nested":[[[{}]]],"true":true}"#,
    r#"{"id":"{}","plus":"a+b%20c&d=e;f","percent":"%7B%22%7D"}"#,
    r#"{"id":"{}","combined":"ÅÅÅ ﬁ Ⅻ \u0130\u0131 ß ẞ"}"#,
];

#[test]
fn a_body_is_stored_and_handed_on_as_it_was_signed() {
    let delta = "declare = { object = 'body:/id', mode = 'delta' }";
    let mut system = System::new(Engine::Embedded, &hmac_source("acme", "hmac", delta));
    system.start(Role::All);
    let body = |nth: usize| BODIES[nth].replacen("{}", &format!("e{nth}"), 1);
    for nth in 0..BODIES.len() {
        assert_eq!(deliver(&signed(&system, "acme", "hmac", body(nth))).status, 200, "{}", body(nth));
    }
    system.wait_processed();
    assert!(dead_letters(&system).is_empty(), "{:?}", dead_letters(&system));
    let effects = std::fs::read_to_string(system.path("effects.jsonl")).expect("effects");
    for nth in 0..BODIES.len() {
        let (id, body) = (format!("e{nth}"), body(nth));
        let raw = system.cli(&["event", "raw", "acme", "hmac", &id]);
        assert!(raw.stdout == body.as_bytes(), "{body}: in the log is {}", String::from_utf8_lossy(&raw.stdout));
        let digest = hex::encode(Sha256::digest(&body));
        assert_eq!(text(&system.json(&["event", "get", "acme", "hmac", &id]), "sha256"), digest, "{body}");
        // A line cannot hold a line break; there the sink gets the bytes in base64.
        let trimmed = body.trim();
        let handed_on = if trimmed.contains('\n') { STANDARD.encode(&body) } else { trimmed.to_owned() };
        assert!(effects.contains(&handed_on), "{body}: the sink got other bytes");
    }
}

#[test]
fn bytes_that_are_no_json_and_no_text_are_kept_whole_too() {
    let mut system = System::new(Engine::Embedded, &hmac_source("acme", "hmac", BY_VERSION));
    system.start(Role::All);
    let all_bytes: Vec<u8> = (0..=255).collect();
    let bodies: [&[u8]; 7] = [
        b"\xef\xbb\xbf{\"id\":\"bom\",\"o\":\"x\",\"v\":1}",
        b"{\"id\":\"latin1\",\"o\":\"\xe9\",\"v\":1}",
        b"{\"id\":\"nul\",\"o\":\"a\0b\",\"v\":1}",
        b"\0",
        b"a=1&b=%7B",
        b"\r\n",
        &all_bytes,
    ];
    for body in bodies {
        assert_eq!(deliver(&signed(&system, "acme", "hmac", body)).status, 200, "{body:?}");
    }
    system.wait_processed();
    let dead = dead_letters(&system);
    assert_eq!(dead.len(), bodies.len(), "{dead:?}");
    let raw = |letter: &serde_json::Value| {
        system.cli(&["dead", "show", "acme", "hmac", text(letter, "record"), "--raw"]).stdout
    };
    let kept: Vec<Vec<u8>> = dead.iter().map(raw).collect();
    for body in bodies {
        assert!(kept.iter().any(|k| k == body), "{body:?} is in no dead letter");
    }
}

#[test]
fn a_form_is_verified_and_stored_as_it_was_sent() {
    let mut system = System::new(Engine::Embedded, &source("github", SECRET, ""));
    system.start(Role::All);
    // The same document, in escapes that a form's writer would choose otherwise.
    let forms = [
        "payload=%7B%22hook_id%22%3A1%2C%22t%22%3A%22a+b%20c%22%7D",
        "payload=%7b%22hook_id%22:1,%22t%22:%22a%20b+c%22%7d",
        "payload={\"hook_id\":1,\"t\":\"a b%20c\"}&other=%E9&empty=&",
    ];
    for (nth, form) in forms.iter().enumerate() {
        let headers = [
            ("X-Hub-Signature-256", format!("sha256={}", sign(SECRET, form.as_bytes()))),
            ("X-GitHub-Event", "ping".to_owned()),
            ("X-GitHub-Delivery", format!("d{nth}")),
            ("Content-Type", "application/x-www-form-urlencoded".to_owned()),
        ];
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let delivery = Delivery { url: system.url("acme", "github"), headers, body: form.as_bytes().to_vec() };
        assert_eq!(deliver(&delivery).status, 200, "{form}");
    }
    system.wait_processed();
    assert!(dead_letters(&system).is_empty(), "{:?}", dead_letters(&system));
    for (nth, form) in forms.iter().enumerate() {
        let raw = system.cli(&["event", "raw", "acme", "github", &format!("d{nth}")]);
        assert_eq!(String::from_utf8_lossy(&raw.stdout), *form);
    }
}
