//! What an operator asks the store: an object and its history, an event's arrivals, dead letters, floors.
//! Read-only, and beside the hot path: a slow question never holds an object.

use async_trait::async_trait;
use bytes::Bytes;
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::record::Header;
use seriatim_schemas::row::{DeadLetter, EventRow, Head, State, WaitingEffect, WaitingSink};

use crate::error::{LogError, StoreError};
use crate::log::LogIdentity;
use crate::store::{Arrival, FloorKey};

/// An object as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectState {
    pub key: ObjectKey,
    pub head: Head,
    pub state: Option<State>,
}

#[async_trait]
pub trait Inspect: Send + Sync + 'static {
    async fn object(&self, key: &ObjectKey) -> Result<Option<ObjectState>, StoreError>;

    /// All objects of a source.
    async fn objects(&self, tenant: &str, source: &str) -> Result<Vec<ObjectState>, StoreError>;

    /// Event rows of an object that have not expired.
    async fn events(&self, key: &ObjectKey) -> Result<Vec<EventRow>, StoreError>;

    /// Arrivals of an object that have not expired.
    async fn arrivals(&self, key: &ObjectKey) -> Result<Vec<Arrival>, StoreError>;

    /// Arrivals of an event id, whatever object it is about.
    async fn trace(&self, tenant: &str, source: &str, event_id: &str) -> Result<Vec<Arrival>, StoreError>;

    /// Dead letters, of one tenant or source where given.
    async fn dead(&self, tenant: Option<&str>, source: Option<&str>) -> Result<Vec<DeadLetter>, StoreError>;

    /// Which objects wait for which sinks, in no order.
    async fn all_waiting(&self) -> Result<Vec<WaitingSink>, StoreError>;

    /// Which objects wait for which sinks, since longest first; of one tenant or source where given.
    async fn waiting_sinks(&self, tenant: Option<&str>, source: Option<&str>) -> Result<Vec<WaitingSink>, StoreError> {
        let mut waiting = self.all_waiting().await?;
        waiting.retain(|w| tenant.is_none_or(|t| w.key.tenant == t) && source.is_none_or(|s| w.key.source == s));
        waiting.sort_by(|a, b| (a.since_ms, &a.key, &a.sink).cmp(&(b.since_ms, &b.key, &b.sink)));
        Ok(waiting)
    }

    /// The first effects that an object has waiting for a sink.
    async fn first_waiting(&self, key: &ObjectKey, sink: &str, max: usize) -> Result<Vec<WaitingEffect>, StoreError>;

    /// How far each partition is done.
    async fn floors(&self) -> Result<Vec<(FloorKey, i64)>, StoreError>;
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
