//! Every history of a few letters, however it is cut into batches, whatever of it is read again, and whether or not the
//! ledger had it by then; each answer is lost once. What `decide` says must be what a [`model`] says that knows nothing
//! of rows, batches and attempts.
//!
//! A history is never cut in all ways from its beginning: where two ways lead to the same object, and the model agrees,
//! one of them goes on. So all batches that end at a record are tried from all that there was before them.
//!
//! `SERIATIM_TEST_LONGER=1` makes the histories longer by a letter.

mod alphabet;
mod model;

use std::ops::Range;

use alphabet::{Entry, NARROW, WIDE, entries};
use model::{Did, Model};
use seriatim_schemas::id::Sha256Digest;
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::row::EventRow;

use super::world::{Declared, Event, World, attempt, record};
use crate::candidate::Candidate;
use crate::decide::Verdict;

const WIDE_LENGTH: usize = 4;
const NARROW_LENGTH: usize = 5;
/// How often a group is committed when the answer is lost each time: the second time all of it has rows.
const COMMITS_MAX: usize = 2;

#[test]
fn ties_go_by_event_id() {
    walk(Declared { ties_by_log: false, delivers_stale: false });
}

#[test]
fn ties_go_by_event_id_and_stale_events_are_delivered() {
    walk(Declared { ties_by_log: false, delivers_stale: true });
}

#[test]
fn ties_go_by_log() {
    walk(Declared { ties_by_log: true, delivers_stale: false });
}

#[test]
fn ties_go_by_log_and_stale_events_are_delivered() {
    walk(Declared { ties_by_log: true, delivers_stale: true });
}

fn walk(declared: Declared) {
    let longer = std::env::var("SERIATIM_TEST_LONGER").map_or(0, |n| n.parse().expect("a number of letters"));
    for (letters, length) in [(&WIDE[..], WIDE_LENGTH + longer), (&NARROW[..], NARROW_LENGTH + longer)] {
        let entries = entries(letters, declared, length);
        let mut walk = Walk { declared, entries: &entries, length, history: Vec::new(), decisions: 0 };
        walk.go_on(&mut vec![vec![Node { world: World::default(), model: Model::new(declared) }]]);
        println!(
            "{declared:?}: histories of up to {length} of {} letters, {} decisions",
            letters.len(),
            walk.decisions
        );
    }
}

/// What an object can be, behind so many records.
#[derive(Clone)]
struct Node<'a> {
    world: World,
    model: Model<'a>,
}

struct Walk<'a> {
    declared: Declared,
    /// By letter and place.
    entries: &'a [Vec<Entry>],
    length: usize,
    history: Vec<&'a Entry>,
    decisions: usize,
}

impl<'a> Walk<'a> {
    /// Adds each letter to the history. `nodes`: by how many records are decided.
    fn go_on(&mut self, nodes: &mut Vec<Vec<Node<'a>>>) {
        let at = self.history.len();
        if at == self.length {
            return;
        }
        for letter in self.entries {
            self.history.push(&letter[at]);
            let reached = self.reach(nodes);
            nodes.push(reached);
            self.go_on(nodes);
            nodes.pop();
            self.history.pop();
        }
    }

    /// What the object can be when all of the history is decided.
    fn reach(&mut self, nodes: &[Vec<Node<'a>>]) -> Vec<Node<'a>> {
        let end = self.history.len();
        let mut reached = Vec::new();
        for (decided, nodes) in nodes.iter().enumerate() {
            for node in nodes {
                (0..=decided).for_each(|from| self.read(node, from..end, &mut reached));
            }
        }
        // After a crash; and after a crash while that is read again.
        let mut next = 0;
        while let Some(node) = reached.get(next).cloned() {
            for from in 0..end {
                (from + 1..=end).for_each(|to| self.read(&node, from..to, &mut reached));
            }
            next += 1;
        }
        self.check_order(&reached);
        reached
    }

    /// A reset begins a group, once all before it is done with and never read again.
    fn may_be_read(&self, range: Range<usize>, decided: usize) -> bool {
        let is_reset = |at: &usize| self.history[*at].event.is_reset;
        let (begins, last) = (range.start, (0..decided).rev().find(is_reset));
        last.is_none_or(|last| begins >= last) && !range.skip(1).any(|at| is_reset(&at))
    }

    /// Reads a group, with all that the ledger may know of it.
    fn read(&mut self, node: &Node<'a>, range: Range<usize>, reached: &mut Vec<Node<'a>>) {
        let decided = node.model.read_to();
        if !self.may_be_read(range.clone(), decided) {
            return;
        }
        let again = range.start..range.end.min(decided);
        for recorded in 0..1u32 << again.len() {
            let mut node = node.clone();
            node.world.arrived =
                again.clone().filter(|at| recorded >> (at - again.start) & 1 == 1).map(record).collect();
            self.settle(&mut node, range.clone());
            if !reached.iter().any(|other| other.is(&node)) {
                reached.push(node);
            }
        }
    }

    /// Decides a group and commits it, and again, since the answer was lost, until there is nothing to commit.
    fn settle(&mut self, node: &mut Node<'a>, range: Range<usize>) {
        let group: Vec<Candidate> = self.history[range.clone()].iter().map(|entry| entry.candidate.clone()).collect();
        let (before, attempt) = (node.model.read_to(), attempt(self.decisions));
        for _ in 0..=COMMITS_MAX {
            let decisions = node.world.decide(&group, attempt);
            for (at, verdict) in range.clone().zip(&decisions.verdicts) {
                let is_recorded = node.world.arrived.contains(&record(at));
                let did = node.model.read(at, &self.history[at].event, is_recorded);
                let reading = if at >= before { Reading::First } else { Reading::Again { is_recorded } };
                assert!(
                    is_as(verdict, did, reading),
                    "{verdict:?}, not {did:?} ({reading:?}): {at} of {}",
                    self.tell()
                );
            }
            self.decisions += 1;
            node.world.commit(&decisions);
            self.check(node);
            if decisions.head.is_none() {
                return;
            }
        }
        panic!("each answer is another one: {}", self.tell());
    }

    /// The object is what the model says.
    fn check(&self, node: &Node<'a>) {
        let Node { world, model } = node;
        let is_state = world.snapshot().map(|s| (s.event_row.as_str(), s.event_type.as_str(), s.deleted, s.digest));
        let state = model.state.map(|e| {
            (e.id.as_str(), e.event_type.as_str(), e.event_type == "deleted", Sha256Digest::of(e.body.as_bytes()))
        });
        assert_eq!(is_state, state, "state of {}", self.tell());
        let fold = world.head.as_ref().and_then(|head| head.fold.as_deref()).unwrap_or_default();
        let folded: String = model.folded.iter().map(|id| format!("{id} ")).collect();
        assert_eq!(fold, folded.as_bytes(), "fold of {}", self.tell());
        assert_eq!(world.rev(), model.sent.len() as i64, "rev of {}", self.tell());
        let mut sent: Vec<_> = world.rows.values().filter(|row| row.has_effect()).collect();
        sent.sort_by_key(|row| row.rev);
        let sent: Vec<_> = sent.iter().map(|row| (row.row.as_str(), row.rev)).collect();
        assert_eq!(sent, model.sent.iter().copied().zip(1..).collect::<Vec<_>>(), "effects of {}", self.tell());
    }

    /// Whatever the order, the state is the event with the greatest order key: unless the log decides, an order began
    /// anew, or one id came with two events.
    fn check_order(&self, nodes: &[Node<'a>]) {
        let events = || self.history.iter().map(|entry| &entry.event).filter(|e| !e.is_delta && !e.is_undecidable);
        let is_apart = |event: &Event| events().all(|other| event.id != other.id || event == other);
        if self.declared.ties_by_log || events().any(|event| event.is_reset || !is_apart(event)) {
            return;
        }
        for node in nodes {
            let newest = events().max_by_key(|event| node.model.place(event)).map(|event| event.id.as_str());
            assert_eq!(node.world.snapshot().map(|s| s.event_row.as_str()), newest, "state of {}", self.tell());
        }
    }

    fn tell(&self) -> String {
        let letter = |entry: &&Entry| format!("{} {:?}", entry.event.id, entry.event.version);
        format!("{:?} with {:?}", self.history.iter().map(letter).collect::<Vec<_>>(), self.declared)
    }
}

impl Node<'_> {
    /// Whether the same is stored, and the same has happened; counts of batches and names of attempts aside.
    fn is(&self, other: &Self) -> bool {
        let of_head = |world: &World| world.head.as_ref().map(|h| (h.rev, h.snapshot.clone(), h.fold.clone()));
        let (rows, others) = (&self.world.rows, &other.world.rows);
        let is_there = |(name, row): (&String, &EventRow)| {
            others
                .get(name)
                .is_some_and(|other| (row.record, row.outcome, row.rev) == (other.record, other.outcome, other.rev))
        };
        self.model == other.model
            && of_head(&self.world) == of_head(&other.world)
            && rows.len() == others.len()
            && rows.iter().all(is_there)
    }
}

#[derive(Debug, Clone, Copy)]
enum Reading {
    First,
    Again { is_recorded: bool },
}

/// Whether a verdict says what a record did.
fn is_as(verdict: &Verdict, did: Did, reading: Reading) -> bool {
    let expected = match (did, reading) {
        (Did::Applied { .. } | Did::Delivered { .. } | Did::Acted, Reading::Again { is_recorded: true }) => {
            Verdict::Done
        }
        (Did::Applied { rev }, Reading::Again { .. }) => Verdict::Resend { rev, outcome: Outcome::Applied },
        (Did::Delivered { rev }, Reading::Again { .. }) => Verdict::Resend { rev, outcome: Outcome::Stale },
        (Did::Applied { rev }, Reading::First) => Verdict::Apply { rev },
        (Did::Delivered { rev }, Reading::First) => Verdict::Deliver { rev },
        (Did::Duplicate, _) => Verdict::Duplicate,
        (Did::Stale, _) => Verdict::Stale,
        (Did::Acted, _) => Verdict::Acted,
        (Did::Dead, _) => return matches!(verdict, Verdict::Dead(_)),
    };
    // What did nothing, and is in the ledger, does nothing again; by what is stored now it may be told otherwise, since
    // its id, or its equal, has come later.
    let did_nothing =
        matches!(did, Did::Duplicate | Did::Stale) && matches!(reading, Reading::Again { is_recorded: true });
    *verdict == expected || (did_nothing && matches!(verdict, Verdict::Done | Verdict::Duplicate))
}
