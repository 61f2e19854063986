//! What must come of a history, written from the promises alone (README, docs/declarations.md, docs/effects.md): one
//! record after the other, without rows, batches or attempts.

use super::super::world::{Declared, Event};

/// What a record does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Did {
    Applied {
        rev: i64,
    },
    /// Stale, and sent all the same.
    Delivered {
        rev: i64,
    },
    Duplicate,
    Stale,
    Dead,
    Acted,
}

/// What one object has come to.
#[derive(Debug, Clone, PartialEq)]
pub struct Model<'a> {
    declared: Declared,
    /// By record, in the order of the log.
    did: Vec<Did>,
    /// Ids of the events that are decided once and for all.
    decided: Vec<&'a str>,
    pub state: Option<&'a Event>,
    /// Not after a reset: whatever comes next is newer than the state, and nothing equals it.
    has_order: bool,
    /// Ids of the events that were sent: the rev of each is its place, from 1.
    pub sent: Vec<&'a str>,
    /// Ids of the deltas that were counted.
    pub folded: Vec<&'a str>,
}

impl<'a> Model<'a> {
    pub fn new(declared: Declared) -> Self {
        let (did, decided, sent, folded) = Default::default();
        Self { declared, did, decided, state: None, has_order: true, sent, folded }
    }

    /// How many records were read.
    pub fn read_to(&self) -> usize {
        self.did.len()
    }

    /// The record `at` is read, perhaps again; `is_recorded`: what it did is in the ledger.
    pub fn read(&mut self, at: usize, event: &'a Event, is_recorded: bool) -> Did {
        match self.did.get(at).copied() {
            Some(did) if is_recorded || self.is_final(did) => did,
            Some(_) => {
                self.did[at] = self.decide(event);
                self.did[at]
            }
            None => {
                let did = self.decide(event);
                self.did.push(did);
                did
            }
        }
    }

    /// Whether it stands before the ledger says so. What is merely stale is as stale when it is read again, or equal by
    /// then to what is newer; what is dead was never decided.
    fn is_final(&self, did: Did) -> bool {
        match did {
            Did::Stale => self.declared.delivers_stale,
            Did::Dead => false,
            Did::Applied { .. } | Did::Delivered { .. } | Did::Duplicate | Did::Acted => true,
        }
    }

    fn decide(&mut self, event: &'a Event) -> Did {
        if self.decided.contains(&event.id.as_str()) {
            return Did::Duplicate;
        }
        let did = self.decide_first(event);
        if self.is_final(did) {
            self.decided.push(&event.id);
        }
        did
    }

    /// An event that was not decided before.
    fn decide_first(&mut self, event: &'a Event) -> Did {
        if event.is_undecidable {
            return Did::Dead;
        }
        if event.is_reset {
            self.has_order = false;
            return Did::Acted;
        }
        if event.is_delta {
            self.folded.push(&event.id);
            return Did::Applied { rev: self.send(event) };
        }
        let Some(state) = self.state.filter(|_| self.has_order) else { return self.apply(event) };
        let is_equal =
            (event.version, &event.event_type, &event.body) == (state.version, &state.event_type, &state.body);
        let (place, of_state) = (self.place(event), self.place(state));
        if is_equal {
            if place > of_state {
                self.state = Some(event);
            }
            Did::Duplicate
        } else if place > of_state || (place == of_state && self.declared.ties_by_log) {
            self.apply(event)
        } else if self.declared.delivers_stale && event.event_type != state.event_type {
            Did::Delivered { rev: self.send(event) }
        } else {
            Did::Stale
        }
    }

    fn apply(&mut self, event: &'a Event) -> Did {
        (self.state, self.has_order) = (Some(event), true);
        Did::Applied { rev: self.send(event) }
    }

    fn send(&mut self, event: &'a Event) -> i64 {
        self.sent.push(&event.id);
        self.sent.len() as i64
    }

    /// Where an event stands in its object's order: version, then rank, then id where that decides ties.
    pub fn place(&self, event: &'a Event) -> (u64, u8, &'a str) {
        let rank = match event.event_type.as_str() {
            "created" => 0,
            "deleted" => 2,
            _ => 1,
        };
        (event.version.unwrap_or_default(), rank, if self.declared.ties_by_log { "" } else { &event.id })
    }
}
