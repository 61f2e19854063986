//! How to read a log and commit how far it was read. The other half is the edge's; but fetched documents and acts
//! that come of time are records too, so a processor has a small append of its own.

#[cfg(feature = "kafka")]
pub mod kafka;
pub mod memory;
pub mod sqlite;

use std::sync::Arc;

use async_trait::async_trait;
use seriatim_schemas::record::{DecodeError, Header, Record};
use tokio::sync::{mpsc, oneshot};

use crate::budget::{Budget, Share};
use crate::error::{LogError, StoreError};
use crate::inspect::InspectLog;
use crate::store::{FloorKey, Store};

/// One entry of the log as it was read.
#[derive(Debug)]
pub struct LogEntry {
    pub offset: i64,
    pub record: Result<Record, ForeignRecord>,
    /// Its place in the byte budget.
    pub share: Share,
}

/// An entry that is not a record of ours. It is kept as a dead letter, never dropped.
#[derive(Debug)]
pub struct ForeignRecord {
    pub key: String,
    pub error: DecodeError,
    pub headers: Vec<Header>,
    pub value: bytes::Bytes,
}

/// How far each partition of a log is done, as the store has it. The store's word counts, not the log's: state
/// and floor are then of one piece.
#[derive(Clone)]
pub struct Floors {
    pub store: Arc<dyn Store>,
    pub generation: String,
    pub log: LogIdentity,
}

impl Floors {
    fn key(&self, partition: i32) -> FloorKey {
        let LogIdentity { topic, topic_id } = self.log.clone();
        FloorKey { generation: self.generation.clone(), topic, topic_id, partition }
    }

    pub async fn get(&self, partition: i32) -> Result<Option<i64>, StoreError> {
        self.store.floor(&self.key(partition)).await
    }

    pub async fn set(&self, partition: i32, next_offset: i64) -> Result<(), StoreError> {
        self.store.set_floor(&self.key(partition), next_offset).await
    }
}

/// What a log tells its reader, in order.
#[derive(Debug)]
pub enum LogEvent {
    /// This process owns the partition from now on, and reads it from `start`.
    Assigned {
        partition: i32,
        start: i64,
    },
    Entries {
        partition: i32,
        entries: Vec<LogEntry>,
    },
    /// The partitions are another's as soon as `drained` is told, or a deadline has passed.
    Revoked {
        partitions: Vec<i32>,
        drained: oneshot::Sender<()>,
    },
    /// The log cannot be read on.
    Failed(LogError),
}

/// Names the log: what floors and positions refer to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogIdentity {
    pub topic: String,
    pub topic_id: String,
}

#[async_trait]
pub trait Log: InspectLog {
    /// Starts to read each partition at its floor. Reading pauses while the budget is spent.
    async fn start(&self, budget: Budget, floors: Floors) -> Result<mpsc::UnboundedReceiver<LogEvent>, LogError>;

    /// Tells the log how far a partition is done: a courtesy to tools, the floor in the store is what counts.
    async fn commit(&self, partition: i32, next_offset: i64) -> Result<(), LogError>;

    /// Appends a record of ours. Once this is `Ok` the record is durable; on an error it may be all the same.
    async fn append(&self, record: Record) -> Result<(), LogError>;

    /// Stops reading; partitions still owned are revoked first.
    async fn stop(&self);
}

/// `topic/partition/offset`: where a record was read.
pub fn position(topic: &str, partition: i32, offset: i64) -> String {
    format!("{topic}/{partition}/{offset}")
}

/// Partition and offset of a position in `topic`.
pub fn parse_position(topic: &str, position: &str) -> Option<(i32, i64)> {
    let (partition, offset) = position.strip_prefix(topic)?.strip_prefix('/')?.split_once('/')?;
    Some((partition.parse().ok()?, offset.parse().ok()?))
}
