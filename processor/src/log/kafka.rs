//! Reads a Kafka topic as a member of a group. One thread polls; rebalances happen inside its poll.
//!
//! Where a partition starts is the store's word (the floor), never the group's offset: state and floor are of
//! one piece. A committed offset above the floor proves that the store was rolled back, and is refused.

mod append;
mod look;
mod migrate;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use seriatim_schemas::kafka::KafkaConfig;
use seriatim_schemas::record::{Header, Record, decode};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::{Floors, ForeignRecord, Log, LogEntry, LogEvent, LogIdentity};
use crate::budget::Budget;
use crate::error::LogError;

use append::Appender;
pub use migrate::migrate;
pub(crate) use migrate::{MESSAGE_BYTES_MAX, create_topic};

/// How long one poll waits for a message.
const POLL: Duration = Duration::from_millis(50);
/// Most messages handed over together.
const HAND_OVER_MAX: usize = 256;
/// How long the broker may take to answer a question.
const ANSWER: Duration = Duration::from_secs(10);
/// How long an assignment tries to learn where its partitions start, and how often. Below max.poll.interval.ms.
const ASSIGN: Duration = Duration::from_secs(200);
const ASSIGN_RETRY: Duration = Duration::from_secs(1);
/// How long a revoke waits for its partitions to drain. Above the processor's own drain timeout.
const REVOKE: Duration = Duration::from_secs(15);
/// How long a stop waits for the group to let go.
const LEAVE: Duration = Duration::from_secs(20);
/// Bytes that are fetched ahead per partition.
const PREFETCH_KBYTES: &str = "4096";

pub struct KafkaLog {
    config: KafkaConfig,
    group: String,
    identity: LogIdentity,
    consumer: Mutex<Option<Arc<BaseConsumer<Membership>>>>,
    appender: Appender,
    stop: CancellationToken,
    stopped: CancellationToken,
}

impl KafkaLog {
    /// Asks the brokers who they are; joins no group yet.
    pub async fn connect(config: &KafkaConfig, generation: &str) -> Result<Self, LogError> {
        let topic = config.topic();
        let asked = config.clone();
        let cluster = tokio::task::spawn_blocking(move || look::cluster_id(&asked)).await;
        let cluster = cluster.map_err(|e| LogError::Unavailable(e.to_string()))??;
        Ok(Self {
            config: config.clone(),
            group: format!("seriatim.{generation}"),
            identity: LogIdentity { topic, topic_id: cluster },
            consumer: Mutex::new(None),
            appender: Appender::new(config),
            stop: CancellationToken::new(),
            stopped: CancellationToken::new(),
        })
    }

    fn join(&self, membership: Membership) -> Result<BaseConsumer<Membership>, KafkaError> {
        let consumer: BaseConsumer<Membership> = ClientConfig::new()
            .set("bootstrap.servers", &self.config.brokers)
            .set("client.id", "seriatim-processor")
            .set("group.id", &self.group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "error")
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", "10000")
            .set("heartbeat.interval.ms", "2000")
            .set("max.poll.interval.ms", "300000")
            .set("queued.max.messages.kbytes", PREFETCH_KBYTES)
            .set("fetch.wait.max.ms", "50")
            // How soon partitions that were added are read.
            .set("topic.metadata.refresh.interval.ms", "10000")
            .set_log_level(RDKafkaLogLevel::Warning)
            .create_with_context(membership)?;
        consumer.subscribe(&[&self.identity.topic])?;
        Ok(consumer)
    }
}

pub(crate) fn unavailable(error: &KafkaError) -> LogError {
    LogError::Unavailable(error.to_string())
}

/// What rebalances do: partitions start at their floor, and drain before they go.
struct Membership {
    floors: Floors,
    events: mpsc::UnboundedSender<LogEvent>,
    runtime: Handle,
}

impl ClientContext for Membership {
    fn error(&self, error: KafkaError, reason: &str) {
        warn!(%error, reason, "kafka");
    }
}

impl ConsumerContext for Membership {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, kind: RDKafkaRespErr, partitions: &mut TopicPartitionList) {
        let result = match kind {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => self.on_assign(consumer, partitions),
            _ => self.on_revoke(consumer, partitions),
        };
        if let Err(error) = result {
            let _ = self.events.send(LogEvent::Failed(error));
        }
    }
}

impl Membership {
    /// Tries until the partitions have their starts: a store or broker that is away is no reason to end.
    fn on_assign(&self, consumer: &BaseConsumer<Self>, partitions: &TopicPartitionList) -> Result<(), LogError> {
        let deadline = Instant::now() + ASSIGN;
        let starts = loop {
            match self.starts(consumer, partitions) {
                Err(LogError::Unavailable(reason)) if Instant::now() < deadline => {
                    warn!(reason, "partitions wait for their starts");
                    std::thread::sleep(ASSIGN_RETRY);
                }
                other => break other?,
            }
        };
        let mut offsets = TopicPartitionList::new();
        for (partition, start) in &starts {
            let topic = &self.floors.log.topic;
            offsets.add_partition_offset(topic, *partition, Offset::Offset(*start)).map_err(|e| unavailable(&e))?;
            let _ = self.events.send(LogEvent::Assigned { partition: *partition, start: *start });
        }
        consumer.incremental_assign(&offsets).map_err(|e| unavailable(&e))
    }

    /// Partition and start of each.
    fn starts(
        &self,
        consumer: &BaseConsumer<Self>,
        partitions: &TopicPartitionList,
    ) -> Result<Vec<(i32, i64)>, LogError> {
        let committed = consumer.committed_offsets(partitions.clone(), ANSWER).map_err(|e| unavailable(&e))?;
        let topic = &self.floors.log.topic;
        let start = |partition: i32| {
            let floor = self.runtime.block_on(self.floors.get(partition));
            let floor = floor.map_err(|e| LogError::Unavailable(e.to_string()))?;
            let committed = committed.find_partition(topic, partition).and_then(|e| e.offset().to_raw());
            let (first, next) = consumer.fetch_watermarks(topic, partition, ANSWER).map_err(|e| unavailable(&e))?;
            Ok((partition, start_of(topic, partition, floor, committed.filter(|o| *o >= 0), first, next)?))
        };
        partitions.elements().iter().map(|e| start(e.partition())).collect()
    }

    fn on_revoke(&self, consumer: &BaseConsumer<Self>, partitions: &TopicPartitionList) -> Result<(), LogError> {
        let revoked: Vec<i32> = partitions.elements().iter().map(|e| e.partition()).collect();
        info!(partitions = ?revoked, "revoked: draining");
        let (drained, wait) = oneshot::channel();
        if self.events.send(LogEvent::Revoked { partitions: revoked, drained }).is_ok() {
            // Made inside the block: a timer needs the runtime that it runs on.
            let waited = self.runtime.block_on(async { tokio::time::timeout(REVOKE, wait).await });
            if waited.is_err() {
                warn!("drain took too long; the next owner reads the rest again");
            }
        }
        consumer.incremental_unassign(partitions).map_err(|e| unavailable(&e))
    }
}

/// Where to start a partition, or why not to.
fn start_of(
    topic: &str,
    partition: i32,
    floor: Option<i64>,
    committed: Option<i64>,
    first: i64,
    next: i64,
) -> Result<i64, LogError> {
    let at = format!("{topic}/{partition}");
    match (floor, committed) {
        (Some(floor), Some(committed)) if committed > floor => Err(LogError::Refused(format!(
            "{at}: the group committed {committed}, but the store knows only {floor}: the store was rolled back; rebuild it by a replay, or reset the group's offsets to {floor} to read again from there"
        ))),
        (None, Some(committed)) if committed > first => Err(LogError::Refused(format!(
            "{at}: the group committed {committed}, but the store has never seen this topic: was it lost? Rebuild it by a replay, or delete the group's offsets to read from the beginning"
        ))),
        (Some(floor), _) if floor < first => Err(LogError::Refused(format!(
            "{at}: the store is done up to {floor}, but the log begins at {first}: {} records are gone unread; lengthen the retention, and accept the loss by setting the floor to {first}",
            first - floor
        ))),
        (Some(floor), _) if floor > next => Err(LogError::Refused(format!(
            "{at}: the store is done up to {floor}, but the log ends at {next}: the topic was made anew or lost records"
        ))),
        (Some(floor), _) => Ok(floor),
        (None, _) => Ok(first),
    }
}

/// Polls until told to stop, then leaves the group.
fn pump(
    consumer: &BaseConsumer<Membership>,
    budget: &Budget,
    stop: &CancellationToken,
    events: &mpsc::UnboundedSender<LogEvent>,
) {
    let mut is_paused = false;
    while !stop.is_cancelled() && !events.is_closed() {
        if budget.is_spent() {
            // Again with each poll: a rebalance may have brought partitions that are not paused.
            is_paused = set_paused(consumer, true, is_paused);
        } else if is_paused && budget.has_room() {
            is_paused = set_paused(consumer, false, is_paused);
        }
        poll_batch(consumer, budget, events);
    }
    consumer.unsubscribe();
    let deadline = Instant::now() + LEAVE;
    while consumer.assignment().is_ok_and(|a| a.count() > 0) && Instant::now() < deadline {
        poll_batch(consumer, budget, events);
    }
}

/// Pauses or resumes all partitions; a pause survives rebalances by being repeated. Polling goes on.
fn set_paused(consumer: &BaseConsumer<Membership>, pause: bool, was_paused: bool) -> bool {
    let result = consumer.assignment().and_then(|all| if pause { consumer.pause(&all) } else { consumer.resume(&all) });
    match result {
        Ok(()) => {
            if pause != was_paused {
                debug!(pause, "byte budget");
            }
            pause
        }
        Err(error) => {
            warn!(%error, pause, "cannot pause or resume");
            was_paused
        }
    }
}

/// Takes what is there now, up to a bound, and hands it over by partition.
fn poll_batch(consumer: &BaseConsumer<Membership>, budget: &Budget, events: &mpsc::UnboundedSender<LogEvent>) {
    let mut batch: Vec<(i32, Vec<LogEntry>)> = Vec::new();
    let mut wait = POLL;
    for _ in 0..HAND_OVER_MAX {
        let message = match consumer.poll(wait) {
            None => break,
            Some(Ok(message)) => message,
            Some(Err(error)) => {
                on_error(error, events);
                break;
            }
        };
        wait = Duration::ZERO;
        let partition = message.partition();
        let entry = to_entry(&message, budget);
        match batch.iter_mut().find(|(p, _)| *p == partition) {
            Some((_, entries)) => entries.push(entry),
            None => batch.push((partition, vec![entry])),
        }
    }
    for (partition, entries) in batch {
        let _ = events.send(LogEvent::Entries { partition, entries });
    }
}

fn on_error(kafka_error: KafkaError, events: &mpsc::UnboundedSender<LogEvent>) {
    match kafka_error.rdkafka_error_code() {
        // Where to start is always given: a reset would skip or repeat records without notice.
        Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
            let message = format!("the log has not got the offset that is due: {kafka_error}; records are gone unread");
            let _ = events.send(LogEvent::Failed(LogError::Refused(message)));
        }
        Some(RDKafkaErrorCode::Fatal) => {
            error!(error = %kafka_error, "the consumer failed for good");
            let _ = events.send(LogEvent::Failed(unavailable(&kafka_error)));
        }
        _ => debug!(error = %kafka_error, "poll"),
    }
}

fn to_entry(message: &BorrowedMessage<'_>, budget: &Budget) -> LogEntry {
    let (key, headers, value) = parts(message);
    let record = decode(&key, &headers, value.clone());
    let share = budget.take(record.as_ref().map_or(value.len(), |r| r.size()));
    let record = record.map_err(|error| ForeignRecord { key, error, headers, value });
    LogEntry { offset: message.offset(), record, share }
}

fn parts(message: &BorrowedMessage<'_>) -> (String, Vec<Header>, Bytes) {
    let key = String::from_utf8_lossy(message.key().unwrap_or_default()).into_owned();
    let header = |h: rdkafka::message::Header<'_, &[u8]>| {
        (h.key.to_owned(), Bytes::copy_from_slice(h.value.unwrap_or_default()))
    };
    let headers = message.headers().map_or_else(Vec::new, |all| all.iter().map(header).collect());
    (key, headers, Bytes::copy_from_slice(message.payload().unwrap_or_default()))
}

#[async_trait]
impl Log for KafkaLog {
    async fn start(&self, budget: Budget, floors: Floors) -> Result<mpsc::UnboundedReceiver<LogEvent>, LogError> {
        let (events, receiver) = mpsc::unbounded_channel();
        let membership = Membership { floors, events: events.clone(), runtime: Handle::current() };
        let consumer = Arc::new(self.join(membership).map_err(|e| unavailable(&e))?);
        *self.consumer.lock().expect("no panic while locked") = Some(consumer.clone());
        let (stop, stopped) = (self.stop.clone(), self.stopped.clone());
        let run = move || {
            // Cancelled when dropped, so that a panic here ends the wait of a stop as well.
            let stopped = stopped.drop_guard();
            pump(&consumer, &budget, &stop, &events);
            drop(events);
            drop(stopped);
            // The last handle closes the group's session; on this thread it may take its time.
            drop(consumer);
        };
        let spawned = std::thread::Builder::new().name("log-reader".into()).spawn(run);
        spawned.map_err(|e| LogError::Unavailable(e.to_string()))?;
        Ok(receiver)
    }

    async fn commit(&self, partition: i32, next_offset: i64) -> Result<(), LogError> {
        let Some(consumer) = self.consumer.lock().expect("no panic while locked").clone() else { return Ok(()) };
        let mut offsets = TopicPartitionList::new();
        let topic = &self.identity.topic;
        offsets.add_partition_offset(topic, partition, Offset::Offset(next_offset)).map_err(|e| unavailable(&e))?;
        let commit = move || consumer.commit(&offsets, CommitMode::Async);
        let committed = tokio::task::spawn_blocking(commit).await.map_err(|e| LogError::Unavailable(e.to_string()))?;
        committed.map_err(|e| unavailable(&e))
    }

    async fn append(&self, record: Record) -> Result<(), LogError> {
        self.appender.append(&record).await.map_err(|e| unavailable(&e))
    }

    async fn stop(&self) {
        self.stop.cancel();
        if tokio::time::timeout(LEAVE + Duration::from_secs(5), self.stopped.cancelled()).await.is_err() {
            warn!("the group was not left in time; its partitions move after the session timeout");
        }
        self.consumer.lock().expect("no panic while locked").take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_starts_where_the_store_says_or_not_at_all() {
        let start =
            |floor, committed, first, next| start_of("t", 0, floor, committed, first, next).map_err(|e| e.to_string());
        assert_eq!(start(None, None, 0, 10), Ok(0));
        assert_eq!(start(None, None, 5, 10), Ok(5));
        assert_eq!(start(Some(7), Some(7), 0, 10), Ok(7));
        assert_eq!(start(Some(7), Some(3), 0, 10), Ok(7));
        assert_eq!(start(Some(7), None, 0, 10), Ok(7));
        assert_eq!(start(None, Some(0), 0, 10), Ok(0));
        let refused = [
            (Some(3), Some(7), 0, 10, "rolled back"),
            (None, Some(7), 0, 10, "was it lost"),
            (Some(3), None, 5, 10, "2 records are gone unread"),
            (Some(30), None, 0, 10, "made anew"),
        ];
        for (floor, committed, first, next, reason) in refused {
            let error = start(floor, committed, first, next).expect_err("refused");
            assert!(error.contains(reason), "{error}");
        }
    }
}
