//! Settings that both sides of a topic share: ingest produces with them, processor consumes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::problem::Problem;

/// What every producer of ours is set to: nothing acknowledged is lost, nothing doubled by the client, and a key has
/// one partition, that of Java clients.
pub const PRODUCER: [(&str, &str); 5] = [
    ("enable.idempotence", "true"),
    ("acks", "all"),
    ("partitioner", "murmur2_random"),
    ("linger.ms", "1"),
    ("compression.type", "lz4"),
];

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KafkaConfig {
    /// HOST:PORT of some brokers, separated by commas.
    pub brokers: String,
    /// The class of tenants: names the topic, `seriatim.raw.CLASS`, and its tables.
    pub class: String,
    /// Partitions of the topic. `migrate` creates it with these.
    pub partitions: u32,
    /// Copies of each partition.
    pub replication: u32,
    /// Copies that must have a record before it counts as durable.
    pub min_insync_replicas: u32,
    /// How far back a replay can reach. -1: for ever.
    pub retention_ms: i64,
}

impl Default for KafkaConfig {
    fn default() -> Self {
        Self {
            brokers: "127.0.0.1:9092".into(),
            class: "main".into(),
            partitions: 16,
            replication: 3,
            min_insync_replicas: 2,
            retention_ms: 14 * 24 * 3600 * 1000,
        }
    }
}

impl KafkaConfig {
    pub fn topic(&self) -> String {
        format!("seriatim.raw.{}", self.class)
    }

    pub fn problems(&self) -> Vec<Problem> {
        let mut out = Vec::new();
        if self.brokers.trim().is_empty() {
            out.push(Problem::at("brokers", "is empty: give HOST:PORT"));
        }
        let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if self.class.is_empty() || self.class.len() > 32 || !self.class.chars().all(is_word) {
            out.push(Problem::at("class", "is not of the form [a-z0-9_]{1,32}: it names a topic and tables"));
        }
        if self.partitions == 0 {
            out.push(Problem::at("partitions", "is 0"));
        }
        if self.min_insync_replicas == 0 || self.min_insync_replicas > self.replication {
            out.push(Problem::at(
                "min_insync_replicas",
                format!("must be from 1 to replication ({})", self.replication),
            ));
        }
        out
    }
}
