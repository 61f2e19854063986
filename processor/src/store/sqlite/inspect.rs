//! What an operator asks the embedded store.

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Row, params};
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::record::headers_from_json;
use seriatim_schemas::row::{ArrivalRow, DeadLetter, EventRow, State, WaitingEffect, WaitingSink};

use super::{
    EVENT_COLUMNS, HEAD_COLUMNS, SqliteStore, beside, conversion, parsed, read_event, read_head, read_head_at,
    read_outcome,
};
use crate::error::StoreError;
use crate::inspect::{
    After, AfterArrival, Inspect, LetterHead, ObjectHead, ObjectState, Page, RowName, Scope, what_became,
};
use crate::store::{Arrival, FloorKey, LetterKey, Store};

#[async_trait]
impl Inspect for SqliteStore {
    async fn object(&self, key: &ObjectKey) -> Result<Option<ObjectState>, StoreError> {
        let key = key.clone();
        self.call(move |connection| {
            let sql =
                format!("SELECT {HEAD_COLUMNS}, state FROM head WHERE tenant = ?1 AND source = ?2 AND object = ?3");
            let read = |row: &Row<'_>| {
                let state: Option<Vec<u8>> = row.get("state")?;
                let state = state.map(|s| State::decode(&s)).transpose().map_err(|e| conversion(14, e.to_string()))?;
                Ok(ObjectState { key: key.clone(), head: read_head(row)?, state })
            };
            let values = params![key.tenant, key.source, key.object];
            connection.prepare_cached(&sql)?.query_row(values, read).optional()
        })
        .await
    }

    async fn event(&self, key: &ObjectKey, row: &str) -> Result<Option<EventRow>, StoreError> {
        let (key, row) = (key.clone(), row.to_owned());
        self.call(move |connection| {
            let sql = format!(
                "SELECT {EVENT_COLUMNS} FROM event WHERE tenant = ?1 AND source = ?2 AND object = ?3 AND row = ?4"
            );
            let values = params![key.tenant, key.source, key.object, row];
            connection.prepare_cached(&sql)?.query_row(values, read_event).optional()
        })
        .await
    }

    async fn letter(&self, head: &LetterHead) -> Result<Option<DeadLetter>, StoreError> {
        self.dead_letter(0, &head.of).await
    }

    async fn heads(
        &self,
        tenant: &str,
        source: &str,
        after: &After,
        max: usize,
    ) -> Result<Page<ObjectHead>, StoreError> {
        let columns = format!("tenant, source, object, '', {HEAD_COLUMNS}");
        let table = Table { name: "head", row: "''", columns: &columns };
        let read = |name: &RowName, row: &Row<'_>| {
            let key = ObjectKey::new(&name.tenant, &name.source, &name.object);
            Ok(ObjectHead { key, head: read_head_at(row, 4)? })
        };
        self.page(table, Scope { tenant: Some(tenant), source: Some(source) }, after, max, read).await
    }

    async fn letters(&self, scope: Scope<'_>, after: &After, max: usize) -> Result<Page<LetterHead>, StoreError> {
        let columns =
            "tenant, source, object, event, event_id, type, record, cause, detail, position, recorded_ms, dead_ms";
        let table = Table { name: "dead", row: "event", columns };
        let read = |name: &RowName, row: &Row<'_>| {
            let key = ObjectKey::new(&name.tenant, &name.source, &name.object);
            Ok(LetterHead {
                bucket: 0,
                of: LetterKey { key, row: name.row.clone() },
                event_id: row.get(4)?,
                event_type: row.get(5)?,
                record: parsed(row, 6)?,
                cause: row.get(7)?,
                detail: row.get(8)?,
                position: row.get(9)?,
                recorded_ms: row.get(10)?,
                dead_ms: row.get(11)?,
            })
        };
        self.page(table, scope, after, max, read).await
    }

    async fn waiters(&self, scope: Scope<'_>, after: &After, max: usize) -> Result<Page<WaitingSink>, StoreError> {
        let table = Table { name: "waiting", row: "sink", columns: beside::WAITING_COLUMNS };
        self.page(table, scope, after, max, |_, row| beside::read_waiting(row)).await
    }

    async fn events_behind(&self, key: &ObjectKey, after: &str, max: usize) -> Result<Vec<EventRow>, StoreError> {
        let (key, after) = (key.clone(), after.to_owned());
        self.call(move |connection| {
            let sql = format!(
                "SELECT {EVENT_COLUMNS} FROM event WHERE tenant = ?1 AND source = ?2 AND object = ?3 AND row > ?4 ORDER BY row LIMIT ?5"
            );
            let values = params![key.tenant, key.source, key.object, after, max as i64];
            connection.prepare_cached(&sql)?.query_map(values, read_event)?.collect()
        })
        .await
    }

    async fn arrivals_behind(&self, key: &ObjectKey, after: &str, max: usize) -> Result<Vec<Arrival>, StoreError> {
        let key = key.clone();
        // A record id holds no slash.
        let (event, record) = after.rsplit_once('/').unwrap_or((after, ""));
        let (event, record) = (event.to_owned(), record.to_owned());
        let read = self.call(move |connection| {
            let sql = format!(
                "SELECT {ARRIVAL_COLUMNS} FROM arrival WHERE tenant = ?1 AND source = ?2 AND object = ?3 AND (event, record) > (?4, ?5)
                 ORDER BY event, record LIMIT ?6"
            );
            let values = params![key.tenant, key.source, key.object, event, record, max as i64];
            connection.prepare_cached(&sql)?.query_map(values, read_arrival)?.collect::<Result<Vec<_>, _>>()
        });
        what_became(self, read.await?).await
    }

    async fn trace_behind(
        &self,
        tenant: &str,
        source: &str,
        event_id: &str,
        after: &AfterArrival,
        max: usize,
    ) -> Result<Vec<Arrival>, StoreError> {
        let (of, after) = ([tenant.to_owned(), source.to_owned(), event_id.to_owned()], after.clone());
        let read = self.call(move |connection| {
            let sql = format!(
                "SELECT {ARRIVAL_COLUMNS} FROM arrival WHERE tenant = ?1 AND source = ?2 AND event_id = ?3 AND (object, event, record) > (?4, ?5, ?6)
                 ORDER BY object, event, record LIMIT ?7"
            );
            let values = params![of[0], of[1], of[2], after.object, after.event_row, after.record, max as i64];
            connection.prepare_cached(&sql)?.query_map(values, read_arrival)?.collect::<Result<Vec<_>, _>>()
        });
        what_became(self, read.await?).await
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

/// A table whose rows are named by tenant, source, object and one column more. Its first columns are these.
#[derive(Clone, Copy)]
struct Table<'a> {
    name: &'a str,
    row: &'a str,
    columns: &'a str,
}

impl SqliteStore {
    async fn page<T: Send + 'static>(
        &self,
        table: Table<'_>,
        scope: Scope<'_>,
        after: &After,
        max: usize,
        read: impl Fn(&RowName, &Row<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<Page<T>, StoreError> {
        let Table { name, row, columns } = table;
        let of = [("tenant", scope.tenant), ("source", scope.source)];
        let mut conditions = Vec::new();
        let mut values: Vec<Value> = Vec::new();
        for (column, value) in of.iter().filter_map(|(column, value)| value.map(|value| (column, value))) {
            conditions.push(format!("{column} = ?"));
            values.push(Value::from(value.to_owned()));
        }
        if let Some(after) = &after.row {
            conditions.push(format!("(tenant, source, object, {row}) > (?, ?, ?, ?)"));
            let RowName { tenant, source, object, row } = after.clone();
            values.extend([tenant, source, object, row].map(Value::from));
        }
        let conditions = if conditions.is_empty() { "true".to_owned() } else { conditions.join(" AND ") };
        values.push(Value::from(max as i64));
        let sql =
            format!("SELECT {columns} FROM {name} WHERE {conditions} ORDER BY tenant, source, object, {row} LIMIT ?");
        self.call(move |connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            let mut found = statement.query(rusqlite::params_from_iter(values))?;
            let (mut rows, mut last) = (Vec::new(), None);
            while let Some(row) = found.next()? {
                let name = RowName { tenant: row.get(0)?, source: row.get(1)?, object: row.get(2)?, row: row.get(3)? };
                rows.push(read(&name, row)?);
                last = Some(name);
            }
            let next = (rows.len() == max).then_some(After { bucket: 0, row: last });
            Ok(Page { rows, next })
        })
        .await
    }
}

const ARRIVAL_COLUMNS: &str =
    "tenant, source, object, event, record, event_id, outcome, detail, position, recorded_ms, done_ms, expires_s";

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
