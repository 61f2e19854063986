//! Numbered deltas. One whose turn it is is applied; one ahead of its turn is held in the backlog; what is held goes on
//! as soon as nothing before it is missing. A number that is dead (its reducer fails, the store refuses it) counts as
//! missing: its provider, or a redrive, can still bring it.
//!
//! Held events are released in a batch of their own kind, by one object after the other ([`crate::sequence`]): in a
//! group's batch the first candidate that would release something, and all behind it, come [`Verdict::Later`]. So the
//! order of an object's decisions is that of the log, however much is released and however often it is interrupted.

use std::collections::BTreeMap;

use seriatim_schemas::id::{RecordId, Sha256Digest};
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::row::EventRow;
use seriatim_schemas::sequence::{Place, Sequence};
use uuid::Uuid;

use super::{Object, Verdict};
use crate::candidate::{Candidate, Cause};
use crate::mutant::{self, Mutant};
use crate::reduce::Delta;

/// Most events that one object holds.
pub const HELD_MAX: u64 = 1000;

/// What is stored of a sequence beside its head, as far as the candidates are concerned.
#[derive(Debug, Clone, Default)]
pub struct SequenceView {
    /// Held events, as they are read today: of candidates' numbers, and those that may be released.
    pub held: BTreeMap<u64, Candidate>,
    /// Who had the number of a candidate that comes behind its turn, where that is still known.
    pub behind: BTreeMap<u64, Seen>,
    /// Held events that the store refuses for good.
    pub refused: BTreeMap<u64, String>,
}

/// An event that had a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub event_row: String,
    pub digest: Sha256Digest,
}

/// Whether held events may be released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// No: what would release some comes later.
    Later,
    /// Up to so many, of those that are in the view.
    UpTo(usize),
}

/// What a decision does to a backlog.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BacklogChange {
    /// Numbers that are held from now on, and the candidates that have them.
    pub held: Vec<(u64, usize)>,
    /// Numbers that are held no more.
    pub released: Vec<Released>,
    /// There is more to release.
    pub is_unfinished: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Released {
    pub number: u64,
    pub record: RecordId,
    pub fate: Fate,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Fate {
    Applied {
        rev: i64,
    },
    /// Its event was applied under another number.
    Duplicate,
    Dead(Cause),
}

/// A number of a candidate.
#[derive(Debug, Clone, Copy)]
pub struct Numbered<'a> {
    pub index: usize,
    pub candidate: &'a Candidate,
    pub number: u64,
}

fn dead(cause: &'static str, detail: String) -> Verdict {
    Verdict::Dead(Cause { cause, detail })
}

impl Object<'_> {
    /// Whether held events must go before anything else; releases as many of them as it may.
    pub(super) fn has_more(&mut self, attempt: Uuid, now_ms: i64) -> bool {
        if self.sequence.as_ref().is_some_and(|s| s.ready().is_some()) {
            self.release(attempt, now_ms);
        }
        self.backlog.is_unfinished
    }

    pub(super) fn on_number(&mut self, of: Numbered<'_>, start: Option<u64>, attempt: Uuid, now_ms: i64) -> Verdict {
        let Numbered { index, candidate, number } = of;
        let mut sequence = self.sequence.clone().unwrap_or_default();
        if sequence.held.is_empty() {
            sequence.next = sequence.next.or(start);
        }
        if mutant::is(Mutant::GapIgnored) {
            sequence.pass_to(number);
        }
        match sequence.place(number) {
            Place::Next if self.release == Release::Later && sequence.held.has(number + 1) => self.later(),
            Place::Next => {
                match (self.reduce)(Delta::Candidate(index), self.fold.as_ref()) {
                    Ok(None) => {}
                    Ok(Some(fold)) => (self.fold, self.folds) = (Some(fold), true),
                    Err(cause) => return Verdict::Dead(cause),
                }
                sequence.advance();
                self.sequence = Some(sequence);
                self.numbers.insert(number, seen(candidate));
                let rev = self.decide_row(candidate, Outcome::Applied, attempt, now_ms);
                self.release(attempt, now_ms);
                Verdict::Apply { rev }
            }
            Place::Ahead if sequence.held.has(number) => self.on_held_number(candidate, number),
            Place::Ahead if sequence.held.count() >= HELD_MAX => {
                dead("backlog_full", format!("{}: no more than {HELD_MAX} are held", sequence.describe_gap()))
            }
            Place::Ahead => {
                sequence.held.insert(number, number);
                let detail = sequence.describe_gap();
                self.sequence = Some(sequence);
                self.backlog.held.push((number, index));
                self.newly_held.insert(number, candidate.clone());
                Verdict::Hold { detail }
            }
            Place::Passed if !mutant::is(Mutant::PassedIsDuplicate) => {
                dead("passed", format!("number {number} was passed before its event came"))
            }
            Place::Behind | Place::Passed => {
                match self.numbers.get(&number).or_else(|| self.view.sequence.behind.get(&number)) {
                    Some(seen) if seen.event_row != candidate.event_row && seen.digest != candidate.digest => {
                        taken(number, &seen.event_row)
                    }
                    Some(_) | None => Verdict::Duplicate,
                }
            }
        }
    }

    /// The number is held already: by this very record, by its event, or by another one.
    fn on_held_number(&self, candidate: &Candidate, number: u64) -> Verdict {
        let Some(held) = self.newly_held.get(&number).or_else(|| self.view.sequence.held.get(&number)) else {
            return dead("sequence_taken", format!("number {number} is held already"));
        };
        if held.record == candidate.record {
            let detail = self.sequence.as_ref().map(Sequence::describe_gap).unwrap_or_default();
            Verdict::Hold { detail }
        } else if held.event_row == candidate.event_row || held.digest == candidate.digest {
            Verdict::Duplicate
        } else {
            taken(number, &held.event_row)
        }
    }

    /// What is missing below `to` is passed; what is held below it, and at once behind it, is released in its order.
    pub(super) fn on_pass(&mut self, to: u64, attempt: Uuid, now_ms: i64) -> Verdict {
        loop {
            let mut sequence = self.sequence.clone().unwrap_or_default();
            if sequence.next.is_some_and(|next| next >= to) {
                return Verdict::Acted;
            }
            let lowest = sequence.held.first().filter(|first| *first <= to);
            if lowest.is_some() && self.release == Release::Later {
                return self.later();
            }
            sequence.pass_to(lowest.unwrap_or(to) + u64::from(mutant::is(Mutant::PassedTooFar)));
            self.sequence = Some(sequence);
            self.release(attempt, now_ms);
            if self.backlog.is_unfinished {
                return self.later();
            }
        }
    }

    /// This candidate, and all behind it, are decided once what is held is released.
    pub(super) fn later(&mut self) -> Verdict {
        self.backlog.is_unfinished = true;
        Verdict::Later
    }

    fn release(&mut self, attempt: Uuid, now_ms: i64) {
        let max = match self.release {
            Release::Later => 0,
            Release::UpTo(max) => max,
        };
        while let Some(number) = self.sequence.as_ref().and_then(Sequence::ready) {
            let held = self.view.sequence.held.get(&number).filter(|_| self.backlog.released.len() < max);
            let Some(held) = held.filter(|_| !self.newly_held.contains_key(&number)) else {
                self.backlog.is_unfinished = true;
                return;
            };
            let fate = self.release_one(number, held, attempt, now_ms);
            let sequence = self.sequence.as_mut().expect("a number of it is ready");
            match fate {
                Fate::Applied { .. } | Fate::Duplicate => sequence.advance(),
                Fate::Dead(_) => sequence.held.remove(number),
            }
            self.backlog.released.push(Released { number, record: held.record, fate });
        }
    }

    fn release_one(&mut self, number: u64, held: &Candidate, attempt: Uuid, now_ms: i64) -> Fate {
        let is_row = |row: &EventRow| row.row == held.event_row;
        if self.view.rows.contains_key(&held.event_row) || self.rows.iter().any(is_row) {
            return Fate::Duplicate;
        }
        if let Some(detail) = self.view.sequence.refused.get(&number) {
            return Fate::Dead(Cause { cause: "store_refused", detail: detail.clone() });
        }
        match (self.reduce)(Delta::Held(number), self.fold.as_ref()) {
            Ok(None) => {}
            Ok(Some(fold)) => (self.fold, self.folds) = (Some(fold), true),
            Err(cause) => return Fate::Dead(cause),
        }
        self.numbers.insert(number, seen(held));
        let rev = self.decide_row(held, Outcome::Applied, attempt, now_ms);
        Fate::Applied { rev }
    }

    /// The sequence as it is to be stored: a gap that is another than before begins now.
    pub(super) fn timed_sequence(&self, now_ms: i64) -> Option<Sequence> {
        let mut sequence = self.sequence.clone()?;
        let before = self.view.head.as_ref().and_then(|head| head.sequence.as_ref());
        let is_same = before.is_some_and(|before| before.next == sequence.next && before.since_ms.is_some());
        sequence.since_ms = match sequence.behind_gap() {
            Some(_) if is_same => before.and_then(|before| before.since_ms),
            Some(_) => Some(now_ms),
            None => None,
        };
        Some(sequence)
    }
}

fn seen(candidate: &Candidate) -> Seen {
    Seen { event_row: candidate.event_row.clone(), digest: candidate.digest }
}

fn taken(number: u64, by: &str) -> Verdict {
    dead("sequence_taken", format!("number {number} has the event {by} already"))
}
