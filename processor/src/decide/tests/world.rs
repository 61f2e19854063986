//! One object as a store holds it, and the events that reach it. What must hold after each single decision
//! is checked here, so that every test checks it.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use seriatim_schemas::control::RESET_VERSION;
use seriatim_schemas::id::{RecordId, Sha256Digest};
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::pattern::Pattern;
use seriatim_schemas::row::{EventRow, Head, Snapshot};
use seriatim_schemas::version::{Version, VersionKind, rank_of};
use uuid::Uuid;

use crate::candidate::{Candidate, Cause, Meaning};
use crate::decide::sequence::Release;
use crate::decide::{Decisions, Verdict, View, decide};
use crate::reduce::Delta;

pub const NOW_MS: i64 = 1_700_000_000_000;

/// Types from lowest to highest, for events of one version.
const RANK: [&str; 3] = ["created", "*", "deleted"];
const TOMBSTONE: &str = "deleted";

/// What a source declares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Declared {
    pub ties_by_log: bool,
    pub delivers_stale: bool,
}

/// An event as a provider means it.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub id: String,
    pub version: Option<u64>,
    pub event_type: String,
    pub body: String,
    pub is_delta: bool,
    pub is_undecidable: bool,
    /// An operator's act: the object's order begins anew.
    pub is_reset: bool,
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
            is_reset: false,
        }
    }

    pub fn candidate(&self, record: RecordId, declared: Declared) -> Candidate {
        Candidate {
            is_numbered: false,
            delivers_stale: declared.delivers_stale,
            record,
            event_row: self.id.clone(),
            event_type: if self.is_reset { RESET_VERSION.to_owned() } else { self.event_type.clone() },
            version: self.version.map(|v| v.to_string()),
            digest: Sha256Digest::of(self.body.as_bytes()),
            meaning: self.meaning(declared),
            position: format!("topic/0/{}", record.item),
        }
    }

    fn meaning(&self, declared: Declared) -> Meaning {
        if self.is_undecidable {
            return Meaning::Dead(Cause { cause: "version", detail: "of another unit".to_owned() });
        } else if self.is_reset {
            return Meaning::ResetVersion;
        } else if self.is_delta {
            return Meaning::Delta;
        }
        let ranks: Vec<_> = RANK.iter().map(|r| Pattern((*r).to_owned())).collect();
        let text = self.version.expect("a snapshot has a version").to_string();
        let version = Version::parse(&text, VersionKind::Integer, &[]).expect("an integer");
        let tie = if declared.ties_by_log { "" } else { &self.id };
        let order_key = version.order_key(rank_of(&self.event_type, &ranks), tie);
        Meaning::Snapshot { order_key, tombstone: self.event_type == TOMBSTONE }
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
        let mut view = View { head: self.head.clone(), rows: asked.collect(), ..View::default() };
        let asking = group.iter().filter(|c| view.asks_arrival(c)).map(|c| c.record);
        view.arrived = asking.filter(|record| self.arrived.contains(record)).collect();
        let fold = |delta: Delta, current: Option<&Bytes>| {
            let Delta::Candidate(index) = delta else { panic!("nothing is numbered here") };
            Ok(Some([current.map_or(&b""[..], |c| c), group[index].event_row.as_bytes(), b" "].concat().into()))
        };
        let decide = || decide(&view, group, attempt, NOW_MS, Release::Later, &fold);
        let decisions = decide();
        assert_eq!(decisions.verdicts.len(), group.len(), "each record has a verdict");
        assert_eq!(decisions, decide(), "the same input gives the same decisions");
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
        let effects = decisions.rows.iter().filter(|row| row.has_effect()).count();
        assert_eq!(head.rev, self.rev() + effects as i64, "rev counts what is sent");
        match decisions.state_from {
            None if decisions.resets_order => {}
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
            rev += i64::from(row.has_effect());
            assert!(!row.has_effect() || row.rev == rev, "revs have no gaps");
            assert!(!self.rows.contains_key(&row.row), "{} is decided once", row.row);
            let of_record = |(c, _): &(&Candidate, &Verdict)| c.record == row.record;
            let (candidate, verdict) =
                group.iter().zip(&decisions.verdicts).find(of_record).expect("a row is of a record of the group");
            let expected = match (row.outcome, row.has_effect()) {
                (Outcome::Applied, true) => Verdict::Apply { rev },
                (Outcome::Applied, false) => Verdict::Acted,
                (Outcome::Stale, true) => Verdict::Deliver { rev },
                (Outcome::Stale, false) => Verdict::Stale,
                (Outcome::Duplicate, false) => Verdict::Duplicate,
                other => panic!("no row is {other:?}"),
            };
            assert_eq!(*verdict, expected, "a row says what was decided");
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
