//! What waits beside a head: it is written and taken away with the head's turn, or not at all.

use std::sync::Arc;

use bytes::Bytes;
use seriatim_processor::inspect::Inspect;
use seriatim_processor::store::{Committed, ObjectBatch, SideKey, SideRow, Store};
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::row::{BacklogRow, Head, WaitingEffect, WaitingFor, WaitingSink};
use seriatim_schemas::sequence::Sequence;
use uuid::Uuid;

use crate::sample::{batch, commit, key, read, unique};

fn effect(sink: &str, rev: i64) -> WaitingEffect {
    WaitingEffect {
        sink: sink.to_owned(),
        rev,
        outcome: if rev % 2 == 0 { Outcome::Applied } else { Outcome::Stale },
        attempted: rev % 3 == 0,
        writer: Uuid::from_u128(7),
        since_ms: 1000 + rev,
        headers: vec![("st_v".to_owned(), Bytes::from_static(b"1")), ("x".to_owned(), Bytes::from_static(&[0xff]))],
        value: Bytes::from(vec![rev as u8; 3000]),
    }
}

fn marker(key: &ObjectKey, sink: &str, is_parked: bool) -> WaitingSink {
    WaitingSink { key: key.clone(), sink: sink.to_owned(), since_ms: 5, cause: "status 503".to_owned(), is_parked }
}

/// A batch that changes nothing but what waits.
fn beside(key: &ObjectKey, head: &Head, put: Vec<SideRow>, delete: Vec<SideKey>) -> ObjectBatch {
    let mut batch = batch(key, Some(head), &["x"]);
    batch.rows.clear();
    batch.state = None;
    batch.head = Head { turn: head.turn + 1, ..head.clone() };
    batch.beside.put = put;
    batch.beside.delete = delete;
    batch
}

/// An object with one event, and its head.
async fn object<S: Store>(store: &S) -> (ObjectKey, Head) {
    let key = key(&unique("t"), "o");
    assert_eq!(commit(store, &[batch(&key, None, &["e1"])]).await, Committed::Applied);
    let head = read(store, &key, &[]).await.head.expect("a head");
    (key, head)
}

async fn waiting<S: Store>(store: &S, key: &ObjectKey) -> Vec<WaitingSink> {
    let mut found = store.waiting(key.bucket(store.buckets())).await.expect("waiting answers");
    found.retain(|w| w.key == *key);
    found.sort_by(|a, b| a.sink.cmp(&b.sink));
    found
}

async fn effects<S: Store>(store: &S, key: &ObjectKey, sink: &str, after: i64, max: usize) -> Vec<WaitingEffect> {
    store.waiting_effects(key.bucket(store.buckets()), key, sink, after, max).await.expect("waiting_effects answers")
}

pub async fn waiting_effects_come_back_in_order<S: Store + Inspect>(store: Arc<S>) {
    let (key, head) = object(&*store).await;
    // "a-" sorts between "a" and "a/": sinks whose names begin alike stay apart.
    let mut put: Vec<_> = [11, 2, 9, 10, 1].map(|rev| SideRow::Effect(effect("a", rev))).into();
    put.push(SideRow::Effect(effect("a-", 5)));
    put.extend([SideRow::Waiting(marker(&key, "a", false)), SideRow::Waiting(marker(&key, "a-", true))]);
    let mut first = beside(&key, &head, put, Vec::new());
    first.head.waiting.0.insert("a".to_owned(), WaitingFor { queued: 5, overflow: Some((12, 14)), parked: None });
    first.beside.changes_waiting = true;
    assert_eq!(commit(&*store, std::slice::from_ref(&first)).await, Committed::Applied);

    assert_eq!(effects(&*store, &key, "a", 0, 10).await, [1, 2, 9, 10, 11].map(|rev| effect("a", rev)));
    assert_eq!(effects(&*store, &key, "a", 2, 2).await, [9, 10].map(|rev| effect("a", rev)));
    assert_eq!(effects(&*store, &key, "a-", 0, 10).await, [effect("a-", 5)]);
    assert_eq!(effects(&*store, &key, "b", 0, 10).await, []);
    assert_eq!(waiting(&*store, &key).await, [marker(&key, "a", false), marker(&key, "a-", true)]);
    let stored = read(&*store, &key, &["e1"]).await;
    assert_eq!(stored.head.expect("a head"), first.head);
    assert_eq!(stored.rows.len(), 1, "events are untouched");
}

pub async fn what_waits_is_taken_away_with_the_turn<S: Store + Inspect>(store: Arc<S>) {
    let (key, head) = object(&*store).await;
    let put = vec![
        SideRow::Effect(effect("a", 1)),
        SideRow::Effect(effect("a", 2)),
        SideRow::Waiting(marker(&key, "a", false)),
    ];
    let mut first = beside(&key, &head, put, Vec::new());
    first.head.waiting.0.insert("a".to_owned(), WaitingFor { queued: 2, ..WaitingFor::default() });
    first.beside.changes_waiting = true;
    assert_eq!(commit(&*store, std::slice::from_ref(&first)).await, Committed::Applied);

    let gone = vec![SideKey::Effect { sink: "a".to_owned(), rev: 1 }, SideKey::Waiting { sink: "a".to_owned() }];
    let mut second = beside(&key, &head, vec![SideRow::Effect(effect("a", 3))], gone.clone());
    second.beside.changes_waiting = true;
    assert_eq!(commit(&*store, std::slice::from_ref(&second)).await, Committed::Refused, "its turn has passed");
    assert_eq!(effects(&*store, &key, "a", 0, 10).await, [1, 2].map(|rev| effect("a", rev)));
    assert_eq!(waiting(&*store, &key).await.len(), 1);

    let mut second = beside(&key, &first.head, vec![SideRow::Effect(effect("a", 3))], gone);
    second.head.waiting.0.clear();
    second.beside.changes_waiting = true;
    assert_eq!(commit(&*store, std::slice::from_ref(&second)).await, Committed::Applied);
    assert_eq!(effects(&*store, &key, "a", 0, 10).await, [2, 3].map(|rev| effect("a", rev)));
    assert_eq!(waiting(&*store, &key).await, []);
    assert_eq!(read(&*store, &key, &[]).await.head.expect("a head"), second.head);
    // A row that was taken away can come again.
    let third = beside(&key, &second.head, vec![SideRow::Effect(effect("a", 1))], Vec::new());
    assert_eq!(commit(&*store, std::slice::from_ref(&third)).await, Committed::Applied);
    assert_eq!(effects(&*store, &key, "a", 0, 1).await, [effect("a", 1)]);
}

pub async fn fold_and_backlog_are_kept_beside_the_head<S: Store + Inspect>(store: Arc<S>) {
    let (key, head) = object(&*store).await;
    let row = |number: u64| BacklogRow {
        number,
        position: format!("log/0/{number}"),
        headers: vec![("st_v".to_owned(), Bytes::from_static(b"1"))],
        value: Bytes::from(vec![1, 2, number as u8]),
    };
    let mut first = beside(&key, &head, [3, 1, 20].map(|n| SideRow::Backlog(row(n))).into(), Vec::new());
    first.head.fold = Some(Bytes::from_static(b"{\"balance\":1}"));
    let mut sequence = Sequence::starting_at(Some(2));
    [1, 3, 20].into_iter().for_each(|n| sequence.held.insert(n, n));
    sequence.since_ms = Some(5);
    first.head.sequence = Some(sequence);
    (first.beside.changes_fold, first.beside.changes_sequence) = (true, true);
    assert_eq!(commit(&*store, std::slice::from_ref(&first)).await, Committed::Applied);
    assert_eq!(read(&*store, &key, &[]).await.head.expect("a head"), first.head);
    let bucket = key.bucket(store.buckets());
    let backlog = async |from, max| store.backlog(bucket, &key, from, max).await.expect("backlog answers");
    assert_eq!(backlog(1, 10).await, [1, 3, 20].map(row));
    assert_eq!(backlog(3, 1).await, [row(3)]);

    let mut second = beside(&key, &first.head, Vec::new(), vec![SideKey::Backlog { number: 1 }]);
    (second.head.fold, second.head.sequence) = (None, None);
    (second.beside.changes_fold, second.beside.changes_sequence) = (true, true);
    assert_eq!(commit(&*store, std::slice::from_ref(&second)).await, Committed::Applied);
    assert_eq!(backlog(1, 10).await, [3, 20].map(row));
    assert_eq!(read(&*store, &key, &[]).await.head.expect("a head"), second.head);
}

pub async fn events_are_found_by_rev<S: Store + Inspect>(store: Arc<S>) {
    let (key, head) = object(&*store).await;
    assert_eq!(commit(&*store, &[batch(&key, Some(&head), &["e2", "e3", "e4"])]).await, Committed::Applied);
    let from = async |rev, max| store.events_from(key.bucket(store.buckets()), &key, rev, max).await.expect("answers");
    let rows: Vec<_> = from(2, 2).await.into_iter().map(|row| (row.row, row.rev)).collect();
    assert_eq!(rows, [("e2".to_owned(), 2), ("e3".to_owned(), 3)]);
    assert_eq!(from(5, 2).await, []);
}
