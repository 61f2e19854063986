//! The embedded log: one SQLite file, one writer thread, group commit.
//!
//! Appends that wait while a commit runs go into the next one together, so `synchronous=FULL` costs one
//! sync per group, and a lone append waits for nothing.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, ErrorCode, TransactionBehavior, params};
use seriatim_schemas::record::{Record, encode, headers_to_json};
use seriatim_schemas::tables::SQL_LOG;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::{Append, AppendError};

/// Most appends in one commit.
pub const GROUP_APPENDS_MAX: usize = 256;

/// Name of the log's file in its folder.
pub const LOG_FILE: &str = "log.db";

struct Row {
    key: String,
    headers: Vec<u8>,
    value: bytes::Bytes,
}

struct Request {
    rows: Vec<Row>,
    done: oneshot::Sender<Result<(), AppendError>>,
}

#[derive(Debug)]
pub struct SqliteLog {
    requests: mpsc::Sender<Request>,
    id: String,
}

impl SqliteLog {
    /// Opens or makes the log in `folder`. `bytes_max` bounds its file; 0: the disk does.
    pub fn open(folder: &Path, bytes_max: u64) -> Result<Self, AppendError> {
        let connection = open_log(folder, bytes_max).map_err(|e| unavailable(&e))?;
        let id = connection.query_row("SELECT value FROM fixed WHERE name = 'id'", [], |row| row.get(0));
        let id = id.map_err(|e| unavailable(&e))?;
        let (requests, queue) = mpsc::channel(GROUP_APPENDS_MAX * 4);
        let writer = std::thread::Builder::new().name("log-writer".into());
        let spawned = writer.spawn(move || write_groups(connection, queue));
        spawned.map_err(|e| AppendError::Unavailable(e.to_string()))?;
        Ok(Self { requests, id })
    }
}

/// Opens `log.db` and makes its tables. Shared with readers, which need them to exist.
pub fn open_log(folder: &Path, bytes_max: u64) -> rusqlite::Result<Connection> {
    let connection = Connection::open(folder.join(LOG_FILE))?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 4000)?;
    if bytes_max > 0 {
        let page: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let pages = i64::try_from(bytes_max).unwrap_or(i64::MAX) / page;
        connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    connection.execute_batch(SQL_LOG)?;
    let id = Uuid::new_v4().to_string();
    connection.execute("INSERT INTO fixed (name, value) VALUES ('id', ?1) ON CONFLICT DO NOTHING", [id])?;
    Ok(connection)
}

fn write_groups(mut connection: Connection, mut queue: mpsc::Receiver<Request>) {
    while let Some(first) = queue.blocking_recv() {
        let mut group = vec![first];
        while group.len() < GROUP_APPENDS_MAX {
            let Ok(next) = queue.try_recv() else { break };
            group.push(next);
        }
        let result = write_group(&mut connection, &group).map_err(|e| unavailable(&e));
        for request in group {
            // A sender that is gone hears nothing; its record is durable all the same.
            let _ = request.done.send(result.clone());
        }
    }
}

fn write_group(connection: &mut Connection, group: &[Request]) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut insert = transaction.prepare_cached("INSERT INTO record (key, headers, value) VALUES (?1, ?2, ?3)")?;
        for row in group.iter().flat_map(|request| &request.rows) {
            let headers = std::str::from_utf8(&row.headers).expect("JSON is text");
            insert.execute(params![row.key, headers, &row.value[..]])?;
        }
    }
    transaction.commit()
}

fn unavailable(error: &rusqlite::Error) -> AppendError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => AppendError::Full(format!("{error}: free some space, or raise the bound")),
        Some(ErrorCode::TooBig) => AppendError::TooLarge { bytes: 0 },
        _ => AppendError::Unavailable(error.to_string()),
    }
}

#[async_trait]
impl Append for SqliteLog {
    async fn append(&self, records: Vec<Record>) -> Result<(), AppendError> {
        let row = |record: &Record| Row {
            key: record.key.to_string(),
            headers: headers_to_json(&encode(record)),
            value: record.value.clone(),
        };
        let (done, result) = oneshot::channel();
        let request = Request { rows: records.iter().map(row).collect(), done };
        self.requests.send(request).await.map_err(|_| AppendError::Closed)?;
        result.await.map_err(|_| AppendError::Closed)?
    }

    async fn identity(&self) -> Result<String, AppendError> {
        Ok(self.id.clone())
    }

    async fn check(&self) -> Result<(), AppendError> {
        // A group of nothing: whether a write transaction can be had.
        self.append(Vec::new()).await
    }

    async fn close(&self, _within: Duration) -> Result<(), AppendError> {
        // Whatever was acknowledged is on disk.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_log_made_anew_at_the_same_place_is_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = || SqliteLog::open(folder.path(), 0).expect("a log");
        let id = async |log: SqliteLog| log.identity().await.expect("an id");
        let (first, again) = (id(open()).await, id(open()).await);
        assert_eq!(first, again);
        for file in std::fs::read_dir(folder.path()).expect("a folder") {
            std::fs::remove_file(file.expect("a file").path()).expect("removed");
        }
        assert_ne!(first, id(open()).await);
    }
}
