//! Properties of the decision, against a model that is written from the promises alone: an event counts
//! once, a snapshot counts if nothing newer did, the newest snapshot is the state.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::row::Snapshot;

use super::world::{Declared, Event, World, attempt, record};
use crate::candidate::Candidate;
use crate::decide::Verdict;

/// What a provider sent, how often and in which order it arrived, and how it was cut into groups.
#[derive(Debug, Clone)]
struct History {
    events: Vec<Event>,
    /// Indexes of `events`, each at least once.
    deliveries: Vec<usize>,
    /// Whether a group ends behind the delivery.
    cuts: Vec<bool>,
}

impl History {
    fn groups(&self) -> Vec<Vec<Candidate>> {
        let mut groups = vec![Vec::new()];
        for (number, (event, cut)) in self.deliveries.iter().zip(&self.cuts).enumerate() {
            groups
                .last_mut()
                .expect("never empty")
                .push(self.events[*event].candidate(record(number), Declared::default()));
            if *cut {
                groups.push(Vec::new());
            }
        }
        groups.retain(|group| !group.is_empty());
        groups
    }

    /// Decides all of it; the verdicts in order of delivery.
    fn settle(&self) -> (World, Vec<Verdict>) {
        let mut world = World::default();
        let groups = self.groups();
        let verdicts =
            groups.iter().enumerate().flat_map(|(number, group)| world.settle(group, attempt(number))).collect();
        (world, verdicts)
    }

    fn delivered(&self) -> impl Iterator<Item = &Event> {
        self.deliveries.iter().map(|index| &self.events[*index])
    }
}

/// Where an event stands in its object's order: version, then rank, then id.
fn place(event: &Event) -> (u64, u8, &str) {
    let rank = match event.event_type.as_str() {
        "created" => 0,
        "deleted" => 2,
        _ => 1,
    };
    (event.version.expect("snapshots have versions"), rank, &event.id)
}

fn newest(events: &[Event]) -> Option<&Event> {
    events.iter().filter(|event| !event.is_delta).max_by_key(|event| place(event))
}

/// What each delivery must do.
fn model<'a>(history: &'a History) -> Vec<&'static str> {
    let mut counted = HashSet::new();
    let mut best = None;
    let verdict = |event: &'a Event| {
        if counted.contains(&event.id) {
            return "duplicate";
        }
        if !event.is_delta {
            if best.is_some_and(|best| place(event) <= best) {
                return "stale";
            }
            best = Some(place(event));
        }
        counted.insert(&event.id);
        "applied"
    };
    history.delivered().map(verdict).collect()
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Apply { .. } => "applied",
        Verdict::Duplicate => "duplicate",
        Verdict::Stale => "stale",
        other => panic!("nothing is read twice or undecidable here: {other:?}"),
    }
}

fn assert_state(snapshot: Option<&Snapshot>, newest: Option<&Event>) {
    let is = snapshot.map(|s| (s.event_row.clone(), s.version.clone(), s.event_type.clone(), s.deleted));
    let expected = newest.map(|event| {
        let version = event.version.expect("snapshots have versions").to_string();
        (event.id.clone(), version, event.event_type.clone(), event.event_type == "deleted")
    });
    assert_eq!(is, expected, "the state is the event with the greatest order key");
}

fn event() -> impl Strategy<Value = Event> {
    // Few versions, so that ties are common; types with and without a rank.
    let types = prop_oneof![Just("created"), Just("updated"), Just("renamed"), Just("deleted")];
    (0u64..4, types, prop::bool::weighted(0.2)).prop_map(|(version, event_type, is_delta)| {
        let event_type = event_type.to_owned();
        Event { version: Some(version), event_type, is_delta, ..Event::new("") }
    })
}

/// Events with ids of their own, in an order that has nothing to do with their versions.
fn events() -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec(event(), 1..9).prop_map(|events| {
        let named = |(index, event): (usize, Event)| {
            let Event { id, body, .. } = Event::new(&format!("e{index}"));
            Event { id, body, ..event }
        };
        events.into_iter().enumerate().map(named).collect()
    })
}

fn deliveries(events: Vec<Event>) -> impl Strategy<Value = History> {
    let count = events.len();
    prop::collection::vec(0..count, 0..8)
        .prop_map(move |again| (0..count).chain(again).collect::<Vec<_>>())
        .prop_shuffle()
        .prop_flat_map(|order| (prop::collection::vec(any::<bool>(), order.len()), Just(order)))
        .prop_map(move |(cuts, deliveries)| History { events: events.clone(), deliveries, cuts })
}

fn history() -> impl Strategy<Value = History> {
    events().prop_flat_map(deliveries)
}

fn two_histories_of_the_same_events() -> impl Strategy<Value = (History, History)> {
    events().prop_flat_map(|events| (deliveries(events.clone()), deliveries(events)))
}

proptest! {
    #[test]
    fn any_order_and_any_grouping_end_in_the_same_state((one, other) in two_histories_of_the_same_events()) {
        let (one, other) = (one.settle().0, other.settle().0);
        let end = |world: &World| world.snapshot().map(|s| (s.order_key.clone(), s.event_row.clone(), s.deleted));
        prop_assert_eq!(end(&one), end(&other));
    }

    #[test]
    fn state_is_the_event_with_the_greatest_order_key(history in history()) {
        assert_state(history.settle().0.snapshot(), newest(&history.events));
    }

    #[test]
    fn each_delivery_does_what_the_model_says(history in history()) {
        let verdicts = history.settle().1;
        prop_assert_eq!(verdicts.iter().map(word).collect::<Vec<_>>(), model(&history));
    }

    #[test]
    fn each_event_is_applied_at_most_once_and_each_delta_exactly_once(history in history()) {
        let mut applied: HashMap<&str, usize> = HashMap::new();
        let verdicts = history.settle().1;
        for (event, verdict) in history.delivered().zip(&verdicts) {
            *applied.entry(&event.id).or_default() += usize::from(matches!(verdict, Verdict::Apply { .. }));
        }
        for event in &history.events {
            let times = applied[event.id.as_str()];
            prop_assert!(times <= 1, "{} was applied {times} times", event.id);
            prop_assert!(!event.is_delta || times == 1, "delta {} was applied {times} times", event.id);
        }
    }

    #[test]
    fn revs_count_from_one_without_gaps(history in history()) {
        let (world, verdicts) = history.settle();
        let revs: Vec<_> = verdicts.iter().filter_map(|v| if let Verdict::Apply { rev } = v { Some(*rev) } else { None }).collect();
        prop_assert_eq!(&revs, &(1..=revs.len() as i64).collect::<Vec<_>>());
        prop_assert_eq!(world.rev(), revs.len() as i64);
    }

    #[test]
    fn versions_of_applied_snapshots_never_decrease(history in history()) {
        let verdicts = history.settle().1;
        let applied = history.delivered().zip(&verdicts).filter(|(event, v)| !event.is_delta && matches!(v, Verdict::Apply { .. }));
        let versions: Vec<_> = applied.map(|(event, _)| event.version).collect();
        prop_assert!(versions.is_sorted(), "{versions:?}");
    }

    /// The batch of a lost answer may or may not have been written.
    #[test]
    fn lost_answers_change_no_verdict(history in history(), written in prop::collection::vec(any::<bool>(), 16)) {
        let mut world = World::default();
        for (number, (group, is_written)) in history.groups().iter().zip(written.iter().cycle()).enumerate() {
            let first = world.decide(group, attempt(number));
            if *is_written {
                world.commit(&first);
            }
            prop_assert_eq!(world.settle(group, attempt(number)), first.verdicts);
        }
        let (undisturbed, _) = history.settle();
        prop_assert_eq!(world.head, undisturbed.head);
        prop_assert_eq!(world.rows.len(), undisturbed.rows.len());
    }

    /// As after a crash: the log is read again from any place before its end.
    #[test]
    fn reading_records_again_decides_nothing_new(history in history(), from in 0usize..16, arrived in 0usize..16) {
        let (mut world, verdicts) = history.settle();
        let before = world.clone();
        world.arrived = (0..arrived).map(record).collect();
        let again = World::decide(&world, &history.groups().concat()[from.min(verdicts.len())..], attempt(usize::MAX));
        prop_assert_eq!(&again.head, &None);
        for ((number, first), again) in verdicts.iter().enumerate().skip(from).zip(again.verdicts) {
            let expected = match first {
                Verdict::Apply { .. } if number < arrived => Verdict::Done,
                Verdict::Apply { rev } => Verdict::Resend { rev: *rev, outcome: Outcome::Applied },
                other => other.clone(),
            };
            prop_assert_eq!(again, expected);
        }
        prop_assert_eq!(world.head, before.head);
    }

    /// The head alone keeps old snapshots out.
    #[test]
    fn snapshots_of_any_age_change_nothing_after_their_rows_expired(history in history()) {
        let (mut world, _) = history.settle();
        world.rows.clear();
        let before = world.clone();
        let snapshots: Vec<_> = history.groups().concat().into_iter().zip(history.delivered()).filter(|(_, e)| !e.is_delta).collect();
        for (candidate, event) in snapshots {
            let is_state = newest(&history.events) == Some(event);
            let expected = if is_state { Verdict::Duplicate } else { Verdict::Stale };
            prop_assert_eq!(world.settle(&[candidate], attempt(usize::MAX)), [expected]);
        }
        prop_assert_eq!((world.rev(), world.snapshot()), (before.rev(), before.snapshot()));
    }
}

#[test]
fn all_orders_of_five_versions_in_all_groupings_end_in_the_last() {
    let events: Vec<_> = (1..=5).map(|v| Event { version: Some(v), ..Event::new(&format!("e{v}")) }).collect();
    let orders = permutations(events.len());
    assert_eq!(orders.len(), 120);
    for deliveries in orders {
        for cuts in 0..1 << 4 {
            let cuts = (0..5).map(|at| cuts >> at & 1 == 1).collect();
            let history = History { events: events.clone(), deliveries: deliveries.clone(), cuts };
            let (world, verdicts) = history.settle();
            assert_eq!(verdicts.iter().map(word).collect::<Vec<_>>(), model(&history), "{history:?}");
            assert_state(world.snapshot(), Some(&events[4]));
        }
    }
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    let Some(last) = count.checked_sub(1) else { return vec![Vec::new()] };
    let insert = |order: Vec<usize>| {
        (0..count).map(move |at| {
            let mut order = order.clone();
            order.insert(at, last);
            order
        })
    };
    permutations(last).into_iter().flat_map(insert).collect()
}
