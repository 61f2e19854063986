//! A store that fails by name: answers that are lost, batches that are seen only by who asks for it, reads that do not
//! come.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use seriatim_processor::decide::View;
use seriatim_processor::error::StoreError;
use seriatim_processor::store::{
    Arrival, Committed, FloorKey, Freshness, GroupBounds, Letter, LetterKey, ObjectBatch, ObjectQuery, Store,
};
use seriatim_schemas::id::RecordId;
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::row::{BacklogRow, DeadLetter, EventRow, WaitingEffect, WaitingSink};
use tokio::time::Instant;

use super::faults::{Fault, Faults, lock};
use super::process::Process;

/// How late a batch may come to the store, in milliseconds.
const LATE_MAX_MS: usize = 2000;

/// What outlives a processor.
#[derive(Default)]
pub struct StoreWorld {
    /// Batches under way, whatever became of who sent them.
    unfinished: Mutex<BTreeMap<u32, Vec<Vec<ObjectBatch>>>>,
    floors: Mutex<HashMap<FloorKey, i64>>,
    away_until: Mutex<Option<Instant>>,
}

impl StoreWorld {
    pub fn set_away(&self, until: Instant) {
        *lock(&self.away_until) = Some(until);
    }

    pub fn is_away(&self) -> bool {
        lock(&self.away_until).is_some_and(|until| Instant::now() < until)
    }

    /// Whoever gets a partition from here on begins at its beginning.
    pub fn lose_floors(&self) {
        lock(&self.floors).clear();
    }

    /// Ends the batches of a bucket that are under way.
    async fn finish(&self, inner: &impl Store, bucket: u32) -> Result<(), StoreError> {
        let batches = lock(&self.unfinished).remove(&bucket).unwrap_or_default();
        for batch in batches {
            inner.commit(bucket, &batch).await?;
        }
        Ok(())
    }

    /// How far each partition is done.
    pub fn floors(&self, partitions: usize) -> Vec<i64> {
        let floors = lock(&self.floors);
        let of = |p: usize| floors.iter().find(|(key, _)| key.partition == p as i32).map_or(0, |(_, floor)| *floor);
        (0..partitions).map(of).collect()
    }
}

/// A store with faults in front of it, as one process sees it.
pub struct SimulatedStore<S> {
    pub inner: Arc<S>,
    pub faults: Arc<Faults>,
    pub process: Arc<Process>,
    pub bounds: GroupBounds,
    /// Events that are refused for good.
    pub poison: BTreeSet<String>,
    pub world: Arc<StoreWorld>,
}

impl<S: Store> SimulatedStore<S> {
    async fn finish(&self, bucket: u32) -> Result<(), StoreError> {
        self.world.finish(self.inner.as_ref(), bucket).await
    }

    /// Does `call` between two steps, unless a fault of `before` strikes.
    async fn between<T>(
        &self,
        before: Fault,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.process.step(10).await;
        if self.world.is_away() || self.faults.strike(&[before]).is_some() {
            return Err(StoreError::Unavailable(format!("{before:?}")));
        }
        let done = call.await;
        self.process.step(10).await;
        done
    }

    async fn commit_with(
        &self,
        fault: Option<Fault>,
        bucket: u32,
        batches: &[ObjectBatch],
    ) -> Result<Committed, StoreError> {
        let unknown = |fault: Fault| Err(StoreError::Unknown(format!("{fault:?}")));
        match fault {
            Some(Fault::CommitUnavailable) => return Err(StoreError::Unavailable("CommitUnavailable".to_owned())),
            Some(Fault::CommitRefusedSpuriously) => return Ok(Committed::Refused),
            Some(lost @ Fault::CommitUnknownNotApplied) => return unknown(lost),
            _ => {}
        }
        if let Some(late @ Fault::CommitUnknownLate) = fault {
            self.commit_late(bucket, batches.to_vec());
            return unknown(late);
        }
        self.finish(bucket).await?;
        if let Some(unfinished @ Fault::CommitUnknownUnfinished) = fault {
            lock(&self.world.unfinished).entry(bucket).or_default().push(batches.to_vec());
            return unknown(unfinished);
        }
        let committed = self.inner.commit(bucket, batches).await?;
        fault.map_or(Ok(committed), unknown)
    }

    /// Whoever sent it may be dead by then.
    fn commit_late(&self, bucket: u32, batches: Vec<ObjectBatch>) {
        let (inner, world) = (self.inner.clone(), self.world.clone());
        let after = Duration::from_millis(self.process.random(1..LATE_MAX_MS) as u64);
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            if world.finish(inner.as_ref(), bucket).await.is_ok() {
                let _ = inner.commit(bucket, &batches).await;
            }
        });
    }
}

#[async_trait]
impl<S: Store> Store for SimulatedStore<S> {
    fn buckets(&self) -> u32 {
        self.inner.buckets()
    }

    fn group_bounds(&self) -> GroupBounds {
        self.bounds
    }

    async fn read(&self, bucket: u32, queries: &[ObjectQuery], freshness: Freshness) -> Result<Vec<View>, StoreError> {
        let read = async {
            if freshness == Freshness::Serial {
                self.finish(bucket).await?;
            }
            self.inner.read(bucket, queries, freshness).await
        };
        self.between(Fault::ReadUnavailable, read).await
    }

    async fn arrived(&self, bucket: u32, of: &[(ObjectKey, String, RecordId)]) -> Result<Vec<RecordId>, StoreError> {
        self.between(Fault::ArrivedUnavailable, self.inner.arrived(bucket, of)).await
    }

    async fn commit(&self, bucket: u32, batches: &[ObjectBatch]) -> Result<Committed, StoreError> {
        self.process.step(10).await;
        if batches.iter().flat_map(|batch| &batch.rows).any(|row| self.poison.contains(&row.row)) {
            return Err(StoreError::Rejected("poison".to_owned()));
        }
        let fault = self.faults.strike(&[
            Fault::CommitUnavailable,
            Fault::CommitUnknownApplied,
            Fault::CommitUnknownNotApplied,
            Fault::CommitUnknownUnfinished,
            Fault::CommitUnknownLate,
            Fault::CommitRefusedSpuriously,
        ]);
        let fault = if self.world.is_away() { Some(Fault::CommitUnavailable) } else { fault };
        let committed = self.commit_with(fault, bucket, batches).await;
        self.process.step(10).await;
        committed
    }

    async fn record(&self, bucket: u32, arrivals: &[Arrival], dead: &[DeadLetter]) -> Result<(), StoreError> {
        self.between(Fault::RecordUnavailable, self.inner.record(bucket, arrivals, dead)).await?;
        match self.faults.strike(&[Fault::RecordUnknownWritten]) {
            Some(fault) => Err(StoreError::Unknown(format!("{fault:?}"))),
            None => Ok(()),
        }
    }

    async fn waiting_effects(
        &self,
        bucket: u32,
        key: &ObjectKey,
        sink: &str,
        after: i64,
        max: usize,
    ) -> Result<Vec<WaitingEffect>, StoreError> {
        self.between(Fault::WaitingUnavailable, self.inner.waiting_effects(bucket, key, sink, after, max)).await
    }

    async fn waiting(&self, bucket: u32) -> Result<Vec<WaitingSink>, StoreError> {
        self.between(Fault::WaitingUnavailable, self.inner.waiting(bucket)).await
    }

    async fn backlog(
        &self,
        bucket: u32,
        key: &ObjectKey,
        from: u64,
        max: usize,
    ) -> Result<Vec<BacklogRow>, StoreError> {
        self.between(Fault::WaitingUnavailable, self.inner.backlog(bucket, key, from, max)).await
    }

    async fn events_from(
        &self,
        bucket: u32,
        key: &ObjectKey,
        rev: i64,
        max: usize,
    ) -> Result<Vec<EventRow>, StoreError> {
        self.between(Fault::WaitingUnavailable, self.inner.events_from(bucket, key, rev, max)).await
    }

    async fn dead_letter(&self, bucket: u32, of: &LetterKey) -> Result<Option<DeadLetter>, StoreError> {
        self.between(Fault::WaitingUnavailable, self.inner.dead_letter(bucket, of)).await
    }

    async fn forget(&self, bucket: u32, letter: &Letter) -> Result<(), StoreError> {
        self.between(Fault::RecordUnavailable, self.inner.forget(bucket, letter)).await
    }

    async fn floor(&self, key: &FloorKey) -> Result<Option<i64>, StoreError> {
        let floor = async { Ok(lock(&self.world.floors).get(key).copied()) };
        self.between(Fault::FloorUnavailable, floor).await
    }

    async fn set_floor(&self, key: &FloorKey, next_offset: i64) -> Result<(), StoreError> {
        let set = async {
            let mut floors = lock(&self.world.floors);
            let floor = floors.entry(key.clone()).or_insert(next_offset);
            *floor = next_offset.max(*floor);
            Ok(())
        };
        self.between(Fault::FloorUnavailable, set).await
    }

    async fn expire(&self, now_s: i64) -> Result<(), StoreError> {
        self.inner.expire(now_s).await
    }
}
