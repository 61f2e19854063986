//! A log in memory: for tests, and the reference that the others are compared with. Records are handed over
//! as they are appended; partitions by hash, as Kafka's partitioner does it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use seriatim_schemas::key::bucket_of;
use seriatim_schemas::record::{Record, encode};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Floors, Log, LogEntry, LogEvent, LogIdentity};
use crate::budget::Budget;
use crate::error::LogError;
use crate::inspect::{Extent, InspectLog, RawEntry};

type Read = Arc<dyn Fn(usize, usize) -> Vec<Record> + Send + Sync>;

/// Reads what `read(from, max)` yields, in order.
#[derive(Clone)]
pub struct MemoryLog {
    read: Read,
    partitions: u32,
    committed: Arc<Mutex<HashMap<i32, i64>>>,
    stop: CancellationToken,
}

impl MemoryLog {
    pub fn new(partitions: u32, read: impl Fn(usize, usize) -> Vec<Record> + Send + Sync + 'static) -> Self {
        let (committed, stop) = (Arc::default(), CancellationToken::new());
        Self { read: Arc::new(read), partitions, committed, stop }
    }

    async fn pump(self, budget: Budget, starts: Vec<i64>, events: mpsc::UnboundedSender<LogEvent>) {
        let partitions: Vec<i32> = (0..self.partitions as i32).collect();
        for (partition, start) in partitions.iter().zip(&starts) {
            let _ = events.send(LogEvent::Assigned { partition: *partition, start: *start });
        }
        let mut from = 0;
        while !self.stop.is_cancelled() {
            let records = if budget.is_spent() { Vec::new() } else { (self.read)(from, 100) };
            if records.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            for record in records {
                let partition = bucket_of(record.key.to_string().as_bytes(), self.partitions) as i32;
                let offset = from as i64;
                from += 1;
                if offset >= starts[partition as usize] {
                    let share = budget.take(record.size());
                    let entries = vec![LogEntry { offset, record: Ok(record), share }];
                    let _ = events.send(LogEvent::Entries { partition, entries });
                }
            }
        }
        let (drained, wait) = oneshot::channel();
        let _ = events.send(LogEvent::Revoked { partitions, drained });
        let _ = wait.await;
    }
}

#[async_trait]
impl InspectLog for MemoryLog {
    fn identity(&self) -> LogIdentity {
        LogIdentity { topic: "memory".to_owned(), topic_id: "memory".to_owned() }
    }

    async fn extents(&self) -> Result<Vec<Extent>, LogError> {
        let next = (self.read)(0, usize::MAX).len() as i64;
        Ok((0..self.partitions as i32).map(|partition| Extent { partition, first: 0, next }).collect())
    }

    async fn partitions(&self) -> Result<u32, LogError> {
        Ok(self.partitions)
    }

    async fn entries(&self, _partition: i32, from: i64, max: usize) -> Result<Vec<RawEntry>, LogError> {
        let records = (self.read)(usize::try_from(from).unwrap_or(0), max);
        let entry = |(record, offset): (Record, i64)| RawEntry {
            offset,
            key: record.key.to_string(),
            headers: encode(&record),
            value: record.value,
        };
        Ok(records.into_iter().zip(from..).map(entry).collect())
    }
}

#[async_trait]
impl Log for MemoryLog {
    async fn start(&self, budget: Budget, floors: Floors) -> Result<mpsc::UnboundedReceiver<LogEvent>, LogError> {
        let mut starts = Vec::new();
        for partition in 0..self.partitions as i32 {
            let floor = floors.get(partition).await.map_err(|e| LogError::Unavailable(e.to_string()))?;
            starts.push(floor.unwrap_or(0));
        }
        let (events, receiver) = mpsc::unbounded_channel();
        tokio::spawn(self.clone().pump(budget, starts, events));
        Ok(receiver)
    }

    async fn commit(&self, partition: i32, next_offset: i64) -> Result<(), LogError> {
        self.committed.lock().expect("no panic while locked").insert(partition, next_offset);
        Ok(())
    }

    async fn append(&self, _record: Record) -> Result<(), LogError> {
        Err(LogError::Unavailable("this log is full".to_owned()))
    }

    async fn stop(&self) {
        self.stop.cancel();
    }
}
