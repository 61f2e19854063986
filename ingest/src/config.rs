//! Limits of the edge. Every request is bounded in bytes and in time.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use seriatim_schemas::problem::Problem;

use crate::filter::FilterConfig;

/// Largest record that a log takes, headers included.
pub const RECORD_BYTES_MAX: usize = 1024 * 1024;
/// Room for the headers of a record: those of the sender that are kept, and ours.
pub const HEADER_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IngestConfig {
    /// Where to listen for webhooks.
    pub listen: SocketAddr,
    /// Largest body. A larger one gets 413.
    pub body_bytes_max: usize,
    /// Bodies in memory at once, together. Past it: 503 with Retry-After.
    pub in_flight_bytes_max: usize,
    /// Open connections at once; further ones wait in the listen queue.
    pub connections_max: usize,
    /// A new connection on which no request's headers are whole by then is closed.
    pub header_timeout_ms: u64,
    /// A connection without a request for so long is closed; longer than a proxy in front keeps its own.
    pub idle_timeout_ms: u64,
    /// A body that takes longer to arrive gets 408.
    pub body_timeout_ms: u64,
    /// A record that is not durable by then gets 503; the sender delivers it again.
    pub publish_timeout_ms: u64,
    /// What Retry-After says.
    pub retry_after_s: u32,
    /// How long a stop waits for requests and for the log.
    pub shutdown_timeout_ms: u64,
    /// Events that came minutes ago are written to the log without their bodies. Left out: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<FilterConfig>,
}

impl Default for IngestConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            // The largest that a record takes: batches of 768 KB are common.
            body_bytes_max: RECORD_BYTES_MAX - HEADER_BYTES_MAX,
            in_flight_bytes_max: 64 * 1024 * 1024,
            connections_max: 10_000,
            header_timeout_ms: 10_000,
            idle_timeout_ms: 75_000,
            body_timeout_ms: 10_000,
            publish_timeout_ms: 10_000,
            retry_after_s: 5,
            shutdown_timeout_ms: 25_000,
            filter: None,
        }
    }
}

impl IngestConfig {
    pub fn problems(&self) -> Vec<Problem> {
        let mut out = Vec::new();
        let mut check = |ok: bool, field: &str, message: String| {
            if !ok {
                out.push(Problem::at(field, message));
            }
        };
        let body_max = RECORD_BYTES_MAX - HEADER_BYTES_MAX;
        check(
            (1..=body_max).contains(&self.body_bytes_max),
            "body_bytes_max",
            format!("must be from 1 to {body_max}: a body and its headers must fit into one record"),
        );
        check(
            self.in_flight_bytes_max >= self.body_bytes_max,
            "in_flight_bytes_max",
            format!("is below body_bytes_max ({}): the largest body could never pass", self.body_bytes_max),
        );
        check(self.connections_max > 0, "connections_max", "is 0".into());
        check(self.header_timeout_ms > 0, "header_timeout_ms", "is 0".into());
        check(self.idle_timeout_ms > 0, "idle_timeout_ms", "is 0".into());
        check(self.body_timeout_ms > 0, "body_timeout_ms", "is 0".into());
        check(
            self.publish_timeout_ms >= 100,
            "publish_timeout_ms",
            "is below 100: no log answers reliably in that time".into(),
        );
        out.extend(self.filter.iter().flat_map(FilterConfig::problems).map(|p| p.under("filter")));
        out
    }
}
