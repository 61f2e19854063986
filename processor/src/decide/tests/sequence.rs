//! Numbered deltas, decided as [`crate::sequence`] does it: a group, then releases until nothing is left to do.
//!
//! ```text
//! e1 n1, e3 n3 -> applied, held     one group; `e3 n3 r1` by a named record, `x3 n3 #x` of another body
//! pass 4 -> acted                   a control record
//! fold e1 e2 e3     next 4     held 5 7     nothing held
//! ```
//! The object starts at 1, unless the script begins with `no start`. The reducer refuses what is called `bad..`.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use proptest::prelude::*;
use seriatim_schemas::id::{RecordId, Sha256Digest};
use seriatim_schemas::row::{EventRow, Head};
use seriatim_schemas::sequence::Sequence;

use super::world::{NOW_MS, attempt, record};
use crate::candidate::{Candidate, Cause, Meaning};
use crate::decide::sequence::{Fate, HELD_MAX, Release, Seen, SequenceView};
use crate::decide::{Decisions, Verdict, View, decide};
use crate::reduce::Delta;

/// Held events that one batch releases: few, so that releases take several.
const RELEASE_MAX: usize = 2;

#[test]
fn in_order_nothing_is_held() {
    check("e1 n1, e2 n2 -> applied, applied | e3 n3 -> applied | fold e1 e2 e3 | next 4 | nothing held");
}

#[test]
fn an_event_ahead_of_its_turn_is_held_until_it_comes() {
    check("e2 n2 -> held | held 2 | fold - | e1 n1 -> stored | fold e1 e2 | next 3 | nothing held");
    check("e3 n3, e2 n2 -> held, held | held 2 3 | e1 n1 -> stored | fold e1 e2 e3");
    check("e2 n2, e1 n1 -> held, stored | fold e1 e2 | next 3");
    check("e1 n1, e3 n3, e2 n2, e4 n4 -> applied, held, stored, stored | fold e1 e2 e3 e4");
}

#[test]
fn a_release_takes_as_many_batches_as_it_needs_and_nothing_passes_it() {
    check(
        "e7 n7, e6 n6, e5 n5, e4 n4, e3 n3, e2 n2 -> held, held, held, held, held, held | e1 n1, d1 delta, e8 n8 -> stored, stored, stored | fold e1 e2 e3 e4 e5 e6 e7 d1 e8",
    );
}

#[test]
fn a_duplicate_is_one_wherever_its_event_is() {
    check("e1 n1 -> applied | e1 n1 -> duplicate | fold e1");
    check("e2 n2 -> held | e2 n2 -> duplicate | e1 n1 -> stored | e2 n2 -> duplicate | fold e1 e2");
    check("e2 n2, e2 n2, e1 n1, e1 n1 -> held, duplicate, stored, duplicate | fold e1 e2");
    check("e1 n1 -> applied | rows expire | e1 n1 -> duplicate | fold e1");
}

#[test]
fn the_record_that_was_held_is_held_when_it_is_read_again() {
    check("e2 n2 r1 -> held | e2 n2 r1 -> held | e2 n2 r2 -> duplicate | held 2");
    check("e2 n2 r1 -> held | e1 n1 -> stored | e2 n2 r1 -> resent | fold e1 e2");
}

#[test]
fn one_number_has_one_event() {
    check("e2 n2 -> held | x2 n2 #x -> dead sequence_taken | held 2");
    check("e2 n2, x2 n2 #x -> held, dead sequence_taken");
    check("e1 n1 -> applied | x1 n1 #x -> dead sequence_taken | fold e1");
    check("e1 n1, x1 n1 #x -> applied, dead sequence_taken | fold e1");
    // The same body under another id is the same event.
    check("e1 n1 #x -> applied | x1 n1 #x -> duplicate");
    check("e2 n2 #x -> held | x2 n2 #x -> duplicate");
}

#[test]
fn one_event_under_two_numbers_is_applied_once() {
    check("e1 n1 -> applied | e1 n2 -> duplicate | next 2");
    check("e2 n2, e2 n3 -> held, held | e1 n1 -> stored | fold e1 e2 | next 4 | nothing held");
}

#[test]
fn a_gap_is_passed_in_order_and_once() {
    check(
        "e1 n1 -> applied | e4 n4, e5 n5 -> held, held | pass 4 -> acted | fold e1 e4 e5 | next 6 | pass 4 -> acted | next 6",
    );
    check("e3 n3, e5 n5, e8 n8 -> held, held, held | pass 5 -> acted | fold e3 e5 | next 6 | held 8");
    check("e1 n1, e2 n2 -> applied, applied | pass 2 -> acted | next 3");
    check("pass 9 -> acted | e9 n9 -> applied | next 10");
    check("e7 n7 -> held | pass 5 -> acted | next 5 | held 7 | e5 n5, e6 n6 -> applied, stored | fold e5 e6 e7");
}

#[test]
fn what_comes_after_its_number_was_passed_is_not_lost_silently() {
    check(
        "e3 n3 -> held | pass 3 -> acted | e1 n1 -> dead passed | e2 n2 -> dead passed | e3 n3 -> duplicate | fold e3",
    );
}

#[test]
fn the_first_number_is_waited_for_where_no_start_is_declared() {
    check(
        "no start | e5 n5 -> held | e6 n6 -> held | e4 n4 -> held | pass 4 -> acted | fold e4 e5 e6 | e3 n3 -> dead passed",
    );
}

#[test]
fn a_dead_event_leaves_its_number_open() {
    check("bad1 n1 -> dead reducer | next none | e1 n1 -> applied | next 2");
    check(
        "bad2 n2, e3 n3 -> held, held | e1 n1 -> stored | fold e1 | next 2 | held 3 | e2 n2 -> stored | fold e1 e2 e3",
    );
    check("bad2 n2, e3 n3 -> held, held | e1 n1 -> stored | pass 3 -> acted | fold e1 e3 | next 4");
}

#[test]
fn a_backlog_is_bounded() {
    let mut world = World::new(true);
    for number in 2..HELD_MAX + 2 {
        assert!(matches!(world.settle(&[numbered("e", number, number as usize)])[..], [Verdict::Hold { .. }]));
    }
    let one_too_many = world.settle(&[numbered("e", HELD_MAX + 2, 5000)]);
    assert!(matches!(&one_too_many[..], [Verdict::Dead(Cause { cause: "backlog_full", .. })]), "{one_too_many:?}");
    world.settle(&[numbered("e", 1, 1)]);
    assert_eq!(world.sequence().next, Some(HELD_MAX + 2));
    assert!(world.backlog.is_empty());
}

#[test]
fn a_held_event_that_the_store_refuses_is_dead_and_the_rest_waits_for_its_number() {
    let mut world = World::new(true);
    world.settle(&[numbered("e", 2, 2), numbered("e", 3, 3)]);
    world.refused.insert(2, "too large".to_owned());
    world.settle(&[numbered("e", 1, 1)]);
    assert_eq!((world.fold(), world.dead.as_slice()), ("e1".to_owned(), &["e2".to_owned()][..]));
    assert_eq!((world.sequence().next, world.sequence().behind_gap()), (Some(2), Some(3)));
}

#[test]
fn a_gap_begins_when_it_is_seen_and_again_when_another_number_is_missing() {
    let mut world = World::new(true);
    world.now_ms = 10;
    world.settle(&[numbered("e", 4, 4)]);
    world.now_ms = 20;
    world.settle(&[numbered("e", 3, 3)]);
    assert_eq!(world.sequence().since_ms, Some(10), "the gap is the same");
    world.settle(&[numbered("e", 1, 1)]);
    assert_eq!(world.sequence().since_ms, Some(20), "another number is missing");
    world.settle(&[numbered("e", 2, 2)]);
    assert_eq!(world.sequence().since_ms, None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_order_with_any_duplicates_applies_each_once_in_order(
        (count, order, cuts) in (1usize..14).prop_flat_map(|count| {
            let more = prop::collection::vec(0..count, 0..10);
            let order = more.prop_map(move |more| (0..count).chain(more).collect::<Vec<_>>()).prop_shuffle();
            (Just(count), order, prop::collection::vec(any::<bool>(), 24))
        })
    ) {
        let mut world = World::new(true);
        let mut group = Vec::new();
        for (at, index) in order.iter().enumerate() {
            group.push(numbered("e", *index as u64 + 1, 100 + at));
            if cuts[at] {
                world.settle(&std::mem::take(&mut group));
            }
        }
        world.settle(&group);
        let all: Vec<_> = (1..=count).map(|n| format!("e{n}")).collect();
        prop_assert_eq!(world.fold(), all.join(" "));
        prop_assert!(world.backlog.is_empty() && world.dead.is_empty());
        let revs: Vec<_> = (1..=count).map(|n| world.rows[&format!("e{n}")].rev).collect();
        prop_assert_eq!(revs, (1..=count as i64).collect::<Vec<_>>());
    }

    /// Whatever is missing, and wherever passes stand: what was not dead is applied, in order.
    #[test]
    fn any_gaps_and_passes_keep_the_order(
        steps in prop::collection::vec((1u64..12, prop::bool::weighted(0.15)), 1..40),
        has_start in any::<bool>(),
    ) {
        let mut world = World::new(has_start);
        let (mut applied, mut held, mut next) = (Vec::new(), BTreeMap::new(), has_start.then_some(1u64));
        let mut seen = HashSet::new();
        for (at, (number, is_pass)) in steps.into_iter().enumerate() {
            let verdicts = if is_pass {
                world.settle(&[pass(number, at)])
            } else {
                world.settle(&[numbered("e", number, at)])
            };
            // The model: a walk that knows nothing of batches.
            let is_new = !is_pass && next.is_none_or(|next| number >= next) && seen.insert(number);
            if is_new {
                held.insert(number, format!("e{number}"));
            }
            if is_pass && next.is_none_or(|next| number > next) {
                let rest = held.split_off(&number);
                applied.extend(std::mem::replace(&mut held, rest).into_values());
                next = Some(number);
            }
            while let Some(event) = next.and_then(|next| held.remove(&next)) {
                applied.push(event);
                next = next.map(|next| next + 1);
            }
            prop_assert_eq!(world.fold(), applied.join(" "));
            prop_assert_eq!(world.backlog.keys().copied().collect::<Vec<_>>(), held.keys().copied().collect::<Vec<_>>());
            let is_late = !is_pass && !is_new;
            prop_assert!(!is_late || matches!(verdicts[0], Verdict::Duplicate | Verdict::Dead(_)), "{:?}", verdicts);
        }
    }
}

fn candidate(id: &str, meaning: Meaning, version: Option<u64>, body: &str, of: RecordId) -> Candidate {
    Candidate {
        is_numbered: false,
        record: of,
        event_row: id.to_owned(),
        event_type: "paid".to_owned(),
        version: version.map(|v| v.to_string()),
        digest: Sha256Digest::of(body.as_bytes()),
        meaning,
        delivers_stale: false,
        position: format!("topic/0/{}", of.item),
    }
}

fn numbered(name: &str, number: u64, of: usize) -> Candidate {
    let id = format!("{name}{number}");
    candidate(&id, Meaning::Numbered { number, start: None }, Some(number), &id, record(of))
}

fn pass(to: u64, of: usize) -> Candidate {
    candidate(&format!("~control/{of}"), Meaning::Pass { to }, None, "", record(of))
}

/// One object as a store holds it.
struct World {
    start: Option<u64>,
    head: Option<Head>,
    rows: HashMap<String, EventRow>,
    backlog: BTreeMap<u64, Candidate>,
    dead: Vec<String>,
    refused: BTreeMap<u64, String>,
    attempts: usize,
    now_ms: i64,
}

impl World {
    fn new(has_start: bool) -> Self {
        Self {
            start: has_start.then_some(1),
            head: None,
            rows: HashMap::new(),
            backlog: BTreeMap::new(),
            dead: Vec::new(),
            refused: BTreeMap::new(),
            attempts: 0,
            now_ms: NOW_MS,
        }
    }

    fn sequence(&self) -> Sequence {
        self.head.as_ref().and_then(|head| head.sequence.clone()).unwrap_or_default()
    }

    fn fold(&self) -> String {
        let fold = self.head.as_ref().and_then(|head| head.fold.clone()).unwrap_or_default();
        String::from_utf8(fold.to_vec()).expect("text")
    }

    /// A group, and then releases, until all is decided.
    fn settle(&mut self, group: &[Candidate]) -> Vec<Verdict> {
        let mut group = group.to_vec();
        for candidate in &mut group {
            if let Meaning::Numbered { start, .. } = &mut candidate.meaning {
                *start = self.start;
            }
        }
        let mut verdicts = Vec::new();
        let mut release = Release::Later;
        loop {
            let rest = &group[verdicts.len()..];
            let turn = self.head.as_ref().map_or(0, |head| head.turn);
            let decisions = self.decide(rest, release);
            self.commit(rest, &decisions);
            let decided = decisions.verdicts.into_iter().take_while(|v| *v != Verdict::Later);
            let is_stored = release != Release::Later;
            verdicts.extend(decided.map(|verdict| match verdict {
                Verdict::Apply { rev } if is_stored => {
                    Verdict::Stored { rev, outcome: seriatim_schemas::outcome::Outcome::Applied }
                }
                other => other,
            }));
            if verdicts.len() == group.len() && !decisions.backlog.is_unfinished {
                return verdicts;
            }
            let has_moved = self.head.as_ref().map_or(0, |head| head.turn) > turn;
            assert!(has_moved || release == Release::Later, "a release gets on");
            release = Release::UpTo(RELEASE_MAX);
        }
    }

    fn decide(&mut self, group: &[Candidate], release: Release) -> Decisions {
        self.attempts += 1;
        let lowest = self.backlog.keys().copied().take(RELEASE_MAX).collect::<HashSet<_>>();
        let numbers: HashSet<_> = group.iter().filter_map(number_of).collect();
        let is_read = |number: &u64| numbers.contains(number) || (release != Release::Later && lowest.contains(number));
        let held: BTreeMap<_, _> = self.backlog.clone().into_iter().filter(|(n, _)| is_read(n)).collect();
        let seen = |row: &EventRow| {
            let number = row.version.as_ref()?.parse().ok().filter(|number| numbers.contains(number))?;
            Some((number, Seen { event_row: row.row.clone(), digest: row.digest }))
        };
        let behind = self.rows.values().filter_map(seen).collect();
        let refused = self.refused.clone();
        let view = View {
            head: self.head.clone(),
            rows: self.rows.clone(),
            arrived: HashSet::new(),
            sequence: SequenceView { held: held.clone(), behind, refused },
            ..View::default()
        };
        let fold = |delta: Delta, current: Option<&Bytes>| {
            let id = match delta {
                Delta::Candidate(index) => &group[index].event_row,
                Delta::Held(number) => &held[&number].event_row,
            };
            if id.starts_with("bad") {
                return Err(Cause { cause: "reducer", detail: id.clone() });
            }
            let text = current.map(|c| format!("{} ", String::from_utf8_lossy(c))).unwrap_or_default();
            Ok(Some(Bytes::from(text + id)))
        };
        let decisions = decide(&view, group, attempt(self.attempts), self.now_ms, release, &fold);
        let again = decide(&view, group, attempt(self.attempts), self.now_ms, release, &fold);
        assert_eq!(decisions, again, "the same input gives the same decisions");
        decisions
    }

    fn commit(&mut self, group: &[Candidate], decisions: &Decisions) {
        let Some(head) = &decisions.head else {
            assert!(decisions.rows.is_empty() && decisions.backlog.held.is_empty());
            assert!(decisions.backlog.released.is_empty());
            return;
        };
        let turn = self.head.as_ref().map_or(0, |head| head.turn);
        assert_eq!(head.turn, turn + 1);
        for row in &decisions.rows {
            assert!(self.rows.insert(row.row.clone(), row.clone()).is_none(), "{} is decided once", row.row);
        }
        for released in &decisions.backlog.released {
            let gone = self.backlog.remove(&released.number).expect("only what is held is released");
            assert_eq!(gone.record, released.record);
            if let Fate::Dead(_) = released.fate {
                self.dead.push(gone.event_row);
            }
        }
        for (number, index) in &decisions.backlog.held {
            assert!(self.backlog.insert(*number, group[*index].clone()).is_none(), "{number} is held once");
        }
        let sequence = head.sequence.clone().unwrap_or_default();
        assert_eq!(sequence.held.count(), self.backlog.len() as u64, "the head knows what is held");
        assert!(self.backlog.keys().all(|number| sequence.held.has(*number)));
        assert_eq!(sequence.since_ms.is_some(), sequence.behind_gap().is_some(), "a gap has a beginning");
        self.head = Some(head.clone());
    }
}

fn number_of(candidate: &Candidate) -> Option<u64> {
    match candidate.meaning {
        Meaning::Numbered { number, .. } => Some(number),
        _ => None,
    }
}

fn check(script: &str) {
    let mut world = World::new(!script.starts_with("no start"));
    let mut records = 1000;
    for (at, step) in script.split('|').map(str::trim).enumerate() {
        let words: Vec<_> = step.split_whitespace().collect();
        let numbers = |words: &[&str]| words.iter().map(|w| w.parse().expect("a number")).collect::<Vec<u64>>();
        match words.as_slice() {
            ["no", "start"] => {}
            ["rows", "expire"] => world.rows.clear(),
            ["fold", "-"] => assert_eq!(world.fold(), "", "{script}"),
            ["fold", events @ ..] => assert_eq!(world.fold(), events.join(" "), "{script}"),
            ["next", "none"] => assert_eq!(world.sequence().next, None, "{script}"),
            ["next", next] => assert_eq!(world.sequence().next, next.parse().ok(), "{script}"),
            ["nothing", "held"] => assert!(world.backlog.is_empty(), "{script}"),
            ["held", held @ ..] => {
                assert_eq!(world.backlog.keys().copied().collect::<Vec<_>>(), numbers(held), "{script}");
            }
            _ => {
                let (events, expected) = step.split_once("->").unwrap_or_else(|| panic!("step {at} of {script}"));
                let group: Vec<_> = events.split(',').map(|text| read_event(text, &mut records)).collect();
                let found: Vec<_> = world.settle(&group).iter().map(word).collect();
                let expected: Vec<_> = expected.split(',').map(|text| text.trim().to_owned()).collect();
                assert_eq!(found, expected, "step {at} of {script}");
            }
        }
    }
}

fn read_event(text: &str, records: &mut usize) -> Candidate {
    *records += 1;
    let words: Vec<_> = text.split_whitespace().collect();
    if let ["pass", to] = words.as_slice() {
        return pass(to.parse().expect("a number"), *records);
    }
    let (mut meaning, mut body, mut of) = (Meaning::Delta, words[0].to_owned(), record(*records));
    let mut version = None;
    for word in &words[1..] {
        match word.split_at(1) {
            ("n", number) => {
                let number = number.parse().expect("a number");
                (meaning, version) = (Meaning::Numbered { number, start: None }, Some(number));
            }
            ("#", text) => body = text.to_owned(),
            ("r", number) => of = record(number.parse().expect("a number")),
            _ => {}
        }
    }
    candidate(words[0], meaning, version, &body, of)
}

fn word(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Apply { .. } => "applied".to_owned(),
        Verdict::Stored { .. } => "stored".to_owned(),
        Verdict::Hold { .. } => "held".to_owned(),
        Verdict::Duplicate => "duplicate".to_owned(),
        Verdict::Acted => "acted".to_owned(),
        Verdict::Resend { .. } => "resent".to_owned(),
        Verdict::Dead(cause) => format!("dead {}", cause.cause),
        other => panic!("nothing here is {other:?}"),
    }
}
