//! A store and a sink that fail by name, and the end of a life: a stop, or a crash between any two steps.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use seriatim_processor::budget::Budget;
use seriatim_processor::decide::View;
use seriatim_processor::error::{LogError, StoreError};
use seriatim_processor::inspect::{Extent, InspectLog, RawEntry};
use seriatim_processor::log::memory::MemoryLog;
use seriatim_processor::log::{Floors, Log, LogEvent, LogIdentity};
use seriatim_processor::sink::{Effect, Emitted, Sink};
use seriatim_processor::store::{
    Arrival, Committed, FloorKey, Freshness, GroupBounds, Letter, LetterKey, ObjectBatch, ObjectQuery, Store,
};
use seriatim_schemas::id::RecordId;
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::record::Record;
use seriatim_schemas::row::{BacklogRow, DeadLetter, EventRow, WaitingEffect, WaitingSink};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    ReadUnavailable,
    ArrivedUnavailable,
    CommitUnavailable,
    /// The answer is lost, the batch is not.
    CommitUnknownApplied,
    /// Both are lost.
    CommitUnknownNotApplied,
    /// The batch is seen, and ended, by the next serial read or commit of its bucket, and by no plain read.
    CommitUnknownUnfinished,
    CommitRefusedSpuriously,
    RecordUnavailable,
    RecordUnknownWritten,
    FloorUnavailable,
    /// What waits, or is held, cannot be read.
    WaitingUnavailable,
    AppendUnavailable,
    /// The answer is lost, the record is not.
    AppendUnknownWritten,
    /// Some of the effects, from the first on, are taken.
    SinkTakesPart,
    SinkTakesAllAndFails,
    /// The first of them is taken and said to be.
    SinkTakesOne,
    /// No answer in time, though all are taken.
    SinkHangs,
}

impl Fault {
    pub const OF_STORE: [Self; 11] = [
        Self::ReadUnavailable,
        Self::ArrivedUnavailable,
        Self::CommitUnavailable,
        Self::CommitUnknownApplied,
        Self::CommitUnknownNotApplied,
        Self::CommitUnknownUnfinished,
        Self::CommitRefusedSpuriously,
        Self::RecordUnavailable,
        Self::RecordUnknownWritten,
        Self::FloorUnavailable,
        Self::WaitingUnavailable,
    ];
    pub const OF_SINK: [Self; 4] =
        [Self::SinkTakesPart, Self::SinkTakesAllAndFails, Self::SinkTakesOne, Self::SinkHangs];

    pub const OF_LOG: [Self; 2] = [Self::AppendUnavailable, Self::AppendUnknownWritten];

    pub fn all() -> Vec<Self> {
        [&Self::OF_STORE[..], &Self::OF_SINK, &Self::OF_LOG].concat()
    }
}

/// Which faults strike, and how often they did.
pub struct Faults {
    enabled: Vec<Fault>,
    rate: f64,
    rng: Mutex<SmallRng>,
    struck: Mutex<BTreeSet<Fault>>,
}

impl Faults {
    pub fn new(seed: u64, rate: f64, enabled: &[Fault]) -> Self {
        let rng = Mutex::new(SmallRng::seed_from_u64(seed));
        Self { enabled: enabled.to_vec(), rate, rng, struck: Mutex::default() }
    }

    pub fn are_none(&self) -> bool {
        self.enabled.is_empty()
    }

    pub fn struck(&self) -> BTreeSet<Fault> {
        lock(&self.struck).clone()
    }

    fn strike(&self, here: &[Fault]) -> Option<Fault> {
        let here: Vec<_> = here.iter().filter(|fault| self.enabled.contains(fault)).copied().collect();
        let mut rng = lock(&self.rng);
        let fault = *here.choose(&mut *rng)?;
        let strikes = rng.random_bool(self.rate);
        if strikes {
            lock(&self.struck).insert(fault);
        }
        strikes.then_some(fault)
    }

    fn share(&self, of: usize) -> usize {
        lock(&self.rng).random_range(0..=of)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while locked")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// When the log is done.
    Done,
    /// An orderly stop at this step.
    Stop(u64),
    /// At this step nothing moves any more, in any task.
    Crash(u64),
}

/// One life of a processor. A step is the moment before or after a call on its store or sink.
pub struct Life {
    end: End,
    steps: AtomicU64,
    latency: Option<Latency>,
    pub ending: CancellationToken,
}

/// How long a step takes.
pub struct Latency {
    rng: Mutex<SmallRng>,
    max: Duration,
}

impl Latency {
    pub fn new(seed: u64, max: Duration) -> Self {
        Self { rng: Mutex::new(SmallRng::seed_from_u64(seed)), max }
    }

    pub async fn pass(&self) {
        let share = lock(&self.rng).random_range(0.1..1.0);
        tokio::time::sleep(self.max.mul_f64(share)).await;
    }
}

impl Life {
    pub fn new(end: End) -> Self {
        Self { end, steps: AtomicU64::new(0), latency: None, ending: CancellationToken::new() }
    }

    pub fn slow(latency: Latency) -> Self {
        Self { latency: Some(latency), ..Self::new(End::Done) }
    }

    async fn step(&self) {
        if let Some(latency) = &self.latency {
            latency.pass().await;
        }
        let step = self.steps.fetch_add(1, Ordering::SeqCst);
        let (End::Stop(last) | End::Crash(last)) = self.end else { return };
        if step >= last {
            self.ending.cancel();
            if self.end == End::Crash(last) {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// What outlives a processor: batches under way in the store, whatever became of who sent them.
pub type Unfinished = Arc<Mutex<HashMap<u32, Vec<Vec<ObjectBatch>>>>>;

/// A store with faults in front of it.
pub struct FaultyStore<S> {
    pub inner: Arc<S>,
    pub faults: Arc<Faults>,
    pub life: Arc<Life>,
    pub unfinished: Unfinished,
    pub bounds: GroupBounds,
    /// Events that are refused for good.
    pub poison: BTreeSet<String>,
    /// Whether floors are written; else each life begins at the beginning.
    pub keeps_floors: bool,
    /// How far each partition is done, as the processor said it in this life.
    pub progress: Mutex<HashMap<i32, i64>>,
}

impl<S: Store> FaultyStore<S> {
    async fn finish(&self, bucket: u32) -> Result<(), StoreError> {
        let batches = lock(&self.unfinished).remove(&bucket).unwrap_or_default();
        for batch in batches {
            self.inner.commit(bucket, &batch).await?;
        }
        Ok(())
    }

    /// Does `call` between two steps, unless a fault of `before` strikes.
    async fn between<T>(
        &self,
        before: Fault,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.life.step().await;
        if self.faults.strike(&[before]).is_some() {
            return Err(StoreError::Unavailable(format!("{before:?}")));
        }
        let done = call.await;
        self.life.step().await;
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
        self.finish(bucket).await?;
        if let Some(unfinished @ Fault::CommitUnknownUnfinished) = fault {
            lock(&self.unfinished).entry(bucket).or_default().push(batches.to_vec());
            return unknown(unfinished);
        }
        let committed = self.inner.commit(bucket, batches).await?;
        fault.map_or(Ok(committed), unknown)
    }
}

#[async_trait]
impl<S: Store> Store for FaultyStore<S> {
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
        self.life.step().await;
        if batches.iter().flat_map(|batch| &batch.rows).any(|row| self.poison.contains(&row.row)) {
            return Err(StoreError::Rejected("poison".to_owned()));
        }
        let fault = self.faults.strike(&[
            Fault::CommitUnavailable,
            Fault::CommitUnknownApplied,
            Fault::CommitUnknownNotApplied,
            Fault::CommitUnknownUnfinished,
            Fault::CommitRefusedSpuriously,
        ]);
        let committed = self.commit_with(fault, bucket, batches).await;
        self.life.step().await;
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
        let floor = if self.keeps_floors { self.inner.floor(key).await? } else { None };
        lock(&self.progress).insert(key.partition, floor.unwrap_or(0));
        Ok(floor)
    }

    async fn set_floor(&self, key: &FloorKey, next_offset: i64) -> Result<(), StoreError> {
        let set = async {
            if self.keeps_floors {
                self.inner.set_floor(key, next_offset).await?;
            }
            Ok(())
        };
        self.between(Fault::FloorUnavailable, set).await?;
        lock(&self.progress).insert(key.partition, next_offset);
        Ok(())
    }

    async fn expire(&self, now_s: i64) -> Result<(), StoreError> {
        self.inner.expire(now_s).await
    }
}

/// A log with faults where it is written.
pub struct FaultyLog {
    pub inner: MemoryLog,
    pub faults: Arc<Faults>,
    pub life: Arc<Life>,
}

#[async_trait]
impl InspectLog for FaultyLog {
    fn identity(&self) -> LogIdentity {
        self.inner.identity()
    }

    async fn extents(&self) -> Result<Vec<Extent>, LogError> {
        self.inner.extents().await
    }

    async fn partitions(&self) -> Result<u32, LogError> {
        self.inner.partitions().await
    }

    async fn entries(&self, partition: i32, from: i64, max: usize) -> Result<Vec<RawEntry>, LogError> {
        self.inner.entries(partition, from, max).await
    }
}

#[async_trait]
impl Log for FaultyLog {
    async fn start(&self, budget: Budget, floors: Floors) -> Result<mpsc::UnboundedReceiver<LogEvent>, LogError> {
        self.inner.start(budget, floors).await
    }

    async fn commit(&self, partition: i32, next_offset: i64) -> Result<(), LogError> {
        self.inner.commit(partition, next_offset).await
    }

    async fn append(&self, record: Record) -> Result<(), LogError> {
        self.life.step().await;
        let fault = self.faults.strike(&Fault::OF_LOG);
        if fault != Some(Fault::AppendUnavailable) {
            self.inner.append(record).await?;
        }
        self.life.step().await;
        fault.map_or(Ok(()), |fault| Err(LogError::Unavailable(format!("{fault:?}"))))
    }

    async fn stop(&self) {
        self.inner.stop().await;
    }
}

/// Keeps what it was sent, whatever it answers.
pub struct RecordingSink {
    pub sent: Arc<Mutex<Vec<Effect>>>,
    pub faults: Arc<Faults>,
    pub life: Arc<Life>,
    pub batch_max: usize,
}

#[async_trait]
impl Sink for RecordingSink {
    async fn emit(&self, effects: &[Effect]) -> Emitted {
        self.life.step().await;
        let fault = self.faults.strike(&Fault::OF_SINK);
        let taken = match fault {
            Some(Fault::SinkTakesPart) => self.faults.share(effects.len()),
            Some(Fault::SinkTakesOne) => 1,
            _ => effects.len(),
        };
        lock(&self.sent).extend_from_slice(&effects[..taken]);
        self.life.step().await;
        match fault {
            None => Emitted::all(effects.len()),
            Some(Fault::SinkTakesOne) if effects.len() == 1 => Emitted::all(1),
            Some(fault @ Fault::SinkTakesOne) => Emitted::unavailable(1, format!("{fault:?}")),
            Some(Fault::SinkHangs) => std::future::pending().await,
            Some(fault) => Emitted::unavailable(0, format!("{fault:?}")),
        }
    }

    fn batch_max(&self) -> usize {
        self.batch_max
    }
}
