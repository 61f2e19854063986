//! What outsiders' bytes go through, as functions of bytes: for the fuzzer (fuzz/), and for the replay of its corpus
//! in the tests. Each must return, whatever the bytes are; what is read must be written and read again alike.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use bytes::Bytes;
use jiff::Timestamp;
use seriatim_ingest::records::{Content, Writer, content};
use seriatim_ingest::sources::{LiveSource, Sources};
use seriatim_ingest::verify::Verified;
use seriatim_ingest::webhook::Received;
use seriatim_schemas::decode::{DecodeStep, document};
use seriatim_schemas::form::FormKind;
use seriatim_schemas::id::RecordId;
use seriatim_schemas::key::RecordKey;
use seriatim_schemas::preset::Preset;
use seriatim_schemas::record::{decode, encode};
use seriatim_schemas::selector::Selector;
use seriatim_schemas::source::{Source, SourceConfig};
use seriatim_schemas::template::Template;
use seriatim_schemas::verification::{Algorithm, JwtAlgorithm, KeyStep, Recipe};
use seriatim_schemas::version::{Version, VersionKind};

/// What is done with bytes. It panics where it finds a fault.
pub type Target = fn(&[u8]);

/// Names of the targets, and their functions.
pub const TARGETS: [(&str, Target); 5] = [
    ("request", request),
    ("declaration", declaration),
    ("selector", selector),
    ("codec", codec),
    ("decode", decoders),
];

const P256: &str = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEYIMe63uS6yod/YAuWK+3i2aPZbqRPEFdAOqFXrCUpV0S3GQcxxGCxcrv0aoeDsvWxfVyBeU1d0N36Q009Ms55w==";
const HEX_SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Every preset whose key any text can be.
static SOURCES: LazyLock<Sources> = LazyLock::new(|| {
    let takes_text = |recipe: &Recipe| {
        let is_ours = recipe.jwt.as_ref().is_none_or(|jwt| jwt.algorithms.contains(&JwtAlgorithm::HS256));
        !recipe.algorithm.is_public() && is_ours
    };
    let source = |name: &str| -> Option<Source> {
        let declaration = Preset::named(name).expect("a preset").declare;
        let recipes = &declaration.verify.as_ref().expect("verifies").0;
        let is_p256 = recipes.iter().any(|r| r.algorithm == Algorithm::EcdsaP256Sha256 && r.key == [KeyStep::Base64]);
        let prefix = match recipes.first().and_then(|recipe| recipe.key.first()) {
            Some(KeyStep::Strip(prefix)) if recipes.iter().any(|recipe| recipe.algorithm.is_public()) => prefix,
            _ => "",
        };
        let secret = if is_p256 { P256.to_owned() } else { format!("{prefix}{HEX_SECRET}") };
        if !is_p256 && !recipes.iter().any(takes_text) {
            return None;
        }
        let settings = declaration.setting_names().into_iter().map(|n| (n.to_owned(), "x".to_owned()));
        let text = format!("tenant = 't'\nname = '{name}'\npreset = '{name}'\nsecrets = [{{ value = '{secret}' }}]\n");
        let mut config: SourceConfig = toml::from_str(&text).expect("a source");
        config.settings = settings.collect::<BTreeMap<_, _>>();
        config.public_url = Some("https://hooks.example.com/in".to_owned());
        config.declare.object = declaration
            .object
            .is_none()
            .then(|| serde_json::from_value("const:object".into()).expect("an expression"))
            .filter(|_| declaration.events.is_none());
        config.resolve().ok()
    };
    Sources::new(Preset::names().filter_map(source).collect(), [1; 32]).expect("good secrets")
});

/// Sources in the order of their names.
static LIVE: LazyLock<Vec<std::sync::Arc<LiveSource>>> = LazyLock::new(|| {
    let mut all = SOURCES.all();
    all.sort_by(|a, b| a.source.name.cmp(&b.source.name));
    all
});

/// The first byte chooses the preset; then a request: query line, headers, an empty line, the body.
pub fn request(data: &[u8]) {
    let Some((&which, rest)) = data.split_first() else { return };
    let source = &LIVE[usize::from(which) % LIVE.len()];
    let received = received(rest);
    let view = received.view(&source.verifier);
    let at = received.at;
    let _ = source.handshakes.reply(&view, source.verifier.public_url(), false);
    let _ = source.verifier.verify(&view, at);
    let _ = source.verifier.diagnose(&view, at);
    let _ = source.handshakes.reply(&view, source.verifier.public_url(), true);
    let claims = serde_json::from_slice(&received.body).ok();
    let verified = Verified { secret: "0:00000000".to_owned(), claims };
    let writer = Writer { source, received: &received, request: uuid::Uuid::nil() };
    let records = match content(source, &received) {
        Ok(Content::Many(document, items)) => {
            assert!(items.iter().all(|i| i.range.0 <= i.range.1 && i.range.1 <= document.len()));
            let of_items = items.iter().take(50).map(|item| writer.item(&document, item, &verified));
            std::iter::once(writer.evidence(&verified)).chain(of_items).collect()
        }
        Ok(Content::One(document)) => vec![writer.one(Ok(document), &verified)],
        Err(error) => vec![writer.one(Err(error), &verified)],
    };
    for record in records {
        let again = decode(&record.key.to_string(), &encode(&record), record.value.clone());
        assert_eq!(again.as_ref(), Ok(&record), "what is written is read again");
    }
}

fn received(data: &[u8]) -> Received {
    let mut lines = data.splitn(17, |b| *b == b'\n');
    let query = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let mut headers = HeaderMap::new();
    let mut body = Vec::new();
    for line in lines.by_ref() {
        let text = line.splitn(2, |b| *b == b':').collect::<Vec<_>>();
        match text.as_slice() {
            [name, value] => {
                if let (Ok(name), Ok(value)) =
                    (HeaderName::from_bytes(name), HeaderValue::from_bytes(value.trim_ascii()))
                {
                    headers.append(name, value);
                }
            }
            _ => break,
        }
    }
    for line in lines {
        body.extend_from_slice(line);
    }
    Received {
        tenant: "t".to_owned(),
        name: "s".to_owned(),
        method: if body.is_empty() { Method::GET } else { Method::POST },
        target: "/in/t/s".to_owned(),
        query,
        headers,
        body: Bytes::from(body),
        at: Timestamp::from_second(1_767_225_600).expect("a time"),
    }
}

/// A configured source: every mistake is told, what is good is compiled.
pub fn declaration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(config) = seriatim_schemas::document::read::<SourceConfig>(text, &[], |_| Vec::new()) else { return };
    if let Ok(source) = config.resolve() {
        let text = toml::to_string(&source.declaration).expect("a declaration is data");
        let again = toml::from_str(&text).expect("what is written is read again");
        assert_eq!(source.declaration, again);
        let names_files = |secret: &seriatim_schemas::source::SecretRef| {
            !matches!(secret, seriatim_schemas::source::SecretRef::Value(_))
        };
        if !source.secrets.iter().any(names_files) {
            let _ = Sources::new(vec![source], [0; 32]);
        }
    }
}

pub fn selector(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (head, value) = text.split_once('\n').unwrap_or((text, "a=1,b=2 v1,x"));
    if let Ok(selector) = head.parse::<Selector>() {
        assert_eq!(selector.to_string().parse(), Ok(selector.clone()));
        let values = selector.steps.iter().fold(vec![value.to_owned()], |values, step| step.apply(values));
        assert!(values.len() <= seriatim_schemas::selector::SPLIT_MAX);
    }
    if let Ok(template) = head.parse::<Template>() {
        assert_eq!(template.to_string().parse(), Ok(template));
    }
}

pub fn codec(data: &[u8]) {
    use VersionKind::{Decimal, Instant, Integer, Lexical, Ranked, Rfc3339, UnixMs, UnixS};
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(key) = RecordKey::parse(text) {
        assert_eq!(key.to_string(), text);
    }
    if let Ok(id) = text.parse::<RecordId>() {
        assert_eq!(id.to_string(), text);
    }
    let (first, second) = text.split_once('\n').unwrap_or((text, "1"));
    let states = ["a".to_owned(), "b".to_owned()];
    for kind in [Integer, Decimal, Rfc3339, UnixS, UnixMs, Instant, Ranked, Lexical] {
        let read = |text: &str| Version::parse(text, kind, &states).map(|v| (v.instant_ns(), v.order_key(0x8000, "")));
        if let (Ok((a_ns, a)), Ok((b_ns, b))) = (read(first), read(second)) {
            if let (Some(a_ns), Some(b_ns)) = (a_ns, b_ns) {
                assert_eq!(a_ns.cmp(&b_ns), a.cmp(&b), "{kind:?}: instants and keys are in one order");
            }
            if let (Integer, Ok(x), Ok(y)) = (kind, first.parse::<i128>(), second.parse::<i128>()) {
                assert_eq!(x.cmp(&y), a.cmp(&b), "integers and keys are in one order");
            }
        }
    }
}

/// The first byte chooses the steps and the content type.
pub fn decoders(data: &[u8]) {
    let Some((&which, body)) = data.split_first() else { return };
    let steps: &[&[&str]] = &[
        &[],
        &["form:payload"],
        &["xml"],
        &["base64"],
        &["gzip"],
        &["form:bt_payload", "base64", "xml"],
        &["gzip", "xml"],
    ];
    let types = ["application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=xx"];
    let which = usize::from(which);
    let steps: Vec<DecodeStep> = steps[which % steps.len()].iter().map(|step| step.parse().expect("a step")).collect();
    let kind = FormKind::of(Some(types[which / 7 % types.len()]));
    let body = Bytes::copy_from_slice(body);
    if let Ok(Some(document)) = document(&steps, &kind, &body)
        && steps == [DecodeStep::Xml]
        && body.trim_ascii_start().starts_with(b"<")
    {
        serde_json::from_slice::<serde_json::Value>(&document).expect("XML becomes JSON");
    }
    let _ = seriatim_schemas::form::form_value(&kind, &body, "payload");
}
