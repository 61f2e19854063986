//! Appends the few records of a processor's own, with the settings that the edge produces with. The producer is made
//! with the first of them, and made anew after a fatal error.

use std::sync::Mutex;

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use seriatim_schemas::kafka::{KafkaConfig, PRODUCER};
use seriatim_schemas::record::{Record, encode};

use super::MESSAGE_BYTES_MAX;

/// How long the brokers may take to acknowledge a record.
const DELIVERY_MS: &str = "10000";

pub struct Appender {
    settings: ClientConfig,
    topic: String,
    producer: Mutex<Option<FutureProducer>>,
}

impl Appender {
    pub fn new(config: &KafkaConfig) -> Self {
        let mut settings = ClientConfig::new();
        settings.extend(PRODUCER.map(|(name, value)| (name.to_owned(), value.to_owned())));
        settings
            .set("bootstrap.servers", &config.brokers)
            .set("client.id", "seriatim-processor")
            .set("message.timeout.ms", DELIVERY_MS)
            .set("message.max.bytes", MESSAGE_BYTES_MAX.to_string());
        Self { settings, topic: config.topic(), producer: Mutex::default() }
    }

    fn producer(&self) -> Result<FutureProducer, KafkaError> {
        let mut producer = self.producer.lock().expect("nothing panics while it holds this lock");
        match producer.as_ref().filter(|producer| producer.client().fatal_error().is_none()) {
            Some(producer) => Ok(producer.clone()),
            None => Ok(producer.insert(self.settings.create()?).clone()),
        }
    }

    pub async fn append(&self, record: &Record) -> Result<(), KafkaError> {
        let key = record.key.to_string();
        let headers = encode(record).into_iter().fold(OwnedHeaders::new(), |all, (name, value)| {
            all.insert(Header { key: &name, value: Some(value.as_ref()) })
        });
        let message = FutureRecord::to(&self.topic).key(&key).payload(&record.value[..]).headers(headers);
        let delivery = self.producer()?.send_result(message).map_err(|(error, _)| error)?;
        delivery.await.map_err(|_| KafkaError::Canceled)?.map(|_| ()).map_err(|(error, _)| error)
    }
}
