//! The clean topic: applied events in order per object, each once but for marked resends, as CloudEvents under the
//! same key and partitioner as the raw topic. With `compact` it keeps the last event of each object.

use std::sync::Mutex;

use async_trait::async_trait;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use seriatim_schemas::kafka::{KafkaConfig, PRODUCER};
use seriatim_schemas::record::encode;

use super::{Effect, Emitted, Fault, Sink};
use crate::error::LogError;
use crate::log::kafka::{MESSAGE_BYTES_MAX, create_topic, unavailable};

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CleanTopicConfig {
    /// HOST:PORT of some brokers; left out: those of the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brokers: Option<String>,
    pub topic: String,
    /// The topic keeps the last event of each object, and an event that deletes its object is written without a
    /// value, so that nothing of it is kept. Not for deltas.
    #[serde(default)]
    pub compact: bool,
}

pub struct CleanTopic {
    settings: ClientConfig,
    producer: Mutex<FutureProducer>,
    topic: String,
    compact: bool,
}

impl CleanTopic {
    /// `brokers`: those of the log. `timeout_ms`: how long a message is tried.
    pub fn new(config: &CleanTopicConfig, brokers: &str, timeout_ms: u64) -> Result<Self, LogError> {
        let mut settings = ClientConfig::new();
        settings.extend(PRODUCER.map(|(name, value)| (name.to_owned(), value.to_owned())));
        settings
            .set("bootstrap.servers", config.brokers.as_deref().unwrap_or(brokers))
            .set("client.id", "seriatim-sink")
            .set("message.timeout.ms", (timeout_ms * 9 / 10).max(1).to_string())
            .set("message.max.bytes", MESSAGE_BYTES_MAX.to_string());
        let producer = Mutex::new(settings.create().map_err(|e| unavailable(&e))?);
        Ok(Self { settings, producer, topic: config.topic.clone(), compact: config.compact })
    }

    fn producer(&self) -> FutureProducer {
        self.producer.lock().expect("nothing panics while it holds this lock").clone()
    }

    async fn send(&self, effect: &Effect) -> Result<(), KafkaError> {
        let (key, headers) = (effect.key.to_string(), headers(effect));
        let mut message = FutureRecord::to(&self.topic).key(&key).headers(headers);
        if !(self.compact && effect.tombstone) {
            message = message.payload(&effect.value()[..]);
        }
        let sent = self.producer().send_result(message).map_err(|(error, _)| error)?;
        sent.await.map_err(|_| KafkaError::Canceled)?.map(|_| ()).map_err(|(error, _)| error)
    }

    /// After a fatal error a producer takes nothing more: another one stands in.
    fn renew(&self) {
        if self.producer().client().fatal_error().is_none() {
            return;
        }
        if let Ok(fresh) = self.settings.create() {
            *self.producer.lock().expect("nothing panics while it holds this lock") = fresh;
        }
    }
}

/// The event's CloudEvents headers as they are in the log, and what the effect adds.
fn headers(effect: &Effect) -> OwnedHeaders {
    let of_event = encode(&effect.record).into_iter();
    let of_event = of_event.filter(|(name, _)| name.starts_with("ce_") || name == "content-type");
    let own = [
        ("st_key", effect.idempotency_key()),
        ("st_epoch", effect.epoch.to_string()),
        ("st_rev", effect.rev.to_string()),
        ("st_outcome", effect.outcome.as_str().to_owned()),
        ("st_resent", effect.resent.to_string()),
        ("st_deleted", effect.tombstone.to_string()),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value.into()));
    of_event
        .chain(own)
        .fold(OwnedHeaders::new(), |all, (name, value)| all.insert(Header { key: &name, value: Some(value.as_ref()) }))
}

#[async_trait]
impl Sink for CleanTopic {
    /// One after the other: were one lost on the way, those behind it would pass it.
    async fn emit(&self, effects: &[Effect]) -> Emitted {
        for (taken, effect) in effects.iter().enumerate() {
            if let Err(error) = self.send(effect).await {
                self.renew();
                let is_too_large = error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge);
                let fault = if is_too_large {
                    Fault::Refused { reason: error.to_string() }
                } else {
                    Fault::Unavailable { reason: error.to_string(), retry_after: None }
                };
                return Emitted { taken, fault: Some(fault) };
            }
        }
        Emitted::all(effects.len())
    }

    fn batch_max(&self) -> usize {
        16
    }
}

/// Makes the topic where it is missing, with the partitions of the raw topic, so that both are read alike.
pub async fn migrate(config: &CleanTopicConfig, log: &KafkaConfig, dry_run: bool) -> Result<String, LogError> {
    let (topic, brokers) = (&config.topic, config.brokers.as_ref().unwrap_or(&log.brokers));
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", brokers).create().map_err(|e| unavailable(&e))?;
    if dry_run {
        return Ok(format!("would make topic {topic} where it is missing: {} partitions", log.partitions));
    }
    let (policy, insync) = (if config.compact { "compact" } else { "delete" }, log.min_insync_replicas.to_string());
    let bytes = MESSAGE_BYTES_MAX.to_string();
    let new = NewTopic::new(topic, log.partitions as i32, TopicReplication::Fixed(log.replication as i32))
        .set("cleanup.policy", policy)
        .set("min.insync.replicas", &insync)
        .set("max.message.bytes", &bytes);
    create_topic(&admin, new).await?;
    Ok(format!("topic {topic}: good"))
}
