//! Numbered deltas outside of the decision: what a number means under a declaration, and how held events are released.
//!
//! Held events go on in batches of one object, each of which takes them off the backlog, gives them event rows and
//! revs, and puts their effects where waiting effects lie, for every sink of the source. So a crash between any two
//! steps loses nothing: an effect that is committed lies in a row until its sink has it. Two things keep the order:
//!
//! - all effects of lower revs are out, or lie in rows, before the first such batch ([`crate::partition`] holds back the
//!   event that would release others until they are); else a new owner would send what was released before what the
//!   old one had only in memory
//! - until the last of them is released nothing else of the object is decided, by whichever owner; a release that was
//!   interrupted goes on when the record that began it is read again, since that is not done before its release is

use std::collections::BTreeMap;
use std::slice;

use seriatim_schemas::declaration::Declaration;
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::record::{Record, decode, encode};
use seriatim_schemas::row::{BacklogRow, EventRow, Head, Run, Waiting, WaitingEffect, WaitingSink};
use seriatim_schemas::sequence::{GAP, GapRule, NUMBER_MAX, Place, Sequence, SequenceRule, parse_number};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use uuid::Uuid;

use crate::act::put_behind;
use crate::candidate::{Candidate, Cause, Meaning, dead};
use crate::decide::sequence::{Fate, Release, Released, Seen};
use crate::decide::{Decisions, Verdict, View};
use crate::error::StoreError;
use crate::group::dead_letter;
use crate::metrics::OutcomeLabels;
use crate::mutant::{self, Mutant};
use crate::settle::{Backoff, Entry, GivenUp, Lane, Settled, Settler, decide_lane};
use crate::store::{Beside, Committed, Freshness, ObjectBatch, ObjectQuery, SideKey, SideRow};

/// Most held events that one batch releases.
const RELEASE_MAX: usize = 25;

/// What a numbered delta means.
pub fn numbered(rule: &SequenceRule, record: &Record) -> Meaning {
    let text = match (&record.problem, &record.version) {
        (Some(problem), _) => return dead("sequence", problem.clone()),
        (None, None) => return dead("sequence", "the event has no number: see `sequence.from`".to_owned()),
        (None, Some(text)) => text,
    };
    match parse_number(text) {
        Err(error) => dead("sequence", error.to_string()),
        Ok(number) => match rule.start.filter(|start| number < *start) {
            Some(start) => dead("sequence", format!("number {number} is before the declared start {start}")),
            None => Meaning::Numbered { number, start: rule.start },
        },
    }
}

pub fn pass(declaration: &Declaration, to: u64) -> Meaning {
    if declaration.sequence().is_none() {
        return dead("control", "pass: the source declares no sequence".to_owned());
    }
    if to > NUMBER_MAX {
        return dead("control", format!("pass to {to}: the greatest number is {NUMBER_MAX}"));
    }
    Meaning::Pass { to }
}

/// A held event as it lies in the backlog.
#[derive(Debug, Clone)]
struct Held {
    row: BacklogRow,
    record: Record,
}

/// All held events that a batch may release.
type HeldRows = BTreeMap<u64, Held>;

/// How much one batch may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// As much as its bounds allow.
    Full,
    /// One event at a time: the store has refused a batch, and the event at fault must stand alone.
    Single,
}

/// Who releases: its attempt, and its name among the writers of waiting effects.
#[derive(Debug, Clone, Copy)]
struct By {
    attempt: Uuid,
    writer: Uuid,
}

/// What one batch came to.
struct Step {
    verdicts: Vec<Verdict>,
    waiting: Waiting,
    sequence: Option<Sequence>,
    is_unfinished: bool,
}

/// Why a batch is not written, or can never be.
enum Refused {
    /// Events behind what would release others were decided before, and may not be out: they go first, behind what
    /// waits by this head.
    Owed(Vec<Verdict>, Option<Box<Head>>),
    /// Another partition's owner has decided meanwhile: its effects go first.
    HeldUp,
    Whole,
    Candidate {
        reason: String,
    },
    Held {
        number: u64,
        reason: String,
    },
}

/// The verdicts on entries of which some were decided before and are not recorded: those are sent again, the others
/// come later. None, if there are no such entries. A release would put effects of higher revs before theirs.
fn owed(rest: &Lane, view: &View, attempt: Uuid) -> Option<Vec<Verdict>> {
    let verdict = |entry: &Entry| {
        let candidate = &entry.candidate;
        let own = view.rows.get(&candidate.event_row).filter(|row| row.record == candidate.record);
        let is_owed =
            |row: &&EventRow| row.has_effect() && row.attempt != attempt && !view.arrived.contains(&row.record);
        own.filter(is_owed).map_or(Verdict::Later, |row| Verdict::Resend { rev: row.rev, outcome: row.outcome })
    };
    let verdicts: Vec<Verdict> = rest.entries.iter().map(verdict).collect();
    verdicts.iter().any(|verdict| *verdict != Verdict::Later).then_some(verdicts)
}

impl Settler {
    /// Settles what releases held events, and what comes behind it. All effects wait in the store.
    pub async fn settle_in_sequence(
        &self,
        bucket: u32,
        lane: &Lane,
        writer: Uuid,
        stop: &CancellationToken,
    ) -> Result<Settled, GivenUp> {
        let by = By { attempt: self.outside.id(), writer };
        let mut pace = Pace::Full;
        let mut refused = BTreeMap::new();
        let mut settled = Settled::default();
        loop {
            let rest = lane.with(&lane.entries[settled.verdicts.len()..]);
            match self.release_step(bucket, &rest, by, pace, &refused, stop).await? {
                Err(Refused::Owed(verdicts, head)) => {
                    settled.verdicts.extend(verdicts);
                    settled.waiting.0.extend(head.iter().flat_map(|head| head.waiting.0.clone()));
                    settled.sequence = head.and_then(|head| head.sequence);
                    return Ok(settled);
                }
                Err(Refused::HeldUp) => {
                    settled.verdicts.resize(lane.entries.len(), Verdict::Later);
                    settled.is_held_up = true;
                    return Ok(settled);
                }
                Err(Refused::Whole) => pace = Pace::Single,
                Err(Refused::Held { number, reason }) => drop(refused.insert(number, reason)),
                Err(Refused::Candidate { reason }) => {
                    info!(key = %lane.key, reason, "the store refuses this event for good");
                    settled.verdicts.push(Verdict::Dead(Cause { cause: "store_refused", detail: reason }));
                }
                Ok(step) => {
                    settled.verdicts.extend(step.verdicts);
                    settled.waiting.0.extend(step.waiting.0);
                    settled.sequence = step.sequence;
                    if !step.is_unfinished && settled.verdicts.len() == lane.entries.len() {
                        return Ok(settled);
                    }
                }
            }
        }
    }

    /// One batch: read, decide, commit, until the store has said yes or no to it.
    async fn release_step(
        &self,
        bucket: u32,
        rest: &Lane,
        by: By,
        pace: Pace,
        refused: &BTreeMap<u64, String>,
        stop: &CancellationToken,
    ) -> Result<Result<Step, Refused>, GivenUp> {
        let (mut freshness, mut is_unsure) = (Freshness::Quorum, false);
        let mut backoff = Backoff::new(self);
        loop {
            let read = || self.read_with_backlog(bucket, rest, freshness);
            let (mut view, held) = self.until_answered("held events cannot be read", stop, read).await?;
            self.count_resolved(by.attempt, slice::from_ref(&view), &mut is_unsure);
            if view.is_held_up {
                return Ok(Err(Refused::HeldUp));
            }
            if let Some(verdicts) = owed(rest, &view, by.attempt) {
                return Ok(Err(Refused::Owed(verdicts, view.head.map(Box::new))));
            }
            view.sequence.refused.clone_from(refused);
            let (count, release) = self.bounds_of(rest, &view, pace, held.len());
            let lane = rest.with(&rest.entries[..count]);
            let decisions = self.decide_release(&lane, &view, &held, by.attempt, release);
            let Some(batch) = self.batch(&lane, &view, &held, &decisions, Some(by.writer)) else {
                if decisions.verdicts.contains(&Verdict::Later) || decisions.backlog.is_unfinished {
                    warn!(key = %rest.key, "held events are not where they should be, reading again");
                    freshness = Freshness::Serial;
                    backoff.wait(stop).await?;
                    continue;
                }
                return Ok(Ok(step(&view, decisions, None, rest.entries.len())));
            };
            self.metrics.rounds.inc();
            match self.store.commit(bucket, slice::from_ref(&batch)).await {
                Ok(Committed::Applied) => {
                    self.tell_released(&rest.key, &decisions.backlog.released);
                    return Ok(Ok(step(&view, decisions, Some(&batch.head), rest.entries.len())));
                }
                Ok(Committed::Refused) => {
                    self.metrics.refusals.inc();
                    freshness = Freshness::Serial;
                    backoff.wait(stop).await?;
                }
                Err(StoreError::Rejected(reason)) => {
                    if let Some(refused) = at_fault(pace, &decisions, reason) {
                        return Ok(Err(refused));
                    }
                    backoff.wait(stop).await?;
                }
                Err(error) => {
                    is_unsure = self.count_failed_commit(bucket, &error);
                    freshness = Freshness::Serial;
                    backoff.wait(stop).await?;
                }
            }
        }
    }

    /// So many candidates, and so many held events.
    fn bounds_of(&self, rest: &Lane, view: &View, pace: Pace, held: usize) -> (usize, Release) {
        let is_ready = view.head.as_ref().and_then(|head| head.sequence.as_ref()?.ready()).is_some();
        match pace {
            Pace::Full => (rest.entries.len(), Release::UpTo(held)),
            Pace::Single if is_ready => (0, Release::UpTo(1)),
            Pace::Single => (rest.entries.len().min(1), Release::UpTo(0)),
        }
    }

    fn decide_release(&self, lane: &Lane, view: &View, held: &HeldRows, attempt: Uuid, release: Release) -> Decisions {
        let now_ms = self.outside.now().as_millisecond();
        let record_of = |number: u64| held.get(&number).map(|held| &held.record);
        let mut decisions = decide_lane(lane, view, attempt, now_ms, release, self.reducer.as_ref(), &record_of);
        for verdict in &mut decisions.verdicts {
            match verdict {
                Verdict::Apply { rev } => *verdict = Verdict::Stored { rev: *rev, outcome: Outcome::Applied },
                Verdict::Deliver { rev } => *verdict = Verdict::Stored { rev: *rev, outcome: Outcome::Stale },
                _ => {}
            }
        }
        decisions
    }

    /// The lane's view, and the lowest held events, of one moment.
    async fn read_with_backlog(
        &self,
        bucket: u32,
        lane: &Lane,
        freshness: Freshness,
    ) -> Result<(View, HeldRows), StoreError> {
        let mut view = self.read(bucket, slice::from_ref(lane), freshness).await?.remove(0);
        let bounds = self.store.group_bounds();
        let rows = self.store.backlog(bucket, &lane.key, 0, RELEASE_MAX.min(bounds.events)).await?;
        let copies = 1 + self.declarations.sinks_of(&lane.key).len();
        let mut held = HeldRows::new();
        let mut bytes = 0;
        for row in rows {
            bytes += copies * row.value.len();
            if bytes > bounds.bytes && !held.is_empty() {
                break;
            }
            let record = self.held_record(&lane.key, &row)?;
            view.sequence.held.insert(row.number, self.declarations.interpret(&record, row.position.clone()));
            held.insert(row.number, Held { row, record });
        }
        let candidates = lane.entries.iter().map(|entry| entry.candidate.event_row.clone());
        let mut event_rows: Vec<_> = candidates.chain(held.values().map(|held| held.record.event_row())).collect();
        event_rows.sort();
        event_rows.dedup();
        let query = ObjectQuery { key: lane.key.clone(), event_rows };
        let again = self.store.read(bucket, &[query], freshness).await?.remove(0);
        let turn = |view: &View| view.head.as_ref().map(|head| head.turn);
        if turn(&again) != turn(&view) {
            return Err(StoreError::Unavailable(format!("{} has moved on while it was read", lane.key)));
        }
        view.rows = again.rows;
        Ok((view, held))
    }

    fn held_record(&self, key: &ObjectKey, row: &BacklogRow) -> Result<Record, StoreError> {
        decode(&key.to_string(), &row.headers, row.value.clone())
            .map_err(|e| StoreError::Corrupt(format!("held event {} of {key}: {e}", row.number)))
    }

    /// Who has the numbers of a lane's candidates, where the head says that somebody has.
    pub(crate) async fn read_numbers(&self, bucket: u32, lane: &Lane, view: &mut View) -> Result<(), StoreError> {
        let Some(sequence) = view.head.as_ref().and_then(|head| head.sequence.clone()) else { return Ok(()) };
        for Entry { candidate, .. } in &lane.entries {
            let Candidate { meaning: Meaning::Numbered { number, .. }, event_row, .. } = candidate else { continue };
            if view.rows.contains_key(event_row) {
                continue;
            }
            match sequence.place(*number) {
                Place::Ahead if sequence.held.has(*number) => {
                    let row = self.store.backlog(bucket, &lane.key, *number, 1).await?.pop();
                    let gone = || StoreError::Unavailable(format!("{} has moved on while it was read", lane.key));
                    let row = row.filter(|row| row.number == *number).ok_or_else(gone)?;
                    let record = self.held_record(&lane.key, &row)?;
                    view.sequence.held.insert(*number, self.declarations.interpret(&record, row.position));
                }
                Place::Behind => {
                    if let Some(seen) = self.find_number(bucket, &lane.key, *number).await? {
                        view.sequence.behind.insert(*number, seen);
                    }
                }
                Place::Next | Place::Ahead | Place::Passed => {}
            }
        }
        Ok(())
    }

    /// The event that had a number, if its row has not expired. It is looked for among all rows of the object: only an
    /// event that comes under a new id, or after its row is gone, asks for it.
    async fn find_number(&self, bucket: u32, key: &ObjectKey, number: u64) -> Result<Option<Seen>, StoreError> {
        let Some(declaration) = self.declarations.get(&key.tenant, &key.source) else { return Ok(None) };
        let rows = self.store.events_from(bucket, key, 0, i64::MAX as usize).await?;
        let has_number = |row: &EventRow| {
            let text = row.version.as_deref().filter(|_| declaration.plan(&row.event_type).sequence.is_some());
            text.and_then(|text| parse_number(text).ok()) == Some(number)
        };
        let found = rows.into_iter().find(has_number);
        Ok(found.map(|row| Seen { event_row: row.row, digest: row.digest }))
    }

    /// What a group commits of one lane.
    pub(crate) fn group_batch(&self, lane: &Lane, view: &View, decisions: &Decisions) -> Option<ObjectBatch> {
        self.batch(lane, view, &HeldRows::new(), decisions, None)
    }

    /// What is to be committed of one lane. `writer`: its effects wait in the store, and this one puts them there.
    fn batch(
        &self,
        lane: &Lane,
        view: &View,
        held: &HeldRows,
        decisions: &Decisions,
        writer: Option<Uuid>,
    ) -> Option<ObjectBatch> {
        let key = &lane.key;
        let mut head = decisions.head.clone()?;
        let mut beside = Beside {
            changes_order: decisions.resets_order,
            changes_fold: decisions.folds,
            changes_sequence: decisions.changes_sequence,
            ..Beside::default()
        };
        for (number, index) in &decisions.backlog.held {
            let Entry { record, candidate } = &lane.entries[*index];
            beside.put.push(SideRow::Backlog(BacklogRow {
                number: *number,
                position: candidate.position.clone(),
                headers: encode(record),
                value: record.value.clone(),
            }));
        }
        for Released { number, fate, .. } in &decisions.backlog.released {
            beside.delete.push(SideKey::Backlog { number: *number });
            if let (Fate::Dead(Cause { cause, detail }), Some(held)) = (fate, held.get(number)) {
                let position = held.row.position.clone();
                let letter =
                    dead_letter(&held.record, &key.object, cause, detail.clone(), position, self.outside.now());
                beside.put.push(SideRow::Dead(letter));
            }
        }
        self.mark_gap(key, view, &head, &mut beside);
        head.run = match (writer, head.run) {
            // All that is decided here lies in the store, and what was before is out.
            (Some(_), _) => None,
            (None, Some(run)) if run.partition == lane.partition || mutant::is(Mutant::RunNotMoved) => Some(run),
            (None, _) => Some(Run { partition: lane.partition, after: view.head.as_ref().map_or(0, |head| head.rev) }),
        };
        if let Some(writer) = writer {
            self.store_effects(writer, (lane, held), decisions, &mut head, &mut beside);
        }
        Some(ObjectBatch {
            key: key.clone(),
            turn: view.head.as_ref().map(|h| h.turn),
            head,
            state: decisions.state_from.map(|index| self.declarations.state(&lane.entries[index].record)),
            rows: decisions.rows.clone(),
            rows_ttl_s: self.declarations.dedupe_window_s(&key.tenant, &key.source),
            beside,
        })
    }

    /// The mark by which a new owner finds the gap, and an operator sees it.
    fn mark_gap(&self, key: &ObjectKey, view: &View, head: &Head, beside: &mut Beside) {
        let since = |head: &Head| head.sequence.as_ref().and_then(|sequence| sequence.since_ms);
        let before = view.head.as_ref().and_then(since);
        match (since(head), &head.sequence) {
            (Some(since_ms), Some(sequence)) if before != Some(since_ms) && !mutant::is(Mutant::GapNotMarked) => {
                let is_parked = self.gap_rule(key).is_some_and(|rule| rule.gap == GapRule::Park);
                let cause = sequence.describe_gap();
                let mark = WaitingSink { key: key.clone(), sink: GAP.to_owned(), since_ms, cause, is_parked };
                beside.put.push(SideRow::Waiting(mark));
            }
            (None, _) if before.is_some() => beside.delete.push(SideKey::Waiting { sink: GAP.to_owned() }),
            _ => {}
        }
    }

    pub(crate) fn gap_rule(&self, key: &ObjectKey) -> Option<&SequenceRule> {
        self.declarations.get(&key.tenant, &key.source)?.sequence()
    }

    /// Puts the effects of all new rows behind what waits, for each sink that takes them.
    fn store_effects(
        &self,
        writer: Uuid,
        (lane, held): (&Lane, &HeldRows),
        decisions: &Decisions,
        head: &mut Head,
        beside: &mut Beside,
    ) {
        let sinks = self.declarations.sinks();
        for row in decisions.rows.iter().filter(|row| row.has_effect()) {
            let mut records = lane.entries.iter().map(|e| &e.record).chain(held.values().map(|h| &h.record));
            let record =
                records.find(|r| r.id == row.record && r.event_row() == row.row).expect("a row has its record");
            let mode = self.declarations.mode(record);
            let own = self.declarations.sinks_of(&lane.key).iter().map(|i| &sinks[*i]);
            for sink in own.filter(|sink| sink.takes(row.outcome, mode)) {
                beside.changes_waiting = true;
                if !head.waiting.has(&sink.name) {
                    beside.put.push(SideRow::Waiting(WaitingSink {
                        key: lane.key.clone(),
                        sink: sink.name.clone(),
                        since_ms: row.decided_ms,
                        cause: "released from behind a gap".to_owned(),
                        is_parked: false,
                    }));
                }
                let waiting = head.waiting.0.entry(sink.name.clone()).or_default();
                if put_behind(waiting, sink.policy.waiting_max, row.rev) {
                    beside.put.push(SideRow::Effect(WaitingEffect {
                        sink: sink.name.clone(),
                        rev: row.rev,
                        outcome: row.outcome,
                        attempted: false,
                        writer,
                        since_ms: row.decided_ms,
                        headers: encode(record),
                        value: record.value.clone(),
                    }));
                }
            }
        }
    }

    fn tell_released(&self, key: &ObjectKey, released: &[Released]) {
        for Released { number, fate, .. } in released {
            let outcome = match fate {
                Fate::Applied { rev } => {
                    debug!(%key, number, rev, "released");
                    Outcome::Applied
                }
                Fate::Duplicate => Outcome::Duplicate,
                Fate::Dead(Cause { cause, detail }) => {
                    warn!(%key, number, cause, detail, "dead letter: it was held");
                    Outcome::Dead
                }
            };
            let (tenant, source) = (key.tenant.clone(), key.source.clone());
            let labels = OutcomeLabels { tenant, source, outcome: outcome.as_str() };
            self.metrics.outcomes.get_or_create(&labels).inc();
        }
    }
}

/// What is decided now, up to the first that is not. `head`: as it was committed.
fn step(view: &View, decisions: Decisions, head: Option<&Head>, candidates: usize) -> Step {
    let Decisions { mut verdicts, backlog, .. } = decisions;
    let decided = verdicts.iter().position(|v| *v == Verdict::Later).unwrap_or(verdicts.len());
    verdicts.truncate(decided);
    let head = head.or(view.head.as_ref());
    Step {
        is_unfinished: backlog.is_unfinished || decided < candidates,
        verdicts,
        waiting: head.map(|h| h.waiting.clone()).unwrap_or_default(),
        sequence: head.and_then(|h| h.sequence.clone()),
    }
}

/// Which event a refused batch is about; none where the very same was said of it before.
fn at_fault(pace: Pace, decisions: &Decisions, reason: String) -> Option<Refused> {
    match (pace, decisions.backlog.released.first()) {
        (Pace::Full, _) => Some(Refused::Whole),
        (Pace::Single, Some(Released { fate: Fate::Dead(_), .. })) => None,
        (Pace::Single, Some(Released { number, .. })) => Some(Refused::Held { number: *number, reason }),
        (Pace::Single, None) if decisions.verdicts.is_empty() => None,
        (Pace::Single, None) => Some(Refused::Candidate { reason }),
    }
}
