//! The decision, as tables: see [`script`] for how to read one.

mod exhaustive;
mod properties;
mod script;
mod sequence;
mod world;

use script::check;
use seriatim_schemas::outcome::Outcome;
use world::{Declared, Event, World, attempt, record};

use super::Verdict;

#[test]
fn newer_versions_are_applied_and_older_ones_are_stale() {
    check(
        "e1 v1 -> applied | e1 v1 -> duplicate | e3 v3 -> applied | e2 v2 -> stale | state e3 v3 live | rev 2 | turn 2",
    );
    check("e9 v9 -> applied | e10 v10 -> applied | e2 v2 -> stale | state v10");
    check("e0 v0 -> applied rev 1 | e1 v1 -> applied rev 2 | e00 v0 -> stale | state v1");
}

#[test]
fn stale_event_stays_stale_however_often_it_comes() {
    check(
        "e3 v3 -> applied | e2 v2 -> stale | e2 v2 -> stale | e2 v2, e1 v1, e2 v2 -> stale, stale, stale | state e3 | rev 1 | turn 1",
    );
}

#[test]
fn duplicate_within_a_group_counts_once() {
    check(
        "e1 v1, e1 v1, e2 v2, e1 v1, e2 v2 -> applied rev 1, duplicate, applied rev 2, duplicate, duplicate | state e2 | rev 2 | turn 1",
    );
    check("e1 delta, e1 delta, e1 delta -> applied rev 1, duplicate, duplicate | rev 1");
}

#[test]
fn duplicate_across_groups_counts_once() {
    check(
        "e1 v1 -> applied | e2 v2 -> applied | e1 v1 -> duplicate | e2 v2, e1 v1 -> duplicate, duplicate | state e2 | rev 2 | turn 2",
    );
    check("e1 delta -> applied | e1 delta -> duplicate | rev 1 | turn 1");
}

#[test]
fn event_id_names_the_event_whatever_else_changes() {
    check("e1 v1 -> applied | e1 v5 deleted #other -> duplicate | state e1 v1 live | rev 1");
    check("e1 v1, e1 v5 deleted #other -> applied, duplicate | state e1 v1 live | rev 1");
}

#[test]
fn one_group_is_decided_as_many() {
    check(
        "e1 v1, e3 v3, e2 v2, e4 v4 -> applied rev 1, applied rev 2, stale, applied rev 3 | state e4 v4 | rev 3 | turn 1",
    );
    check("e1 v1 -> applied | e3 v3 -> applied | e2 v2 -> stale | e4 v4 -> applied | state e4 v4 | rev 3 | turn 3");
}

#[test]
fn events_of_one_version_are_ordered_by_event_id() {
    check("e1 v1 -> applied | e2 v1 -> applied | e1x v1 -> stale | state e2 v1 | rev 2");
    check("e2 v1 -> applied | e1 v1 -> stale | e3 v1 -> applied | state e3 v1 | rev 2");
    check("e2 v1, e1 v1, e3 v1 -> applied, stale, applied | state e3 v1 | rev 2");
}

#[test]
fn events_of_one_version_are_ordered_by_rank_before_event_id() {
    check("e9 v1 created -> applied | e1 v1 updated -> applied | e0 v1 deleted -> applied | state e0 deleted");
    check("e0 v1 deleted -> applied | e1 v1 updated -> stale | e9 v1 created -> stale | state e0 deleted");
    check("e1 v2 created -> applied | e9 v1 deleted -> stale | state e1 v2 live");
}

#[test]
fn later_record_wins_where_ties_go_by_log() {
    check(
        "ties by log | e2 v1 -> applied | e1 v1 -> applied | state e1 v1 | e3 v1, e0 v1 -> applied, applied | state e0 | rev 4",
    );
    check("ties by log | e2 v1 -> applied | e1 v1 -> applied | e2 v1 -> duplicate | state e1 | rev 2");
    check("ties by log | e1 v1 updated -> applied | e2 v1 created -> stale | e3 v0 -> stale | state e1");
}

#[test]
fn late_update_does_not_lift_a_tombstone() {
    check(
        "e1 v1 created -> applied | e3 v3 deleted -> applied | e2 v2 -> stale | e1 v1 created -> duplicate | state e3 v3 deleted",
    );
    check(
        "e3 v3 deleted -> applied | e1 v1 created, e2 v2 -> stale, stale | rows expire | e2 v2 -> stale | state e3 v3 deleted | rev 1",
    );
}

#[test]
fn update_of_the_version_of_a_delete_loses_by_rank() {
    check("e1 v2 deleted -> applied | e2 v2 updated -> stale | state e1 deleted");
    check("e2 v2 updated -> applied | e1 v2 deleted -> applied | state e1 deleted");
    check("e2 v2 updated, e1 v2 deleted, e3 v2 created -> applied, applied, stale | state e1 deleted");
}

#[test]
fn greater_order_key_lifts_a_tombstone() {
    check(
        "e1 v1 -> applied | e2 v2 deleted -> applied | e3 v3 created -> applied | e2 v2 deleted -> duplicate | state e3 live",
    );
    check("e2 v2 deleted, e3 v3 -> applied, applied | state e3 live | rev 2 | turn 1");
}

#[test]
fn equal_event_under_another_id_is_a_duplicate() {
    // The greater id becomes the state's, without an effect; the lesser one changes nothing.
    check("e1 v1 #x -> applied | e2 v1 #x -> duplicate | e0 v1 #x -> duplicate | state e2 v1 | rev 1 | turn 3");
    check("e1 v1 #x, e2 v1 #x -> applied, duplicate | rev 1");
    check("e1 v1 deleted #x -> applied | e2 v1 deleted #x -> duplicate | state e2 deleted | rev 1");
    check("ties by log | e1 v1 #x -> applied | e2 v1 #x -> duplicate | rev 1");
    check("e1 v1 #x -> applied | rows expire | e2 v1 #x -> duplicate | rev 1");
}

#[test]
fn event_that_differs_in_version_type_or_body_is_not_equal() {
    check("e1 v1 #x -> applied | e2 v2 #x -> applied | state e2 | rev 2");
    check("e1 v1 #x -> applied | e2 v1 deleted #x -> applied | state e2 deleted | rev 2");
    check("e1 v1 #x -> applied | e2 v1 #y -> applied | state e2 #y | rev 2");
}

/// `e3` has the greatest order key, so its body is the state, whichever of its equals came first.
#[test]
fn equal_events_under_several_ids_end_in_the_same_state_in_any_order() {
    check("e2 v1 #y -> applied | e1 v1 #x -> stale | e3 v1 #x -> applied | state v1 #x");
    check("e2 v1 #y -> applied | e3 v1 #x -> applied | e1 v1 #x -> any | state v1 #x");
    check("e3 v1 #x -> applied | e1 v1 #x -> duplicate | e2 v1 #y -> stale | state v1 #x");
    check("e3 v1 #x -> applied | e2 v1 #y -> stale | e1 v1 #x -> duplicate | state v1 #x");
    check("e1 v1 #x -> applied | e2 v1 #y -> applied | e3 v1 #x -> applied | state v1 #x");
    check("e1 v1 #x -> applied | e3 v1 #x -> any | e2 v1 #y -> any | state v1 #x");
}

/// All of it is committed, so the second look at it must find nothing to commit.
#[test]
fn equal_event_is_not_applied_after_all_when_an_answer_was_lost() {
    let group = "e1 v1 #x r1, e3 v1 #x r2, e2 v1 #y r3";
    check(&format!("{group} -> any, any, any | again {group} -> any, any, any | turn 1"));
    check(&format!("{group} -> any, any, any | {group} -> any, any, any | turn 1"));
}

/// Its row says so, whatever the state has become.
#[test]
fn equal_event_stays_a_duplicate() {
    let group = "e2 v1 #x r1, e3 v1 #x r2, e1 v1 #y r3";
    check(&format!(
        "ties by log | {group} -> applied, duplicate, applied | {group} -> resent rev 1, duplicate, resent rev 2 | e3 v1 #x -> duplicate | state e1 #y | rev 2 | turn 1"
    ));
    check(
        "e1 v1 #x -> applied | e3 v1 #x r2 -> duplicate | e4 v1 #y -> applied | e3 v1 #x r2 -> duplicate | arrival of r2 | e3 v1 #x r2 -> done | state e4",
    );
    check("e2 v1 #x -> applied | e1 v1 #x -> duplicate | reset -> acted | e1 v1 #x -> duplicate | state e2 | rev 1");
    check(
        "ties by log | e1 v1 #x -> applied | rows expire | e1 v1 #x -> duplicate | e2 v1 #y -> applied | e1 v1 #x -> duplicate | state e2",
    );
}

/// What is in the ledger stays there, though the state has come to say the same since.
#[test]
fn stale_event_stays_so_when_its_equal_becomes_the_state() {
    let before = "e2 v1 #y r1 -> applied | e1 v1 #x r2 -> stale | e3 v1 #x r3 -> applied";
    check(&format!("{before} | arrival of r2 | e1 v1 #x r2 -> done | e1 v1 #x r2 -> done | turn 2"));
    check(&format!("{before} | e1 v1 #x r2 -> duplicate | e4 v1 #z -> applied | e1 v1 #x r2 -> duplicate | state e4"));
}

#[test]
fn stale_event_of_another_type_is_delivered_once_where_a_sink_asks_for_it() {
    check(
        "stale is delivered | e3 v3 r1 -> applied | e1 v1 created r2 -> delivered rev 2 | again e1 v1 created r2 -> delivered rev 2 | e1 v1 created r2 -> resent rev 2 | e1 v1 created -> duplicate | arrival of r2 | e1 v1 created r2 -> done | state e3 | rev 2 | turn 2",
    );
}

/// It told nothing new when it came, so it does not when it is read again, or comes again.
#[test]
fn stale_event_that_was_not_delivered_is_not_when_the_type_of_the_state_has_changed() {
    check(
        "stale is delivered | e2 v2 -> applied | e1 v1 r1 -> stale | again e1 v1 r1 -> stale | e3 v3 deleted -> applied | e1 v1 r1 -> stale | e1 v1 -> duplicate | arrival of r1 | e1 v1 r1 -> done | rev 2",
    );
    let group = "e1 v1 #y r1, e2 v1 #x r2, e3 v1 #x r3, e0 v2 deleted r4";
    check(&format!(
        "stale is delivered | {group} -> applied, applied, duplicate, applied | {group} -> any, any, duplicate, any | rev 3 | turn 1"
    ));
}

#[test]
fn delta_counts_once_and_never_touches_state() {
    check("e1 delta -> applied rev 1 | no state | e2 delta -> applied rev 2 | no state | rev 2 | turn 2");
    check(
        "e5 v5 -> applied | e1 v1 delta -> applied | e9 v9 delta -> applied | state e5 v5 | e6 v6 -> applied | state e6 v6 | rev 4",
    );
    check("e1 delta -> applied | e1 v1 -> duplicate | no state | e0 v0 -> applied rev 2 | state e0 v0");
    check("e3 v3 deleted -> applied | e4 v4 delta -> applied | state e3 deleted | e2 v2 -> stale");
    check(
        "e1 v1, d1 v7 delta, e3 v3, d1 v7 delta, e2 v2 -> applied, applied, applied, duplicate, stale | state e3 | rev 3",
    );
}

#[test]
fn delta_of_an_equal_event_is_not_dropped() {
    check("e1 v1 #x -> applied | d1 v1 #x delta -> applied | d2 v1 #x delta -> applied | state e1 | rev 3");
}

#[test]
fn undecidable_event_changes_nothing() {
    check("e1 v1 undecidable -> dead | no state | rev 0 | turn 0");
    check("e1 v1 -> applied | e9 v9 undecidable -> dead | state e1 v1 | rev 1 | turn 1");
    check("e1 v1, e9 v9 undecidable, e2 v2 -> applied rev 1, dead, applied rev 2 | state e2 v2 | rev 2 | turn 1");
}

#[test]
fn undecidable_event_is_decided_anew_when_it_comes_again() {
    check("e1 undecidable -> dead | e1 undecidable -> dead | e1 v1 -> applied rev 1 | state e1 v1");
    check("e1 undecidable, e1 v1, e1 v1 -> dead, applied rev 1, duplicate | state e1 v1");
    check("e1 v1 -> applied | e1 undecidable -> duplicate | rev 1");
    check("e1 v1, e1 undecidable -> applied, duplicate | rev 1");
}

#[test]
fn record_that_was_committed_but_not_recorded_is_sent_again_with_its_rev() {
    check(
        "e1 v1 r1 -> applied | e2 v2 r2 -> applied | e1 v1 r1, e2 v2 r2 -> resent rev 1, resent rev 2 | rev 2 | turn 2",
    );
    check("e1 delta r1 -> applied rev 1 | e2 delta -> applied rev 2 | e1 delta r1 -> resent rev 1 | rev 2");
    check("e1 v1 r1 -> applied | e1 v1 r1, e2 v2 r2 -> resent rev 1, applied rev 2 | rev 2 | turn 2");
}

#[test]
fn record_that_was_committed_and_recorded_is_done() {
    check("e1 v1 r1 -> applied | arrival of r1 | e1 v1 r1 -> done | rev 1 | turn 1");
    check("e1 v1 r1, e2 v2 r2 -> applied, applied | arrival of r1 | e1 v1 r1, e2 v2 r2 -> done, resent rev 2 | rev 2");
}

#[test]
fn row_of_the_same_attempt_is_applied_as_it_was() {
    let group = "e1 v1 r1, e1 v1 r2, e3 v3 r3, e2 v2 r4, d1 delta r5";
    let verdicts = "applied rev 1, duplicate, applied rev 2, stale, applied rev 3";
    check(&format!(
        "{group} -> {verdicts} | again {group} -> {verdicts} | again {group} -> {verdicts} | rev 3 | turn 1"
    ));
}

#[test]
fn row_of_another_attempt_is_the_truth() {
    check(
        "e1 v1 r1 -> applied rev 1 | e2 v2 r2 -> applied rev 2 | again e2 v2 r2, e1 v1 r1 -> applied rev 2, resent rev 1 | rev 2",
    );
}

#[test]
fn row_of_another_record_is_a_duplicate_recorded_or_not() {
    check("e1 v1 r1 -> applied | e1 v1 r2 -> duplicate | arrival of r1 | e1 v1 r2 -> duplicate | rev 1");
    check("e1 v1 r1 -> applied | arrival of r2 | e1 v1 r2 -> duplicate");
    check("e1 v1 r1 -> applied | again e1 v1 r2 -> duplicate | rev 1");
}

#[test]
fn resend_carries_the_outcome_of_its_row() {
    for outcome in [Outcome::Applied, Outcome::Superseded, Outcome::Stale] {
        let (mut world, mut event) = (World::default(), Event::new("e1"));
        event.version = Some(1);
        let candidate = [event.candidate(record(1), Declared::default())];
        world.settle(&candidate, attempt(1));
        world.rows.get_mut("e1").expect("e1 was decided").outcome = outcome;
        assert_eq!(world.settle(&candidate, attempt(2)), [Verdict::Resend { rev: 1, outcome }]);
    }
}

#[test]
fn head_remembers_after_event_rows_are_gone() {
    check(
        "e1 v1 -> applied | e2 v2 -> applied | rows expire | e1 v1 -> stale | e2 v2 -> duplicate | state e2 v2 | rev 2 | turn 3",
    );
    check("e1 v1 r1 -> applied | rows expire | e1 v1 r1 -> duplicate | e2 v2 -> applied rev 2 | state e2 v2");
    check("ties by log | e1 v1 r1 -> applied | rows expire | e1 v1 r2 -> duplicate | e0 v0 -> stale | rev 1");
    check("d1 delta -> applied rev 1 | rows expire | d2 delta -> applied rev 2 | e1 v1 -> applied rev 3 | turn 3");
}

#[test]
fn rev_counts_decisions_and_turn_counts_batches() {
    check(
        "e1 v1, e2 v2, d1 delta -> applied, applied, applied rev 3 | rev 3 | turn 1 | e3 v3 -> applied rev 4 | turn 2",
    );
    check(
        "e2 v2 -> applied | e1 v1, e2 v2, e0 undecidable -> stale, duplicate, dead | rev 1 | turn 1 | e3 v3 -> applied rev 2 | turn 2",
    );
}
