//! Settles a group: read, decide, commit, until the store has said yes to all of it.
//!
//! Everything but a proven refusal is an unknown outcome, and there is one rule for all of them: read again
//! (serially, after a lost answer) and decide again with the same attempt id. If the lost batch was applied,
//! its rows carry the attempt and the verdicts come out as they were; if not, the same batch is built again.
//! Two copies of one batch cannot both apply, since each tests the turn that it raises.

use std::sync::Arc;
use std::time::Duration;

use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::record::Record;
use seriatim_schemas::row::{EventRow, Waiting};
use seriatim_schemas::sequence::Sequence;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use crate::candidate::{Candidate, Cause, Declarations};
use crate::config::ProcessorConfig;
use crate::decide::sequence::Release;
use crate::decide::{Decisions, Verdict, View, decide};
use crate::error::StoreError;
use crate::metrics::{FoundLabels, ProcessorMetrics};
use crate::mutant::{self, Mutant};
use crate::outside::Outside;
use crate::reduce::{Delta, Reducer, no_reducer, reduce};
use crate::store::{Committed, Freshness, ObjectBatch, ObjectQuery, Store};

/// Arrivals that are asked for together.
const ARRIVALS_MAX: usize = 100;
/// Refusals of a whole group before its objects are committed one by one.
const REFUSALS_OF_A_GROUP_MAX: u32 = 3;

/// The records of one object, in the order of the log.
#[derive(Debug, Clone)]
pub struct Lane {
    pub key: ObjectKey,
    /// Of the log.
    pub partition: i32,
    pub entries: Vec<Entry>,
}

impl Lane {
    /// Others of the same object.
    pub fn with(&self, entries: &[Entry]) -> Self {
        Self { key: self.key.clone(), partition: self.partition, entries: entries.to_vec() }
    }
}

#[derive(Debug, Clone)]
pub struct Entry {
    pub record: Record,
    pub candidate: Candidate,
}

pub struct Settler {
    pub store: Arc<dyn Store>,
    pub declarations: Arc<Declarations>,
    pub config: ProcessorConfig,
    pub metrics: ProcessorMetrics,
    pub reducer: Option<Arc<dyn Reducer>>,
    /// Held while dead letters are written or removed: a removal reads first, and must not meet a later letter.
    pub letters: tokio::sync::Mutex<()>,
    pub outside: Arc<dyn Outside>,
}

/// What became of one lane.
#[derive(Debug, Clone, Default)]
pub struct Settled {
    pub verdicts: Vec<Verdict>,
    /// The sinks that the object waited for when it was decided.
    pub waiting: Waiting,
    /// Where the object stands in its sequence now.
    pub sequence: Option<Sequence>,
    /// What the object holds must be released; a part of it was before.
    pub release: Option<Pending>,
    /// What comes later waits for another partition's owner.
    pub is_held_up: bool,
}

/// Why held events are to be released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pending {
    /// A candidate asks for it: all before it must be out.
    Begins,
    /// It was begun, so all before it was out.
    GoesOn,
}

/// The group was given up: its partition is another's now, or the process stops.
#[derive(Debug, PartialEq, Eq)]
pub struct GivenUp;

impl Settler {
    /// The verdicts on all entries, lane by lane, all committed.
    pub async fn settle(&self, bucket: u32, lanes: &[Lane], stop: &CancellationToken) -> Result<Vec<Settled>, GivenUp> {
        let attempt = if mutant::is(Mutant::AttemptIsConstant) { Uuid::nil() } else { self.outside.id() };
        let mut freshness = Freshness::Quorum;
        let (mut refusals, mut is_unsure) = (0, false);
        let mut backoff = Backoff::new(self);
        loop {
            let views = match self.read(bucket, lanes, freshness).await {
                Ok(views) => mutant::with_rows_kept(views, attempt),
                Err(error) => {
                    warn!(bucket, %error, "read failed, trying again");
                    self.metrics.store_errors.inc();
                    backoff.wait(stop).await?;
                    continue;
                }
            };
            self.count_resolved(attempt, &views, &mut is_unsure);
            let now_ms = self.outside.now().as_millisecond();
            let decisions: Vec<_> = lanes
                .iter()
                .zip(&views)
                .map(|(lane, view)| {
                    decide_lane(lane, view, attempt, now_ms, Release::Later, self.reducer.as_ref(), &|_| None)
                })
                .collect();
            let batch = |((lane, view), decisions)| self.group_batch(lane, view, decisions);
            let batches: Vec<_> = lanes.iter().zip(&views).zip(&decisions).filter_map(batch).collect();
            if batches.is_empty() {
                return Ok(settled(&views, decisions));
            }
            if batches.len() > 1
                && batches.iter().map(ObjectBatch::size).sum::<usize>() > self.store.group_bounds().bytes
            {
                return self.settle_one_by_one(bucket, lanes, stop).await;
            }
            self.metrics.rounds.inc();
            match self.store.commit(bucket, &batches).await {
                Ok(Committed::Applied) => return Ok(settled(&views, decisions)),
                Ok(Committed::Refused) if mutant::is(Mutant::RefusedIsApplied) => {
                    return Ok(settled(&views, decisions));
                }
                Err(StoreError::Unknown(_)) if mutant::is(Mutant::UnknownIsApplied) => {
                    return Ok(settled(&views, decisions));
                }
                Err(StoreError::Unknown(reason)) if mutant::is(Mutant::UnknownIsRefused) => {
                    return self.on_rejected(bucket, lanes, stop, reason).await;
                }
                Ok(Committed::Refused) => {
                    self.metrics.refusals.inc();
                    refusals += 1;
                    freshness = Freshness::Quorum;
                    if refusals >= REFUSALS_OF_A_GROUP_MAX && lanes.len() > 1 {
                        return self.settle_one_by_one(bucket, lanes, stop).await;
                    }
                    if refusals >= REFUSALS_OF_A_GROUP_MAX {
                        freshness = Freshness::Serial;
                        backoff.wait(stop).await?;
                    }
                }
                Err(StoreError::Rejected(reason)) => return self.on_rejected(bucket, lanes, stop, reason).await,
                Err(error) => {
                    is_unsure = self.count_failed_commit(bucket, &error);
                    freshness = Freshness::Serial;
                    backoff.wait(stop).await?;
                }
            }
        }
    }

    /// Whether the batch may be applied all the same.
    pub(crate) fn count_failed_commit(&self, bucket: u32, error: &StoreError) -> bool {
        warn!(bucket, %error, "commit failed, reading before anything else");
        self.metrics.store_errors.inc();
        let is_unsure = matches!(error, StoreError::Unknown(_));
        self.metrics.unknown_commits.inc_by(u64::from(is_unsure));
        is_unsure
    }

    /// What has become of a batch whose answer was lost. One without event rows leaves nothing to be known by.
    pub(crate) fn count_resolved(&self, attempt: Uuid, views: &[View], is_unsure: &mut bool) {
        if std::mem::take(is_unsure) {
            let is_there = views.iter().flat_map(|view| view.rows.values()).any(|row| row.attempt == attempt);
            let found = if is_there { "applied" } else { "not_applied" };
            self.metrics.resolved_commits.get_or_create(&FoundLabels { found }).inc();
        }
    }

    /// Asks the store until it answers. `what`: for the log, what is not done yet.
    pub async fn until_answered<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        what: &str,
        stop: &CancellationToken,
        mut ask: impl FnMut() -> F,
    ) -> Result<T, GivenUp> {
        let mut backoff = Backoff::new(self);
        loop {
            match ask().await {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    warn!(%error, "{what}, trying again");
                    self.metrics.store_errors.inc();
                    backoff.wait(stop).await?;
                }
            }
        }
    }

    async fn settle_one_by_one(
        &self,
        bucket: u32,
        lanes: &[Lane],
        stop: &CancellationToken,
    ) -> Result<Vec<Settled>, GivenUp> {
        let mut all = Vec::with_capacity(lanes.len());
        for lane in lanes {
            all.extend(Box::pin(self.settle(bucket, std::slice::from_ref(lane), stop)).await?);
        }
        Ok(all)
    }

    /// A batch that can never be written: smaller ones may, and at last the event at fault stands alone.
    async fn on_rejected(
        &self,
        bucket: u32,
        lanes: &[Lane],
        stop: &CancellationToken,
        reason: String,
    ) -> Result<Vec<Settled>, GivenUp> {
        let [lane] = lanes else { return self.settle_one_by_one(bucket, lanes, stop).await };
        if lane.entries.len() == 1 || mutant::is(Mutant::DeadTogether) {
            info!(key = %lane.key, reason, "the store refuses this event for good");
            let verdict = Verdict::Dead(Cause { cause: "store_refused", detail: reason });
            let verdicts = vec![verdict; lane.entries.len()];
            return Ok(vec![Settled { verdicts, ..Settled::default() }]);
        }
        let mut all = Settled::default();
        for entry in &lane.entries {
            if all.release.is_some() || all.is_held_up {
                all.verdicts.push(Verdict::Later);
                continue;
            }
            let alone = lane.with(std::slice::from_ref(entry));
            let one = Box::pin(self.settle(bucket, &[alone], stop)).await?.remove(0);
            all.verdicts.extend(one.verdicts);
            all.waiting.0.extend(one.waiting.0);
            (all.sequence, all.release) = (one.sequence.or(all.sequence), one.release);
            all.is_held_up = one.is_held_up;
        }
        Ok(vec![all])
    }

    pub(crate) async fn read(
        &self,
        bucket: u32,
        lanes: &[Lane],
        freshness: Freshness,
    ) -> Result<Vec<View>, StoreError> {
        let query = |lane: &Lane| {
            let mut event_rows: Vec<_> = lane.entries.iter().map(|e| e.candidate.event_row.clone()).collect();
            event_rows.sort();
            event_rows.dedup();
            ObjectQuery { key: lane.key.clone(), event_rows }
        };
        let queries: Vec<_> = lanes.iter().map(query).collect();
        let mut views = self.store.read(bucket, &queries, freshness).await?;
        if mutant::is(Mutant::RowsBeforeHeads) {
            let later = self.store.read(bucket, &queries, freshness).await?;
            views.iter_mut().zip(later).for_each(|(view, later)| view.head = later.head);
        }
        // Arrivals matter after a crash, seldom else. They are read after the rows; an arrival that is there by now
        // proves the emit all the same.
        let asked = lanes.iter().zip(&views).flat_map(|(lane, view)| {
            let asking = lane.entries.iter().map(|e| &e.candidate).filter(|candidate| view.asks_arrival(candidate));
            asking.map(|candidate| (lane.key.clone(), candidate.event_row.clone(), candidate.record))
        });
        let asked: Vec<_> = asked.collect();
        if !asked.is_empty() {
            let arrived = self.store.arrived(bucket, &asked).await?;
            // What is sent again goes behind all that a slow owner before us has put into the store, and recorded,
            // since the heads were read.
            let is_open =
                |row: &EventRow| asked.iter().any(|(.., r)| *r == row.record) && !arrived.contains(&row.record);
            if views.iter().flat_map(|view| view.rows.values()).any(|row| row.has_effect() && is_open(row)) {
                views = self.store.read(bucket, &queries, freshness).await?;
            }
            views.iter_mut().for_each(|view| view.arrived.extend(&arrived));
        }
        for (lane, view) in lanes.iter().zip(&mut views) {
            self.read_numbers(bucket, lane, view).await?;
            view.is_held_up = self.is_held_up(bucket, lane, view).await?;
        }
        Ok(views)
    }

    /// A topic that was given partitions has an object's records in two of them. Its last decisions, where they are of
    /// another partition, are sent before anything else is decided: their arrivals say that they are. A row that has
    /// expired counts as done.
    async fn is_held_up(&self, bucket: u32, lane: &Lane, view: &View) -> Result<bool, StoreError> {
        let run = view.head.as_ref().and_then(|head| head.run).filter(|run| run.partition != lane.partition);
        let run = run.filter(|_| !mutant::is(Mutant::GateLeftOut));
        let is_decided = |entry: &Entry| view.rows.contains_key(&entry.candidate.event_row);
        let Some(run) = run.filter(|_| !lane.entries.iter().all(is_decided)) else { return Ok(false) };
        let rows = self.store.events_from(bucket, &lane.key, run.after + 1, i64::MAX as usize).await?;
        let of: Vec<_> = rows.iter().map(|row| (lane.key.clone(), row.row.clone(), row.record)).collect();
        // The newest first: they are the likeliest to be missing.
        for some in of.rchunks(ARRIVALS_MAX) {
            if self.store.arrived(bucket, some).await?.len() < some.len() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn settled(views: &[View], decisions: Vec<Decisions>) -> Vec<Settled> {
    let settled = |(decisions, view): (Decisions, &View)| {
        let before = view.head.as_ref();
        let was_ready = before.and_then(|h| h.sequence.as_ref()?.ready()).is_some();
        let release = if was_ready { Pending::GoesOn } else { Pending::Begins };
        Settled {
            waiting: before.map(|h| h.waiting.clone()).unwrap_or_default(),
            sequence: decisions.head.as_ref().or(before).and_then(|h| h.sequence.clone()),
            release: decisions.backlog.is_unfinished.then_some(release),
            is_held_up: view.is_held_up && decisions.verdicts.contains(&Verdict::Later),
            verdicts: decisions.verdicts,
        }
    };
    decisions.into_iter().zip(views).map(settled).collect()
}

/// `held`: the record of a held event, by its number.
pub(crate) fn decide_lane<'a>(
    lane: &Lane,
    view: &View,
    attempt: Uuid,
    now_ms: i64,
    release: Release,
    reducer: Option<&Arc<dyn Reducer>>,
    held: &dyn Fn(u64) -> Option<&'a Record>,
) -> Decisions {
    let candidates: Vec<_> = lane.entries.iter().map(|e| e.candidate.clone()).collect();
    match reducer {
        None => decide(view, &candidates, attempt, now_ms, release, &no_reducer),
        Some(reducer) => decide(view, &candidates, attempt, now_ms, release, &|delta, current| {
            let record = match delta {
                Delta::Candidate(index) => &lane.entries[index].record,
                Delta::Held(number) => held(number).expect("only what was read is released"),
            };
            reduce(reducer.as_ref(), current, record)
        }),
    }
}

/// Waits that double, up to a limit, with a share of chance so that many do not come back at once.
pub struct Backoff<'a> {
    outside: &'a dyn Outside,
    next_ms: u64,
    max_ms: u64,
}

impl<'a> Backoff<'a> {
    pub fn new(settler: &'a Settler) -> Self {
        let (next_ms, max_ms) = (settler.config.retry_min_ms, settler.config.retry_max_ms);
        Self { outside: settler.outside.as_ref(), next_ms, max_ms }
    }

    pub async fn wait(&mut self, stop: &CancellationToken) -> Result<(), GivenUp> {
        let wait = Duration::from_millis(self.next_ms).mul_f64((1.0 + self.outside.chance()) / 2.0);
        self.next_ms = (self.next_ms * 2).min(self.max_ms);
        tokio::select! {
            biased;
            () = tokio::time::sleep(wait) => Ok(()),
            () = stop.cancelled() => Err(GivenUp),
        }
    }
}
