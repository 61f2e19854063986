//! Effects that wait in the store are sent from there, object by object in order, by whoever owns their
//! partition: no leader, and no index beside the rows. A sink that is away costs one probe at a time.
//!
//! Which objects wait is known from one read of each bucket when the partition is assigned, and kept since. It is read
//! again now and then, for what an owner puts there that does not know yet that it is one no more.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use seriatim_schemas::declaration::Mode;
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::record::{Record, decode};
use seriatim_schemas::row::{DeadLetter, EventRow, WaitingEffect, refused_row};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use uuid::Uuid;

use crate::act::Cause;
use crate::error::StoreError;
use crate::group::dead_letter;
use crate::log::{Log, parse_position};
use crate::mutant::{self, Mutant};
use crate::outside::jittered;
use crate::settle::{GivenUp, Settler};
use crate::sink::{Deliver, Effect, Emitted, Fault, NamedSink};
use crate::store::{Freshness, ObjectQuery};

/// Effects of one object that are read and sent before the rows are taken away.
const DRAIN_MAX: usize = 50;

/// An object and a sink that it waits for.
pub type Waiter = (Arc<ObjectKey>, usize);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Due {
    At(Instant),
    /// Being sent, or about to be.
    Draining,
    /// An operator must let it go.
    Parked,
}

#[derive(Debug, Clone, Copy)]
struct State {
    due: Due,
    failures: u32,
    /// Effects up to this rev were tried by this process.
    tried: i64,
}

/// Everything that waits in the partitions of one owner.
#[derive(Debug, Default)]
pub struct Waiters {
    states: HashMap<Waiter, State>,
    /// By sink, what is due first.
    due: BTreeMap<usize, BTreeSet<(Instant, Arc<ObjectKey>)>>,
    draining: HashMap<usize, usize>,
    /// While the store is asked what waits: what has changed since, and is known better.
    changed: Option<HashSet<Waiter>>,
}

impl Waiters {
    pub fn is_looking(&self) -> bool {
        self.changed.is_some()
    }

    pub fn begin_look(&mut self) {
        self.changed = Some(HashSet::new());
    }

    /// What has changed since the look began.
    pub fn end_look(&mut self) -> HashSet<Waiter> {
        self.changed.take().unwrap_or_default()
    }

    pub fn has(&self, waiter: &Waiter) -> bool {
        self.states.contains_key(waiter)
    }

    pub fn count(&self) -> usize {
        self.states.len()
    }

    pub fn parked(&self) -> usize {
        self.states.values().filter(|s| s.due == Due::Parked).count()
    }

    fn set(&mut self, waiter: Waiter, due: Due, failures: u32) {
        let tried = self.state(&waiter).map_or(0, |s| s.tried);
        self.remove(&waiter);
        match due {
            Due::At(at) => drop(self.due.entry(waiter.1).or_default().insert((at, waiter.0.clone()))),
            Due::Draining => *self.draining.entry(waiter.1).or_default() += 1,
            Due::Parked => {}
        }
        self.states.insert(waiter, State { due, failures, tried });
    }

    fn state(&self, waiter: &Waiter) -> Option<State> {
        self.states.get(waiter).copied()
    }

    pub fn remove(&mut self, waiter: &Waiter) {
        self.changed.as_mut().map(|changed| changed.insert(waiter.clone()));
        match self.states.remove(waiter).map(|s| s.due) {
            Some(Due::At(at)) => {
                self.due.get_mut(&waiter.1).map(|due| due.remove(&(at, waiter.0.clone())));
            }
            Some(Due::Draining) => {
                self.draining.entry(waiter.1).and_modify(|count| *count -= 1);
            }
            Some(Due::Parked) | None => {}
        }
    }

    /// It waits now; it may have before.
    pub fn add(&mut self, waiter: Waiter, is_parked: bool, delay: Duration) {
        let before = self.state(&waiter);
        if before.is_some_and(|s| s.due == Due::Draining || (s.due == Due::Parked) == is_parked) {
            return;
        }
        let due = if is_parked { Due::Parked } else { Due::At(Instant::now() + delay) };
        self.set(waiter, due, before.map_or(0, |s| s.failures));
    }

    /// A drain has ended and more is left: at once, or after a wait that doubles with each failure.
    pub fn again(&mut self, waiter: Waiter, failed: bool, sink: &NamedSink, chance: f64) {
        let failures = if failed { self.state(&waiter).map_or(0, |s| s.failures) + 1 } else { 0 };
        let (min, max) = (sink.policy.retry_min_ms, sink.policy.retry_max_ms);
        let wait = if failed { min.saturating_mul(1 << failures.min(20)).min(max) } else { 0 };
        let due = Due::At(Instant::now() + jittered(Duration::from_millis(wait), chance));
        self.set(waiter, due, failures);
    }

    /// Its effects were tried up to this rev.
    pub fn tried_to(&mut self, waiter: &Waiter, rev: i64) {
        if let Some(state) = self.states.get_mut(waiter) {
            state.tried = state.tried.max(rev);
        }
    }

    pub fn park(&mut self, waiter: Waiter) {
        self.set(waiter, Due::Parked, 0);
    }

    pub fn is_draining(&self, waiter: &Waiter) -> bool {
        self.state(waiter).is_some_and(|s| s.due == Due::Draining)
    }

    /// An operator let it go.
    pub fn release(&mut self, waiter: Waiter) {
        self.set(waiter, Due::At(Instant::now()), 0);
    }

    /// What is to be drained now, with the rev up to which each was tried.
    pub fn start_due(&mut self, sinks: &[Arc<NamedSink>], drains_max: usize) -> Vec<(Waiter, i64)> {
        let now = Instant::now();
        let mut started = Vec::new();
        for (index, due) in &self.due {
            let sink = &sinks[*index];
            let running = self.draining.get(index).copied().unwrap_or(0);
            let room = match sink.gate.opens_at() {
                Some(_) if sink.gate.is_closed() => drains_max.min(sink.policy.concurrency).saturating_sub(running),
                // The breaker is due: one of them probes.
                Some(at) if at <= now => 1_usize.saturating_sub(running),
                _ => 0,
            };
            let ready = due.iter().take(room).take_while(|(at, _)| *at <= now);
            started.extend(ready.map(|(_, key)| (key.clone(), *index)));
        }
        let begin = |waiter: Waiter| {
            let state = self.states[&waiter];
            self.set(waiter.clone(), Due::Draining, state.failures);
            (waiter, state.tried)
        };
        started.into_iter().map(begin).collect()
    }
}

/// What a drain did.
#[derive(Debug, Default)]
pub struct Drained {
    /// Revs that are done with: taken, superseded, or dead.
    pub revs: Vec<i64>,
    /// Of the effects without rows, all up to this rev are done with.
    pub overflow: Option<i64>,
    /// Why the next one is not.
    pub cause: Option<Cause>,
    /// Up to where it was tried.
    pub tried: i64,
    /// The breaker let nothing through.
    pub is_held: bool,
}

/// What is to be sent.
#[derive(Debug, Default)]
struct Read {
    effects: Vec<Effect>,
    /// They have no rows of their own.
    is_overflow: bool,
    /// Of the effects without rows, none up to this rev is owed.
    overflow: Option<i64>,
}

/// Sends what one object has waiting for one sink, up to a bound, or to the first that is not taken.
pub struct Drain<'a> {
    pub settler: &'a Settler,
    pub log: &'a dyn Log,
    pub bucket: u32,
    pub key: &'a ObjectKey,
    pub sink: &'a NamedSink,
    pub writer: Uuid,
    pub epoch: u64,
    pub stop: &'a CancellationToken,
}

impl Drain<'_> {
    pub async fn work(self, tried: i64) -> Result<Drained, GivenUp> {
        let what = format!("waiting effects of {} cannot be read", self.key);
        let Read { effects, is_overflow, overflow } =
            self.settler.until_answered(&what, self.stop, || self.read(tried)).await?;
        let mut drained = Drained { tried, overflow, ..Drained::default() };
        let effects = self.newest(effects, &mut drained);
        if effects.is_empty() {
            return Ok(drained);
        }
        let Some(pass) = self.sink.gate.pass_or_probe(effects.len()).await else {
            return Ok(Drained { is_held: true, ..drained });
        };
        self.settler.metrics.superseded.inc_by(drained.revs.len() as u64);
        let fault = tokio::select! {
            biased;
            fault = self.send(&effects, &mut drained) => fault?,
            () = self.stop.cancelled() => return Err(GivenUp),
        };
        match fault {
            Some(Fault::Unavailable { reason, retry_after }) => {
                self.sink.gate.failed(pass, retry_after, self.settler.outside.chance());
                drained.cause = Some(Cause { reason, parks: false });
            }
            Some(Fault::NotYet { reason }) => {
                self.sink.gate.succeeded(pass);
                drained.cause = Some(Cause { reason, parks: false });
            }
            Some(Fault::Refused { reason }) => {
                self.sink.gate.succeeded(pass);
                drained.cause = Some(Cause { reason, parks: true });
            }
            None => self.sink.gate.succeeded(pass),
        }
        if is_overflow {
            drained.overflow = std::mem::take(&mut drained.revs).into_iter().max();
        }
        Ok(drained)
    }

    async fn read(&self, tried: i64) -> Result<Read, StoreError> {
        let rows = || self.settler.store.waiting_effects(self.bucket, self.key, &self.sink.name, 0, DRAIN_MAX);
        let mut found = rows().await?;
        if found.is_empty() {
            let Some((from, to)) = self.overflow().await? else { return Ok(Read::default()) };
            // Rows and overflow may have been put between the two reads, and the rows come first.
            found = rows().await?;
            if found.is_empty() {
                return self.read_overflow(from, to).await;
            }
        }
        if mutant::is(Mutant::WaitingReversed) {
            found.reverse();
        }
        let effects = found.into_iter().map(|row| self.effect(row, tried)).collect::<Result<_, _>>()?;
        Ok(Read { effects, ..Read::default() })
    }

    async fn overflow(&self) -> Result<Option<(i64, i64)>, StoreError> {
        let query = ObjectQuery { key: self.key.clone(), event_rows: Vec::new() };
        let view = self.settler.store.read(self.bucket, &[query], Freshness::Quorum).await?.remove(0);
        let waiting = view.head.and_then(|mut head| head.waiting.0.remove(&self.sink.name));
        Ok(waiting.and_then(|w| w.overflow))
    }

    /// Effects that have no row: their event rows say where their records are. Nothing says whether they were
    /// tried before.
    async fn read_overflow(&self, from: i64, to: i64) -> Result<Read, StoreError> {
        let rows = self.next_events(from, to).await?;
        if rows.is_empty() {
            return Ok(Read { overflow: Some(to), ..Read::default() });
        }
        let (topic, last) = (self.log.identity().topic, rows.last().map(|row| row.rev));
        let mut effects = Vec::with_capacity(rows.len());
        for row in rows {
            let found = match parse_position(&topic, &row.position) {
                Some((partition, offset)) => self.log.entries_at(partition, &[offset]).await,
                None => Ok(Vec::new()),
            };
            let entry = found.map_err(|e| StoreError::Unavailable(e.to_string()))?.pop();
            let record = entry.and_then(|e| decode(&e.key, &e.headers, e.value).ok()).filter(|r| r.id == row.record);
            let Some(record) = record else {
                return Err(StoreError::Corrupt(format!(
                    "{} is not in the log any more, but {} waits for it: its retention is too short",
                    row.position, self.sink.name
                )));
            };
            let key = self.key.clone();
            let effect = self.settler.declarations.effect(key, record, row.outcome, row.rev, self.epoch);
            if self.sink.takes(effect.outcome, effect.mode) {
                effects.push(Effect { resent: !mutant::is(Mutant::OverflowUnmarked), ..effect });
            }
        }
        let overflow = last.filter(|_| effects.is_empty());
        Ok(Read { effects, is_overflow: true, overflow })
    }

    /// The first event rows, from `from` on, whose effects this sink is owed; none if it is owed no more.
    async fn next_events(&self, from: i64, to: i64) -> Result<Vec<EventRow>, StoreError> {
        let mut next = from;
        loop {
            let mut rows = self.settler.store.events_from(self.bucket, self.key, next, DRAIN_MAX).await?;
            let last = rows.last().map(|row| row.rev);
            rows.retain(|row| row.rev <= to && self.sink.takes_outcome(row.outcome));
            if next == from && last.is_none() {
                warn!(key = %self.key, sink = self.sink.name, from, to, "the event rows of waiting effects have expired: they are lost");
            }
            match last.filter(|last| rows.is_empty() && *last < to) {
                Some(last) => next = last + 1,
                None => return Ok(rows),
            }
        }
    }

    fn effect(&self, row: WaitingEffect, tried: i64) -> Result<Effect, StoreError> {
        let resent =
            row.attempted || row.writer != self.writer || (row.rev <= tried && !mutant::is(Mutant::TriedForgotten));
        let record = decode(&self.key.to_string(), &row.headers, row.value)
            .map_err(|e| StoreError::Corrupt(format!("waiting effect {} of {}: {e}", row.rev, self.key)))?;
        let effect = self.settler.declarations.effect(self.key.clone(), record, row.outcome, row.rev, self.epoch);
        Ok(Effect { resent, ..effect })
    }

    /// Leaves out snapshots that newer ones supersede, where the sink takes only the newest.
    fn newest(&self, effects: Vec<Effect>, drained: &mut Drained) -> Vec<Effect> {
        if self.sink.policy.deliver == Deliver::Every {
            return effects;
        }
        let newest = effects.iter().filter(|e| e.mode == Mode::Snapshot).map(|e| e.rev).max();
        let (sent, superseded): (Vec<_>, Vec<_>) =
            effects.into_iter().partition(|e| e.mode != Mode::Snapshot || Some(e.rev) == newest);
        drained.revs.extend(superseded.iter().map(|e| e.rev));
        sent
    }

    /// Why it ended before the last effect; what is refused and does not park becomes a dead letter on the way.
    async fn send(&self, effects: &[Effect], drained: &mut Drained) -> Result<Option<Fault>, GivenUp> {
        let mut rest = effects;
        while !rest.is_empty() {
            let chunk = &rest[..rest.len().min(self.sink.sink.batch_max())];
            drained.tried = drained.tried.max(chunk.last().map_or(0, |e| e.rev));
            let Emitted { mut taken, fault } = self.sink.emit(chunk).await;
            if mutant::is(Mutant::RowGoneUnsent) {
                taken = chunk.len();
            }
            drained.revs.extend(chunk[..taken].iter().map(|e| e.rev));
            self.settler.metrics.count_sent(&self.sink.name, &chunk[..taken]);
            rest = &rest[taken..];
            match (fault, rest.first()) {
                (None, _) | (_, None) => {}
                (Some(Fault::Refused { reason }), Some(refused)) if !self.sink.policy.refused.parks(refused.mode) => {
                    self.bury(&refused.record, reason).await?;
                    drained.revs.push(refused.rev);
                    rest = &rest[1..];
                }
                (Some(fault), _) => return Ok(Some(fault)),
            }
        }
        Ok(None)
    }

    /// A dead effect: committed, and refused by its sink.
    async fn bury(&self, record: &Record, reason: String) -> Result<(), GivenUp> {
        let letter = refused_letter(record, self.key, &self.sink.name, reason, self.settler.outside.now());
        let _letters = self.settler.letters.lock().await;
        let write = || self.settler.store.record(self.bucket, &[], std::slice::from_ref(&letter));
        self.settler.until_answered("a dead letter was not written", self.stop, write).await?;
        self.settler.metrics.dead_effects.inc();
        Ok(())
    }
}

/// The letter of an effect that its sink refused. Its event was applied.
pub fn refused_letter(record: &Record, key: &ObjectKey, sink: &str, reason: String, now: Timestamp) -> DeadLetter {
    let mut letter = dead_letter(record, &key.object, "refused", format!("sink {sink}: {reason}"), String::new(), now);
    letter.event_row = refused_row(sink, &letter.event_row);
    letter
}
