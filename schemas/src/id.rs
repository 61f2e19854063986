//! Record ids, and the row that an event gets in the store.
//!
//! An event id comes from outside: it may be long, and where a signature does not cover it (a
//! header), a forger could pair a known id with another body. Its row therefore adds a digest.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use thiserror::Error;
use uuid::Uuid;

/// Longest event id that is kept as it is, in bytes; a longer one becomes `#` + SHA-256.
pub const EVENT_ID_BYTES_MAX: usize = 512;

/// Names one entry of the log for ever: the request's UUIDv7, and the index of the item in it.
/// Text form `UUID.INDEX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordId {
    pub request: Uuid,
    pub item: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("record id {text:?} is not UUID.INDEX")]
pub struct RecordIdError {
    pub text: String,
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.request.as_hyphenated(), self.item)
    }
}

impl FromStr for RecordId {
    type Err = RecordIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (request, item) = text.split_once('.')?;
            Some(Self { request: Uuid::try_parse(request).ok()?, item: item.parse().ok()? })
        };
        parse().filter(|id| id.to_string() == text).ok_or_else(|| RecordIdError { text: text.to_owned() })
    }
}

/// SHA-256 of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sha256Digest(pub [u8; 32]);

impl Sha256Digest {
    pub fn of(data: &[u8]) -> Self {
        Self(Sha256::digest(data).into())
    }

    pub fn from_slice(data: &[u8]) -> Option<Self> {
        data.try_into().ok().map(Self)
    }
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl FromStr for Sha256Digest {
    type Err = hex::FromHexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut digest = [0; 32];
        hex::decode_to_slice(text, &mut digest)?;
        Ok(Self(digest))
    }
}

/// Where an event id was taken from (header `st_idfrom`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IdFrom {
    /// The signed body.
    Body,
    /// A header that the signature covers.
    SignedHeader,
    /// A header, or the query, that the signature does not cover.
    UnsignedHeader,
    /// The digest of the body: the provider sends no id.
    Digest,
    /// Minted by us: nothing could be derived (`unroutable`), or the record is ours.
    Record,
}

impl IdFrom {
    pub const ALL: [Self; 5] = [Self::Body, Self::SignedHeader, Self::UnsignedHeader, Self::Digest, Self::Record];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Body => "body",
            Self::SignedHeader => "header",
            Self::UnsignedHeader => "header-unsigned",
            Self::Digest => "digest",
            Self::Record => "record",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|from| from.as_str() == text)
    }
}

/// The row (clustering key) of an event: its id, made safe. Two events of one object are one event
/// exactly if their rows are equal.
///
/// - an id that the signature does not cover gets `~` and the first 16 hex digits of the body's digest
/// - what is longer than [`EVENT_ID_BYTES_MAX`], or starts with `#`, becomes `#` + SHA-256 in hex
pub fn event_row(event_id: &str, from: IdFrom, body: &Sha256Digest) -> String {
    let row = match from {
        IdFrom::UnsignedHeader => format!("{event_id}~{}", hex::encode(&body.0[..8])),
        IdFrom::Body | IdFrom::SignedHeader | IdFrom::Digest | IdFrom::Record => event_id.to_owned(),
    };
    if row.len() > EVENT_ID_BYTES_MAX || row.starts_with('#') {
        format!("#{}", Sha256Digest::of(row.as_bytes()))
    } else {
        row
    }
}

/// The row of an arrival: `EVENT ROW/RECORD ID`. A record id holds no slash, so the last one divides.
pub fn arrival_row(event_row: &str, record: &RecordId) -> String {
    format!("{event_row}/{record}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REQUEST: Uuid = Uuid::from_u128(0x0192_e4a0_7c1d_7f3e_9b2a_1234_5678_9abc);

    #[test]
    fn record_id_is_frozen() {
        let id = RecordId { request: REQUEST, item: 3 };
        assert_eq!(id.to_string(), "0192e4a0-7c1d-7f3e-9b2a-123456789abc.3");
        assert_eq!("0192e4a0-7c1d-7f3e-9b2a-123456789abc.3".parse(), Ok(id));
        for bad in ["", "x.0", "0192e4a0-7c1d-7f3e-9b2a-123456789abc", "0192E4A0-7C1D-7F3E-9B2A-123456789ABC.3"] {
            assert!(bad.parse::<RecordId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn event_rows_are_frozen() {
        let digest = Sha256Digest::of(b"body");
        assert_eq!(event_row("evt_1", IdFrom::Body, &digest), "evt_1");
        assert_eq!(event_row("guid", IdFrom::UnsignedHeader, &digest), "guid~230d8358dc8e8890");
        assert_eq!(event_row("#x", IdFrom::Body, &digest), format!("#{}", Sha256Digest::of(b"#x")));
        let long = "x".repeat(513);
        assert_eq!(event_row(&long, IdFrom::Body, &digest), format!("#{}", Sha256Digest::of(long.as_bytes())));
        let record = RecordId { request: REQUEST, item: 0 };
        assert_eq!(arrival_row("a/b", &record), "a/b/0192e4a0-7c1d-7f3e-9b2a-123456789abc.0");
    }

    #[test]
    fn id_sources_round_trip() {
        for from in IdFrom::ALL {
            assert_eq!(IdFrom::parse(from.as_str()), Some(from));
        }
        assert_eq!(IdFrom::parse("other"), None);
    }

    proptest! {
        #[test]
        fn record_ids_round_trip(request: u128, item: u32) {
            let id = RecordId { request: Uuid::from_u128(request), item };
            prop_assert_eq!(id.to_string().parse(), Ok(id));
        }
    }
}
