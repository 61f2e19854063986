//! What surrounds the decisions: arrivals, dead letters, what an operator asks, and the floors.

use std::collections::BTreeMap;
use std::sync::Arc;

use seriatim_processor::inspect::Inspect;
use seriatim_processor::store::{Arrival, Committed, FloorKey, Store};
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::row::DeadLetter;

use crate::sample::{
    SOURCE, arrival, batch, commit, dead_letter, delta_batch, events, has_arrived, key, record_arrivals, rows, unique,
};

pub async fn arrivals_recorded_twice_are_one<S: Store + Inspect>(store: Arc<S>) {
    let key = key(&unique("t"), "a");
    let of = |event_id: &str, outcome| arrival(&key, event_id, outcome);
    let came = [of("evt_1", Outcome::Applied), of("evt_1", Outcome::Duplicate), of("evt_2", Outcome::Dead)];
    for _ in 0..2 {
        store.record(key.bucket(store.buckets()), &came, &[]).await.expect("record answers");
        assert_eq!(rows(store.arrivals(&key).await.expect("arrivals answers")), rows(came.to_vec()));
        let traced = store.trace(&key.tenant, SOURCE, "evt_1").await.expect("trace answers");
        assert_eq!(rows(traced), rows(came[..2].to_vec()));
    }
}

pub async fn only_recorded_arrivals_have_arrived<S: Store + Inspect>(store: Arc<S>) {
    let (one, other) = (key(&unique("t"), "a"), key(&unique("t"), "a"));
    let (came, not) = (arrival(&one, "evt_1", Outcome::Applied), arrival(&one, "evt_1", Outcome::Applied));
    assert!(has_arrived(&*store, &[&came, &not]).await.is_empty());
    record_arrivals(&*store, std::slice::from_ref(&came)).await;
    assert_eq!(has_arrived(&*store, &[&not, &came]).await, [came.row.record]);
    assert!(has_arrived(&*store, &[&not]).await.is_empty());
    let of_another_event = Arrival { row: arrival(&one, "evt_2", Outcome::Applied).row, ..came.clone() };
    let of_another_event = with_record(of_another_event, &came);
    let of_another_object = Arrival { key: other, ..came.clone() };
    assert!(has_arrived(&*store, &[&of_another_event]).await.is_empty());
    assert!(has_arrived(&*store, &[&of_another_object]).await.is_empty());
    assert!(store.arrived(one.bucket(store.buckets()), &[]).await.expect("arrived answers").is_empty());
    // The commit of a record is not its arrival: that is written when its effects are out.
    let mut committed = batch(&one, None, &["evt_3"]);
    committed.rows[0].record = not.row.record;
    assert_eq!(commit(&*store, &[committed]).await, Committed::Applied);
    assert!(has_arrived(&*store, &[&not]).await.is_empty());
}

fn with_record(mut arrival: Arrival, of: &Arrival) -> Arrival {
    arrival.row.record = of.row.record;
    arrival
}

pub async fn events_and_arrivals_of_an_object_are_listed<S: Store + Inspect>(store: Arc<S>) {
    let tenant = unique("t");
    let (one, other, none) = (key(&tenant, "a"), key(&tenant, "b"), key(&tenant, "c"));
    let first = batch(&one, None, &["z", "y"]);
    let second = delta_batch(&one, Some(&first.head), &["x"]);
    for batch in [&first, &second, &batch(&other, None, &["y"])] {
        assert_eq!(commit(&*store, std::slice::from_ref(batch)).await, Committed::Applied);
    }
    assert_eq!(events(&*store, &one).await, [first.rows, second.rows].concat());
    assert_eq!(events(&*store, &other).await.len(), 1);
    let came: Vec<_> = ["z", "y", "x", "y"].iter().map(|id| arrival(&one, id, Outcome::Applied)).collect();
    record_arrivals(&*store, &came).await;
    record_arrivals(&*store, &[arrival(&other, "y", Outcome::Stale)]).await;
    assert_eq!(rows(store.arrivals(&one).await.expect("arrivals answers")), rows(came));
    assert!(events(&*store, &none).await.is_empty());
    assert!(store.arrivals(&none).await.expect("arrivals answers").is_empty());
}

pub async fn objects_of_a_source_are_listed<S: Store + Inspect>(store: Arc<S>) {
    let tenant = unique("t");
    let mine: Vec<_> = (0..30).map(|number| key(&tenant, &format!("object {number}"))).collect();
    let others = [ObjectKey::new(&tenant, "other", "object 0"), key(&unique("t"), "object 0")];
    let mut written = BTreeMap::new();
    for key in mine.iter().chain(&others) {
        let first = batch(key, None, &["e1"]);
        assert_eq!(commit(&*store, std::slice::from_ref(&first)).await, Committed::Applied);
        written.insert(key.clone(), (first.head, first.state));
    }
    let found = store.objects(&tenant, SOURCE).await.expect("objects answers");
    assert_eq!(found.len(), mine.len());
    let found: BTreeMap<_, _> = found.into_iter().map(|object| (object.key, (object.head, object.state))).collect();
    written.retain(|key, _| mine.contains(key));
    assert_eq!(found, written);
    assert!(store.objects(&unique("t"), SOURCE).await.expect("objects answers").is_empty());
}

pub async fn trace_finds_an_event_id_across_objects<S: Store + Inspect>(store: Arc<S>) {
    let tenant = unique("t");
    let came: Vec<_> =
        (0..6).map(|number| arrival(&key(&tenant, &format!("object {number}")), "evt_1", Outcome::Applied)).collect();
    record_arrivals(&*store, &came).await;
    let others = [
        arrival(&key(&tenant, "object 0"), "evt_2", Outcome::Applied),
        arrival(&key(&tenant, "object 0"), "evt_1~0123456789abcdef", Outcome::Applied),
        arrival(&ObjectKey::new(&tenant, "other", "object 0"), "evt_1", Outcome::Applied),
        arrival(&key(&unique("t"), "object 0"), "evt_1", Outcome::Applied),
    ];
    record_arrivals(&*store, &others).await;
    let traced = |tenant: String, event_id: &'static str| {
        let store = store.clone();
        async move { rows(store.trace(&tenant, SOURCE, event_id).await.expect("trace answers")) }
    };
    assert_eq!(traced(tenant.clone(), "evt_1").await, rows(came));
    assert_eq!(traced(tenant.clone(), "evt_2").await, rows(others[..1].to_vec()));
    assert!(traced(tenant, "evt_3").await.is_empty());
    assert!(traced(unique("t"), "evt_1").await.is_empty());
}

async fn bury<S: Store>(store: &S, letter: &DeadLetter) {
    let bucket = ObjectKey::new(&letter.tenant, &letter.source, &letter.object).bucket(store.buckets());
    store.record(bucket, &[], std::slice::from_ref(letter)).await.expect("record answers");
}

async fn dead<S: Inspect>(store: &S, tenant: Option<&str>, source: Option<&str>) -> Vec<DeadLetter> {
    let mut letters = store.dead(tenant, source).await.expect("dead answers");
    letters.sort_by_key(|l| (l.tenant.clone(), l.source.clone(), l.object.clone(), l.event_row.clone()));
    letters
}

pub async fn dead_letters_are_replaced_by_row<S: Store + Inspect>(store: Arc<S>) {
    let tenant = unique("t");
    let (one, other) = (key(&tenant, "a"), key(&tenant, "b"));
    let first = dead_letter(&one, "evt_1", "version");
    bury(&*store, &first).await;
    assert_eq!(dead(&*store, Some(&tenant), None).await, [first]);
    let again = dead_letter(&one, "evt_1", "future");
    let others = [dead_letter(&one, "evt_2", "version"), dead_letter(&other, "evt_1", "version")];
    for letter in [&again, &again, &others[0], &others[1]] {
        bury(&*store, letter).await;
    }
    let [second, third] = others;
    assert_eq!(dead(&*store, Some(&tenant), None).await, [again, second, third]);
}

pub async fn dead_letters_are_listed_by_tenant_and_source<S: Store + Inspect>(store: Arc<S>) {
    let (one, other) = (unique("t1"), unique("t2"));
    let source = unique("s");
    let unroutable =
        DeadLetter { object: String::new(), ..dead_letter(&ObjectKey::new(&one, &source, ""), "r.0", "unroutable") };
    let letters = [
        unroutable,
        dead_letter(&ObjectKey::new(&one, &source, "a"), "e", "version"),
        dead_letter(&ObjectKey::new(&one, "z", "a"), "e", "version"),
        dead_letter(&ObjectKey::new(&other, &source, "a"), "e", "version"),
    ];
    for letter in &letters {
        bury(&*store, letter).await;
    }
    assert_eq!(dead(&*store, Some(&one), None).await, letters[..3]);
    assert_eq!(dead(&*store, Some(&one), Some(&source)).await, letters[..2]);
    assert_eq!(dead(&*store, Some(&one), Some("z")).await, letters[2..3]);
    assert_eq!(dead(&*store, Some(&other), Some(&source)).await, letters[3..]);
    assert_eq!(dead(&*store, None, Some(&source)).await, [&letters[..2], &letters[3..]].concat());
    assert!(dead(&*store, Some(&other), Some("z")).await.is_empty());
    let all = dead(&*store, None, None).await;
    assert!(letters.iter().all(|letter| all.contains(letter)));
}

fn floor_key(topic: &str) -> FloorKey {
    FloorKey {
        generation: "g1".to_owned(),
        topic: topic.to_owned(),
        topic_id: "incarnation 1".to_owned(),
        partition: 0,
    }
}

pub async fn floors_only_rise<S: Store + Inspect>(store: Arc<S>) {
    let key = floor_key(&unique("topic"));
    assert_eq!(store.floor(&key).await.expect("floor answers"), None);
    for (set, expected) in
        [(0, 0), (10, 10), (7, 10), (10, 10), (0, 10), (11, 11), (i64::MAX - 1, i64::MAX - 1), (12, i64::MAX - 1)]
    {
        store.set_floor(&key, set).await.expect("set_floor answers");
        assert_eq!(store.floor(&key).await.expect("floor answers"), Some(expected), "after {set}");
    }
}

pub async fn floors_are_separate<S: Store + Inspect>(store: Arc<S>) {
    let base = floor_key(&unique("topic"));
    let keys = [
        base.clone(),
        FloorKey { partition: 1, ..base.clone() },
        FloorKey { topic_id: "incarnation 2".to_owned(), ..base.clone() },
        FloorKey { generation: "g2".to_owned(), ..base.clone() },
        FloorKey { topic: unique("topic"), ..base.clone() },
    ];
    for (offset, key) in (100..).zip(&keys) {
        assert_eq!(store.floor(key).await.expect("floor answers"), None, "{key:?}");
        store.set_floor(key, offset).await.expect("set_floor answers");
    }
    let all = store.floors().await.expect("floors answers");
    for (offset, key) in (100..).zip(&keys) {
        assert_eq!(store.floor(key).await.expect("floor answers"), Some(offset), "{key:?}");
        assert_eq!(
            all.iter().filter(|(k, _)| k == key).map(|(_, next)| *next).collect::<Vec<_>>(),
            [offset],
            "{key:?}"
        );
    }
}
