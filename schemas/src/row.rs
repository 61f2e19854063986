//! What the store holds of an object: its head, one row per event, one per arrival, its dead letters.
//! The columns stand in `cql/` and `sql/`; these are the same rows as values.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

use crate::id::{RecordId, Sha256Digest};
use crate::key::ObjectKey;
use crate::outcome::Outcome;
use crate::record::Header;
use crate::sequence::Sequence;
use crate::version::OrderKey;

/// The head of an object. It never expires: an old version stays old after every event row is gone.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Head {
    /// Counts decisions: one per event that is applied or delivered. Part of the fence.
    pub rev: i64,
    /// +1 in every conditional batch on the object: what the conditions test.
    pub turn: i64,
    /// The event that is the object's state; none while only deltas were seen.
    pub snapshot: Option<Snapshot>,
    /// Sinks that the object waits for, by name: their effects lie in rows of their own, behind one another.
    pub waiting: Waiting,
    /// What a reducer has made of the object's deltas so far.
    pub fold: Option<Bytes>,
    /// Where it stands in its sequence, where its deltas have one.
    pub sequence: Option<Sequence>,
    /// Its last decisions, whose effects the owner of a partition may have in memory only; none where all that was
    /// decided is out, or lies in rows.
    pub run: Option<Run>,
}

/// Decisions in a row, all on records of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub partition: i32,
    /// The rev before the first of them.
    pub after: i64,
}

/// One record that is held behind a gap of its object's sequence, as it lies in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct BacklogRow {
    /// Its number in the sequence.
    pub number: u64,
    pub position: String,
    pub headers: Vec<Header>,
    pub value: Bytes,
}

/// Where the sinks stand that an object waits for. Text form: a JSON object; none where it is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Waiting(pub BTreeMap<String, WaitingFor>);

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingFor {
    /// Effects in rows; at least as many as there are.
    pub queued: u64,
    /// First and last rev of the effects that have no row: the event rows and the log have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overflow: Option<(i64, i64)>,
    /// Why nothing is sent before an operator says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<String>,
}

impl Waiting {
    pub fn has(&self, sink: &str) -> bool {
        self.0.contains_key(sink)
    }

    pub fn encode(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| serde_json::to_string(&self.0).expect("names and numbers serialise"))
    }

    pub fn decode(stored: Option<&str>) -> Result<Self, WaitingError> {
        let text = match stored {
            None | Some("") => return Ok(Self::default()),
            Some(text) => text,
        };
        serde_json::from_str(text).map_err(|e| WaitingError { text: text.to_owned(), reason: e.to_string() })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("waiting sinks {text:?} cannot be read: {reason}")]
pub struct WaitingError {
    pub text: String,
    pub reason: String,
}

/// An effect that waits for its sink.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitingEffect {
    pub sink: String,
    pub rev: i64,
    pub outcome: Outcome,
    /// It may have been sent before.
    pub attempted: bool,
    /// Which process wrote the row: another one cannot know whether it was sent since.
    pub writer: Uuid,
    /// Milliseconds since 1970.
    pub since_ms: i64,
    /// The record as it lies in the log.
    pub headers: Vec<Header>,
    pub value: Bytes,
}

/// That an object waits for a sink: what a partition's owner looks for when it starts, and what is listed.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitingSink {
    pub key: ObjectKey,
    pub sink: String,
    /// Milliseconds since 1970.
    pub since_ms: i64,
    /// Why it waits.
    pub cause: String,
    /// Nothing is sent before an operator says so.
    pub is_parked: bool,
}

/// The row of a dead effect's letter: `#SINK/EVENT ROW`. No event has a row of this form.
pub fn refused_row(sink: &str, event_row: &str) -> String {
    format!("#{sink}/{event_row}")
}

/// Sink and event row of a dead effect, from the row of its letter; none for that of a dead event.
pub fn parse_refused_row(row: &str) -> Option<(&str, &str)> {
    row.strip_prefix('#')?.split_once('/')
}

/// The row of a waiting effect: `SINK/REV`, the rev as 20 digits, so that rows come in order.
pub fn waiting_row(sink: &str, rev: i64) -> String {
    format!("{sink}/{rev:020}")
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
    /// The object's rev with this decision; [`EventRow::NO_REV`] where nothing of it is sent.
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

impl EventRow {
    /// Revs count from 1.
    pub const NO_REV: i64 = 0;

    /// Whether something of it is sent. An equal of the state, a stale event that no sink is to hear of, or an act on the
    /// object's order has a row so that it is not decided anew, and no effect.
    pub fn has_effect(&self) -> bool {
        self.rev != Self::NO_REV
    }
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
    fn waiting_is_frozen() {
        let mut waiting = Waiting::default();
        assert_eq!(waiting.encode(), None);
        assert_eq!(Waiting::decode(None), Ok(waiting.clone()));
        waiting.0.insert("a".into(), WaitingFor { queued: 3, overflow: None, parked: None });
        let parked = Some("status 400".to_owned());
        waiting.0.insert("b".into(), WaitingFor { queued: 1, overflow: Some((7, 9)), parked });
        let text = r#"{"a":{"queued":3},"b":{"queued":1,"overflow":[7,9],"parked":"status 400"}}"#;
        assert_eq!(waiting.encode().as_deref(), Some(text));
        assert_eq!(Waiting::decode(Some(text)), Ok(waiting));
        assert!(Waiting::decode(Some("[]")).is_err());
        assert_eq!(refused_row("push", "e/1"), "#push/e/1");
        assert_eq!(parse_refused_row("#push/e/1"), Some(("push", "e/1")));
        assert_eq!(parse_refused_row("e/1"), None);
        assert_eq!(waiting_row("push", 7), "push/00000000000000000007");
    }

    #[test]
    fn state_encoding_is_frozen() {
        let state = State(Bytes::from_static(b"{}"));
        assert_eq!(state.encode(), [0, b'{', b'}']);
        assert_eq!(State::decode(&[0, b'{', b'}']), Ok(state));
        assert_eq!(State::decode(&[]), Err(StateError::Empty));
        assert_eq!(State::decode(&[9, 1]), Err(StateError::Encoding(9)));
    }
}
