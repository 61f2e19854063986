//! How to apply: read a bucket's objects, commit their decisions under conditions, record what arrived.
//! One conformance suite runs on every store.

#[cfg(feature = "cql")]
pub mod cql;
pub mod memory;
pub mod sqlite;

use async_trait::async_trait;
use seriatim_schemas::id::RecordId;
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::row::{ArrivalRow, BacklogRow, DeadLetter, EventRow, Head, State, WaitingEffect, WaitingSink};

use crate::decide::View;
use crate::error::StoreError;

/// What to read of one object.
#[derive(Debug, Clone)]
pub struct ObjectQuery {
    pub key: ObjectKey,
    /// Event rows to look for, each once.
    pub event_rows: Vec<String>,
}

/// What to commit of one object, under the condition that its turn is still `turn`.
#[derive(Debug, Clone)]
pub struct ObjectBatch {
    pub key: ObjectKey,
    /// The turn that was read; none for an object never seen.
    pub turn: Option<i64>,
    pub head: Head,
    /// The new state, where it changes.
    pub state: Option<State>,
    /// Each must not exist yet.
    pub rows: Vec<EventRow>,
    /// How long the rows live, in seconds.
    pub rows_ttl_s: u64,
    pub beside: Beside,
}

/// What a batch changes beside the decision: it holds because the head's turn does.
#[derive(Debug, Clone, Default)]
pub struct Beside {
    /// The snapshot's order key and version differ, though the state does not.
    pub changes_order: bool,
    /// The head's waiting sinks, fold or sequence differ from what was read.
    pub changes_waiting: bool,
    pub changes_fold: bool,
    pub changes_sequence: bool,
    pub put: Vec<SideRow>,
    pub delete: Vec<SideKey>,
}

/// A row that lives as long as something waits.
#[derive(Debug, Clone, PartialEq)]
pub enum SideRow {
    Waiting(WaitingSink),
    Effect(WaitingEffect),
    Backlog(BacklogRow),
    /// Of an event whose backlog row goes in the same batch.
    Dead(DeadLetter),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SideKey {
    Waiting { sink: String },
    Effect { sink: String, rev: i64 },
    Backlog { number: u64 },
}

impl ObjectBatch {
    /// Roughly the bytes of its values.
    pub fn size(&self) -> usize {
        const ROW: usize = 300;
        let beside = self.beside.put.iter().map(SideRow::size).sum::<usize>() + ROW * self.beside.delete.len();
        let fold = self.head.fold.as_ref().filter(|_| self.beside.changes_fold).map_or(0, |f| f.len());
        self.state.as_ref().map_or(0, |s| s.0.len()) + fold + beside + ROW * (1 + self.rows.len())
    }
}

impl SideRow {
    /// Roughly the bytes of its values.
    pub fn size(&self) -> usize {
        const ROW: usize = 1000;
        ROW + match self {
            Self::Waiting(_) => 0,
            Self::Effect(effect) => effect.value.len(),
            Self::Backlog(row) => row.value.len(),
            Self::Dead(letter) => letter.value.len(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committed {
    /// All of it.
    Applied,
    /// Nothing: a condition did not hold.
    Refused,
}

/// How fresh a read must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    Quorum,
    /// Sees, or ends, every conditional batch that was begun before: after a lost answer.
    Serial,
}

#[derive(Debug, Clone)]
pub struct Arrival {
    pub key: ObjectKey,
    pub row: ArrivalRow,
    pub ttl_s: u64,
}

/// Names a dead letter: its tenant, source and object, which is empty where it had none, and its row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterKey {
    pub key: ObjectKey,
    pub row: String,
}

/// One dead letter, told from a later one of the same event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    pub of: LetterKey,
    pub dead_ms: i64,
}

/// Names the low watermark of one partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FloorKey {
    pub generation: String,
    pub topic: String,
    /// Names this incarnation of the topic: one made anew under the old name is another.
    pub topic_id: String,
    pub partition: i32,
}

/// How much is decided and committed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupBounds {
    pub events: usize,
    pub objects: usize,
    /// Values of one commit.
    pub bytes: usize,
}

#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Objects of one bucket are committed together.
    fn buckets(&self) -> u32;

    fn group_bounds(&self) -> GroupBounds;

    /// Heads and event rows, in the order of `queries`, of one moment for each object.
    async fn read(&self, bucket: u32, queries: &[ObjectQuery], freshness: Freshness) -> Result<Vec<View>, StoreError>;

    /// Which of these records have their arrival recorded.
    async fn arrived(&self, bucket: u32, of: &[(ObjectKey, String, RecordId)]) -> Result<Vec<RecordId>, StoreError>;

    /// Commits all batches or none.
    async fn commit(&self, bucket: u32, batches: &[ObjectBatch]) -> Result<Committed, StoreError>;

    /// Writes arrivals and dead letters; doing so again changes nothing.
    async fn record(&self, bucket: u32, arrivals: &[Arrival], dead: &[DeadLetter]) -> Result<(), StoreError>;

    /// Waiting effects of an object and sink behind `after`, in order of rev, at most `max`.
    async fn waiting_effects(
        &self,
        bucket: u32,
        key: &ObjectKey,
        sink: &str,
        after: i64,
        max: usize,
    ) -> Result<Vec<WaitingEffect>, StoreError>;

    /// Which objects of a bucket wait, and for which sinks.
    async fn waiting(&self, bucket: u32) -> Result<Vec<WaitingSink>, StoreError>;

    /// What an object holds behind a gap, from number `from` on, at most `max` rows.
    async fn backlog(&self, bucket: u32, key: &ObjectKey, from: u64, max: usize)
    -> Result<Vec<BacklogRow>, StoreError>;

    /// An event's row by its rev, where it has not expired: what a waiting effect without a row of its own was.
    async fn events_from(
        &self,
        bucket: u32,
        key: &ObjectKey,
        rev: i64,
        max: usize,
    ) -> Result<Vec<EventRow>, StoreError>;

    async fn dead_letter(&self, bucket: u32, of: &LetterKey) -> Result<Option<DeadLetter>, StoreError>;

    /// Removes a dead letter, if it is there and no later one stands in its place.
    async fn forget(&self, bucket: u32, letter: &Letter) -> Result<(), StoreError>;

    async fn floor(&self, key: &FloorKey) -> Result<Option<i64>, StoreError>;

    async fn set_floor(&self, key: &FloorKey, next_offset: i64) -> Result<(), StoreError>;

    /// Removes what has outlived its time, where the store does not do so itself.
    async fn expire(&self, now_s: i64) -> Result<(), StoreError>;
}
