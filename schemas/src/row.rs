//! What the store holds of an object: its head, one row per event, one per arrival, its dead letters.
//! The columns stand in `cql/` and `sql/`; these are the same rows as values.

use bytes::Bytes;
use thiserror::Error;
use uuid::Uuid;

use crate::id::{RecordId, Sha256Digest};
use crate::outcome::Outcome;
use crate::record::Header;
use crate::version::OrderKey;

/// The head of an object. It never expires: an old version stays old after every event row is gone.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// Counts decisions: one per event that is applied or delivered. Part of the fence.
    pub rev: i64,
    /// +1 in every conditional batch on the object: what the conditions test.
    pub turn: i64,
    /// The event that is the object's state; none while only deltas were seen.
    pub snapshot: Option<Snapshot>,
}

/// The event with the greatest order key.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub order_key: OrderKey,
    pub version: String,
    pub event_type: String,
    pub event_row: String,
    pub record: RecordId,
    pub digest: Sha256Digest,
    /// The event was a tombstone.
    pub deleted: bool,
}

/// One event that was decided. Expires after the dedupe window.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRow {
    pub row: String,
    pub outcome: Outcome,
    /// The object's rev with this decision.
    pub rev: i64,
    pub event_type: String,
    pub version: Option<String>,
    pub digest: Sha256Digest,
    /// The record that was decided: another record of the same event is a duplicate.
    pub record: RecordId,
    /// Which try wrote it: tells one's own batch from another's after a lost answer.
    pub attempt: Uuid,
    /// Where the record was read. A hint.
    pub position: String,
    /// Milliseconds since 1970.
    pub decided_ms: i64,
}

/// What one record of an event did.
#[derive(Debug, Clone, PartialEq)]
pub struct ArrivalRow {
    pub event_row: String,
    /// The provider's id, as in `ce_id`.
    pub event_id: String,
    pub record: RecordId,
    pub outcome: Outcome,
    /// Why, where the outcome is dead.
    pub detail: Option<String>,
    pub position: String,
    /// When the request was received, milliseconds since 1970.
    pub recorded_ms: i64,
    /// When its effects were out, milliseconds since 1970.
    pub done_ms: i64,
}

/// An event that could not be decided, whole. Kept until an operator discards it.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetter {
    pub tenant: String,
    pub source: String,
    /// Empty for what could not be routed.
    pub object: String,
    pub event_row: String,
    pub event_id: String,
    pub event_type: String,
    pub record: RecordId,
    pub cause: String,
    pub detail: String,
    pub position: String,
    pub recorded_ms: i64,
    pub dead_ms: i64,
    pub headers: Vec<Header>,
    pub value: Bytes,
}

/// The state of an object as stored: one encoding byte, then the document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State(pub Bytes);

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StateError {
    #[error("stored state is empty: not even its encoding byte is there")]
    Empty,
    #[error("state encoding {0:#04x} is unknown: upgrade this process")]
    Encoding(u8),
}

impl State {
    /// The document as it is.
    pub const PLAIN: u8 = 0;

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 + self.0.len());
        out.push(Self::PLAIN);
        out.extend_from_slice(&self.0);
        out
    }

    pub fn decode(stored: &[u8]) -> Result<Self, StateError> {
        match stored.split_first() {
            Some((&Self::PLAIN, document)) => Ok(Self(Bytes::copy_from_slice(document))),
            Some((&other, _)) => Err(StateError::Encoding(other)),
            None => Err(StateError::Empty),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_encoding_is_frozen() {
        let state = State(Bytes::from_static(b"{}"));
        assert_eq!(state.encode(), [0, b'{', b'}']);
        assert_eq!(State::decode(&[0, b'{', b'}']), Ok(state));
        assert_eq!(State::decode(&[]), Err(StateError::Empty));
        assert_eq!(State::decode(&[9, 1]), Err(StateError::Encoding(9)));
    }
}
