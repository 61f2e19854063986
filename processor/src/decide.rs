//! The decision: what each record of an object does, given what is stored. Pure, so that the same input
//! gives the same verdicts, in a test, after a lost answer, in a replay.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use seriatim_schemas::id::RecordId;
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::row::{EventRow, Head, Snapshot};
use seriatim_schemas::sequence::Sequence;
use seriatim_schemas::version::OrderKey;
use uuid::Uuid;

use crate::candidate::{Candidate, Cause, Meaning};
use crate::mutant::{self, Mutant};
use crate::reduce::{Delta, Reduce};

pub mod sequence;

use sequence::{BacklogChange, Numbered, Release, Seen, SequenceView};

/// What is stored of an object, as far as its candidates are concerned. Head and rows are of one read.
#[derive(Debug, Clone, Default)]
pub struct View {
    pub head: Option<Head>,
    /// Event rows by row, of the candidates' events only.
    pub rows: HashMap<String, EventRow>,
    /// Of the records that [`View::asks_arrival`], those whose arrival is recorded.
    pub arrived: HashSet<RecordId>,
    pub sequence: SequenceView,
    /// Effects of the object may be in the memory of another partition's owner: nothing is decided before they are out.
    pub is_held_up: bool,
}

impl View {
    /// Whether it matters that the candidate's arrival is recorded: its event row is its own, or it has none and says
    /// what the state says.
    pub fn asks_arrival(&self, candidate: &Candidate) -> bool {
        match self.rows.get(&candidate.event_row) {
            Some(row) => row.record == candidate.record,
            None => {
                let state = self.head.as_ref().and_then(|head| head.snapshot.as_ref());
                state.is_some_and(|state| is_equal(candidate, state))
            }
        }
    }
}

/// What one record does.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Committed by this very attempt: emit.
    Apply {
        rev: i64,
    },
    /// Stale, and committed by this very attempt, since a sink asks for stale events too: emit, marked.
    Deliver {
        rev: i64,
    },
    /// Committed earlier for this record, but not known to be emitted: emit again, as it was decided.
    Resend {
        rev: i64,
        outcome: Outcome,
    },
    /// An operator's act on the object's order, committed: nothing is sent.
    Acted,
    /// Committed earlier for this record, emitted and recorded: nothing to do.
    Done,
    /// Another record of the same event, or an equal event, was first.
    Duplicate,
    /// Older than the object's state.
    Stale,
    /// Its number is ahead of its turn: it lies in the backlog. Why, for a person.
    Hold {
        detail: String,
    },
    /// Committed, and its effects with it: they wait in the store.
    Stored {
        rev: i64,
        outcome: Outcome,
    },
    /// Not decided: what the object holds goes first, or what another partition's owner has of it.
    Later,
    Dead(Cause),
}

/// The verdicts on one object's candidates, in their order, and what to commit.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decisions {
    pub verdicts: Vec<Verdict>,
    /// New rows, also of events that do nothing, where they might count when they are read again.
    pub rows: Vec<EventRow>,
    /// The head after the commit; none if nothing is to be committed.
    pub head: Option<Head>,
    /// The candidate whose document is the new state.
    pub state_from: Option<usize>,
    /// The snapshot's order key changes though its state does not.
    pub resets_order: bool,
    /// The fold changes.
    pub folds: bool,
    pub changes_sequence: bool,
    pub backlog: BacklogChange,
}

/// Decides an object's candidates in the order of the log. `attempt` names this try: a row that carries it
/// was written by an earlier send of the same batch whose answer was lost.
pub fn decide(
    view: &View,
    candidates: &[Candidate],
    attempt: Uuid,
    now_ms: i64,
    release: Release,
    reduce: Reduce<'_>,
) -> Decisions {
    if view.is_held_up {
        return held_up(view, candidates, attempt);
    }
    let mut object = Object {
        view,
        rev: view.head.as_ref().map_or(0, |h| h.rev),
        snapshot: view.head.as_ref().and_then(|h| h.snapshot.clone()),
        rows: Vec::new(),
        state_from: None,
        resets_order: false,
        fold: view.head.as_ref().and_then(|h| h.fold.clone()),
        folds: false,
        sequence: view.head.as_ref().and_then(|h| h.sequence.clone()),
        newly_held: BTreeMap::new(),
        numbers: BTreeMap::new(),
        backlog: BacklogChange::default(),
        release,
        reduce,
    };
    let verdicts = candidates
        .iter()
        .enumerate()
        .map(|(index, candidate)| match view.rows.get(&candidate.event_row) {
            Some(row) if !object.backlog.is_unfinished => on_stored_row(row, candidate, view, attempt),
            _ if object.has_more(attempt, now_ms) && !mutant::is(Mutant::ReleaseIsPassed) => object.later(),
            _ => object.on_candidate(index, candidate, attempt, now_ms),
        })
        .collect();
    object.has_more(attempt, now_ms);
    let sequence = object.timed_sequence(now_ms);
    let changes_sequence = sequence != view.head.as_ref().and_then(|h| h.sequence.clone());
    let is_changed = !object.rows.is_empty() || object.state_from.is_some() || changes_sequence;
    let head = is_changed.then(|| Head {
        rev: object.rev,
        turn: view.head.as_ref().map_or(0, |h| h.turn) + i64::from(!mutant::is(Mutant::TurnNotRaised)),
        snapshot: object.snapshot.clone(),
        fold: object.fold.clone(),
        sequence,
        ..view.head.clone().unwrap_or_default()
    });
    let Object { rows, state_from, resets_order, folds, backlog, .. } = object;
    Decisions { verdicts, rows, head, state_from, resets_order, folds, changes_sequence, backlog }
}

/// What was decided before stays so; all else comes later.
fn held_up(view: &View, candidates: &[Candidate], attempt: Uuid) -> Decisions {
    let of = |candidate: &Candidate| match view.rows.get(&candidate.event_row) {
        Some(row) => on_stored_row(row, candidate, view, attempt),
        None => Verdict::Later,
    };
    Decisions { verdicts: candidates.iter().map(of).collect(), ..Decisions::default() }
}

/// The event was decided before; the row is the truth.
fn on_stored_row(row: &EventRow, candidate: &Candidate, view: &View, attempt: Uuid) -> Verdict {
    let EventRow { rev, outcome, .. } = *row;
    if row.record != candidate.record && !mutant::is(Mutant::DuplicateSentAgain) {
        return Verdict::Duplicate;
    }
    let has_arrived = view.arrived.contains(&candidate.record) || mutant::is(Mutant::OwnRowIsDone);
    match outcome {
        _ if row.attempt != attempt && has_arrived => Verdict::Done,
        _ if candidate.meaning == Meaning::ResetVersion => Verdict::Acted,
        Outcome::Stale if !row.has_effect() => Verdict::Stale,
        _ if !row.has_effect() => Verdict::Duplicate,
        _ if row.attempt != attempt => Verdict::Resend { rev, outcome },
        Outcome::Stale => Verdict::Deliver { rev },
        _ => Verdict::Apply { rev },
    }
}

/// Whether an event says what the state says, under another id: one change that was sent twice.
fn is_equal(candidate: &Candidate, state: &Snapshot) -> bool {
    let same_version = candidate.is_numbered || candidate.version.as_deref() == Some(state.version.as_str());
    same_version && candidate.event_type == state.event_type && candidate.digest == state.digest
}

/// The object as it will be, while its candidates are decided one after the other.
struct Object<'a> {
    view: &'a View,
    rev: i64,
    snapshot: Option<Snapshot>,
    rows: Vec<EventRow>,
    state_from: Option<usize>,
    resets_order: bool,
    fold: Option<Bytes>,
    folds: bool,
    sequence: Option<Sequence>,
    /// Held by this very decision.
    newly_held: BTreeMap<u64, Candidate>,
    /// Numbers that it has applied.
    numbers: BTreeMap<u64, Seen>,
    backlog: BacklogChange,
    release: Release,
    reduce: Reduce<'a>,
}

impl Object<'_> {
    fn on_candidate(&mut self, index: usize, candidate: &Candidate, attempt: Uuid, now_ms: i64) -> Verdict {
        let is_own = |row: &&EventRow| row.row == candidate.event_row && !mutant::is(Mutant::DuplicateInGroup);
        if let Some(row) = self.rows.iter().find(is_own) {
            // This very record was held, by a batch whose answer was lost, and is released by this one.
            let is_own = row.record == candidate.record;
            return if is_own { Verdict::Apply { rev: row.rev } } else { Verdict::Duplicate };
        }
        match &candidate.meaning {
            Meaning::Dead(cause) => return Verdict::Dead(cause.clone()),
            Meaning::Repeat => return Verdict::Duplicate,
            Meaning::ResetVersion => {
                self.reset_version(candidate, attempt, now_ms);
                return Verdict::Acted;
            }
            Meaning::Thin => {}
            Meaning::Numbered { number, start } => {
                let of = Numbered { index, candidate, number: *number };
                return self.on_number(of, *start, attempt, now_ms);
            }
            Meaning::Pass { to } => return self.on_pass(*to, attempt, now_ms),
            Meaning::Delta => match (self.reduce)(Delta::Candidate(index), self.fold.as_ref()) {
                Ok(None) => {}
                Ok(Some(fold)) => (self.fold, self.folds) = (Some(fold), true),
                Err(cause) => return Verdict::Dead(cause),
            },
            Meaning::Snapshot { order_key, tombstone } => {
                let standing = self.standing(candidate, order_key);
                if standing.is_newest() {
                    self.take_over(index, candidate, order_key, *tombstone);
                }
                return self.on_standing(standing, candidate, attempt, now_ms);
            }
        }
        Verdict::Apply { rev: self.decide_row(candidate, Outcome::Applied, attempt, now_ms) }
    }

    /// The candidate is the object's state from now on.
    fn take_over(&mut self, index: usize, candidate: &Candidate, order_key: &OrderKey, tombstone: bool) {
        self.snapshot = Some(Snapshot {
            order_key: order_key.clone(),
            version: candidate.version.clone().unwrap_or_default(),
            event_type: candidate.event_type.clone(),
            event_row: candidate.event_row.clone(),
            record: candidate.record,
            digest: candidate.digest,
            deleted: tombstone,
        });
        self.state_from = Some(index);
    }

    /// What tells nothing new may look new when it is read again: its equal is the state no more, or the state is of
    /// another type. So it leaves a row, but where it can only ever be stale.
    fn on_standing(&mut self, standing: Standing, candidate: &Candidate, attempt: Uuid, now_ms: i64) -> Verdict {
        match standing {
            Standing::Newer => Verdict::Apply { rev: self.decide_row(candidate, Outcome::Applied, attempt, now_ms) },
            // It was stale when it came, and is in the ledger; its equal came later.
            Standing::Known if self.view.arrived.contains(&candidate.record) => Verdict::Done,
            Standing::Known | Standing::EqualAbove => {
                self.note_row(candidate, Outcome::Duplicate, attempt, now_ms);
                Verdict::Duplicate
            }
            Standing::Older if self.delivers_stale(candidate) => {
                Verdict::Deliver { rev: self.decide_row(candidate, Outcome::Stale, attempt, now_ms) }
            }
            Standing::Older => {
                if candidate.delivers_stale {
                    self.note_row(candidate, Outcome::Stale, attempt, now_ms);
                }
                Verdict::Stale
            }
        }
    }

    /// The row keeps the act from being done twice.
    fn reset_version(&mut self, candidate: &Candidate, attempt: Uuid, now_ms: i64) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.order_key = OrderKey(Vec::new());
            snapshot.version.clear();
        }
        self.resets_order = true;
        self.note_row(candidate, Outcome::Applied, attempt, now_ms);
    }

    /// A handler may need to hear of `invoice.paid` after a newer `invoice.updated`; a second, older `updated`
    /// tells it nothing.
    fn delivers_stale(&self, candidate: &Candidate) -> bool {
        candidate.delivers_stale && self.snapshot.as_ref().is_some_and(|s| s.event_type != candidate.event_type)
    }

    /// The rev of the new row.
    fn decide_row(&mut self, candidate: &Candidate, outcome: Outcome, attempt: Uuid, now_ms: i64) -> i64 {
        self.rev += i64::from(self.rows.is_empty() || !mutant::is(Mutant::RevPerBatch));
        self.push_row(candidate, outcome, self.rev, attempt, now_ms);
        self.rev
    }

    /// A row of what is not sent: it takes no rev, and is there so that nothing else is ever decided of the event.
    fn note_row(&mut self, candidate: &Candidate, outcome: Outcome, attempt: Uuid, now_ms: i64) {
        self.push_row(candidate, outcome, EventRow::NO_REV, attempt, now_ms);
    }

    fn push_row(&mut self, candidate: &Candidate, outcome: Outcome, rev: i64, attempt: Uuid, now_ms: i64) {
        self.rows.push(EventRow {
            row: candidate.event_row.clone(),
            outcome,
            rev,
            event_type: candidate.event_type.clone(),
            version: candidate.version.clone(),
            digest: candidate.digest,
            record: candidate.record,
            attempt,
            position: candidate.position.clone(),
            decided_ms: now_ms,
        });
    }

    fn standing(&self, candidate: &Candidate, order_key: &OrderKey) -> Standing {
        let Some(current) = &self.snapshot else { return Standing::Newer };
        // The same event after its row expired.
        if candidate.event_row == current.event_row {
            return Standing::Known;
        }
        let is_equal = is_equal(candidate, current);
        match order_key.cmp(&current.order_key) {
            Ordering::Greater if is_equal && !mutant::is(Mutant::EqualNotRaised) => Standing::EqualAbove,
            _ if is_equal => Standing::Known,
            Ordering::Less if mutant::is(Mutant::StaleApplied) => Standing::Newer,
            Ordering::Less if mutant::is(Mutant::TombstoneLifted) && current.deleted => Standing::Newer,
            Ordering::Greater => Standing::Newer,
            Ordering::Less => Standing::Older,
            // Equal keys of different events: ties go by log order.
            Ordering::Equal => Standing::Newer,
        }
    }
}

/// Where a snapshot stands to the object's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Newer,
    Older,
    /// This event, or one change that was sent under two ids: seen.
    Known,
    /// One change that was sent under two ids, and this id is the greater. It has no effect, but the state must
    /// take its order key: else e1 and e3 (equal) and e2 between them would end in e2 or in e3, by their order
    /// of arrival.
    EqualAbove,
}

impl Standing {
    /// Whether its order key is the object's from now on.
    fn is_newest(self) -> bool {
        matches!(self, Self::Newer | Self::EqualAbove)
    }
}

#[cfg(test)]
mod tests;
