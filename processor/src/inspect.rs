//! What an operator asks the store: an object and its history, an event's arrivals, dead letters, floors.
//! Read-only, and beside the hot path: a slow question never holds an object, and a long answer comes in pages.

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use seriatim_schemas::id::{RecordId, arrival_row};
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::record::Header;
use seriatim_schemas::row::{DeadLetter, EventRow, Head, State, WaitingEffect, WaitingSink};

use crate::error::{LogError, StoreError};
use crate::log::LogIdentity;
use crate::store::{Arrival, FloorKey, Freshness, LetterKey, ObjectQuery, Store};

/// An object as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectState {
    pub key: ObjectKey,
    pub head: Head,
    pub state: Option<State>,
}

/// An object without its state, which may be large.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectHead {
    pub key: ObjectKey,
    pub head: Head,
}

/// A dead letter without what it holds, which may be large.
#[derive(Debug, Clone, PartialEq)]
pub struct LetterHead {
    /// Where it lies: of what was no record of ours its key does not tell.
    pub bucket: u32,
    pub of: LetterKey,
    pub event_id: String,
    pub event_type: String,
    pub record: RecordId,
    pub cause: String,
    pub detail: String,
    pub position: String,
    pub recorded_ms: i64,
    pub dead_ms: i64,
}

/// Whose rows are wanted: those of a tenant, or source, where given.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scope<'a> {
    pub tenant: Option<&'a str>,
    pub source: Option<&'a str>,
}

impl Scope<'_> {
    pub fn has(&self, tenant: &str, source: &str) -> bool {
        self.tenant.is_none_or(|t| t == tenant) && self.source.is_none_or(|s| s == source)
    }
}

/// Where a page of many objects' rows begins: behind this row, in the order in which the store keeps them. The default
/// is the beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct After {
    pub bucket: u32,
    /// None: the bucket's beginning.
    pub row: Option<RowName>,
}

/// Names a row among those of its kind; `row` is empty for a head.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowName {
    pub tenant: String,
    pub source: String,
    pub object: String,
    pub row: String,
}

/// Some rows, and where the next page begins; none where there is none. A page may hold fewer rows than were asked
/// for, or none, and not be the last.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    pub rows: Vec<T>,
    pub next: Option<After>,
}

/// Where a page of an event's arrivals begins: behind this one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AfterArrival {
    pub object: String,
    pub event_row: String,
    pub record: String,
}

/// Rows of one read where all of them are wanted.
const PAGE: usize = 500;

/// What a store is asked by name is one row; what may be many is read page by page, in the order in which the store
/// keeps it, so that no question brings more than a page into memory.
#[async_trait]
pub trait Inspect: Send + Sync + 'static {
    async fn object(&self, key: &ObjectKey) -> Result<Option<ObjectState>, StoreError>;

    /// One event row of an object, where it has not expired.
    async fn event(&self, key: &ObjectKey, row: &str) -> Result<Option<EventRow>, StoreError>;

    /// One dead letter, whole.
    async fn letter(&self, head: &LetterHead) -> Result<Option<DeadLetter>, StoreError>;

    /// Objects of a source.
    async fn heads(
        &self,
        tenant: &str,
        source: &str,
        after: &After,
        max: usize,
    ) -> Result<Page<ObjectHead>, StoreError>;

    async fn letters(&self, scope: Scope<'_>, after: &After, max: usize) -> Result<Page<LetterHead>, StoreError>;

    /// Which objects wait for which sinks.
    async fn waiters(&self, scope: Scope<'_>, after: &After, max: usize) -> Result<Page<WaitingSink>, StoreError>;

    /// Event rows of an object behind the row `after` (empty: the first) that have not expired, by name.
    async fn events_behind(&self, key: &ObjectKey, after: &str, max: usize) -> Result<Vec<EventRow>, StoreError>;

    /// Arrivals of an object behind the arrival row `after` (empty: the first) that have not expired, by name.
    async fn arrivals_behind(&self, key: &ObjectKey, after: &str, max: usize) -> Result<Vec<Arrival>, StoreError>;

    /// Arrivals of an event id, whatever object it is about, by object and name.
    async fn trace_behind(
        &self,
        tenant: &str,
        source: &str,
        event_id: &str,
        after: &AfterArrival,
        max: usize,
    ) -> Result<Vec<Arrival>, StoreError>;

    /// The first effects that an object has waiting for a sink.
    async fn first_waiting(&self, key: &ObjectKey, sink: &str, max: usize) -> Result<Vec<WaitingEffect>, StoreError>;

    /// How far each partition is done.
    async fn floors(&self) -> Result<Vec<(FloorKey, i64)>, StoreError>;

    /// All objects of a source, in memory.
    async fn objects(&self, tenant: &str, source: &str) -> Result<Vec<ObjectState>, StoreError> {
        let (mut all, mut after) = (Vec::new(), Some(After::default()));
        while let Some(at) = after {
            let page = self.heads(tenant, source, &at, PAGE).await?;
            for head in page.rows {
                all.extend(self.object(&head.key).await?);
            }
            after = page.next;
        }
        all.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(all)
    }

    /// All event rows of an object, in memory, in order of rev; first those without an effect.
    async fn events(&self, key: &ObjectKey) -> Result<Vec<EventRow>, StoreError> {
        let mut all: Vec<EventRow> = Vec::new();
        loop {
            let after = all.last().map_or("", |event| event.row.as_str());
            let page = self.events_behind(key, after, PAGE).await?;
            let is_last = page.len() < PAGE;
            all.extend(page);
            if is_last {
                all.sort_by_key(|event| event.rev);
                return Ok(all);
            }
        }
    }

    /// All arrivals of an object, in memory, in the order in which they were received.
    async fn arrivals(&self, key: &ObjectKey) -> Result<Vec<Arrival>, StoreError> {
        let (mut all, mut after): (Vec<Arrival>, _) = (Vec::new(), String::new());
        loop {
            let page = self.arrivals_behind(key, &after, PAGE).await?;
            let is_last = page.len() < PAGE;
            after = page.last().map(|a| arrival_row(&a.row.event_row, &a.row.record)).unwrap_or_default();
            all.extend(page);
            if is_last {
                all.sort_by_key(|arrival| (arrival.row.recorded_ms, arrival.row.record));
                return Ok(all);
            }
        }
    }

    /// All arrivals of an event id, in memory, in the order in which they were received.
    async fn trace(&self, tenant: &str, source: &str, event_id: &str) -> Result<Vec<Arrival>, StoreError> {
        let (mut all, mut after): (Vec<Arrival>, _) = (Vec::new(), AfterArrival::default());
        loop {
            let page = self.trace_behind(tenant, source, event_id, &after, PAGE).await?;
            let is_last = page.len() < PAGE;
            after = page.last().map(AfterArrival::of).unwrap_or_default();
            all.extend(page);
            if is_last {
                all.sort_by_key(|arrival| (arrival.row.recorded_ms, arrival.row.record));
                return Ok(all);
            }
        }
    }

    /// All dead letters, whole, in memory; of one tenant or source where given.
    async fn dead(&self, tenant: Option<&str>, source: Option<&str>) -> Result<Vec<DeadLetter>, StoreError> {
        let (mut all, mut after) = (Vec::new(), Some(After::default()));
        while let Some(at) = after {
            let page = self.letters(Scope { tenant, source }, &at, PAGE).await?;
            for head in page.rows {
                all.extend(self.letter(&head).await?);
            }
            after = page.next;
        }
        all.sort_by_key(|letter| letter.dead_ms);
        Ok(all)
    }
}

impl AfterArrival {
    pub fn of(arrival: &Arrival) -> Self {
        let (object, event_row) = (arrival.key.object.clone(), arrival.row.event_row.clone());
        Self { object, event_row, record: arrival.row.record.to_string() }
    }
}

impl RowName {
    pub fn new(key: &ObjectKey, row: &str) -> Self {
        let ObjectKey { tenant, source, object } = key.clone();
        Self { tenant, source, object, row: row.to_owned() }
    }
}

impl LetterHead {
    pub fn of(bucket: u32, letter: DeadLetter) -> Self {
        Self {
            bucket,
            of: LetterKey { key: ObjectKey::new(letter.tenant, letter.source, letter.object), row: letter.event_row },
            event_id: letter.event_id,
            event_type: letter.event_type,
            record: letter.record,
            cause: letter.cause,
            detail: letter.detail,
            position: letter.position,
            recorded_ms: letter.recorded_ms,
            dead_ms: letter.dead_ms,
        }
    }
}

/// What was held behind a gap has an arrival that says so, and is never written again: what became of it since is told
/// by its event row, or by its dead letter.
pub async fn what_became<S: Store>(store: &S, mut arrivals: Vec<Arrival>) -> Result<Vec<Arrival>, StoreError> {
    for Arrival { key, row, .. } in arrivals.iter_mut().filter(|a| a.row.outcome == Outcome::Parked) {
        let bucket = key.bucket(store.buckets());
        let query = ObjectQuery { key: key.clone(), event_rows: vec![row.event_row.clone()] };
        let view = store.read(bucket, &[query], Freshness::Quorum).await?.pop();
        let event = view.and_then(|mut view| view.rows.remove(&row.event_row));
        if let Some(event) = event {
            let is_own = event.record == row.record;
            (row.outcome, row.detail) = (if is_own { event.outcome } else { Outcome::Duplicate }, None);
            continue;
        }
        let of = LetterKey { key: key.clone(), row: row.event_row.clone() };
        // A letter of an earlier record was written before this one was held. Clocks may be set.
        let is_since = |letter: &DeadLetter| {
            letter.record == row.record || letter.dead_ms >= row.done_ms || letter.recorded_ms > row.recorded_ms
        };
        if let Some(letter) = store.dead_letter(bucket, &of).await?.filter(is_since) {
            (row.outcome, row.detail) = (Outcome::Dead, Some(format!("{}: {}", letter.cause, letter.detail)));
        }
    }
    Ok(arrivals)
}

/// How far a partition reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub partition: i32,
    /// The oldest offset that is kept.
    pub first: i64,
    /// The offset that the next record will get.
    pub next: i64,
}

/// One entry of the log, as it lies there.
#[derive(Debug, Clone)]
pub struct RawEntry {
    pub offset: i64,
    pub key: String,
    pub headers: Vec<Header>,
    pub value: Bytes,
}

/// What an operator asks the log.
#[async_trait]
pub trait InspectLog: Send + Sync + 'static {
    fn identity(&self) -> LogIdentity;

    async fn extents(&self) -> Result<Vec<Extent>, LogError>;

    /// How many partitions there are; at least one.
    async fn partitions(&self) -> Result<u32, LogError>;

    /// Entries at `from` and behind it, at most `max`; none if there are none now.
    async fn entries(&self, partition: i32, from: i64, max: usize) -> Result<Vec<RawEntry>, LogError>;

    /// The entries at these offsets, in order; those that are gone are left out.
    async fn entries_at(&self, partition: i32, offsets: &[i64]) -> Result<Vec<RawEntry>, LogError> {
        let mut found = Vec::with_capacity(offsets.len());
        for offset in offsets {
            let entries = self.entries(partition, *offset, 1).await?;
            found.extend(entries.into_iter().filter(|entry| entry.offset == *offset));
        }
        Ok(found)
    }
}
