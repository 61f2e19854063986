//! Limits of the processor. Every queue, batch, retry and wait has one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use seriatim_schemas::problem::Problem;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessorConfig {
    /// Records in memory, together, in bytes. Past it, reading pauses.
    pub budget_bytes: usize,
    /// Groups that are with the store at once, over all partitions.
    pub groups_in_flight_max: usize,
    /// How often the low watermark is written.
    pub advance_interval_ms: u64,
    /// How often it is looked for what waits and is not known of: an owner that was away, and does not know yet that its
    /// partition is another's, may have put it there.
    pub look_interval_ms: u64,
    /// How long a stop, or a revoked partition, waits for groups that are under way.
    pub drain_timeout_ms: u64,
    /// First and longest wait between tries of a store or sink that is away.
    pub retry_min_ms: u64,
    pub retry_max_ms: u64,
    /// Documents of thin events a second that one host is asked for, of all sources together; 0: no limit.
    pub fetch_rate_per_host_s: u32,
    /// Whether an index from event ids to objects is kept, so that one query traces an event.
    pub event_index: bool,
}

impl Default for ProcessorConfig {
    fn default() -> Self {
        Self {
            budget_bytes: 64 * 1024 * 1024,
            groups_in_flight_max: 16,
            advance_interval_ms: 1000,
            look_interval_ms: 60_000,
            drain_timeout_ms: 5000,
            retry_min_ms: 20,
            retry_max_ms: 5000,
            fetch_rate_per_host_s: 50,
            event_index: true,
        }
    }
}

impl ProcessorConfig {
    pub fn problems(&self) -> Vec<Problem> {
        let limits = [
            (
                self.budget_bytes >= 4 * 1024 * 1024,
                "budget_bytes",
                "is below 4 MiB: the largest record must fit several times",
            ),
            (self.budget_bytes <= u32::MAX as usize, "budget_bytes", "is above 4 GiB"),
            (self.groups_in_flight_max > 0, "groups_in_flight_max", "is 0"),
            (self.advance_interval_ms > 0, "advance_interval_ms", "is 0"),
            (self.look_interval_ms > 0, "look_interval_ms", "is 0"),
            (self.retry_min_ms > 0, "retry_min_ms", "is 0"),
            (self.retry_max_ms >= self.retry_min_ms, "retry_max_ms", "is below retry_min_ms"),
        ];
        limits.iter().filter(|(ok, ..)| !ok).map(|(_, field, message)| Problem::at(*field, *message)).collect()
    }
}

/// Where ScyllaDB or Cassandra is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CqlConfig {
    /// HOST:PORT of some nodes.
    pub nodes: Vec<String>,
    pub keyspace: String,
    /// The one data centre that writes a generation; conditions are serial within it. Empty: that of the nodes.
    pub datacenter: String,
    /// What `migrate` makes the keyspace with.
    pub replication: String,
    /// Objects of one bucket are committed together. A multiple of kafka.partitions; fixed once tables exist.
    pub buckets: u32,
    /// Records that are decided together.
    pub group_events_max: usize,
    /// Objects of one conditional batch. From some 25 on, more gain little and wait longer.
    pub group_objects_max: usize,
    /// Values of one conditional batch, in bytes. A refused batch returns them.
    pub group_bytes_max: usize,
    /// How long a call on the store may take.
    pub request_timeout_ms: u64,
}

impl Default for CqlConfig {
    fn default() -> Self {
        Self {
            nodes: vec!["127.0.0.1:9042".to_owned()],
            keyspace: "seriatim".to_owned(),
            datacenter: String::new(),
            replication: "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}".to_owned(),
            buckets: seriatim_schemas::tables::BUCKETS,
            group_events_max: 100,
            group_objects_max: 40,
            group_bytes_max: 512 * 1024,
            request_timeout_ms: 10_000,
        }
    }
}

impl CqlConfig {
    /// `partitions`: those of the topic.
    pub fn problems(&self, partitions: u32) -> Vec<Problem> {
        let mut out = Vec::new();
        if self.nodes.is_empty() {
            out.push(Problem::at("nodes", "is empty: give HOST:PORT of at least one node"));
        }
        let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if self.keyspace.is_empty() || self.keyspace.len() > 48 || !self.keyspace.chars().all(is_word) {
            out.push(Problem::at("keyspace", "is not of the form [a-z0-9_]{1,48}"));
        }
        if self.buckets == 0 || (partitions > 0 && !self.buckets.is_multiple_of(partitions)) {
            let message = format!("must be a multiple of kafka.partitions ({partitions}): a bucket has one owner");
            out.push(Problem::at("buckets", message));
        }
        let limits = [
            (self.group_events_max, "group_events_max"),
            (self.group_objects_max, "group_objects_max"),
            (self.group_bytes_max, "group_bytes_max"),
            (self.request_timeout_ms as usize, "request_timeout_ms"),
        ];
        out.extend(limits.iter().filter(|(limit, _)| *limit == 0).map(|(_, field)| Problem::at(*field, "is 0")));
        out
    }
}
