//! Errors of store, log and sinks, named by what the caller must do.

use thiserror::Error;

/// What became of a call on the store.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreError {
    /// Nothing was written. Wait and do it again: never an event's fault.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// The answer was lost: it may be written, or yet become so. Read before anything else.
    #[error("the store's answer was lost: {0}")]
    Unknown(String),
    /// This batch can never be written, whatever the store's health.
    #[error("the store refuses this batch: {0}")]
    Rejected(String),
    /// What is stored cannot be understood: by a newer version, or damaged.
    #[error("stored data cannot be read: {0}")]
    Corrupt(String),
}

#[derive(Debug, Clone, Error)]
pub enum LogError {
    #[error("the log is not available: {0}")]
    Unavailable(String),
    /// Going on would lose or repeat records without notice.
    #[error("{0}")]
    Refused(String),
}

/// Why a processor ends by itself.
#[derive(Debug, Error)]
pub enum RunError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Store(#[from] StoreError),
}
