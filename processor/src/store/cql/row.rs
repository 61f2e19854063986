//! One row of the objects table, whatever its kind, and what it means.

use bytes::Bytes;
use scylla::deserialize::row::{ColumnIterator, DeserializeRow, RawColumn};
use scylla::deserialize::value::DeserializeValue;
use scylla::deserialize::{DeserializationError, TypeCheckError};
use scylla::frame::response::result::ColumnSpec;
use seriatim_schemas::id::{RecordId, Sha256Digest};
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::record::{Header, headers_from_json};
use seriatim_schemas::row::{
    ArrivalRow, BacklogRow, DeadLetter, EventRow, Head, Run, Snapshot, State, Waiting, WaitingEffect, WaitingSink,
};
use seriatim_schemas::version::OrderKey;
use uuid::Uuid;

use crate::error::StoreError;
use crate::inspect::LetterHead;
use crate::store::LetterKey;

/// Columns are matched by name; those that a statement leaves out keep their default.
#[derive(Debug, Default)]
pub struct Stored {
    pub kind: i8,
    pub tenant: String,
    pub source: String,
    pub object: String,
    pub row: String,
    turn: i64,
    order_key: Option<Vec<u8>>,
    event: Option<String>,
    deleted: Option<bool>,
    rev: i64,
    event_type: Option<String>,
    version: Option<String>,
    digest: Option<Vec<u8>>,
    attempt: Option<Uuid>,
    outcome: Option<String>,
    record: Option<String>,
    position: Option<String>,
    event_id: Option<String>,
    detail: Option<String>,
    recorded_ms: i64,
    done_ms: i64,
    state: Option<Vec<u8>>,
    headers: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    waiting: Option<String>,
    fold: Option<Vec<u8>>,
    sequence: Option<String>,
    run: Option<(i32, i64)>,
    attempted: Option<bool>,
}

impl<'frame, 'metadata> DeserializeRow<'frame, 'metadata> for Stored {
    fn type_check(_: &[ColumnSpec<'_>]) -> Result<(), TypeCheckError> {
        // Each value is checked where it is read.
        Ok(())
    }

    fn deserialize(columns: ColumnIterator<'frame, 'metadata>) -> Result<Self, DeserializationError> {
        let mut stored = Self::default();
        for column in columns {
            let column = column?;
            match column.spec.name() {
                "kind" => stored.kind = value(column)?.unwrap_or_default(),
                "tenant" => stored.tenant = value(column)?.unwrap_or_default(),
                "source" => stored.source = value(column)?.unwrap_or_default(),
                "object" => stored.object = value(column)?.unwrap_or_default(),
                "row" => stored.row = value(column)?.unwrap_or_default(),
                "turn" => stored.turn = value(column)?.unwrap_or_default(),
                "order_key" => stored.order_key = value(column)?,
                "event" => stored.event = value(column)?,
                "deleted" => stored.deleted = value(column)?,
                "rev" => stored.rev = value(column)?.unwrap_or_default(),
                "type" => stored.event_type = value(column)?,
                "version" => stored.version = value(column)?,
                "digest" => stored.digest = value(column)?,
                "attempt" => stored.attempt = value(column)?,
                "outcome" => stored.outcome = value(column)?,
                "record" => stored.record = value(column)?,
                "position" => stored.position = value(column)?,
                "event_id" => stored.event_id = value(column)?,
                "detail" => stored.detail = value(column)?,
                "recorded_ms" => stored.recorded_ms = value(column)?.unwrap_or_default(),
                "done_ms" => stored.done_ms = value(column)?.unwrap_or_default(),
                "state" => stored.state = value(column)?,
                "headers" => stored.headers = value(column)?,
                "value" => stored.value = value(column)?,
                "waiting" => stored.waiting = value(column)?,
                "fold" => stored.fold = value(column)?,
                "sequence" => stored.sequence = value(column)?,
                "run" => stored.run = value(column)?,
                "attempted" => stored.attempted = value(column)?,
                _ => {}
            }
        }
        Ok(stored)
    }
}

fn value<'f, 'm, T: DeserializeValue<'f, 'm>>(column: RawColumn<'f, 'm>) -> Result<Option<T>, DeserializationError> {
    Option::<T>::type_check(column.spec.typ()).map_err(DeserializationError::new)?;
    Option::<T>::deserialize(column.spec.typ(), column.slice)
}

impl Stored {
    fn corrupt(&self, what: &str) -> StoreError {
        StoreError::Corrupt(format!(
            "kind {} of {}/{}/{} row {:?}: {what}",
            self.kind, self.tenant, self.source, self.object, self.row
        ))
    }

    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.tenant, &self.source, &self.object)
    }

    pub fn record_id(&self) -> Result<RecordId, StoreError> {
        let text = self.record.as_deref().unwrap_or("");
        text.parse().map_err(|_| self.corrupt("record is not a record id"))
    }

    fn digest(&self) -> Result<Sha256Digest, StoreError> {
        self.digest.as_deref().and_then(Sha256Digest::from_slice).ok_or_else(|| self.corrupt("digest is not 32 bytes"))
    }

    fn outcome(&self) -> Result<Outcome, StoreError> {
        self.outcome.as_deref().and_then(Outcome::parse).ok_or_else(|| self.corrupt("outcome is unknown"))
    }

    /// None where the head was only touched by a refused batch.
    pub fn head(&self) -> Result<Option<Head>, StoreError> {
        if self.turn == 0 {
            return Ok(None);
        }
        let snapshot = match &self.order_key {
            None => None,
            Some(order_key) => Some(Snapshot {
                order_key: OrderKey(order_key.clone()),
                version: self.version.clone().unwrap_or_default(),
                event_type: self.event_type.clone().unwrap_or_default(),
                event_row: self.event.clone().unwrap_or_default(),
                record: self.record_id()?,
                digest: self.digest()?,
                deleted: self.deleted.unwrap_or(false),
            }),
        };
        let sequence = self.sequence.as_deref().map(serde_json::from_str).transpose();
        Ok(Some(Head {
            rev: self.rev,
            turn: self.turn,
            snapshot,
            waiting: Waiting::decode(self.waiting.as_deref()).map_err(|e| self.corrupt(&e.to_string()))?,
            fold: self.fold.clone().map(Bytes::from),
            sequence: sequence.map_err(|e| self.corrupt(&e.to_string()))?,
            run: self.run.map(|(partition, after)| Run { partition, after }),
        }))
    }

    pub fn state(&self) -> Result<Option<State>, StoreError> {
        self.state.as_deref().map(State::decode).transpose().map_err(|e| self.corrupt(&e.to_string()))
    }

    pub fn event(&self) -> Result<EventRow, StoreError> {
        Ok(EventRow {
            row: self.row.clone(),
            outcome: self.outcome()?,
            rev: self.rev,
            event_type: self.event_type.clone().unwrap_or_default(),
            version: self.version.clone(),
            digest: self.digest()?,
            record: self.record_id()?,
            attempt: self.attempt.ok_or_else(|| self.corrupt("attempt is missing"))?,
            position: self.position.clone().unwrap_or_default(),
            decided_ms: self.done_ms,
        })
    }

    pub fn arrival(&self) -> Result<ArrivalRow, StoreError> {
        let (event_row, _) = self.row.rsplit_once('/').ok_or_else(|| self.corrupt("row is not EVENT/RECORD"))?;
        Ok(ArrivalRow {
            event_row: event_row.to_owned(),
            event_id: self.event_id.clone().unwrap_or_default(),
            record: self.record_id()?,
            outcome: self.outcome()?,
            detail: self.detail.clone().filter(|d| !d.is_empty()),
            position: self.position.clone().unwrap_or_default(),
            recorded_ms: self.recorded_ms,
            done_ms: self.done_ms,
        })
    }

    fn headers(&self) -> Result<Vec<Header>, StoreError> {
        headers_from_json(self.headers.as_deref().unwrap_or(b"[]")).map_err(|e| self.corrupt(&e.to_string()))
    }

    pub fn waiting_sink(&self) -> WaitingSink {
        WaitingSink {
            key: self.key(),
            sink: self.row.clone(),
            since_ms: self.done_ms,
            cause: self.detail.clone().unwrap_or_default(),
            is_parked: self.attempted.unwrap_or(false),
        }
    }

    pub fn waiting_effect(&self) -> Result<WaitingEffect, StoreError> {
        let (sink, _) = self.row.rsplit_once('/').ok_or_else(|| self.corrupt("row is not SINK/REV"))?;
        Ok(WaitingEffect {
            sink: sink.to_owned(),
            rev: self.rev,
            outcome: self.outcome()?,
            attempted: self.attempted.unwrap_or(true),
            writer: self.attempt.unwrap_or_default(),
            since_ms: self.done_ms,
            headers: self.headers()?,
            value: Bytes::from(self.value.clone().unwrap_or_default()),
        })
    }

    pub fn backlog(&self) -> Result<BacklogRow, StoreError> {
        Ok(BacklogRow {
            number: self.row.parse().map_err(|_| self.corrupt("row is not a number"))?,
            position: self.position.clone().unwrap_or_default(),
            headers: self.headers()?,
            value: Bytes::from(self.value.clone().unwrap_or_default()),
        })
    }

    pub fn letter_head(&self, bucket: u32) -> Result<LetterHead, StoreError> {
        Ok(LetterHead {
            bucket,
            of: LetterKey { key: self.key(), row: self.row.clone() },
            event_id: self.event_id.clone().unwrap_or_default(),
            event_type: self.event_type.clone().unwrap_or_default(),
            record: self.record_id()?,
            cause: self.outcome.clone().unwrap_or_default(),
            detail: self.detail.clone().unwrap_or_default(),
            position: self.position.clone().unwrap_or_default(),
            recorded_ms: self.recorded_ms,
            dead_ms: self.done_ms,
        })
    }

    pub fn dead_letter(&self) -> Result<DeadLetter, StoreError> {
        Ok(DeadLetter {
            tenant: self.tenant.clone(),
            source: self.source.clone(),
            object: self.object.clone(),
            event_row: self.row.clone(),
            event_id: self.event_id.clone().unwrap_or_default(),
            event_type: self.event_type.clone().unwrap_or_default(),
            record: self.record_id()?,
            cause: self.outcome.clone().unwrap_or_default(),
            detail: self.detail.clone().unwrap_or_default(),
            position: self.position.clone().unwrap_or_default(),
            recorded_ms: self.recorded_ms,
            dead_ms: self.done_ms,
            headers: self.headers()?,
            value: Bytes::from(self.value.clone().unwrap_or_default()),
        })
    }
}
