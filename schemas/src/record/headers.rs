//! The header codec: [`Record`] to and from the headers of a log entry.

use std::str::FromStr;

use bytes::Bytes;
use jiff::Timestamp;
use thiserror::Error;

use super::{HEADERS_NEVER_KEPT, RECORD_VERSION, Record, RecordKind};
use crate::id::{IdFrom, RecordId, Sha256Digest};
use crate::key::{KeyError, RecordKey, encode_part};

/// Name and value of one header of a log entry.
pub type Header = (String, Bytes);

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    #[error("header {name} is missing: not a record of ours")]
    Missing { name: &'static str },
    #[error("header {name} holds {value:?}, which is not valid")]
    Invalid { name: &'static str, value: String },
    #[error("record version {found} is newer than {RECORD_VERSION}: upgrade this process first")]
    Newer { found: String },
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// All headers of `record`, in a fixed order. Values are UTF-8 but for `http_*`, which are kept as sent.
pub fn encode(record: &Record) -> Vec<Header> {
    let mut out: Vec<Header> = Vec::with_capacity(24 + record.http.len());
    let mut put = |name: &str, value: String| out.push((name.to_owned(), Bytes::from(value)));
    put("st_v", RECORD_VERSION.to_string());
    put("st_kind", record.kind.as_str().to_owned());
    put("st_record", record.id.to_string());
    put("st_decl", record.declaration.clone());
    put("st_idfrom", record.id_from.as_str().to_owned());
    put("st_sha256", record.digest.to_string());
    put("st_secret", record.secret.clone());
    put("st_method", record.method.clone());
    put("st_target", record.target.clone());
    put("ce_specversion", "1.0".to_owned());
    put("ce_id", record.event_id.clone());
    put("ce_source", ce_source(record.key.tenant(), record.key.source()));
    put("ce_type", record.event_type.clone());
    put("ce_recordedtime", record.recorded.to_string());
    put("ce_partitionkey", record.key.to_string());
    let subject = match &record.key {
        RecordKey::Object(key) => Some(key.object.clone()),
        RecordKey::Unroutable { .. } | RecordKey::Evidence { .. } => None,
    };
    let optional = [
        ("ce_subject", subject),
        ("ce_time", record.time.map(|t| t.to_string())),
        ("ce_objectversion", record.version.clone()),
        ("ce_traceparent", record.traceparent.clone()),
        ("content-type", record.content_type.clone()),
        ("st_problem", record.problem.clone()),
        ("st_idsha256", record.id_digest.map(|digest| digest.to_string())),
        ("st_range", record.range.map(|(start, end)| format!("{start}-{end}"))),
        ("st_context", record.context.clone()),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            put(name, value);
        }
    }
    let kept = record.http.iter().filter(|(name, _)| !HEADERS_NEVER_KEPT.contains(&name.as_str()));
    out.extend(kept.map(|(name, value)| (format!("http_{name}"), value.clone())));
    out
}

/// `/tenants/T/sources/S`, parts percent-encoded as in a key.
fn ce_source(tenant: &str, source: &str) -> String {
    format!("/tenants/{}/sources/{}", encode_part(tenant), encode_part(source))
}

/// Reads a log entry. Unknown headers are ignored; of a repeated one the first counts.
pub fn decode(key: &str, headers: &[Header], value: Bytes) -> Result<Record, DecodeError> {
    let read = Reader { headers };
    let version = read.text("st_v")?;
    match version.parse::<u8>() {
        Ok(RECORD_VERSION) => {}
        Ok(found) if found > RECORD_VERSION => return Err(DecodeError::Newer { found: version }),
        _ => return Err(DecodeError::Invalid { name: "st_v", value: version }),
    }
    Ok(Record {
        kind: read.parsed("st_kind", RecordKind::parse)?,
        id: read.parsed("st_record", |t| RecordId::from_str(t).ok())?,
        key: RecordKey::parse(key)?,
        declaration: read.text("st_decl")?,
        event_id: read.parsed("ce_id", |t| (!t.is_empty()).then(|| t.to_owned()))?,
        id_from: read.parsed("st_idfrom", IdFrom::parse)?,
        event_type: read.parsed("ce_type", |t| (!t.is_empty()).then(|| t.to_owned()))?,
        version: read.optional("ce_objectversion")?,
        time: read.optional("ce_time")?.and_then(|t| t.parse().ok()),
        recorded: read.parsed("ce_recordedtime", |t| t.parse::<Timestamp>().ok())?,
        digest: read.parsed("st_sha256", |t| Sha256Digest::from_str(t).ok())?,
        id_digest: read.optional("st_idsha256")?.and_then(|t| Sha256Digest::from_str(&t).ok()),
        secret: read.optional("st_secret")?.unwrap_or_default(),
        method: read.optional("st_method")?.unwrap_or_default(),
        target: read.optional("st_target")?.unwrap_or_default(),
        problem: read.optional("st_problem")?,
        content_type: read.optional("content-type")?,
        traceparent: read.optional("ce_traceparent")?,
        range: read.optional("st_range")?.and_then(|t| parse_range(&t)),
        context: read.optional("st_context")?,
        http: read.http(),
        value,
    })
}

fn parse_range(text: &str) -> Option<(usize, usize)> {
    let (start, end) = text.split_once('-')?;
    Some((start.parse().ok()?, end.parse().ok()?))
}

struct Reader<'a> {
    headers: &'a [Header],
}

impl Reader<'_> {
    fn optional(&self, name: &'static str) -> Result<Option<String>, DecodeError> {
        let Some((_, value)) = self.headers.iter().find(|(n, _)| n == name) else { return Ok(None) };
        match std::str::from_utf8(value) {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(_) => Err(DecodeError::Invalid { name, value: String::from_utf8_lossy(value).into_owned() }),
        }
    }

    fn text(&self, name: &'static str) -> Result<String, DecodeError> {
        self.optional(name)?.ok_or(DecodeError::Missing { name })
    }

    fn parsed<T>(&self, name: &'static str, parse: impl Fn(&str) -> Option<T>) -> Result<T, DecodeError> {
        let text = self.text(name)?;
        parse(&text).ok_or(DecodeError::Invalid { name, value: text })
    }

    fn http(&self) -> Vec<Header> {
        let named = |(name, value): &Header| Some((name.strip_prefix("http_")?.to_owned(), value.clone()));
        self.headers.iter().filter_map(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::key::ObjectKey;

    fn sample() -> Record {
        let value = Bytes::from_static(b"{\"id\":\"evt_1\"}");
        Record {
            kind: RecordKind::Event,
            id: RecordId { request: Uuid::from_u128(0x0192_e4a0_7c1d_7f3e_9b2a_1234_5678_9abc), item: 0 },
            key: RecordKey::Object(ObjectKey::new("acme", "billing", "sub/A")),
            declaration: "44136fa355b3678a".into(),
            event_id: "evt_1".into(),
            id_from: IdFrom::Body,
            event_type: "customer.subscription.updated".into(),
            version: Some("1767225600".into()),
            time: Some("2026-01-01T00:00:00Z".parse().expect("an instant")),
            recorded: "2026-01-01T00:00:01.25Z".parse().expect("an instant"),
            digest: Sha256Digest::of(&value),
            id_digest: None,
            secret: "0:1a2b3c4d".into(),
            method: "POST".into(),
            target: "/in/acme/billing".into(),
            problem: None,
            content_type: Some("application/json".into()),
            traceparent: None,
            range: None,
            context: None,
            http: vec![("stripe-signature".into(), Bytes::from_static(b"t=1,v1=ab"))],
            value,
        }
    }

    #[test]
    fn headers_are_frozen() {
        let text: Vec<_> =
            encode(&sample()).iter().map(|(n, v)| format!("{n}: {}", String::from_utf8_lossy(v))).collect();
        let expected = [
            "st_v: 1",
            "st_kind: event",
            "st_record: 0192e4a0-7c1d-7f3e-9b2a-123456789abc.0",
            "st_decl: 44136fa355b3678a",
            "st_idfrom: body",
            "st_sha256: 40993c639ffb5f13a0a2ef5c93c965f10b405f2b87a379272381da2dbc158dfa",
            "st_secret: 0:1a2b3c4d",
            "st_method: POST",
            "st_target: /in/acme/billing",
            "ce_specversion: 1.0",
            "ce_id: evt_1",
            "ce_source: /tenants/acme/sources/billing",
            "ce_type: customer.subscription.updated",
            "ce_recordedtime: 2026-01-01T00:00:01.25Z",
            "ce_partitionkey: acme/billing/sub%2FA",
            "ce_subject: sub/A",
            "ce_time: 2026-01-01T00:00:00Z",
            "ce_objectversion: 1767225600",
            "content-type: application/json",
            "http_stripe-signature: t=1,v1=ab",
        ];
        assert_eq!(text, expected);
    }

    #[test]
    fn unknown_headers_are_ignored_and_newer_versions_refused() {
        let record = sample();
        let mut headers = encode(&record);
        headers.push(("st_later".into(), Bytes::from_static(b"x")));
        let key = record.key.to_string();
        assert_eq!(decode(&key, &headers, record.value.clone()), Ok(record.clone()));
        headers[0].1 = Bytes::from_static(b"2");
        assert_eq!(decode(&key, &headers, record.value), Err(DecodeError::Newer { found: "2".into() }));
    }

    #[test]
    fn secrets_of_the_sender_are_never_kept() {
        let mut record = sample();
        record.http = HEADERS_NEVER_KEPT.map(|n| (n.to_owned(), Bytes::from_static(b"s"))).into();
        assert!(encode(&record).iter().all(|(name, _)| !name.starts_with("http_")));
    }

    #[test]
    fn a_foreign_record_is_told_from_ours() {
        assert_eq!(decode("a/b/c", &[], Bytes::new()), Err(DecodeError::Missing { name: "st_v" }));
    }

    proptest! {
        #[test]
        fn records_round_trip(
            event_id in ".+", event_type in ".+", object in ".*", version in proptest::option::of(".*"),
            problem in proptest::option::of(".*"), value in proptest::collection::vec(any::<u8>(), 0..64),
            http in proptest::collection::vec(("[a-z-]{1,8}", proptest::collection::vec(any::<u8>(), 0..8)), 0..4),
            kind in 0usize..5, from in 0usize..5,
        ) {
            let mut record = sample();
            record.kind = RecordKind::ALL[kind];
            record.id_from = IdFrom::ALL[from];
            (record.event_id, record.event_type, record.version, record.problem) = (event_id, event_type, version, problem);
            record.key = RecordKey::Object(ObjectKey::new("t", "s", object));
            record.http = http.into_iter().map(|(n, v)| (n, Bytes::from(v))).filter(|(n, _)| !HEADERS_NEVER_KEPT.contains(&n.as_str())).collect();
            record.value = Bytes::from(value);
            record.digest = Sha256Digest::of(&record.value);
            let decoded = decode(&record.key.to_string(), &encode(&record), record.value.clone());
            prop_assert_eq!(decoded, Ok(record));
        }

        #[test]
        fn any_headers_are_read_or_refused(headers in proptest::collection::vec(("(st|ce)_[a-z]{1,10}", ".{0,8}"), 0..20)) {
            let headers: Vec<_> = headers.into_iter().map(|(n, v)| (n, Bytes::from(v))).collect();
            let _ = decode("a/b/c", &headers, Bytes::new());
        }
    }
}
