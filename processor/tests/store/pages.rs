//! What may be many is read page by page: every row once, in an order that stays.

use std::collections::BTreeSet;
use std::sync::Arc;

use seriatim_processor::inspect::{After, AfterArrival, Inspect, LetterHead, Page, RowName, Scope};
use seriatim_processor::store::{Arrival, Committed, SideRow, Store};
use seriatim_schemas::id::arrival_row;
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::row::WaitingSink;

use crate::sample::{SOURCE, arrival, batch, commit, dead_letter, key, record_arrivals, rows, unique};

const MAX: usize = 7;

/// All pages, one after the other; none is larger than it may be.
async fn all<T>(mut read: impl AsyncFnMut(After) -> Page<T>) -> Vec<T> {
    let (mut found, mut after) = (Vec::new(), Some(After::default()));
    while let Some(at) = after {
        let page = read(at).await;
        assert!(page.rows.len() <= MAX);
        found.extend(page.rows);
        after = page.next;
    }
    found
}

fn names<'a>(keys: impl IntoIterator<Item = &'a ObjectKey>, row: &str) -> BTreeSet<RowName> {
    keys.into_iter().map(|key| RowName::new(key, row)).collect()
}

/// Objects of a tenant in two sources, one whose name lies before and one whose name lies behind the first.
fn keys_of(tenant: &str) -> Vec<ObjectKey> {
    let of = |source: &'static str| (0..30).map(move |n| ObjectKey::new(tenant, source, format!("object {n}")));
    let mut keys: Vec<_> = ["a", SOURCE, "z"].into_iter().flat_map(of).collect();
    keys.push(key(tenant, ""));
    keys
}

pub async fn objects_come_in_pages<S: Store + Inspect>(store: Arc<S>) {
    let tenant = unique("t");
    let keys = keys_of(&tenant);
    for key in &keys {
        assert_eq!(commit(&*store, &[batch(key, None, &["e1"])]).await, Committed::Applied);
    }
    let read = async |after: After| store.heads(&tenant, SOURCE, &after, MAX).await.expect("heads answers");
    let found = all(read).await;
    assert_eq!(found.len(), 31, "each once");
    let of_source = keys.iter().filter(|key| key.source == SOURCE);
    assert_eq!(names(found.iter().map(|object| &object.key), ""), names(of_source, ""));
    assert!(found.iter().all(|object| object.head.rev == 1));
    // A place that there is not is no error: it may come from a store with more buckets.
    let beyond = After { bucket: u32::MAX, row: None };
    store.heads(&tenant, SOURCE, &beyond, MAX).await.expect("heads answers");
}

pub async fn letters_come_in_pages<S: Store + Inspect>(store: Arc<S>) {
    let tenant = unique("t");
    let keys = keys_of(&tenant);
    for key in &keys {
        let letter = dead_letter(key, "e1", "version");
        store.record(key.bucket(store.buckets()), &[], std::slice::from_ref(&letter)).await.expect("record answers");
        let head = LetterHead::of(key.bucket(store.buckets()), letter.clone());
        assert_eq!(store.letter(&head).await.expect("letter answers"), Some(letter));
    }
    for (source, count) in [(None, 91), (Some(SOURCE), 31), (Some("none"), 0)] {
        let scope = Scope { tenant: Some(&tenant), source };
        let found = all(async |after: After| store.letters(scope, &after, MAX).await.expect("letters answers")).await;
        assert_eq!(found.len(), count, "each once");
        let of = keys.iter().filter(|key| scope.has(&key.tenant, &key.source));
        assert_eq!(names(found.iter().map(|letter| &letter.of.key), "e1"), names(of, "e1"));
    }
}

pub async fn waiters_come_in_pages<S: Store + Inspect>(store: Arc<S>) {
    let tenant = unique("t");
    let keys = keys_of(&tenant);
    let waits = |key: &ObjectKey, sink: &str| WaitingSink {
        key: key.clone(),
        sink: sink.to_owned(),
        since_ms: 5,
        cause: "status 503".to_owned(),
        is_parked: sink == "b",
    };
    let mut written = Vec::new();
    for key in &keys {
        let mut first = batch(key, None, &["e1"]);
        let markers = ["a", "b"].map(|sink| waits(key, sink));
        first.beside.put = markers.clone().map(SideRow::Waiting).into();
        written.extend(markers);
        assert_eq!(commit(&*store, &[first]).await, Committed::Applied);
    }
    let scope = Scope { tenant: Some(&tenant), source: Some(SOURCE) };
    let mut found = all(async |after: After| store.waiters(scope, &after, MAX).await.expect("waiters answers")).await;
    written.retain(|waiter| waiter.key.source == SOURCE);
    let place = |waiter: &WaitingSink| (waiter.key.clone(), waiter.sink.clone());
    written.sort_by_key(place);
    found.sort_by_key(place);
    assert_eq!(found, written);
}

pub async fn events_of_an_object_come_in_pages<S: Store + Inspect>(store: Arc<S>) {
    let key = key(&unique("t"), "a");
    let ids: Vec<_> = (0..20).map(|n| format!("e{n}")).collect();
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    let written = batch(&key, None, &ids);
    assert_eq!(commit(&*store, std::slice::from_ref(&written)).await, Committed::Applied);
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page = store.events_behind(&key, &after, MAX).await.expect("events_behind answers");
        let Some(last) = page.last() else { break };
        after = last.row.clone();
        found.extend(page);
    }
    found.sort_by_key(|event| event.rev);
    assert_eq!(found, written.rows);
    assert_eq!(store.event(&key, "e7").await.expect("event answers").as_ref(), Some(&written.rows[7]));
    assert_eq!(store.event(&key, "e77").await.expect("event answers"), None);
}

/// An event whose id begins as another's, with a slash behind it, lies in its midst.
pub async fn arrivals_come_in_pages<S: Store + Inspect>(store: Arc<S>) {
    let tenant = unique("t");
    let of = |object: &str, id: &str| {
        let mut arrival = arrival(&key(&tenant, object), id, Outcome::Applied);
        arrival.row.event_row = id.to_owned();
        arrival
    };
    let ids = ["e", "e/0", "e/z", "e0"];
    let of_one: Vec<_> = (0..20).flat_map(|_| ids.map(|id| of("one", id))).collect();
    let of_other: Vec<_> = (0..10).map(|_| of("other", "e")).collect();
    record_arrivals(&*store, &of_one).await;
    record_arrivals(&*store, &of_other).await;

    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page = store.arrivals_behind(&key(&tenant, "one"), &after, MAX).await.expect("arrivals_behind answers");
        let Some(last) = page.last() else { break };
        after = arrival_row(&last.row.event_row, &last.row.record);
        found.extend(page);
    }
    assert_eq!(rows(found), rows(of_one.clone()));

    for id in ids {
        let (mut found, mut after): (Vec<Arrival>, _) = (Vec::new(), AfterArrival::default());
        loop {
            let page = store.trace_behind(&tenant, SOURCE, id, &after, MAX).await.expect("trace_behind answers");
            let Some(last) = page.last() else { break };
            assert!(page.len() <= MAX);
            after = AfterArrival::of(last);
            found.extend(page);
        }
        let came = of_one.iter().chain(&of_other).filter(|arrival| arrival.row.event_id == id).cloned().collect();
        assert_eq!(rows(found), rows(came), "{id}");
    }
}
