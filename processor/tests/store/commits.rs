//! Commit and read: all of a batch or none, each object under its turn, each event row once.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use seriatim_processor::inspect::Inspect;
use seriatim_processor::store::{Committed, Freshness, ObjectQuery, Store};
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::row::State;

use crate::sample::{
    batch, commit, delta_batch, event, events, key, object, objects_of_one_bucket, read, snapshot_of, stored, unique,
};

const LARGE_STATE_BYTES: usize = 200 * 1024;

pub async fn first_seen_object_commits<S: Store + Inspect>(store: Arc<S>) {
    let key = key(&unique("t"), "a");
    let first = batch(&key, None, &["e1"]);
    assert_eq!(commit(&*store, std::slice::from_ref(&first)).await, Committed::Applied);
    let object = object(&*store, &key).await.expect("it is there");
    assert_eq!((object.key, object.head, object.state), (key.clone(), first.head.clone(), first.state));
    assert_eq!(events(&*store, &key).await, first.rows);
    let view = read(&*store, &key, &["e1"]).await;
    assert_eq!((view.head, view.rows.get("e1")), (Some(first.head), first.rows.first()));
}

pub async fn object_never_seen_reads_as_nothing<S: Store + Inspect>(store: Arc<S>) {
    let key = key(&unique("t"), "a");
    let view = read(&*store, &key, &["e1", "e2"]).await;
    assert!(view.head.is_none() && view.rows.is_empty() && view.arrived.is_empty());
    assert_eq!(stored(&*store, &key).await, (None, Vec::new()));
}

pub async fn same_batch_again_is_refused_and_changes_nothing<S: Store + Inspect>(store: Arc<S>) {
    let key = key(&unique("t"), "a");
    let first = [batch(&key, None, &["e1", "e2"])];
    assert_eq!(commit(&*store, &first).await, Committed::Applied);
    let before = stored(&*store, &key).await;
    assert_eq!(commit(&*store, &first).await, Committed::Refused);
    assert_eq!(stored(&*store, &key).await, before);

    let second = [batch(&key, Some(&first[0].head), &["e3"])];
    assert_eq!(commit(&*store, &second).await, Committed::Applied);
    let before = stored(&*store, &key).await;
    for again in [&first, &second] {
        assert_eq!(commit(&*store, again).await, Committed::Refused);
        assert_eq!(stored(&*store, &key).await, before);
    }
}

pub async fn same_event_row_with_the_right_turn_is_refused<S: Store + Inspect>(store: Arc<S>) {
    let key = key(&unique("t"), "a");
    let first = batch(&key, None, &["e1"]);
    assert_eq!(commit(&*store, std::slice::from_ref(&first)).await, Committed::Applied);
    let before = stored(&*store, &key).await;
    for rows in [&["e1"][..], &["e2", "e1"], &["e1", "e2"]] {
        assert_eq!(commit(&*store, &[batch(&key, Some(&first.head), rows)]).await, Committed::Refused, "{rows:?}");
        assert_eq!(stored(&*store, &key).await, before, "{rows:?}");
    }
    assert_eq!(commit(&*store, &[batch(&key, Some(&first.head), &["e2"])]).await, Committed::Applied);
}

pub async fn new_row_with_a_wrong_turn_is_refused<S: Store + Inspect>(store: Arc<S>) {
    let tenant = unique("t");
    let (known, unknown) = (key(&tenant, "known"), key(&tenant, "unknown"));
    let first = batch(&known, None, &["e1"]);
    let second = batch(&known, Some(&first.head), &["e2"]);
    assert_eq!(commit(&*store, std::slice::from_ref(&first)).await, Committed::Applied);
    assert_eq!(commit(&*store, &[second]).await, Committed::Applied);
    let before = stored(&*store, &known).await;
    for turn in [None, Some(0), Some(1), Some(3), Some(-2)] {
        let mut wrong = batch(&known, Some(&first.head), &["e3"]);
        wrong.turn = turn;
        assert_eq!(commit(&*store, &[wrong]).await, Committed::Refused, "turn {turn:?}, but it is 2");
        assert_eq!(stored(&*store, &known).await, before, "turn {turn:?}");
    }
    for turn in [0, 1] {
        let mut wrong = batch(&unknown, None, &["e1"]);
        wrong.turn = Some(turn);
        assert_eq!(commit(&*store, &[wrong]).await, Committed::Refused, "turn {turn} of an object never seen");
        assert_eq!(stored(&*store, &unknown).await, (None, Vec::new()), "turn {turn}");
    }
}

pub async fn group_with_one_existing_row_is_refused_as_a_whole<S: Store + Inspect>(store: Arc<S>) {
    let keys = objects_of_one_bucket(&*store, &unique("t"), 10);
    // At each place of the group in turn: an engine may stop at the first or look at the last.
    for (round, taken) in [0, 4, 9].into_iter().enumerate() {
        let head = object(&*store, &keys[taken]).await.map(|o| o.head);
        assert_eq!(commit(&*store, &[batch(&keys[taken], head.as_ref(), &["taken"])]).await, Committed::Applied);
        let (mut group, mut before) = (Vec::new(), Vec::new());
        for (place, key) in keys.iter().enumerate() {
            let head = object(&*store, key).await.map(|o| o.head);
            let row = format!("e{round}");
            let rows: &[&str] = if place == taken { &[&row, "taken"] } else { &[&row] };
            group.push(batch(key, head.as_ref(), rows));
            before.push(stored(&*store, key).await);
        }
        assert_eq!(commit(&*store, &group).await, Committed::Refused, "row of object {taken} exists");
        for (key, before) in keys.iter().zip(before) {
            assert_eq!(stored(&*store, key).await, before, "{key} must not change");
        }
        group[taken].rows.pop();
        group[taken].head.rev -= 1;
        group[taken].head.snapshot = group[taken].rows.last().map(snapshot_of);
        assert_eq!(commit(&*store, &group).await, Committed::Applied, "without that row");
    }
}

pub async fn group_with_one_wrong_turn_is_refused_as_a_whole<S: Store + Inspect>(store: Arc<S>) {
    let keys = objects_of_one_bucket(&*store, &unique("t"), 5);
    for wrong in 0..keys.len() {
        let mut group: Vec<_> = keys.iter().map(|key| batch(key, None, &["e1"])).collect();
        group[wrong].turn = Some(7);
        assert_eq!(commit(&*store, &group).await, Committed::Refused, "turn of object {wrong} is wrong");
        for key in &keys {
            assert_eq!(stored(&*store, key).await, (None, Vec::new()), "{key} must not appear");
        }
    }
}

pub async fn group_of_new_and_known_objects_commits<S: Store + Inspect>(store: Arc<S>) {
    let keys = objects_of_one_bucket(&*store, &unique("t"), 25);
    let known: Vec<_> = keys.iter().step_by(2).map(|key| batch(key, None, &["e1"])).collect();
    assert_eq!(commit(&*store, &known).await, Committed::Applied);
    let mut group = Vec::new();
    for key in &keys {
        let head = object(&*store, key).await.map(|o| o.head);
        group.push(batch(key, head.as_ref(), &["e2", "e3"]));
    }
    assert_eq!(commit(&*store, &group).await, Committed::Applied);
    let queries: Vec<_> =
        keys.iter().map(|key| ObjectQuery { key: key.clone(), event_rows: vec!["e3".into(), "e1".into()] }).collect();
    let views = store.read(keys[0].bucket(store.buckets()), &queries, Freshness::Quorum).await.expect("read answers");
    assert_eq!(views.len(), keys.len());
    for (place, (view, batch)) in views.iter().zip(&group).enumerate() {
        assert_eq!(view.head.as_ref(), Some(&batch.head), "views come in the order of the queries");
        assert_eq!(view.rows.get("e3"), batch.rows.last());
        assert_eq!(view.rows.contains_key("e1"), place % 2 == 0);
    }
}

pub async fn batch_of_many_rows_commits_whole<S: Store + Inspect>(store: Arc<S>) {
    let key = key(&unique("t"), "a");
    let names: Vec<_> = (0..50).map(|number| format!("e{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let whole = batch(&key, None, &names);
    assert_eq!(commit(&*store, std::slice::from_ref(&whole)).await, Committed::Applied);
    assert_eq!(events(&*store, &key).await, whole.rows);
    assert_eq!(read(&*store, &key, &names).await.rows.len(), names.len());
    assert_eq!(commit(&*store, &[batch(&key, Some(&whole.head), &["new", "e49"])]).await, Committed::Refused);
}

pub async fn deltas_leave_an_object_without_state<S: Store + Inspect>(store: Arc<S>) {
    let key = key(&unique("t"), "a");
    let first = delta_batch(&key, None, &["d1"]);
    let second = delta_batch(&key, Some(&first.head), &["d2"]);
    for batch in [first, second] {
        assert_eq!(commit(&*store, std::slice::from_ref(&batch)).await, Committed::Applied);
        let object = object(&*store, &key).await.expect("a delta makes a head");
        assert_eq!((object.head.snapshot.as_ref(), object.state), (None, None));
        assert_eq!(read(&*store, &key, &[]).await.head, Some(batch.head));
    }
    let second = object(&*store, &key).await.expect("it is there").head;
    let third = batch(&key, Some(&second), &["e1"]);
    assert_eq!(commit(&*store, std::slice::from_ref(&third)).await, Committed::Applied);
    let object = object(&*store, &key).await.expect("it is there");
    assert_eq!((object.head, object.state), (third.head, third.state), "a first snapshot after deltas is the state");
}

pub async fn state_is_kept_when_a_batch_has_none<S: Store + Inspect>(store: Arc<S>) {
    let key = key(&unique("t"), "a");
    let first = batch(&key, None, &["e1"]);
    let delta = delta_batch(&key, Some(&first.head), &["d1", "d2"]);
    assert_eq!(commit(&*store, std::slice::from_ref(&first)).await, Committed::Applied);
    assert_eq!(commit(&*store, std::slice::from_ref(&delta)).await, Committed::Applied);
    let object = object(&*store, &key).await.expect("it is there");
    assert_eq!(object.head.snapshot, first.head.snapshot);
    assert_eq!((object.head, object.state), (delta.head, first.state));
}

pub async fn state_is_replaced_and_tombstones_are_stored<S: Store + Inspect>(store: Arc<S>) {
    let key = key(&unique("t"), "a");
    let first = batch(&key, None, &["e1"]);
    let mut second = batch(&key, Some(&first.head), &["e2"]);
    second.head.snapshot.as_mut().expect("a snapshot").deleted = true;
    second.state = Some(State(Bytes::new()));
    let third = batch(&key, Some(&second.head), &["e3"]);
    for batch in [first, second, third] {
        assert_eq!(commit(&*store, std::slice::from_ref(&batch)).await, Committed::Applied);
        let object = object(&*store, &key).await.expect("it is there");
        assert_eq!((object.head, object.state), (batch.head, batch.state));
    }
}

pub async fn read_returns_exactly_the_rows_asked_for<S: Store + Inspect>(store: Arc<S>) {
    let keys = objects_of_one_bucket(&*store, &unique("t"), 2);
    let group = [batch(&keys[0], None, &["e1", "e2", "e3"]), batch(&keys[1], None, &["e1", "e4"])];
    assert_eq!(commit(&*store, &group).await, Committed::Applied);
    let query = |place: usize, rows: &[&str]| ObjectQuery {
        key: keys[place].clone(),
        event_rows: rows.iter().map(|r| (*r).to_owned()).collect(),
    };
    let cases = [
        (query(1, &["e4", "e2", "none"]), vec![&group[1].rows[1]]),
        (query(0, &["e3", "e1", "e4"]), vec![&group[0].rows[0], &group[0].rows[2]]),
        (query(0, &[]), vec![]),
        (query(1, &["e1"]), vec![&group[1].rows[0]]),
    ];
    for freshness in [Freshness::Quorum, Freshness::Serial] {
        for (query, expected) in &cases {
            let bucket = query.key.bucket(store.buckets());
            let views = store.read(bucket, std::slice::from_ref(query), freshness).await.expect("read answers");
            assert_eq!(views.len(), 1);
            let found: HashSet<_> = views[0].rows.keys().map(String::as_str).collect();
            assert_eq!(found, expected.iter().map(|row| row.row.as_str()).collect(), "{query:?}");
            assert!(expected.iter().all(|row| views[0].rows[&row.row] == **row), "{query:?}");
            assert!(views[0].head.is_some());
        }
    }
}

pub async fn large_state_comes_back_whole<S: Store + Inspect>(store: Arc<S>) {
    let key = key(&unique("t"), "a");
    let mut first = batch(&key, None, &["e1"]);
    first.state = Some(State((0..LARGE_STATE_BYTES).map(|at| (at % 251) as u8).collect()));
    assert_eq!(commit(&*store, std::slice::from_ref(&first)).await, Committed::Applied);
    assert_eq!(object(&*store, &key).await.and_then(|o| o.state), first.state);
    assert_eq!(
        commit(&*store, std::slice::from_ref(&first)).await,
        Committed::Refused,
        "a refusal may return the state"
    );
    let delta = delta_batch(&key, Some(&first.head), &["d1"]);
    assert_eq!(commit(&*store, &[delta]).await, Committed::Applied);
    assert_eq!(object(&*store, &key).await.and_then(|o| o.state), first.state);
}

pub async fn every_column_comes_back_as_it_was_written<S: Store + Inspect>(store: Arc<S>) {
    let key = key(&unique("t"), "a");
    let mut odd = delta_batch(&key, None, &[]);
    for (rev, outcome) in (1..).zip(Outcome::ALL) {
        let mut row = event(&format!("e{rev}"), rev);
        row.outcome = outcome;
        row.version = (rev % 2 == 0).then(|| "2024-05-06T07:08:09.123456789+02:00".to_owned());
        row.event_type = "ünusual/type\0".to_owned();
        row.record.item = u32::MAX;
        row.position = String::new();
        odd.rows.push(row);
    }
    odd.head.rev = i64::MAX - 1;
    let mut snapshot = snapshot_of(&event("e1", 1));
    snapshot.order_key.0.extend([0, 0xff, 0x1f]);
    snapshot.version = String::new();
    odd.head.snapshot = Some(snapshot);
    odd.state = Some(State(Bytes::from_static(b"\0\xff\x00")));
    assert_eq!(commit(&*store, std::slice::from_ref(&odd)).await, Committed::Applied);
    let object = object(&*store, &key).await.expect("it is there");
    assert_eq!((&object.head, &object.state), (&odd.head, &odd.state));
    let names: Vec<_> = odd.rows.iter().map(|row| row.row.as_str()).collect();
    let view = read(&*store, &key, &names).await;
    assert_eq!(view.head, Some(odd.head));
    assert!(odd.rows.iter().all(|row| view.rows.get(&row.row) == Some(row)));
}
