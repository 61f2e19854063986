//! Acts on what waits: effects are put behind one another for a sink, taken away once it took them, parked and
//! released. Each act is part of a conditional batch that raises the object's turn, so that it never passes
//! unseen by a decision, or by an act of another owner.
//!
//! `defer` may meet its own earlier self (an answer that was lost, a record that is read again): a row is
//! named by sink and rev, so it is written over, and counts as attempted, since the first may have been sent.

use std::sync::Arc;

use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::record::encode;
use seriatim_schemas::row::{Head, WaitingEffect, WaitingFor, WaitingSink};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use uuid::Uuid;

use crate::decide::View;
use crate::error::StoreError;
use crate::mutant::{self, Mutant};
use crate::settle::{Backoff, GivenUp, Settler};
use crate::sink::Effect;
use crate::store::{Beside, Committed, Freshness, ObjectBatch, ObjectQuery, SideKey, SideRow};

/// One act on one object and sink.
#[derive(Debug, Clone)]
pub struct Act {
    pub key: Arc<ObjectKey>,
    /// Place in the list of all sinks.
    pub sink: usize,
    pub what: What,
}

impl Act {
    /// Effects that it writes, and roughly their bytes.
    pub fn size(&self) -> (usize, usize) {
        match &self.what {
            What::Defer { effects, .. } => (effects.len(), effects.iter().map(|w| w.effect.value().len() + 1000).sum()),
            What::Redrive { effect } => (1, effect.effect.value().len() + 1000),
            What::Drained { revs, .. } => (revs.len(), 300 * revs.len()),
            What::Release { .. } => (1, 300),
        }
    }
}

#[derive(Debug, Clone)]
pub enum What {
    /// These effects wait from now on, in order; why, and whether only an operator lets them go.
    Defer { effects: Vec<Waits>, cause: String, parks: bool },
    /// A dead effect waits again, whatever waits already: it has a row, since its rev is out of the order of the rest.
    Redrive { effect: Box<Waits> },
    /// The effects of these revs were taken; of those without a row, all up to `overflow`. Where some are left: why
    /// they go on waiting.
    Drained { revs: Vec<i64>, overflow: Option<i64>, cause: Option<Cause> },
    /// An operator lets go what was parked; `skip`: the effect of this rev, if it is the first, is dropped.
    Release { skip: Option<i64> },
}

#[derive(Debug, Clone)]
pub struct Waits {
    pub effect: Effect,
    /// It may have been sent.
    pub attempted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub reason: String,
    pub parks: bool,
}

/// How an object stands to a sink after an act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Clear,
    Waits,
    Parked,
}

/// Puts the effect of `rev` behind what waits: true where it gets a row, false where the log must do, since there are
/// `max` rows.
pub fn put_behind(waiting: &mut WaitingFor, max: u64, rev: i64) -> bool {
    let is_behind = |(from, _)| rev >= from && !mutant::is(Mutant::RowsBehindOverflow);
    if waiting.queued >= max || waiting.overflow.is_some_and(is_behind) {
        if mutant::is(Mutant::OverflowForgotten) {
            return false;
        }
        waiting.overflow = Some(waiting.overflow.map_or((rev, rev), |(from, to)| (from.min(rev), to.max(rev))));
        return false;
    }
    waiting.queued += 1;
    true
}

/// What is fixed while acts are worked: who writes, when, and the limit of each sink.
pub struct Acting<'a> {
    pub settler: &'a Settler,
    pub writer: Uuid,
}

impl Acting<'_> {
    /// Commits acts on objects of one bucket, at most one for each object and sink: what one leaves in the store is
    /// what the next must see. The answer has the order of `acts`.
    pub async fn work(&self, bucket: u32, acts: &[Act], stop: &CancellationToken) -> Result<Vec<Standing>, GivenUp> {
        let mut keys: Vec<ObjectKey> = acts.iter().map(|act| ObjectKey::clone(&act.key)).collect();
        keys.sort();
        keys.dedup();
        let mut freshness = Freshness::Quorum;
        let mut is_unsure = false;
        let mut backoff = Backoff::new(self.settler);
        loop {
            let planned = self.plan(bucket, &keys, acts, freshness, is_unsure).await;
            let (batches, standings) = match planned {
                Ok(planned) => planned,
                Err(error) => {
                    warn!(bucket, %error, "what waits cannot be read, trying again");
                    self.settler.metrics.store_errors.inc();
                    backoff.wait(stop).await?;
                    continue;
                }
            };
            if batches.is_empty() {
                return Ok(standings);
            }
            self.settler.metrics.rounds.inc();
            match self.settler.store.commit(bucket, &batches).await {
                Ok(Committed::Applied) => return Ok(standings),
                Ok(Committed::Refused) if mutant::is(Mutant::RefusedIsPut) => return Ok(standings),
                Ok(Committed::Refused) => {
                    self.settler.metrics.refusals.inc();
                    freshness = Freshness::Serial;
                    backoff.wait(stop).await?;
                }
                Err(error) => {
                    is_unsure |= self.settler.count_failed_commit(bucket, &error);
                    freshness = Freshness::Serial;
                    backoff.wait(stop).await?;
                }
            }
        }
    }

    /// The batches of all objects that change, and how each act leaves its object.
    async fn plan(
        &self,
        bucket: u32,
        keys: &[ObjectKey],
        acts: &[Act],
        freshness: Freshness,
        is_unsure: bool,
    ) -> Result<(Vec<ObjectBatch>, Vec<Standing>), StoreError> {
        let query = |key: &ObjectKey| ObjectQuery { key: key.clone(), event_rows: Vec::new() };
        let queries: Vec<_> = keys.iter().map(query).collect();
        // Heads first: the turn then proves that the rows read after them are all there is.
        let views = self.settler.store.read(bucket, &queries, freshness).await?;
        let mut standings = vec![Standing::Clear; acts.len()];
        let mut batches = Vec::new();
        for (key, view) in keys.iter().zip(views) {
            let View { head: Some(head), .. } = view else {
                debug!(%key, "nothing is stored of an object that was to wait");
                continue;
            };
            let mut change = Change::of(key, &head, self, is_unsure);
            for (index, act) in acts.iter().enumerate().filter(|(_, act)| *act.key == *key) {
                let left = self.left(bucket, act, &change).await?;
                standings[index] = change.apply(act, &left);
            }
            batches.extend(change.into_batch(&head));
        }
        Ok((batches, standings))
    }

    /// Revs of the first effects that wait, one more than the act takes away.
    async fn left(&self, bucket: u32, act: &Act, change: &Change<'_>) -> Result<Vec<i64>, StoreError> {
        let max = match &act.what {
            What::Defer { .. } | What::Redrive { .. } => return Ok(Vec::new()),
            What::Drained { revs, .. } => revs.len() + 1,
            What::Release { .. } => 2,
        };
        let rows = self.settler.store.waiting_effects(bucket, &act.key, change.sink_name(act), 0, max).await?;
        Ok(rows.iter().map(|row| row.rev).collect())
    }
}

/// What becomes of one object's head and rows.
struct Change<'a> {
    key: &'a ObjectKey,
    head: Head,
    beside: Beside,
    acting: &'a Acting<'a>,
    is_unsure: bool,
    now_ms: i64,
}

impl<'a> Change<'a> {
    fn of(key: &'a ObjectKey, head: &Head, acting: &'a Acting<'a>, is_unsure: bool) -> Self {
        let now_ms = acting.settler.outside.now().as_millisecond();
        Self { key, head: head.clone(), beside: Beside::default(), acting, is_unsure, now_ms }
    }

    fn sink_name(&self, act: &Act) -> &'a str {
        &self.acting.settler.declarations.sinks()[act.sink].name
    }

    fn apply(&mut self, act: &Act, left: &[i64]) -> Standing {
        match &act.what {
            What::Defer { effects, cause, parks } => self.defer(act, effects, cause, *parks),
            What::Redrive { effect } => self.redrive(act, effect),
            What::Drained { revs, overflow, cause } => self.drained(act, revs, *overflow, cause.as_ref(), left),
            What::Release { skip } => self.release(act, *skip, left),
        }
    }

    fn mark(&mut self, act: &Act, cause: &str, is_parked: bool) {
        let sink = self.sink_name(act).to_owned();
        let marker =
            WaitingSink { key: self.key.clone(), sink, since_ms: self.now_ms, cause: cause.to_owned(), is_parked };
        self.beside.put.push(SideRow::Waiting(marker));
    }

    fn defer(&mut self, act: &Act, effects: &[Waits], cause: &str, parks: bool) -> Standing {
        let sink = self.sink_name(act).to_owned();
        let max = self.acting.settler.declarations.sinks()[act.sink].policy.waiting_max;
        let is_new = !self.head.waiting.has(&sink);
        let mut waiting = self.head.waiting.0.remove(&sink).unwrap_or_default();
        for waits in effects {
            let rev = waits.effect.rev;
            if put_behind(&mut waiting, max, rev) {
                self.beside.put.push(SideRow::Effect(self.row(&sink, waits)));
            }
        }
        let newly_parked = parks && waiting.parked.is_none();
        if newly_parked {
            waiting.parked = Some(cause.to_owned());
        }
        self.go_on_waiting(act, waiting, (is_new || newly_parked).then_some(cause))
    }

    fn redrive(&mut self, act: &Act, waits: &Waits) -> Standing {
        let sink = self.sink_name(act).to_owned();
        let is_new = !self.head.waiting.has(&sink);
        let mut waiting = self.head.waiting.0.remove(&sink).unwrap_or_default();
        waiting.queued += 1;
        self.beside.put.push(SideRow::Effect(self.row(&sink, waits)));
        self.go_on_waiting(act, waiting, is_new.then_some("redriven by an operator"))
    }

    fn row(&self, sink: &str, waits: &Waits) -> WaitingEffect {
        let effect = &waits.effect;
        WaitingEffect {
            sink: sink.to_owned(),
            rev: effect.rev,
            outcome: effect.outcome,
            attempted: waits.attempted || effect.resent || self.is_unsure,
            writer: self.acting.writer,
            since_ms: self.now_ms,
            headers: encode(&effect.record),
            value: effect.record.value.clone(),
        }
    }

    /// The object goes on waiting; `cause`: its mark is written, and says so.
    fn go_on_waiting(&mut self, act: &Act, waiting: WaitingFor, cause: Option<&str>) -> Standing {
        let is_parked = waiting.parked.is_some();
        if let Some(cause) = cause {
            self.mark(act, cause, is_parked);
        }
        self.head.waiting.0.insert(self.sink_name(act).to_owned(), waiting);
        self.beside.changes_waiting = true;
        if is_parked { Standing::Parked } else { Standing::Waits }
    }

    /// Nothing waits any more.
    fn clear(&mut self, sink: String) -> Standing {
        self.beside.changes_waiting = true;
        self.beside.delete.push(SideKey::Waiting { sink });
        Standing::Clear
    }

    fn drained(
        &mut self,
        act: &Act,
        revs: &[i64],
        overflow: Option<i64>,
        cause: Option<&Cause>,
        left: &[i64],
    ) -> Standing {
        let sink = self.sink_name(act).to_owned();
        let Some(mut waiting) = self.head.waiting.0.remove(&sink) else { return Standing::Clear };
        for rev in revs {
            self.beside.delete.push(SideKey::Effect { sink: sink.clone(), rev: *rev });
        }
        if let (Some((_, to)), Some(done)) = (waiting.overflow, overflow) {
            waiting.overflow = (done < to).then_some((done + 1, to));
        }
        waiting.queued = waiting.queued.saturating_sub(revs.len() as u64);
        let has_rows = left.iter().any(|rev| !revs.contains(rev)) && !mutant::is(Mutant::MarkGoneTooSoon);
        if !has_rows {
            waiting.queued = 0;
        }
        if !has_rows && waiting.overflow.is_none() {
            return self.clear(sink);
        }
        let parks = cause.filter(|cause| cause.parks && waiting.parked.is_none()).map(|cause| cause.reason.as_str());
        if let Some(reason) = parks {
            waiting.parked = Some(reason.to_owned());
        }
        self.go_on_waiting(act, waiting, parks)
    }

    fn release(&mut self, act: &Act, skip: Option<i64>, left: &[i64]) -> Standing {
        let sink = self.sink_name(act).to_owned();
        let Some(mut waiting) = self.head.waiting.0.remove(&sink) else { return Standing::Clear };
        waiting.parked = None;
        let mut has_rows = !left.is_empty();
        match (left.first(), waiting.overflow) {
            (Some(first), _) if skip == Some(*first) => {
                self.beside.delete.push(SideKey::Effect { sink: sink.clone(), rev: *first });
                waiting.queued = waiting.queued.saturating_sub(1);
                has_rows = left.len() > 1;
            }
            (None, Some((from, to))) if skip == Some(from) => {
                waiting.overflow = (from < to).then_some((from + 1, to));
            }
            _ => {}
        }
        if !has_rows && waiting.overflow.is_none() {
            return self.clear(sink);
        }
        self.go_on_waiting(act, waiting, Some("released by an operator"))
    }

    fn into_batch(mut self, before: &Head) -> Option<ObjectBatch> {
        if !self.beside.changes_waiting {
            return None;
        }
        self.head.turn += i64::from(!mutant::is(Mutant::ActsRaiseNoTurn));
        Some(ObjectBatch {
            key: self.key.clone(),
            turn: Some(before.turn),
            head: self.head,
            state: None,
            rows: Vec::new(),
            rows_ttl_s: 0,
            beside: self.beside,
        })
    }
}
