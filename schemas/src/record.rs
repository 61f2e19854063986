//! One entry of the log. Its value is the exact bytes that were signed; all else is in the headers.
//!
//! Headers follow the CloudEvents 1.0 Kafka binding in binary mode (`ce_*`, `content-type`), so that any
//! CloudEvents SDK reads the topic; ours are `st_*`, the sender's own `http_*`. The log is the only
//! input of a processor: events, fetched documents and operator acts are all records.

mod headers;
mod json;

use bytes::Bytes;
use jiff::Timestamp;

use crate::id::{IdFrom, RecordId, Sha256Digest, event_row};
use crate::key::RecordKey;

pub use headers::{DecodeError, Header, decode, encode};
pub use json::{HeadersJsonError, headers_from_json, headers_to_json};

/// Version of the record's headers (`st_v`). Unknown headers are ignored, so a reader of version N takes
/// whatever a writer adds; the number rises only with a change that N must not read.
pub const RECORD_VERSION: u8 = 1;

/// Headers that are never kept: they are, or may be, secrets.
pub const HEADERS_NEVER_KEPT: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "set-cookie"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// One event of a provider.
    Event,
    /// A request that carried many events, whole: their signature can be checked again.
    Evidence,
    /// An act of an operator.
    Control,
    /// A document that was fetched from the provider.
    Fetched,
    /// Verified, but without an id or object that could be derived.
    Unroutable,
    /// A further arrival of an event that is in the log already; its body is left out.
    Repeat,
}

impl RecordKind {
    pub const ALL: [Self; 6] =
        [Self::Event, Self::Evidence, Self::Control, Self::Fetched, Self::Unroutable, Self::Repeat];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Evidence => "evidence",
            Self::Control => "control",
            Self::Fetched => "fetched",
            Self::Unroutable => "unroutable",
            Self::Repeat => "repeat",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// One entry of the log, before it is written or after it is read.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub kind: RecordKind,
    pub id: RecordId,
    pub key: RecordKey,
    /// Revision of the declaration that derived the fields below.
    pub declaration: String,
    /// The provider's event id (`ce_id`); never empty.
    pub event_id: String,
    pub id_from: IdFrom,
    /// `ce_type`; `unknown` where nothing says it.
    pub event_type: String,
    /// The version as the provider wrote it (`ce_objectversion`).
    pub version: Option<String>,
    /// The provider's time (`ce_time`).
    pub time: Option<Timestamp>,
    /// When the request was received (`ce_recordedtime`).
    pub recorded: Timestamp,
    /// SHA-256 of the value; of a repeat, that of the body that is left out.
    pub digest: Sha256Digest,
    /// Where the declaration leaves out values that a retry changes: the digest without them, for an id that the
    /// signature does not cover.
    pub id_digest: Option<Sha256Digest>,
    /// Which of the live secrets matched: its place in the list, and 8 hex digits of its digest.
    pub secret: String,
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Why nothing could be derived, for [`RecordKind::Unroutable`]; also what is wrong with a version.
    pub problem: Option<String>,
    pub content_type: Option<String>,
    pub traceparent: Option<String>,
    /// For an item of a batch: where it stands in the decoded body, first byte and end.
    pub range: Option<(usize, usize)>,
    /// For an item of a batch: what the declaration reads of the rest of the request, by pointer; a JSON object.
    pub context: Option<String>,
    /// The sender's headers that verification reads, names in lower case.
    pub http: Vec<(String, Bytes)>,
    pub value: Bytes,
}

impl Record {
    /// The row of this event in the store: equal exactly for deliveries of the same event.
    pub fn event_row(&self) -> String {
        event_row(&self.event_id, self.id_from, self.id_digest.as_ref().unwrap_or(&self.digest))
    }

    /// Bytes that this record occupies in memory, roughly: what byte budgets count.
    pub fn size(&self) -> usize {
        const FIELDS: usize = 512;
        FIELDS + self.value.len() + self.http.iter().map(|(n, v)| n.len() + v.len()).sum::<usize>()
    }
}
