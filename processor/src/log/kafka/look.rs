//! What an operator asks a topic: how far it reaches, and what lies at an offset. Joins no group.

use std::time::Instant;

use async_trait::async_trait;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use seriatim_schemas::kafka::KafkaConfig;

use super::{ANSWER, KafkaLog, POLL, parts, unavailable};
use crate::error::LogError;
use crate::inspect::{Extent, InspectLog, RawEntry};
use crate::log::LogIdentity;

fn consumer(config: &KafkaConfig) -> Result<BaseConsumer, LogError> {
    ClientConfig::new()
        .set("bootstrap.servers", &config.brokers)
        .set("client.id", "seriatim-look")
        // Needed by the library to assign; nothing is ever committed under it.
        .set("group.id", "seriatim-look")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "error")
        .create()
        .map_err(|e| unavailable(&e))
}

/// The cluster's id: two clusters with a topic of the same name are two logs.
pub fn cluster_id(config: &KafkaConfig) -> Result<String, LogError> {
    let id = consumer(config)?.client().fetch_cluster_id(ANSWER);
    id.ok_or_else(|| LogError::Unavailable(format!("no broker at {} answers", config.brokers)))
}

fn partitions(consumer: &BaseConsumer, topic: &str) -> Result<Vec<i32>, LogError> {
    let metadata = consumer.fetch_metadata(Some(topic), ANSWER).map_err(|e| unavailable(&e))?;
    let partitions: Vec<i32> = metadata.topics().iter().flat_map(|t| t.partitions().iter().map(|p| p.id())).collect();
    if partitions.is_empty() {
        return Err(LogError::Refused(format!("topic {topic} is missing: run `seriatim migrate`")));
    }
    Ok(partitions)
}

fn extents(config: &KafkaConfig) -> Result<Vec<Extent>, LogError> {
    let (topic, consumer) = (config.topic(), consumer(config)?);
    let extent = |partition| {
        let (first, next) = consumer.fetch_watermarks(&topic, partition, ANSWER).map_err(|e| unavailable(&e))?;
        Ok(Extent { partition, first, next })
    };
    partitions(&consumer, &topic)?.into_iter().map(extent).collect()
}

fn entries(config: &KafkaConfig, partition: i32, from: i64, max: usize) -> Result<Vec<RawEntry>, LogError> {
    let (topic, consumer) = (config.topic(), consumer(config)?);
    let (_, next) = consumer.fetch_watermarks(&topic, partition, ANSWER).map_err(|e| unavailable(&e))?;
    let mut at = TopicPartitionList::new();
    at.add_partition_offset(&topic, partition, Offset::Offset(from)).map_err(|e| unavailable(&e))?;
    consumer.assign(&at).map_err(|e| unavailable(&e))?;
    let mut out = Vec::new();
    let deadline = Instant::now() + ANSWER;
    while out.len() < max && out.last().map_or(from, |e: &RawEntry| e.offset + 1) < next && Instant::now() < deadline {
        match consumer.poll(POLL) {
            None => {}
            Some(Ok(message)) => {
                let (key, headers, value) = parts(&message);
                out.push(RawEntry { offset: message.offset(), key, headers, value });
            }
            Some(Err(error)) => return Err(unavailable(&error)),
        }
    }
    Ok(out)
}

/// One consumer for all offsets. What retention has removed is left out.
fn entries_at(config: &KafkaConfig, partition: i32, offsets: &[i64]) -> Result<Vec<RawEntry>, LogError> {
    let (topic, consumer) = (config.topic(), consumer(config)?);
    let (first, next) = consumer.fetch_watermarks(&topic, partition, ANSWER).map_err(|e| unavailable(&e))?;
    let mut found = Vec::with_capacity(offsets.len());
    for offset in offsets.iter().filter(|offset| (first..next).contains(*offset)) {
        let mut at = TopicPartitionList::new();
        at.add_partition_offset(&topic, partition, Offset::Offset(*offset)).map_err(|e| unavailable(&e))?;
        consumer.assign(&at).map_err(|e| unavailable(&e))?;
        match consumer.poll(ANSWER) {
            None => return Err(LogError::Unavailable(format!("{topic}/{partition}/{offset} did not come in time"))),
            Some(Err(error)) => return Err(unavailable(&error)),
            Some(Ok(message)) if message.offset() == *offset => {
                let (key, headers, value) = parts(&message);
                found.push(RawEntry { offset: *offset, key, headers, value });
            }
            Some(Ok(_)) => {}
        }
    }
    Ok(found)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LogError> + Send + 'static,
) -> Result<T, LogError> {
    tokio::task::spawn_blocking(work).await.map_err(|e| LogError::Unavailable(e.to_string()))?
}

#[async_trait]
impl InspectLog for KafkaLog {
    fn identity(&self) -> LogIdentity {
        self.identity.clone()
    }

    async fn extents(&self) -> Result<Vec<Extent>, LogError> {
        let config = self.config.clone();
        blocking(move || extents(&config)).await
    }

    async fn partitions(&self) -> Result<u32, LogError> {
        let config = self.config.clone();
        blocking(move || Ok(partitions(&consumer(&config)?, &config.topic())?.len() as u32)).await
    }

    async fn entries(&self, partition: i32, from: i64, max: usize) -> Result<Vec<RawEntry>, LogError> {
        let config = self.config.clone();
        blocking(move || entries(&config, partition, from, max)).await
    }

    async fn entries_at(&self, partition: i32, offsets: &[i64]) -> Result<Vec<RawEntry>, LogError> {
        let (config, offsets) = (self.config.clone(), offsets.to_vec());
        blocking(move || entries_at(&config, partition, &offsets)).await
    }
}
