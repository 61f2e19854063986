//! One object as a store holds it, and the events that reach it. What must hold after each single decision
//! is checked here, so that every test checks it.

use std::collections::{HashMap, HashSet};

use seriatim_schemas::id::{RecordId, Sha256Digest};
use seriatim_schemas::pattern::Pattern;
use seriatim_schemas::row::{EventRow, Head, Snapshot};
use seriatim_schemas::version::{Version, VersionKind, rank_of};
use uuid::Uuid;

use crate::candidate::{Candidate, Cause, Meaning};
use crate::decide::sequence::Release;
use crate::decide::{Decisions, Verdict, View, decide};
use crate::reduce::no_reducer;

pub const NOW_MS: i64 = 1_700_000_000_000;

/// Types from lowest to highest, for events of one version.
const RANK: [&str; 3] = ["created", "*", "deleted"];
const TOMBSTONE: &str = "deleted";

/// An event as a provider means it.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub id: String,
    pub version: Option<u64>,
    pub event_type: String,
    pub body: String,
    pub is_delta: bool,
    pub is_undecidable: bool,
}

impl Event {
    pub fn new(id: &str) -> Self {
        // Bodies differ unless a test says otherwise: equal ones mean something.
        let body = format!("body of {id}");
        Self {
            id: id.to_owned(),
            version: None,
            event_type: "updated".to_owned(),
            body,
            is_delta: false,
            is_undecidable: false,
        }
    }

    pub fn candidate(&self, record: RecordId, ties_by_log: bool) -> Candidate {
        let ranks: Vec<_> = RANK.iter().map(|r| Pattern((*r).to_owned())).collect();
        let version = self.version.map(|v| v.to_string());
        let meaning = if self.is_undecidable {
            Meaning::Dead(Cause { cause: "version", detail: "of another unit".to_owned() })
        } else if self.is_delta {
            Meaning::Delta
        } else {
            let text = version.as_deref().expect("a snapshot has a version");
            let version = Version::parse(text, VersionKind::Integer, &[]).expect("an integer");
            let order_key =
                version.order_key(rank_of(&self.event_type, &ranks), if ties_by_log { "" } else { &self.id });
            Meaning::Snapshot { order_key, tombstone: self.event_type == TOMBSTONE }
        };
        Candidate {
            is_numbered: false,
            delivers_stale: false,
            record,
            event_row: self.id.clone(),
            event_type: self.event_type.clone(),
            version,
            digest: Sha256Digest::of(self.body.as_bytes()),
            meaning,
            position: format!("topic/0/{}", record.item),
        }
    }
}

pub fn record(number: usize) -> RecordId {
    RecordId { request: Uuid::from_u128(1), item: u32::try_from(number).expect("few records") }
}

pub fn attempt(number: usize) -> Uuid {
    Uuid::from_u128(0xa77e << 64 | number as u128)
}

/// What is stored of the object.
#[derive(Debug, Clone, Default)]
pub struct World {
    pub head: Option<Head>,
    pub rows: HashMap<String, EventRow>,
    pub arrived: HashSet<RecordId>,
}

impl World {
    /// Decides a group and commits it.
    pub fn settle(&mut self, group: &[Candidate], attempt: Uuid) -> Vec<Verdict> {
        let decisions = self.decide(group, attempt);
        self.commit(&decisions);
        decisions.verdicts
    }

    /// Decides a group; nothing is written.
    pub fn decide(&self, group: &[Candidate], attempt: Uuid) -> Decisions {
        let asked = group.iter().filter_map(|c| Some((c.event_row.clone(), self.rows.get(&c.event_row)?.clone())));
        let view =
            View { head: self.head.clone(), rows: asked.collect(), arrived: self.arrived.clone(), ..View::default() };
        let decisions = decide(&view, group, attempt, NOW_MS, Release::Later, &no_reducer);
        assert_eq!(decisions.verdicts.len(), group.len(), "each record has a verdict");
        assert_eq!(
            decisions,
            decide(&view, group, attempt, NOW_MS, Release::Later, &no_reducer),
            "the same input gives the same decisions"
        );
        self.check_head(&decisions, group);
        self.check_rows(&decisions, group, attempt);
        decisions
    }

    pub fn commit(&mut self, decisions: &Decisions) {
        let Some(head) = &decisions.head else { return };
        self.head = Some(head.clone());
        self.rows.extend(decisions.rows.iter().map(|row| (row.row.clone(), row.clone())));
    }

    pub fn rev(&self) -> i64 {
        self.head.as_ref().map_or(0, |h| h.rev)
    }

    pub fn turn(&self) -> i64 {
        self.head.as_ref().map_or(0, |h| h.turn)
    }

    pub fn snapshot(&self) -> Option<&Snapshot> {
        self.head.as_ref()?.snapshot.as_ref()
    }

    fn check_head(&self, decisions: &Decisions, group: &[Candidate]) {
        let Some(head) = &decisions.head else {
            assert!(
                decisions.rows.is_empty() && decisions.state_from.is_none(),
                "no head, so nothing is committed: {decisions:?}"
            );
            return;
        };
        assert_eq!(head.turn, self.turn() + 1, "turn rises by one in each batch");
        assert_eq!(head.rev, self.rev() + decisions.rows.len() as i64, "rev counts decisions");
        match decisions.state_from {
            None => assert_eq!(head.snapshot.as_ref(), self.snapshot(), "without a new document the snapshot stays"),
            Some(index) => {
                let (candidate, snapshot) =
                    (&group[index], head.snapshot.as_ref().expect("a new document is a snapshot"));
                let of_candidate = (candidate.record, &candidate.event_row, candidate.digest, &candidate.event_type);
                assert_eq!((snapshot.record, &snapshot.event_row, snapshot.digest, &snapshot.event_type), of_candidate);
                assert_eq!(Some(&snapshot.version), candidate.version.as_ref());
                let meaning = Meaning::Snapshot { order_key: snapshot.order_key.clone(), tombstone: snapshot.deleted };
                assert_eq!(meaning, candidate.meaning);
                let same = |s: &Snapshot| (s.digest, &s.event_type) == (candidate.digest, &candidate.event_type);
                let is_equal_of = |(other, verdict): (&Candidate, &Verdict)| {
                    matches!(verdict, Verdict::Apply { .. }) && other.digest == candidate.digest
                };
                let is_equal = self.snapshot().is_some_and(same)
                    || group[..index].iter().zip(&decisions.verdicts).any(is_equal_of);
                match decisions.verdicts[index] {
                    Verdict::Apply { .. } => {}
                    Verdict::Duplicate => {
                        assert!(is_equal, "only an equal event takes the state over without an effect")
                    }
                    _ => panic!("only an applied event, or its equal, becomes the state"),
                }
            }
        }
    }

    fn check_rows(&self, decisions: &Decisions, group: &[Candidate], attempt: Uuid) {
        let mut rev = self.rev();
        for row in &decisions.rows {
            rev += 1;
            assert_eq!(row.rev, rev, "revs have no gaps");
            assert!(!self.rows.contains_key(&row.row), "{} is decided once", row.row);
            let of_record = |(c, v): &(&Candidate, &Verdict)| c.record == row.record && **v == Verdict::Apply { rev };
            let (candidate, _) =
                group.iter().zip(&decisions.verdicts).find(of_record).expect("a row is of a record of the group");
            assert_eq!(
                (&row.row, &row.event_type, &row.version),
                (&candidate.event_row, &candidate.event_type, &candidate.version)
            );
            assert_eq!((row.digest, &row.position), (candidate.digest, &candidate.position));
            assert_eq!((row.attempt, row.decided_ms), (attempt, NOW_MS));
        }
        let names: HashSet<_> = decisions.rows.iter().map(|row| &row.row).collect();
        assert_eq!(names.len(), decisions.rows.len(), "a batch would accept one row twice");
    }
}
