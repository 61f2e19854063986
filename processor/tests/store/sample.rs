//! Rows to write, and the names of one test. Stores may be shared, so each test has a tenant of its own.

use bytes::Bytes;
use seriatim_processor::decide::View;
use seriatim_processor::inspect::{Inspect, ObjectState};
use seriatim_processor::store::{Arrival, Beside, Committed, Freshness, ObjectBatch, ObjectQuery, Store};
use seriatim_schemas::id::{RecordId, Sha256Digest};
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::row::{ArrivalRow, DeadLetter, EventRow, Head, Snapshot, State};
use seriatim_schemas::version::{RANK_UNLISTED, Version, VersionKind};
use uuid::Uuid;

pub const TTL_S: u64 = 3600;
pub const SOURCE: &str = "billing";

pub fn unique(word: &str) -> String {
    format!("{word}-{}", Uuid::new_v4().simple())
}

pub fn key(tenant: &str, object: &str) -> ObjectKey {
    ObjectKey::new(tenant, SOURCE, object)
}

/// `count` objects that share a bucket, so that one batch can hold them.
pub fn objects_of_one_bucket<S: Store>(store: &S, tenant: &str, count: usize) -> Vec<ObjectKey> {
    let bucket = key(tenant, "object-0").bucket(store.buckets());
    let all = (0..).map(|number| key(tenant, &format!("object-{number}")));
    all.filter(|key| key.bucket(store.buckets()) == bucket).take(count).collect()
}

pub fn new_record() -> RecordId {
    RecordId { request: Uuid::now_v7(), item: 0 }
}

pub fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

pub fn event(row: &str, rev: i64) -> EventRow {
    EventRow {
        row: row.to_owned(),
        outcome: Outcome::Applied,
        rev,
        event_type: "invoice.updated".to_owned(),
        version: Some(rev.to_string()),
        digest: Sha256Digest::of(row.as_bytes()),
        record: new_record(),
        attempt: Uuid::new_v4(),
        position: format!("seriatim.raw.main/3/{rev}"),
        decided_ms: now_ms(),
    }
}

pub fn snapshot_of(row: &EventRow) -> Snapshot {
    let version = row.version.clone().expect("the rows here have versions");
    let order = Version::parse(&version, VersionKind::Integer, &[]).expect("the versions here are integers");
    Snapshot {
        order_key: order.order_key(RANK_UNLISTED, &row.row),
        version,
        event_type: row.event_type.clone(),
        event_row: row.row.clone(),
        record: row.record,
        digest: row.digest,
        deleted: false,
    }
}

/// A batch on top of `head` that writes `rows` and makes the last the object's state.
pub fn batch(key: &ObjectKey, head: Option<&Head>, rows: &[&str]) -> ObjectBatch {
    let mut batch = delta_batch(key, head, rows);
    let last = batch.rows.last().expect("a batch has rows");
    batch.state = Some(State(Bytes::from(format!("state of {}", last.row))));
    batch.head.snapshot = Some(snapshot_of(last));
    batch
}

/// The same, but the state stays.
pub fn delta_batch(key: &ObjectKey, head: Option<&Head>, rows: &[&str]) -> ObjectBatch {
    let (rev, turn) = head.map_or((0, 0), |h| (h.rev, h.turn));
    let rows: Vec<_> = rows.iter().enumerate().map(|(index, row)| event(row, rev + 1 + index as i64)).collect();
    let head_after = Head {
        rev: rev + rows.len() as i64,
        turn: turn + 1,
        snapshot: head.and_then(|h| h.snapshot.clone()),
        ..head.cloned().unwrap_or_default()
    };
    ObjectBatch {
        key: key.clone(),
        turn: head.map(|h| h.turn),
        head: head_after,
        state: None,
        rows,
        rows_ttl_s: TTL_S,
        beside: Beside::default(),
    }
}

pub async fn commit<S: Store>(store: &S, batches: &[ObjectBatch]) -> Committed {
    let bucket = batches[0].key.bucket(store.buckets());
    assert!(batches.iter().all(|b| b.key.bucket(store.buckets()) == bucket), "a batch is of one bucket");
    store.commit(bucket, batches).await.expect("commit answers")
}

pub async fn read<S: Store>(store: &S, key: &ObjectKey, rows: &[&str]) -> View {
    let query = ObjectQuery { key: key.clone(), event_rows: rows.iter().map(|r| (*r).to_owned()).collect() };
    let views = store.read(key.bucket(store.buckets()), &[query], Freshness::Serial).await.expect("read answers");
    let [view] = <[View; 1]>::try_from(views).expect("one view for one query");
    view
}

pub async fn object<S: Inspect>(store: &S, key: &ObjectKey) -> Option<ObjectState> {
    store.object(key).await.expect("object answers")
}

/// What is stored of an object: to see that nothing changed.
pub async fn stored<S: Inspect>(store: &S, key: &ObjectKey) -> (Option<ObjectState>, Vec<EventRow>) {
    (object(store, key).await, events(store, key).await)
}

pub async fn events<S: Inspect>(store: &S, key: &ObjectKey) -> Vec<EventRow> {
    let mut events = store.events(key).await.expect("events answers");
    events.sort_by_key(|row| row.rev);
    events
}

pub fn arrival(key: &ObjectKey, event_id: &str, outcome: Outcome) -> Arrival {
    let done_ms = now_ms();
    let row = ArrivalRow {
        event_row: format!("{event_id}~0123456789abcdef"),
        event_id: event_id.to_owned(),
        record: new_record(),
        outcome,
        detail: (outcome == Outcome::Dead).then(|| "version: no version".to_owned()),
        position: "seriatim.raw.main/3/17".to_owned(),
        recorded_ms: done_ms - 5,
        done_ms,
    };
    Arrival { key: key.clone(), row, ttl_s: TTL_S }
}

pub async fn record_arrivals<S: Store>(store: &S, arrivals: &[Arrival]) {
    for arrival in arrivals {
        let bucket = arrival.key.bucket(store.buckets());
        store.record(bucket, std::slice::from_ref(arrival), &[]).await.expect("record answers");
    }
}

pub async fn has_arrived<S: Store>(store: &S, arrivals: &[&Arrival]) -> Vec<RecordId> {
    let of: Vec<_> = arrivals.iter().map(|a| (a.key.clone(), a.row.event_row.clone(), a.row.record)).collect();
    let bucket = arrivals[0].key.bucket(store.buckets());
    let mut found = store.arrived(bucket, &of).await.expect("arrived answers");
    found.sort();
    found
}

/// Rows in an order that does not depend on the engine.
pub fn rows(mut arrivals: Vec<Arrival>) -> Vec<(ObjectKey, ArrivalRow)> {
    arrivals.sort_by_key(|a| (a.key.clone(), a.row.record));
    arrivals.into_iter().map(|a| (a.key, a.row)).collect()
}

pub fn dead_letter(key: &ObjectKey, event_row: &str, cause: &str) -> DeadLetter {
    DeadLetter {
        tenant: key.tenant.clone(),
        source: key.source.clone(),
        object: key.object.clone(),
        event_row: event_row.to_owned(),
        event_id: event_row.to_owned(),
        event_type: "invoice.updated".to_owned(),
        record: new_record(),
        cause: cause.to_owned(),
        detail: "no version: the event does not say its place".to_owned(),
        position: "seriatim.raw.main/3/17".to_owned(),
        recorded_ms: now_ms() - 5,
        dead_ms: now_ms(),
        headers: vec![
            ("ce_id".to_owned(), Bytes::from_static(b"evt")),
            ("http_x-odd".to_owned(), Bytes::from_static(b"\xff\0\x1f")),
        ],
        value: Bytes::from_static(b"{\"id\":\"\xff\0\"}"),
    }
}
