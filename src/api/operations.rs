//! What can be asked and done, wherever: of log and store, or of a server that does so. Both tell the same rows.

use async_trait::async_trait;
use bytes::Bytes;
use seriatim_ingest::log::AppendError;
use seriatim_processor::error::{LogError, StoreError};
use seriatim_schemas::key::ObjectKey;
use thiserror::Error;

use super::rows::{
    Event, Group, LetterFilter, LetterRow, LetterSummary, LettersDone, LettersRequest, ObjectDone, ObjectRequest,
    ObjectRow, ObjectSummary, Page, Paging, PartitionLag, Trace, WaiterRow, WaitingQuery,
};

/// Why something was not answered or done, by what the caller can do about it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OperationError {
    /// There is no such thing, or not any more.
    #[error("{0}")]
    NotFound(String),
    /// Asked in a way that can never be done.
    #[error("{0}")]
    Invalid(String),
    /// Log, store or server do not answer now.
    #[error("{0}")]
    Away(String),
    /// What is stored cannot be read, or cannot be written.
    #[error("{0}")]
    Failed(String),
}

impl OperationError {
    /// The same, and what it was about.
    pub fn under(self, what: &str) -> Self {
        let under = |text: String| format!("{what}: {text}");
        match self {
            Self::NotFound(text) => Self::NotFound(under(text)),
            Self::Invalid(text) => Self::Invalid(under(text)),
            Self::Away(text) => Self::Away(under(text)),
            Self::Failed(text) => Self::Failed(under(text)),
        }
    }
}

impl From<StoreError> for OperationError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) | StoreError::Unknown(_) => Self::Away(error.to_string()),
            StoreError::Rejected(_) | StoreError::Corrupt(_) => Self::Failed(error.to_string()),
        }
    }
}

impl From<LogError> for OperationError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Unavailable(_) => Self::Away(error.to_string()),
            LogError::Refused(_) => Self::Failed(error.to_string()),
        }
    }
}

impl From<AppendError> for OperationError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Unavailable(_) | AppendError::Full(_) | AppendError::Closed => Self::Away(error.to_string()),
            AppendError::TooLarge { .. } => Self::Failed(error.to_string()),
        }
    }
}

/// What becomes of dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LettersAct {
    Redrive,
    Discard,
}

/// What becomes of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectAct {
    Redrive,
    Skip,
    ResetVersion,
    Pass,
}

impl LettersAct {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Discard => "discard",
        }
    }
}

impl ObjectAct {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Skip => "skip",
            Self::ResetVersion => "reset-version",
            Self::Pass => "pass",
        }
    }
}

/// Lists come in pages, which may be short; `by` is who acts.
#[async_trait]
pub trait Operations: Send + Sync {
    async fn objects(&self, tenant: &str, source: &str, paging: &Paging)
    -> Result<Page<ObjectSummary>, OperationError>;

    async fn object(&self, key: &ObjectKey) -> Result<ObjectRow, OperationError>;

    async fn events(&self, key: &ObjectKey, paging: &Paging) -> Result<Page<Event>, OperationError>;

    async fn trace(&self, tenant: &str, source: &str, event_id: &str, paging: &Paging)
    -> Result<Trace, OperationError>;

    /// The bytes that were signed.
    async fn raw(&self, tenant: &str, source: &str, event_id: &str) -> Result<Bytes, OperationError>;

    async fn letters(&self, filter: &LetterFilter, paging: &Paging) -> Result<Page<LetterSummary>, OperationError>;

    async fn letter_groups(&self, filter: &LetterFilter) -> Result<Page<Group>, OperationError>;

    /// `id`: event id or record id.
    async fn letter(&self, tenant: &str, source: &str, id: &str) -> Result<LetterRow, OperationError>;

    /// Acts on as many as it may in one go, and says where to go on.
    async fn act_on_letters(
        &self,
        act: LettersAct,
        request: &LettersRequest,
        by: &str,
    ) -> Result<LettersDone, OperationError>;

    async fn waiting(&self, query: &WaitingQuery, paging: &Paging) -> Result<Page<WaiterRow>, OperationError>;

    async fn act_on_object(
        &self,
        key: &ObjectKey,
        act: ObjectAct,
        request: &ObjectRequest,
        by: &str,
    ) -> Result<ObjectDone, OperationError>;

    async fn lag(&self) -> Result<Page<PartitionLag>, OperationError>;
}

/// All pages of a list, in memory.
pub async fn collect<T>(
    mut read: impl AsyncFnMut(Paging) -> Result<Page<T>, OperationError>,
) -> Result<Vec<T>, OperationError> {
    let (mut all, mut paging) = (Vec::new(), Paging::largest());
    loop {
        let page = read(paging.clone()).await?;
        all.extend(page.rows);
        match page.after {
            Some(after) => paging.after = Some(after),
            None => return Ok(all),
        }
    }
}
