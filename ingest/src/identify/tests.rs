use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use seriatim_schemas::decode::document;
use seriatim_schemas::preset::Preset;

use super::*;

fn derive(declaration: Declaration, pairs: &[(&str, &str)], body: &str) -> Result<Derived, IdentifyError> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a header name");
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("a header value"));
    }
    let view = RequestView {
        method: "POST",
        headers: &headers,
        query: "",
        body: body.as_bytes(),
        claims: None,
        item: None,
        settings: &Default::default(),
    };
    let form = view.form_kind().expect("one content type");
    let steps = declaration.decode.clone().unwrap_or_default();
    let document = document(&steps, &form, &Bytes::copy_from_slice(body.as_bytes())).expect("decodable");
    Identifier::new(declaration).derive(&view, document.as_deref(), &Sha256Digest::of(body.as_bytes()))
}

fn preset(name: &str) -> Declaration {
    Preset::named(name).expect("a preset").declare
}

fn hmac(fields: &str) -> Declaration {
    let over: Declaration = toml::from_str(fields).expect("a declaration");
    preset("hmac").overlaid(over)
}

#[test]
fn stripe_is_read_from_the_signed_body() {
    let body = r#"{"id":"evt_1","created":1767225600,"type":"customer.updated","data":{"object":{"id":"cus_1"}}}"#;
    let derived = derive(preset("stripe"), &[], body).expect("whole");
    assert_eq!((derived.object.as_str(), derived.event_id.as_str()), ("cus_1", "evt_1"));
    assert_eq!(derived.id_from, IdFrom::Body);
    assert_eq!(derived.version.as_deref(), Some("1767225600"));
    assert_eq!(derived.time, Timestamp::from_second(1_767_225_600).ok());
}

#[test]
fn github_names_objects_by_kind_and_trusts_no_unsigned_id() {
    let headers = [("X-GitHub-Event", "pull_request"), ("X-GitHub-Delivery", "guid")];
    let body = r#"{"action":"closed","pull_request":{"id":1001,"updated_at":"2026-01-01T00:00:09Z"}}"#;
    let derived = derive(preset("github"), &headers, body).expect("whole");
    assert_eq!((derived.object.as_str(), derived.event_type.as_str()), ("pull_request 1001", "pull_request.closed"));
    assert_eq!(derived.id_from, IdFrom::UnsignedHeader);

    let headers =
        [("X-GitHub-Event", "ping"), ("X-GitHub-Delivery", "g"), ("Content-Type", "application/x-www-form-urlencoded")];
    let derived = derive(preset("github"), &headers, "payload=%7B%22hook_id%22%3A1%7D").expect("whole");
    assert_eq!((derived.object.as_str(), derived.version), ("hook 1", None));
}

#[test]
fn standard_webhooks_signs_its_id_header() {
    let declaration = preset("standard_webhooks").overlaid(toml::from_str("object = 'body:/data/id'").expect("valid"));
    let body = r#"{"type":"a.created","timestamp":"2026-01-01T00:00:00Z","data":{"id":"x"}}"#;
    let derived = derive(declaration, &[("webhook-id", "msg_1")], body).expect("whole");
    assert_eq!((derived.event_id.as_str(), derived.id_from), ("msg_1", IdFrom::SignedHeader));
}

#[test]
fn a_joined_id_is_trusted_as_far_as_its_least_trusted_part() {
    let open = "object = 'const:o'\n[verify]\nalgorithm = 'hmac-sha256'\nsignature = 'header:X-S'\nencoding = 'hex'\n\
        signed = '{header:x-id}{body:/token}{form:token}'\nunsigned_body = true\n";
    let table = [
        ("'body:/token'", IdFrom::Body),
        ("'body:/event'", IdFrom::UnsignedHeader),
        ("'form:event'", IdFrom::UnsignedHeader),
        ("'header:x-id'", IdFrom::SignedHeader),
        ("{ join = ['const:x', 'body:/token'] }", IdFrom::Body),
        ("{ join = ['const:x', 'body:/event'] }", IdFrom::UnsignedHeader),
        ("{ join = ['body:/token', 'header:x-id'] }", IdFrom::SignedHeader),
        ("{ join = ['header:x-id', 'header:x-other'] }", IdFrom::UnsignedHeader),
    ];
    for (id, expected) in table {
        let declaration = toml::from_str(&format!("event_id = {id}\n{open}")).expect("a declaration");
        let (body, content_type) = match id.contains("form") {
            true => ("event=e", "application/x-www-form-urlencoded"),
            false => (r#"{"token":"t","event":"e"}"#, "application/json"),
        };
        let headers = [("x-id", "i"), ("x-other", "u"), ("content-type", content_type)];
        let derived = derive(declaration, &headers, body).expect("whole");
        assert_eq!(derived.id_from, expected, "{id}");
    }
}

#[test]
fn without_an_id_the_digest_names_the_event() {
    let derived = derive(hmac("object = 'body:/o'"), &[], r#"{"o":1}"#).expect("whole");
    assert_eq!(derived.id_from, IdFrom::Digest);
    assert_eq!(derived.event_id, Sha256Digest::of(br#"{"o":1}"#).to_string());
    assert_eq!(derived.event_type, TYPE_UNKNOWN);
}

#[test]
fn what_cannot_be_routed_says_why() {
    let declaration = || hmac("object = 'body:/data/object/id'");
    let table = [
        ("", "no object: body:/data/object/id yields nothing"),
        ("{", "not JSON"),
        ("[]", "no object: body:/data/object/id yields nothing"),
        (r#"{"data":{"object":{"id":""}}}"#, "no object"),
        (r#"{"data":{"object":{"id":{}}}}"#, "is an object, not text or a number"),
        (r#"{"data":{"object":{"id":1}},"data":{}}"#, "key data comes more than once"),
    ];
    for (body, reason) in table {
        let error = derive(declaration(), &[], body).expect_err("unroutable").to_string();
        assert!(error.contains(reason), "{body}: {error}");
    }
    let long = format!(r#"{{"data":{{"object":{{"id":"{}"}}}}}}"#, "x".repeat(OBJECT_BYTES_MAX + 1));
    assert!(matches!(derive(declaration(), &[], &long), Err(IdentifyError::TooLong { what: "object", .. })));
}

#[test]
fn a_wrong_version_leaves_the_object_known() {
    let declaration = || hmac("object = 'body:/o'\nversion = { from = 'body:/v', kind = 'integer' }");
    for (body, reason) in [(r#"{"o":1}"#, "no version"), (r#"{"o":1,"v":{}}"#, "not text or a number")] {
        let derived = derive(declaration(), &[], body).expect("routable");
        assert_eq!(derived.object, "1");
        assert!(derived.problem.expect("a problem").contains(reason), "{body}");
    }
}

#[test]
fn neighbouring_large_numbers_stay_apart() {
    let object = |id: &str| derive(hmac("object = 'body:/o'"), &[], &format!(r#"{{"o":{id}}}"#)).expect("whole").object;
    assert_eq!(object("9123456789654321"), "9123456789654321");
    assert_ne!(object("7615917337495251231"), object("7615917337495251232"));
}

#[test]
fn the_digest_leaves_out_what_a_retry_changes() {
    let declaration = || hmac("object = 'body:/o'\ndigest_ignores = ['/attempt', '/meta/attempt', '/none']");
    let id = |body: &str| derive(declaration(), &[], body).expect("whole").event_id;
    let first = r#"{"o":1,"attempt":1,"meta":{"attempt":1,"x":1},"y":"attempt"}"#;
    assert_eq!(id(first), id(&first.replace("\"attempt\":1", "\"attempt\":22")));
    assert_ne!(id(first), id(&first.replace("\"x\":1", "\"x\":2")));
    assert_ne!(id(first), id(&first.replace("\"o\":1", "\"o\":2")));
    // An id that no signature covers takes the same digest.
    let declared = || declaration().overlaid(toml::from_str("event_id = 'header:x-id'").expect("valid"));
    let of = |body: &str| derive(declared(), &[("x-id", "i")], body).expect("whole").id_digest;
    assert!(of(first).is_some() && of(first) == of(&first.replace("\"attempt\":1", "\"attempt\":2")));
}

#[test]
fn a_request_without_a_body_is_named_by_its_query() {
    let headers = HeaderMap::new();
    let derive = |query: &str| {
        let settings = Default::default();
        let view = RequestView {
            method: "GET",
            headers: &headers,
            query,
            body: b"",
            claims: None,
            item: None,
            settings: &settings,
        };
        let declaration = hmac("object = 'query:id'\nevent_id = 'query:none'\nevent_type = 'query:none'");
        Identifier::new(declaration).derive(&view, None, &Sha256Digest::of(b""))
    };
    assert_ne!(derive("id=1&s=a").expect("whole").event_id, derive("id=1&s=b").expect("whole").event_id);
    assert_eq!(derive("id=1").expect("whole").object, "1");
}
