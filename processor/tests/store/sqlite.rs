//! What only the embedded store does: keep its file, and remove by itself what has outlived its time.

use std::path::Path;

use seriatim_processor::error::StoreError;
use seriatim_processor::inspect::Inspect;
use seriatim_processor::store::sqlite::{STATE_FILE, SqliteStore};
use seriatim_processor::store::{Arrival, Committed, FloorKey, ObjectBatch, Store};
use seriatim_schemas::outcome::Outcome;
use tempfile::tempdir;

use crate::sample::{
    arrival, batch, commit, dead_letter, events, has_arrived, key, now_ms, object, read, record_arrivals, rows, stored,
};

fn open(folder: &Path) -> SqliteStore {
    SqliteStore::open(folder).expect("the store opens")
}

/// A batch that was decided `age_s` ago, with rows that live for `ttl_s`.
fn aged(mut batch: ObjectBatch, age_s: i64, ttl_s: u64) -> ObjectBatch {
    batch.rows.iter_mut().for_each(|row| row.decided_ms = now_ms() - age_s * 1000);
    batch.rows_ttl_s = ttl_s;
    batch
}

fn aged_arrival(mut arrival: Arrival, age_s: i64, ttl_s: u64) -> Arrival {
    arrival.row.done_ms = now_ms() - age_s * 1000;
    arrival.ttl_s = ttl_s;
    arrival
}

#[tokio::test]
async fn everything_survives_a_restart() {
    let folder = tempdir().expect("a folder");
    let key = key("t", "a");
    let first = batch(&key, None, &["e1"]);
    let came = arrival(&key, "evt", Outcome::Applied);
    let letter = dead_letter(&key, "dead", "version");
    let floor = FloorKey { generation: "g1".into(), topic: "log".into(), topic_id: "1".into(), partition: 0 };
    let before = {
        let store = open(folder.path());
        assert_eq!(commit(&store, std::slice::from_ref(&first)).await, Committed::Applied);
        store.record(0, std::slice::from_ref(&came), std::slice::from_ref(&letter)).await.expect("record answers");
        store.set_floor(&floor, 42).await.expect("set_floor answers");
        stored(&store, &key).await
    };
    let store = open(folder.path());
    assert_eq!(stored(&store, &key).await, before);
    assert_eq!(rows(store.arrivals(&key).await.expect("arrivals answers")), rows(vec![came.clone()]));
    assert_eq!(has_arrived(&store, &[&came]).await, [came.row.record]);
    assert_eq!(store.dead(None, None).await.expect("dead answers"), [letter]);
    assert_eq!(store.floor(&floor).await.expect("floor answers"), Some(42));
    assert_eq!(commit(&store, std::slice::from_ref(&first)).await, Committed::Refused);
    assert_eq!(commit(&store, &[batch(&key, Some(&first.head), &["e2"])]).await, Committed::Applied);
}

#[tokio::test]
async fn expire_removes_expired_rows_and_no_heads() {
    let folder = tempdir().expect("a folder");
    let store = open(folder.path());
    let key = key("t", "a");
    let old = aged(batch(&key, None, &["old 1", "old 2"]), 1000, 100);
    let young = aged(batch(&key, Some(&old.head), &["young"]), 1000, 2000);
    for batch in [&old, &young] {
        assert_eq!(commit(&store, std::slice::from_ref(batch)).await, Committed::Applied);
    }
    let expired = aged_arrival(arrival(&key, "old 1", Outcome::Applied), 1000, 100);
    let kept = aged_arrival(arrival(&key, "old 1", Outcome::Duplicate), 1000, 2000);
    record_arrivals(&store, &[expired.clone(), kept.clone()]).await;
    let letter = aged_letter(&key);
    store.record(0, &[], std::slice::from_ref(&letter)).await.expect("record answers");
    let head = object(&store, &key).await;

    store.expire(now_ms() / 1000).await.expect("expire answers");
    assert_eq!(events(&store, &key).await, young.rows);
    assert_eq!(read(&store, &key, &["old 1", "old 2", "young"]).await.rows.len(), 1);
    assert_eq!(has_arrived(&store, &[&expired, &kept]).await, [kept.row.record]);
    assert_eq!(rows(store.arrivals(&key).await.expect("arrivals answers")), rows(vec![kept]));
    assert_eq!(object(&store, &key).await, head, "a head and its state never expire");
    assert_eq!(
        store.dead(None, None).await.expect("dead answers"),
        [letter],
        "a dead letter stays until it is discarded"
    );

    store.expire(now_ms() / 1000 + 100_000).await.expect("expire answers");
    assert!(events(&store, &key).await.is_empty() && store.arrivals(&key).await.expect("arrivals answers").is_empty());
    assert_eq!(object(&store, &key).await, head);
    assert_eq!(commit(&store, &[batch(&key, None, &["old 1"])]).await, Committed::Refused, "the object was seen");
    assert_eq!(
        commit(&store, &[batch(&key, Some(&young.head), &["old 1"])]).await,
        Committed::Applied,
        "its row is forgotten"
    );
}

fn aged_letter(key: &seriatim_schemas::key::ObjectKey) -> seriatim_schemas::row::DeadLetter {
    let mut letter = dead_letter(key, "dead", "version");
    (letter.dead_ms, letter.recorded_ms) = (1, 1);
    letter
}

#[tokio::test]
async fn expire_removes_more_than_one_transaction_takes() {
    const ROWS: usize = 4500;
    let folder = tempdir().expect("a folder");
    let store = open(folder.path());
    let key = key("t", "a");
    let names: Vec<_> = (0..ROWS).map(|number| format!("e{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    assert_eq!(commit(&store, &[aged(batch(&key, None, &names), 1000, 1)]).await, Committed::Applied);
    let came: Vec<_> =
        names[..2100].iter().map(|id| aged_arrival(arrival(&key, id, Outcome::Applied), 1000, 1)).collect();
    store.record(0, &came, &[]).await.expect("record answers");
    store.expire(now_ms() / 1000).await.expect("expire answers");
    assert!(events(&store, &key).await.is_empty());
    assert!(store.arrivals(&key).await.expect("arrivals answers").is_empty());
    assert!(object(&store, &key).await.is_some());
}

/// Deltas of an unlimited log keep their rows for ever, so the longest window that can be written must work.
#[tokio::test]
async fn rows_with_an_endless_window_stay() {
    for ttl_s in [u64::MAX, i64::MAX as u64, i64::MAX as u64 / 2] {
        let folder = tempdir().expect("a folder");
        let store = open(folder.path());
        let key = key("t", "a");
        let endless = aged(batch(&key, None, &["e1"]), 0, ttl_s);
        let committed = store.commit(0, std::slice::from_ref(&endless)).await;
        assert_eq!(committed, Ok(Committed::Applied), "window of {ttl_s} s");
        let came = aged_arrival(arrival(&key, "evt", Outcome::Applied), 0, ttl_s);
        record_arrivals(&store, std::slice::from_ref(&came)).await;
        store.expire(now_ms() / 1000 + 10_000_000_000).await.expect("expire answers");
        assert_eq!(events(&store, &key).await, endless.rows, "window of {ttl_s} s");
        assert_eq!(has_arrived(&store, &[&came]).await, [came.row.record], "window of {ttl_s} s");
    }
}

#[tokio::test]
async fn reader_sees_what_is_committed_while_the_writer_goes_on() {
    let folder = tempdir().expect("a folder");
    let writer = open(folder.path());
    let key = key("t", "a");
    let first = batch(&key, None, &["e1"]);
    assert_eq!(commit(&writer, std::slice::from_ref(&first)).await, Committed::Applied);
    let reader = SqliteStore::open_read_only(folder.path()).expect("the store opens");
    assert_eq!(stored(&reader, &key).await, stored(&writer, &key).await);
    assert_eq!(commit(&writer, &[batch(&key, Some(&first.head), &["e2"])]).await, Committed::Applied);
    assert_eq!(stored(&reader, &key).await, stored(&writer, &key).await);
    let refused = reader.commit(0, &[batch(&key, None, &["e3"])]).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    assert_eq!(events(&writer, &key).await.len(), 2);
}

#[tokio::test]
async fn store_that_is_not_there_is_not_made_by_a_reader() {
    let folder = tempdir().expect("a folder");
    let opened = SqliteStore::open_read_only(folder.path());
    assert!(matches!(opened, Err(StoreError::Unavailable(_))), "{opened:?}");
    assert!(!folder.path().join(STATE_FILE).exists());
}

/// Two processes must not meet on one file, but if they do, conditions hold across connections.
#[tokio::test]
async fn two_connections_serialise_on_turn() {
    let folder = tempdir().expect("a folder");
    let (one, other) = (open(folder.path()), open(folder.path()));
    let key = key("t", "a");
    let first = batch(&key, None, &["e1"]);
    assert_eq!(commit(&one, std::slice::from_ref(&first)).await, Committed::Applied);
    assert_eq!(commit(&other, &[batch(&key, None, &["e2"])]).await, Committed::Refused);
    let (left, right) = (batch(&key, Some(&first.head), &["e2"]), batch(&key, Some(&first.head), &["e3"]));
    let both = tokio::join!(commit(&one, std::slice::from_ref(&left)), commit(&other, std::slice::from_ref(&right)));
    assert!(
        both == (Committed::Applied, Committed::Refused) || both == (Committed::Refused, Committed::Applied),
        "{both:?}"
    );
    assert_eq!(events(&one, &key).await.len(), 2);
}
