//! A log in memory: for tests, and the reference that the others are compared with.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use seriatim_schemas::record::Record;

use super::{Append, AppendError};

/// Records in order of their append. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct MemoryLog {
    records: Arc<Mutex<Vec<Record>>>,
}

impl MemoryLog {
    pub fn records(&self) -> Vec<Record> {
        self.records.lock().expect("no panic while locked").clone()
    }

    /// The records at `from` and behind it, at most `max`.
    pub fn read(&self, from: usize, max: usize) -> Vec<Record> {
        let records = self.records.lock().expect("no panic while locked");
        records.iter().skip(from).take(max).cloned().collect()
    }
}

#[async_trait]
impl Append for MemoryLog {
    async fn append(&self, records: Vec<Record>) -> Result<(), AppendError> {
        self.records.lock().expect("no panic while locked").extend(records);
        Ok(())
    }

    async fn identity(&self) -> Result<String, AppendError> {
        Ok(format!("memory {:p}", Arc::as_ptr(&self.records)))
    }

    async fn check(&self) -> Result<(), AppendError> {
        Ok(())
    }

    async fn close(&self, _within: Duration) -> Result<(), AppendError> {
        Ok(())
    }
}
