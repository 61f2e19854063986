//! Appends to a Kafka topic: idempotent, acknowledged by all in-sync replicas, keyed by object.

use std::time::Duration;

use async_trait::async_trait;
use futures::future::try_join_all;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use rdkafka::{ClientConfig, producer::future_producer::OwnedDeliveryResult};
use seriatim_schemas::kafka::{KafkaConfig, PRODUCER};
use seriatim_schemas::record::{Record, encode};

use super::{Append, AppendError};
use crate::config::RECORD_BYTES_MAX;

pub struct KafkaLog {
    producer: FutureProducer,
    topic: String,
}

impl KafkaLog {
    /// `deadline_ms` is the edge's: what is not delivered by then is given up before the edge answers 503.
    pub fn new(config: &KafkaConfig, deadline_ms: u64) -> Result<Self, AppendError> {
        let mut settings = ClientConfig::new();
        settings.extend(PRODUCER.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let producer = settings
            .set("bootstrap.servers", &config.brokers)
            .set("client.id", "seriatim-ingest")
            .set("message.timeout.ms", (deadline_ms * 9 / 10).to_string())
            .set("message.max.bytes", RECORD_BYTES_MAX.to_string())
            .set("queue.buffering.max.messages", "1000000")
            .create()
            .map_err(|e: KafkaError| AppendError::Unavailable(e.to_string()))?;
        Ok(Self { producer, topic: config.topic() })
    }

    async fn append_one(&self, record: &Record) -> Result<(), AppendError> {
        let key = record.key.to_string();
        let headers = encode(record).into_iter().fold(OwnedHeaders::new(), |all, (name, value)| {
            all.insert(Header { key: &name, value: Some(value.as_ref()) })
        });
        let message = FutureRecord::to(&self.topic).key(&key).payload(&record.value[..]).headers(headers);
        let delivery = self.producer.send_result(message).map_err(|(e, _)| to_append_error(&e))?;
        let result: OwnedDeliveryResult = delivery.await.map_err(|_| AppendError::Closed)?;
        result.map(|_| ()).map_err(|(e, _)| to_append_error(&e))
    }
}

fn to_append_error(error: &KafkaError) -> AppendError {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::MessageSizeTooLarge) => AppendError::TooLarge { bytes: RECORD_BYTES_MAX },
        Some(RDKafkaErrorCode::QueueFull) => AppendError::Full("the producer's queue is full".into()),
        _ => AppendError::Unavailable(error.to_string()),
    }
}

#[async_trait]
impl Append for KafkaLog {
    async fn append(&self, records: Vec<Record>) -> Result<(), AppendError> {
        try_join_all(records.iter().map(|record| self.append_one(record))).await.map(|_| ())
    }

    async fn identity(&self) -> Result<String, AppendError> {
        let producer = self.producer.clone();
        let ask = move || producer.client().fetch_cluster_id(Duration::from_secs(2));
        let cluster = tokio::task::spawn_blocking(ask).await.map_err(|_| AppendError::Closed)?;
        let cluster = cluster.ok_or_else(|| AppendError::Unavailable("the cluster does not say its id".to_owned()))?;
        Ok(format!("{cluster} {}", self.topic))
    }

    async fn check(&self) -> Result<(), AppendError> {
        if let Some((_, reason)) = self.producer.client().fatal_error() {
            return Err(AppendError::Unavailable(format!(
                "the producer failed for good, restart this process: {reason}"
            )));
        }
        let (producer, topic) = (self.producer.clone(), self.topic.clone());
        let ask = move || producer.client().fetch_metadata(Some(&topic), Duration::from_secs(2)).map(|_| ());
        let answer = tokio::task::spawn_blocking(ask).await.map_err(|_| AppendError::Closed)?;
        answer.map_err(|e| to_append_error(&e))
    }

    async fn close(&self, within: Duration) -> Result<(), AppendError> {
        let producer = self.producer.clone();
        let flush = move || producer.flush(within);
        let flushed = tokio::task::spawn_blocking(flush).await.map_err(|_| AppendError::Closed)?;
        flushed.map_err(|e| to_append_error(&e))
    }
}
