//! The embedded store: one SQLite file, one thread that owns its connection.
//!
//! The protocol is that of the distributed store, so that one suite tests both: conditions on turn and on
//! rows that must not exist, all or nothing. There is one bucket, so a group spans all objects, and a group
//! is one synced commit.

mod beside;
mod inspect;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row, TransactionBehavior, params};
use seriatim_schemas::id::{RecordId, Sha256Digest};
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::record::headers_to_json;
use seriatim_schemas::row::{
    BacklogRow, DeadLetter, EventRow, Head, Run, Snapshot, State, Waiting, WaitingEffect, WaitingSink,
};
use seriatim_schemas::tables::{SQL_STATE, TABLES_VERSION};
use seriatim_schemas::version::OrderKey;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::{Arrival, Committed, FloorKey, Freshness, GroupBounds, Letter, LetterKey, ObjectBatch, ObjectQuery, Store};
use crate::decide::View;
use crate::error::StoreError;

/// Name of the store's file in its folder.
pub const STATE_FILE: &str = "state.db";

/// Most expired rows removed in one transaction, so that a commit never waits long behind it.
const EXPIRE_ROWS_MAX: usize = 2000;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

#[derive(Debug)]
pub struct SqliteStore {
    jobs: mpsc::UnboundedSender<Job>,
}

impl SqliteStore {
    /// Opens or makes the store in `folder`.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let connection = open_for_writing(&folder.join(STATE_FILE))?;
        Self::start(connection)
    }

    /// Opens an existing store to look into it; a processor may be at work on it.
    pub fn open_read_only(folder: &Path) -> Result<Self, StoreError> {
        let path: PathBuf = folder.join(STATE_FILE);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&path, flags)
            .map_err(|e| StoreError::Unavailable(format!("{}: {e}", path.display())))?;
        connection.busy_timeout(Duration::from_secs(5)).map_err(|e| failed(&e))?;
        Self::start(connection)
    }

    fn start(mut connection: Connection) -> Result<Self, StoreError> {
        connection.set_prepared_statement_cache_capacity(32);
        let (jobs, mut queue) = mpsc::unbounded_channel::<Job>();
        let work = move || {
            while let Some(job) = queue.blocking_recv() {
                job(&mut connection);
            }
        };
        let spawned = std::thread::Builder::new().name("state".into()).spawn(work);
        spawned.map_err(|e| StoreError::Unavailable(e.to_string()))?;
        Ok(Self { jobs })
    }

    /// Runs `job` on the thread that owns the connection.
    async fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (done, result) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            let _ = done.send(job(connection));
        });
        let gone = || StoreError::Unavailable("the store's thread has ended".to_owned());
        self.jobs.send(job).map_err(|_| gone())?;
        result.await.map_err(|_| gone())?.map_err(|e| failed(&e))
    }
}

fn open_for_writing(path: &Path) -> Result<Connection, StoreError> {
    let open = || {
        let connection = Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "cache_size", -65536)?;
        connection.pragma_update(None, "wal_autocheckpoint", 4000)?;
        connection.execute_batch(SQL_STATE)?;
        let version = TABLES_VERSION.to_string();
        connection
            .execute("INSERT INTO fixed (name, value) VALUES ('tables', ?1) ON CONFLICT DO NOTHING", [&version])?;
        let found: String = connection.query_row("SELECT value FROM fixed WHERE name = 'tables'", [], |r| r.get(0))?;
        Ok((connection, found))
    };
    let (connection, found) =
        open().map_err(|e: rusqlite::Error| StoreError::Unavailable(format!("{}: {e}", path.display())))?;
    if found == TABLES_VERSION.to_string() {
        Ok(connection)
    } else {
        Err(StoreError::Corrupt(format!(
            "tables are of version {found}, this process knows {TABLES_VERSION}: upgrade it"
        )))
    }
}

/// A transaction of SQLite is written whole or not at all, and its answer is never lost while we live.
fn failed(error: &rusqlite::Error) -> StoreError {
    match error {
        rusqlite::Error::FromSqlConversionFailure(..) => StoreError::Corrupt(error.to_string()),
        _ => match error.sqlite_error_code() {
            Some(ErrorCode::TooBig) => StoreError::Rejected(error.to_string()),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Corrupt(error.to_string()),
            _ => StoreError::Unavailable(error.to_string()),
        },
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn buckets(&self) -> u32 {
        1
    }

    fn group_bounds(&self) -> GroupBounds {
        // A group is one synced commit, whatever it spans.
        GroupBounds { events: 512, objects: 512, bytes: 8 * 1024 * 1024 }
    }

    async fn read(
        &self,
        _bucket: u32,
        queries: &[ObjectQuery],
        _freshness: Freshness,
    ) -> Result<Vec<View>, StoreError> {
        let queries = queries.to_vec();
        self.call(move |connection| {
            let snapshot = connection.transaction()?;
            queries.iter().map(|query| read_view(&snapshot, query)).collect()
        })
        .await
    }

    async fn arrived(&self, _bucket: u32, of: &[(ObjectKey, String, RecordId)]) -> Result<Vec<RecordId>, StoreError> {
        let of = of.to_vec();
        self.call(move |connection| {
            let sql = "SELECT 1 FROM arrival WHERE tenant = ?1 AND source = ?2 AND object = ?3 AND event = ?4 AND record = ?5";
            let mut statement = connection.prepare_cached(sql)?;
            let mut out = Vec::new();
            for (key, row, record) in of {
                if statement.exists(params![key.tenant, key.source, key.object, row, record.to_string()])? {
                    out.push(record);
                }
            }
            Ok(out)
        })
        .await
    }

    async fn commit(&self, _bucket: u32, batches: &[ObjectBatch]) -> Result<Committed, StoreError> {
        let batches = batches.to_vec();
        self.call(move |connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for batch in &batches {
                if !write_batch(&transaction, batch)? {
                    transaction.rollback()?;
                    return Ok(Committed::Refused);
                }
            }
            transaction.commit()?;
            Ok(Committed::Applied)
        })
        .await
    }

    async fn record(&self, _bucket: u32, arrivals: &[Arrival], dead: &[DeadLetter]) -> Result<(), StoreError> {
        let (arrivals, dead) = (arrivals.to_vec(), dead.to_vec());
        self.call(move |connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for arrival in &arrivals {
                write_arrival(&transaction, arrival)?;
            }
            for letter in &dead {
                write_dead(&transaction, letter)?;
            }
            transaction.commit()
        })
        .await
    }

    async fn waiting_effects(
        &self,
        _bucket: u32,
        key: &ObjectKey,
        sink: &str,
        after: i64,
        max: usize,
    ) -> Result<Vec<WaitingEffect>, StoreError> {
        let (key, sink) = (key.clone(), sink.to_owned());
        self.call(move |connection| beside::effects(connection, &key, &sink, after, max)).await
    }

    async fn waiting(&self, _bucket: u32) -> Result<Vec<WaitingSink>, StoreError> {
        self.call(|connection| beside::waiting(connection)).await
    }

    async fn backlog(
        &self,
        _bucket: u32,
        key: &ObjectKey,
        from: u64,
        max: usize,
    ) -> Result<Vec<BacklogRow>, StoreError> {
        let key = key.clone();
        self.call(move |connection| beside::backlog(connection, &key, from, max)).await
    }

    async fn events_from(
        &self,
        _bucket: u32,
        key: &ObjectKey,
        rev: i64,
        max: usize,
    ) -> Result<Vec<EventRow>, StoreError> {
        let key = key.clone();
        self.call(move |connection| {
            let sql = format!(
                "SELECT {EVENT_COLUMNS} FROM event WHERE tenant = ?1 AND source = ?2 AND object = ?3 AND rev >= ?4 ORDER BY rev LIMIT ?5"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            let values = params![key.tenant, key.source, key.object, rev, max as i64];
            statement.query_map(values, read_event)?.collect()
        })
        .await
    }

    async fn dead_letter(&self, _bucket: u32, of: &LetterKey) -> Result<Option<DeadLetter>, StoreError> {
        let LetterKey { key, row } = of.clone();
        self.call(move |connection| {
            let sql = format!(
                "SELECT {DEAD_COLUMNS} FROM dead WHERE tenant = ?1 AND source = ?2 AND object = ?3 AND event = ?4"
            );
            let values = params![key.tenant, key.source, key.object, row];
            connection.prepare_cached(&sql)?.query_row(values, inspect::read_dead).optional()
        })
        .await
    }

    async fn forget(&self, _bucket: u32, letter: &Letter) -> Result<(), StoreError> {
        let Letter { of: LetterKey { key, row }, dead_ms } = letter.clone();
        self.call(move |connection| {
            let sql =
                "DELETE FROM dead WHERE tenant = ?1 AND source = ?2 AND object = ?3 AND event = ?4 AND dead_ms = ?5";
            let values = params![key.tenant, key.source, key.object, row, dead_ms];
            connection.prepare_cached(sql)?.execute(values).map(|_| ())
        })
        .await
    }

    async fn floor(&self, key: &FloorKey) -> Result<Option<i64>, StoreError> {
        let key = key.clone();
        self.call(move |connection| {
            let sql = "SELECT next_offset FROM floor WHERE generation = ?1 AND topic = ?2 AND topic_id = ?3 AND partition = ?4";
            connection.query_row(sql, params![key.generation, key.topic, key.topic_id, key.partition], |row| row.get(0)).optional()
        })
        .await
    }

    async fn set_floor(&self, key: &FloorKey, next_offset: i64) -> Result<(), StoreError> {
        let key = key.clone();
        self.call(move |connection| {
            let sql =
                "INSERT INTO floor (generation, topic, topic_id, partition, next_offset) VALUES (?1, ?2, ?3, ?4, ?5)
                       ON CONFLICT DO UPDATE SET next_offset = max(next_offset, excluded.next_offset)";
            connection
                .execute(sql, params![key.generation, key.topic, key.topic_id, key.partition, next_offset])
                .map(|_| ())
        })
        .await
    }

    async fn expire(&self, now_s: i64) -> Result<(), StoreError> {
        loop {
            let removed = self.call(move |connection| {
                let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let mut removed = 0;
                for (table, key) in [("event", "row"), ("arrival", "event, record")] {
                    let columns = format!("tenant, source, object, {key}");
                    let old = format!("SELECT {columns} FROM {table} WHERE expires_s < ?1 LIMIT ?2");
                    let sql = format!("DELETE FROM {table} WHERE ({columns}) IN ({old})");
                    removed += transaction.execute(&sql, params![now_s, EXPIRE_ROWS_MAX as i64])?;
                }
                transaction.commit()?;
                Ok(removed)
            });
            if removed.await? < EXPIRE_ROWS_MAX {
                return Ok(());
            }
        }
    }
}

const DEAD_COLUMNS: &str = "tenant, source, object, event, event_id, type, record, cause, detail, position, recorded_ms, dead_ms, headers, value";
const HEAD_COLUMNS: &str = "rev, turn, order_key, version, type, event, record, digest, deleted, waiting, fold, sequence, run_partition, run_after";
const EVENT_COLUMNS: &str = "row, outcome, rev, type, version, digest, record, attempt, position, decided_ms";

fn read_view(connection: &Connection, query: &ObjectQuery) -> rusqlite::Result<View> {
    let ObjectKey { tenant, source, object } = &query.key;
    let sql = format!("SELECT {HEAD_COLUMNS} FROM head WHERE tenant = ?1 AND source = ?2 AND object = ?3");
    let head = connection.prepare_cached(&sql)?.query_row(params![tenant, source, object], read_head).optional()?;
    let mut rows = HashMap::new();
    // An object never seen has no events either.
    if head.is_some() {
        let sql =
            format!("SELECT {EVENT_COLUMNS} FROM event WHERE tenant = ?1 AND source = ?2 AND object = ?3 AND row = ?4");
        let mut statement = connection.prepare_cached(&sql)?;
        for row in &query.event_rows {
            if let Some(found) = statement.query_row(params![tenant, source, object, row], read_event).optional()? {
                rows.insert(row.clone(), found);
            }
        }
    }
    Ok(View { head, rows, ..View::default() })
}

fn read_head(row: &Row<'_>) -> rusqlite::Result<Head> {
    read_head_at(row, 0)
}

/// `at`: where the columns of the head begin.
fn read_head_at(row: &Row<'_>, at: usize) -> rusqlite::Result<Head> {
    let order_key: Option<Vec<u8>> = row.get(at + 2)?;
    let snapshot = order_key.map(|order_key| {
        Ok::<_, rusqlite::Error>(Snapshot {
            order_key: OrderKey(order_key),
            version: row.get(at + 3)?,
            event_type: row.get(at + 4)?,
            event_row: row.get(at + 5)?,
            record: parsed(row, at + 6)?,
            digest: read_digest(row, at + 7)?,
            deleted: row.get(at + 8)?,
        })
    });
    let waiting: Option<String> = row.get(at + 9)?;
    let fold: Option<Vec<u8>> = row.get(at + 10)?;
    let sequence: Option<String> = row.get(at + 11)?;
    let sequence = sequence.map(|text| serde_json::from_str(&text)).transpose();
    let run: (Option<i32>, Option<i64>) = (row.get(at + 12)?, row.get(at + 13)?);
    Ok(Head {
        rev: row.get(at)?,
        turn: row.get(at + 1)?,
        snapshot: snapshot.transpose()?,
        waiting: Waiting::decode(waiting.as_deref()).map_err(|e| conversion(at + 9, e.to_string()))?,
        fold: fold.map(Into::into),
        sequence: sequence.map_err(|e| conversion(at + 11, e.to_string()))?,
        run: run.0.zip(run.1).map(|(partition, after)| Run { partition, after }),
    })
}

fn read_event(row: &Row<'_>) -> rusqlite::Result<EventRow> {
    Ok(EventRow {
        row: row.get(0)?,
        outcome: read_outcome(row, 1)?,
        rev: row.get(2)?,
        event_type: row.get(3)?,
        version: row.get(4)?,
        digest: read_digest(row, 5)?,
        record: parsed(row, 6)?,
        attempt: parsed::<Uuid>(row, 7)?,
        position: row.get(8)?,
        decided_ms: row.get(9)?,
    })
}

fn conversion(column: usize, message: String) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, message.into())
}

fn parsed<T: FromStr>(row: &Row<'_>, column: usize) -> rusqlite::Result<T>
where
    T::Err: std::fmt::Display,
{
    let text: String = row.get(column)?;
    text.parse().map_err(|e: T::Err| conversion(column, e.to_string()))
}

fn read_digest(row: &Row<'_>, column: usize) -> rusqlite::Result<Sha256Digest> {
    let bytes: Vec<u8> = row.get(column)?;
    Sha256Digest::from_slice(&bytes).ok_or_else(|| conversion(column, "a digest is not 32 bytes".to_owned()))
}

fn read_outcome(row: &Row<'_>, column: usize) -> rusqlite::Result<Outcome> {
    let text: String = row.get(column)?;
    Outcome::parse(&text).ok_or_else(|| conversion(column, format!("outcome {text:?} is unknown")))
}

fn expires_s(from_ms: i64, ttl_s: u64) -> i64 {
    (from_ms / 1000).saturating_add(i64::try_from(ttl_s).unwrap_or(i64::MAX))
}

/// Writes one object's part of a batch; false if a condition does not hold.
fn write_batch(connection: &Connection, batch: &ObjectBatch) -> rusqlite::Result<bool> {
    let ObjectKey { tenant, source, object } = &batch.key;
    for row in &batch.rows {
        let sql = "INSERT INTO event (tenant, source, object, row, outcome, rev, type, version, digest, record, attempt, position, decided_ms, expires_s)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) ON CONFLICT DO NOTHING";
        let expires_s = expires_s(row.decided_ms, batch.rows_ttl_s);
        let inserted = connection.prepare_cached(sql)?.execute(params![
            tenant,
            source,
            object,
            row.row,
            row.outcome.as_str(),
            row.rev,
            row.event_type,
            row.version,
            &row.digest.0[..],
            row.record.to_string(),
            row.attempt.to_string(),
            row.position,
            row.decided_ms,
            expires_s
        ])?;
        if inserted == 0 {
            return Ok(false);
        }
    }
    let state = batch.state.as_ref().map(State::encode);
    let snapshot = batch.head.snapshot.as_ref();
    let values = params![
        tenant,
        source,
        object,
        batch.head.rev,
        batch.head.turn,
        snapshot.map(|s| s.order_key.0.as_slice()),
        snapshot.map(|s| s.version.as_str()),
        snapshot.map(|s| s.event_type.as_str()),
        snapshot.map(|s| s.event_row.as_str()),
        snapshot.map(|s| s.record.to_string()),
        snapshot.map(|s| s.digest.0.as_slice()),
        snapshot.map(|s| s.deleted),
        state,
        batch.turn,
        batch.head.waiting.encode(),
        batch.head.fold.as_deref(),
        batch.head.sequence.as_ref().map(|s| serde_json::to_string(s).expect("plain data")),
        batch.head.run.map(|run| run.partition),
        batch.head.run.map(|run| run.after)
    ];
    let sql = match batch.turn {
        None => {
            "INSERT INTO head (tenant, source, object, rev, turn, order_key, version, type, event, record, digest, deleted, state, waiting, fold, sequence, run_partition, run_after)
             SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?15, ?16, ?17, ?18, ?19 WHERE ?14 IS NULL ON CONFLICT DO NOTHING"
        }
        Some(_) => {
            "UPDATE head SET rev = ?4, turn = ?5, order_key = ?6, version = ?7, type = ?8, event = ?9, record = ?10, digest = ?11, deleted = ?12,
             state = coalesce(?13, state), waiting = ?15, fold = ?16, sequence = ?17, run_partition = ?18, run_after = ?19
             WHERE tenant = ?1 AND source = ?2 AND object = ?3 AND turn IS ?14"
        }
    };
    if connection.prepare_cached(sql)?.execute(values)? != 1 {
        return Ok(false);
    }
    beside::write(connection, &batch.key, &batch.beside)?;
    Ok(true)
}

fn write_arrival(connection: &Connection, arrival: &Arrival) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO arrival (tenant, source, object, event, record, event_id, outcome, detail, position, recorded_ms, done_ms, expires_s)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
    let (key, row) = (&arrival.key, &arrival.row);
    let expires_s = expires_s(row.done_ms, arrival.ttl_s);
    let outcome = row.outcome.as_str();
    let record = row.record.to_string();
    let (event, id, detail, position) = (&row.event_row, &row.event_id, &row.detail, &row.position);
    connection.prepare_cached(sql)?.execute(params![
        key.tenant,
        key.source,
        key.object,
        event,
        record,
        id,
        outcome,
        detail,
        position,
        row.recorded_ms,
        row.done_ms,
        expires_s
    ])?;
    Ok(())
}

fn write_dead(connection: &Connection, letter: &DeadLetter) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO dead (tenant, source, object, event, event_id, type, record, cause, detail, position, recorded_ms, dead_ms, headers, value)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)";
    connection.prepare_cached(sql)?.execute(params![
        letter.tenant,
        letter.source,
        letter.object,
        letter.event_row,
        letter.event_id,
        letter.event_type,
        letter.record.to_string(),
        letter.cause,
        letter.detail,
        letter.position,
        letter.recorded_ms,
        letter.dead_ms,
        headers_to_json(&letter.headers),
        &letter.value[..]
    ])?;
    Ok(())
}
