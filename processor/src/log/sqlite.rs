//! Reads the embedded log: one partition, in order of position, by polling. The few records of a processor's own go
//! in beside the edge's writer, one transaction each.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, OpenFlags, params};
use seriatim_schemas::record::{DecodeError, Record, decode, encode, headers_from_json, headers_to_json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Floors, ForeignRecord, Log, LogEntry, LogEvent, LogIdentity};
use crate::budget::Budget;
use crate::error::LogError;
use crate::inspect::{Extent, InspectLog, RawEntry};

/// Records of one read.
const READ_MAX: usize = 256;
/// Waits between looks at an empty log: short after traffic, longer when it rests.
const POLL_MIN: Duration = Duration::from_millis(1);
const POLL_MAX: Duration = Duration::from_millis(20);
/// Name of the log's file in its folder.
const LOG_FILE: &str = "log.db";
const TOPIC: &str = "log";
const PARTITION: i32 = 0;

#[derive(Debug)]
pub struct SqliteLog {
    path: PathBuf,
    id: String,
    stop: CancellationToken,
}

impl SqliteLog {
    /// Opens the log in `folder`, which its writer has made.
    pub fn open(folder: &Path) -> Result<Self, LogError> {
        let path = folder.join(LOG_FILE);
        let connection = connect(&path)?;
        let id = connection
            .query_row("SELECT value FROM fixed WHERE name = 'id'", [], |row| row.get(0))
            .map_err(unavailable)?;
        Ok(Self { path, id, stop: CancellationToken::new() })
    }
}

/// Opens the file for reading.
fn connect(path: &Path) -> Result<Connection, LogError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(unavailable)?;
    connection.busy_timeout(Duration::from_secs(5)).map_err(unavailable)?;
    Ok(connection)
}

fn append(path: &Path, record: &Record) -> rusqlite::Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    let headers = String::from_utf8(headers_to_json(&encode(record))).expect("JSON is text");
    let insert = "INSERT INTO record (key, headers, value) VALUES (?1, ?2, ?3)";
    connection.execute(insert, params![record.key.to_string(), headers, &record.value[..]])?;
    Ok(())
}

fn unavailable(error: rusqlite::Error) -> LogError {
    LogError::Unavailable(error.to_string())
}

/// Position, key, headers and value of the rows at `from` and behind it.
type Row = (i64, String, String, Vec<u8>);

fn read_rows(connection: &Connection, from: i64, max: usize) -> rusqlite::Result<Vec<Row>> {
    let sql = "SELECT position, key, headers, value FROM record WHERE position >= ?1 ORDER BY position LIMIT ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement
        .query_map(params![from, max as i64], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
    rows.collect()
}

fn to_entry((offset, key, headers, value): Row, budget: &Budget) -> LogEntry {
    let value = Bytes::from(value);
    let headers = headers_from_json(headers.as_bytes()).unwrap_or_default();
    let record = decode(&key, &headers, value.clone());
    let share = budget.take(record.as_ref().map_or(value.len(), |r| r.size()));
    LogEntry {
        offset,
        record: record.map_err(|error: DecodeError| ForeignRecord { key, error, headers, value }),
        share,
    }
}

fn pump(
    connection: &Connection,
    start: i64,
    budget: &Budget,
    stop: &CancellationToken,
    events: &mpsc::UnboundedSender<LogEvent>,
) {
    let (mut from, mut wait) = (start, POLL_MIN);
    while !stop.is_cancelled() {
        let rows = if budget.is_spent() { Ok(Vec::new()) } else { read_rows(connection, from, READ_MAX) };
        match rows {
            Ok(rows) if rows.is_empty() => {
                std::thread::sleep(wait);
                wait = (wait * 2).min(POLL_MAX);
            }
            Ok(rows) => {
                wait = POLL_MIN;
                from = rows.last().map_or(from, |row| row.0 + 1);
                let entries = rows.into_iter().map(|row| to_entry(row, budget)).collect();
                if events.send(LogEvent::Entries { partition: PARTITION, entries }).is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the log cannot be read, trying again");
                std::thread::sleep(POLL_MAX * 10);
            }
        }
    }
    let (drained, wait) = oneshot::channel();
    if events.send(LogEvent::Revoked { partitions: vec![PARTITION], drained }).is_ok() {
        let _ = wait.blocking_recv();
    }
}

#[async_trait]
impl Log for SqliteLog {
    async fn start(&self, budget: Budget, floors: Floors) -> Result<mpsc::UnboundedReceiver<LogEvent>, LogError> {
        let start = floors.get(PARTITION).await.map_err(|e| LogError::Unavailable(e.to_string()))?.unwrap_or(1);
        let connection = connect(&self.path)?;
        let (events, receiver) = mpsc::unbounded_channel();
        let _ = events.send(LogEvent::Assigned { partition: PARTITION, start });
        let stop = self.stop.clone();
        let reader = std::thread::Builder::new().name("log-reader".into());
        let spawned = reader.spawn(move || pump(&connection, start, &budget, &stop, &events));
        spawned.map_err(|e| LogError::Unavailable(e.to_string()))?;
        Ok(receiver)
    }

    async fn commit(&self, _partition: i32, _next_offset: i64) -> Result<(), LogError> {
        // The floor in the store is all there is.
        Ok(())
    }

    async fn append(&self, record: Record) -> Result<(), LogError> {
        let path = self.path.clone();
        let appended = tokio::task::spawn_blocking(move || append(&path, &record)).await;
        appended.map_err(|e| LogError::Unavailable(e.to_string()))?.map_err(unavailable)
    }

    async fn stop(&self) {
        self.stop.cancel();
    }
}

#[async_trait]
impl InspectLog for SqliteLog {
    fn identity(&self) -> LogIdentity {
        LogIdentity { topic: TOPIC.to_owned(), topic_id: self.id.clone() }
    }

    async fn extents(&self) -> Result<Vec<Extent>, LogError> {
        let sql = "SELECT coalesce(min(position), 1), coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'record'), 0) + 1 FROM record";
        let read = |row: &rusqlite::Row<'_>| Ok(Extent { partition: PARTITION, first: row.get(0)?, next: row.get(1)? });
        let extent = connect(&self.path)?.query_row(sql, [], read).map_err(unavailable)?;
        Ok(vec![extent])
    }

    async fn partitions(&self) -> Result<u32, LogError> {
        Ok(1)
    }

    async fn entries(&self, _partition: i32, from: i64, max: usize) -> Result<Vec<RawEntry>, LogError> {
        let rows = read_rows(&connect(&self.path)?, from, max).map_err(unavailable)?;
        let entry = |(offset, key, headers, value): Row| {
            let headers = headers_from_json(headers.as_bytes()).unwrap_or_default();
            RawEntry { offset, key, headers, value: Bytes::from(value) }
        };
        Ok(rows.into_iter().map(entry).collect())
    }
}
