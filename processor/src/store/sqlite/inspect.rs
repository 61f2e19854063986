//! What an operator asks the embedded store.

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Row, params};
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::record::headers_from_json;
use seriatim_schemas::row::{ArrivalRow, DeadLetter, EventRow, State, WaitingEffect, WaitingSink};

use super::{
    DEAD_COLUMNS, EVENT_COLUMNS, HEAD_COLUMNS, SqliteStore, conversion, parsed, read_event, read_head, read_outcome,
};
use crate::error::StoreError;
use crate::inspect::{Inspect, ObjectState};
use crate::store::{Arrival, FloorKey, Store};

#[async_trait]
impl Inspect for SqliteStore {
    async fn object(&self, key: &ObjectKey) -> Result<Option<ObjectState>, StoreError> {
        let all = self.objects_where(
            "tenant = ?1 AND source = ?2 AND object = ?3",
            vec![key.tenant.clone(), key.source.clone(), key.object.clone()],
        );
        Ok(all.await?.pop())
    }

    async fn objects(&self, tenant: &str, source: &str) -> Result<Vec<ObjectState>, StoreError> {
        self.objects_where("tenant = ?1 AND source = ?2", vec![tenant.to_owned(), source.to_owned()]).await
    }

    async fn events(&self, key: &ObjectKey) -> Result<Vec<EventRow>, StoreError> {
        let key = key.clone();
        self.call(move |connection| {
            let sql = format!(
                "SELECT {EVENT_COLUMNS} FROM event WHERE tenant = ?1 AND source = ?2 AND object = ?3 ORDER BY rev"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            let rows = statement.query_map(params![key.tenant, key.source, key.object], read_event)?;
            rows.collect()
        })
        .await
    }

    async fn arrivals(&self, key: &ObjectKey) -> Result<Vec<Arrival>, StoreError> {
        self.arrivals_where(
            "tenant = ?1 AND source = ?2 AND object = ?3",
            vec![key.tenant.clone(), key.source.clone(), key.object.clone()],
        )
        .await
    }

    async fn trace(&self, tenant: &str, source: &str, event_id: &str) -> Result<Vec<Arrival>, StoreError> {
        self.arrivals_where(
            "tenant = ?1 AND source = ?2 AND event_id = ?3",
            vec![tenant.to_owned(), source.to_owned(), event_id.to_owned()],
        )
        .await
    }

    async fn dead(&self, tenant: Option<&str>, source: Option<&str>) -> Result<Vec<DeadLetter>, StoreError> {
        let (tenant, source) = (tenant.map(str::to_owned), source.map(str::to_owned));
        self.call(move |connection| {
            let sql = format!("SELECT {DEAD_COLUMNS} FROM dead WHERE (?1 IS NULL OR tenant = ?1) AND (?2 IS NULL OR source = ?2) ORDER BY dead_ms");
            let mut statement = connection.prepare_cached(&sql)?;
            let rows = statement.query_map(params![tenant, source], read_dead)?;
            rows.collect()
        })
        .await
    }

    async fn all_waiting(&self) -> Result<Vec<WaitingSink>, StoreError> {
        self.waiting(0).await
    }

    async fn first_waiting(&self, key: &ObjectKey, sink: &str, max: usize) -> Result<Vec<WaitingEffect>, StoreError> {
        self.waiting_effects(0, key, sink, 0, max).await
    }

    async fn floors(&self) -> Result<Vec<(FloorKey, i64)>, StoreError> {
        self.call(move |connection| {
            let mut statement =
                connection.prepare("SELECT generation, topic, topic_id, partition, next_offset FROM floor")?;
            let read = |row: &Row<'_>| {
                let key = FloorKey {
                    generation: row.get(0)?,
                    topic: row.get(1)?,
                    topic_id: row.get(2)?,
                    partition: row.get(3)?,
                };
                Ok((key, row.get(4)?))
            };
            let rows = statement.query_map([], read)?;
            rows.collect()
        })
        .await
    }
}

impl SqliteStore {
    async fn objects_where(&self, condition: &str, values: Vec<String>) -> Result<Vec<ObjectState>, StoreError> {
        let sql =
            format!("SELECT {HEAD_COLUMNS}, tenant, source, object, state FROM head WHERE {condition} ORDER BY object");
        self.call(move |connection| {
            let mut statement = connection.prepare(&sql)?;
            let read = |row: &Row<'_>| {
                let key =
                    ObjectKey::new(row.get::<_, String>(12)?, row.get::<_, String>(13)?, row.get::<_, String>(14)?);
                let state: Option<Vec<u8>> = row.get(15)?;
                let state = state.map(|s| State::decode(&s)).transpose().map_err(|e| conversion(15, e.to_string()))?;
                Ok(ObjectState { key, head: read_head(row)?, state })
            };
            let rows = statement.query_map(rusqlite::params_from_iter(values), read)?;
            rows.collect()
        })
        .await
    }

    async fn arrivals_where(&self, condition: &str, values: Vec<String>) -> Result<Vec<Arrival>, StoreError> {
        let columns = "tenant, source, object, event, record, event_id, outcome, detail, position, recorded_ms, done_ms, expires_s";
        let sql = format!("SELECT {columns} FROM arrival WHERE {condition} ORDER BY recorded_ms, record");
        self.call(move |connection| {
            let mut statement = connection.prepare(&sql)?;
            let rows = statement.query_map(rusqlite::params_from_iter(values), read_arrival)?;
            rows.collect()
        })
        .await
    }
}

fn read_arrival(row: &Row<'_>) -> rusqlite::Result<Arrival> {
    let key = ObjectKey::new(row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?);
    let done_ms: i64 = row.get(10)?;
    let expires_s: i64 = row.get(11)?;
    let arrival = ArrivalRow {
        event_row: row.get(3)?,
        record: parsed(row, 4)?,
        event_id: row.get(5)?,
        outcome: read_outcome(row, 6)?,
        detail: row.get(7)?,
        position: row.get(8)?,
        recorded_ms: row.get(9)?,
        done_ms,
    };
    Ok(Arrival { key, row: arrival, ttl_s: u64::try_from(expires_s - done_ms / 1000).unwrap_or(0) })
}

pub fn read_dead(row: &Row<'_>) -> rusqlite::Result<DeadLetter> {
    let headers: Vec<u8> = row.get(12)?;
    let value: Vec<u8> = row.get(13)?;
    Ok(DeadLetter {
        tenant: row.get(0)?,
        source: row.get(1)?,
        object: row.get(2)?,
        event_row: row.get(3)?,
        event_id: row.get(4)?,
        event_type: row.get(5)?,
        record: parsed(row, 6)?,
        cause: row.get(7)?,
        detail: row.get(8)?,
        position: row.get(9)?,
        recorded_ms: row.get(10)?,
        dead_ms: row.get(11)?,
        headers: headers_from_json(&headers).map_err(|e| conversion(12, e.to_string()))?,
        value: Bytes::from(value),
    })
}
