//! How to append to a log, and only that. The other half, read and commit, is the processor's.

#[cfg(feature = "kafka")]
pub mod kafka;
pub mod memory;
pub mod sqlite;

use std::time::Duration;

use async_trait::async_trait;
use seriatim_schemas::record::Record;
use thiserror::Error;

/// Why records are not durable.
#[derive(Debug, Clone, Error)]
pub enum AppendError {
    #[error("the log is not available: {0}")]
    Unavailable(String),
    #[error("the log is full: {0}")]
    Full(String),
    #[error("a record of {bytes} bytes is larger than the log takes")]
    TooLarge { bytes: usize },
    #[error("the log is closed")]
    Closed,
}

#[async_trait]
pub trait Append: Send + Sync + 'static {
    /// Appends all records; returns once every one is durable. After an error some may be there.
    async fn append(&self, records: Vec<Record>) -> Result<(), AppendError>;

    /// Which log this is, by an id of its own: another log at the same place, or under the same name, has another.
    async fn identity(&self) -> Result<String, AppendError>;

    /// Whether an append has a chance now; for readiness.
    async fn check(&self) -> Result<(), AppendError>;

    /// Flushes and lets go, within a deadline.
    async fn close(&self, within: Duration) -> Result<(), AppendError>;
}
