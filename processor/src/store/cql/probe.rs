//! The start-up probe: runs the shapes that the protocol rests on, on a scratch object, and refuses to start
//! on a wrong answer. What a database does otherwise is then found before an event is, not after.

use seriatim_schemas::id::{RecordId, Sha256Digest};
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::row::{EventRow, Head, Snapshot, State};
use seriatim_schemas::version::OrderKey;
use uuid::Uuid;

use super::CqlStore;
use super::session::plain_failed;
use crate::error::StoreError;
use crate::store::{Beside, Committed, Freshness, ObjectBatch, ObjectQuery, Store};

/// A bucket that no object is in.
const PROBE_BUCKET: u32 = i32::MAX as u32;
/// How long the probe's event rows stay.
const PROBE_TTL_S: u64 = 60;

pub async fn probe(store: &CqlStore) -> Result<(), StoreError> {
    let key = ObjectKey::new("~probe", "~probe", Uuid::new_v4().to_string());
    let batch = |turn: Option<i64>, events: &[&str]| ObjectBatch {
        key: key.clone(),
        turn,
        head: head(turn.unwrap_or(0) + 1),
        state: Some(State(bytes::Bytes::from_static(b"{}"))),
        rows: events.iter().map(|e| row(e)).collect(),
        rows_ttl_s: PROBE_TTL_S,
        beside: Beside::default(),
    };
    let steps = [
        ("a first batch, with a null condition", batch(None, &["e1"]), Committed::Applied),
        ("the same batch again", batch(None, &["e1"]), Committed::Refused),
        ("a new event with a wrong turn", batch(Some(99), &["e2"]), Committed::Refused),
        ("a known event with the right turn", batch(Some(1), &["e1"]), Committed::Refused),
        ("three events, one of them known", batch(Some(1), &["e3", "e1", "e4"]), Committed::Refused),
        ("a new event with the right turn", batch(Some(1), &["e5"]), Committed::Applied),
    ];
    for (what, batch, expected) in steps {
        let answered = store.commit(PROBE_BUCKET, &[batch]).await?;
        if answered != expected {
            return Err(wrong(format!("{what} was answered {answered:?}, not {expected:?}")));
        }
    }
    check_rows(store, &key).await?;
    check_ttl(store, &key).await?;
    clean(store, &key).await
}

fn wrong(what: String) -> StoreError {
    StoreError::Corrupt(format!(
        "conformance probe: {what}. This database does not do conditional batches as the protocol needs them (ScyllaDB with tablets needs 2025.4 or later)"
    ))
}

fn head(turn: i64) -> Head {
    let snapshot = Snapshot {
        order_key: OrderKey(vec![1]),
        version: "1".to_owned(),
        event_type: "probe".to_owned(),
        event_row: "e1".to_owned(),
        record: RecordId { request: Uuid::nil(), item: 0 },
        digest: Sha256Digest::of(b""),
        deleted: false,
    };
    Head { rev: turn, turn, snapshot: Some(snapshot), ..Head::default() }
}

fn row(event: &str) -> EventRow {
    EventRow {
        row: event.to_owned(),
        outcome: Outcome::Applied,
        rev: 1,
        event_type: "probe".to_owned(),
        version: None,
        digest: Sha256Digest::of(b""),
        record: RecordId { request: Uuid::nil(), item: 0 },
        attempt: Uuid::nil(),
        position: String::new(),
        decided_ms: 0,
    }
}

/// Exactly e1 and e5 were written, in either kind of read.
async fn check_rows(store: &CqlStore, key: &ObjectKey) -> Result<(), StoreError> {
    let event_rows = ["e1", "e2", "e3", "e4", "e5"].map(str::to_owned).to_vec();
    for freshness in [Freshness::Quorum, Freshness::Serial] {
        let query = ObjectQuery { key: key.clone(), event_rows: event_rows.clone() };
        let view = store.read(PROBE_BUCKET, &[query], freshness).await?.remove(0);
        let mut found: Vec<_> = view.rows.keys().cloned().collect();
        found.sort();
        if found != ["e1", "e5"] || view.head.as_ref().map(|h| h.turn) != Some(2) {
            return Err(wrong(format!("after it, rows {found:?} and head {:?} are there", view.head)));
        }
    }
    Ok(())
}

/// Event rows expire, heads never.
async fn check_ttl(store: &CqlStore, key: &ObjectKey) -> Result<(), StoreError> {
    let table = store.statements.read.get_table_spec().map(|t| format!("{}.{}", t.ks_name(), t.table_name()));
    let table = table.ok_or_else(|| wrong("a prepared statement names no table".to_owned()))?;
    for (kind, row, expires) in [(0_i8, "", false), (1, "e1", true)] {
        let select = format!(
            "SELECT TTL(rev) FROM {table} WHERE bucket = ? AND kind = ? AND tenant = ? AND source = ? AND object = ? AND row = ?"
        );
        let values = (PROBE_BUCKET as i32, kind, &key.tenant, &key.source, &key.object, row);
        let answer = store.session.query_unpaged(select, values).await.map_err(plain_failed)?;
        let rows = answer.into_rows_result().map_err(plain_failed)?;
        let (ttl,) = rows.first_row::<(Option<i32>,)>().map_err(plain_failed)?;
        if ttl.is_some() != expires {
            return Err(wrong(format!("kind {kind} has a TTL of {ttl:?}")));
        }
    }
    Ok(())
}

/// The scratch head goes as it came: by a condition, since cells of conditions take no plain writes.
async fn clean(store: &CqlStore, key: &ObjectKey) -> Result<(), StoreError> {
    let table = store.statements.read.get_table_spec().map(|t| format!("{}.{}", t.ks_name(), t.table_name()));
    let table = table.ok_or_else(|| wrong("a prepared statement names no table".to_owned()))?;
    let delete = format!(
        "DELETE FROM {table} WHERE bucket = ? AND kind = 0 AND tenant = ? AND source = ? AND object = ? AND row = '' IF EXISTS"
    );
    let values = (PROBE_BUCKET as i32, &key.tenant, &key.source, &key.object);
    store.session.query_unpaged(delete, values).await.map(|_| ()).map_err(plain_failed)
}
