//! What the edge counts. Labels are bounded: tenants and sources come from the configuration.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::sources::Sources;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SourceLabels {
    pub tenant: String,
    pub source: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RefusedLabels {
    pub tenant: String,
    pub source: String,
    pub reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StatusLabels {
    pub status: u16,
}

#[derive(Debug, Clone)]
pub struct IngestMetrics {
    pub accepted: Family<SourceLabels, Counter>,
    pub unroutable: Family<SourceLabels, Counter>,
    pub refused: Family<RefusedLabels, Counter>,
    pub answers: Family<StatusLabels, Counter>,
    pub acknowledgement_seconds: Histogram,
    pub in_flight_bytes: Gauge,
    pub filtered: Counter,
}

/// When each live secret last verified a request: what has not for days may be removed.
#[derive(Debug)]
pub struct SecretUse(pub Arc<Sources>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SecretLabels {
    tenant: String,
    source: String,
    secret: String,
}

impl Collector for SecretUse {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let help = "When the secret last verified a request, in unix seconds; 0: not since the start";
        let name = "seriatim_ingest_secret_last_used_timestamp_seconds";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for live in self.0.all() {
            let source = &live.source;
            for (secret, at) in live.verifier.last_uses() {
                let labels = SecretLabels { tenant: source.tenant.clone(), source: source.name.clone(), secret };
                metric.encode_family(&labels)?.encode_gauge(&at)?;
            }
        }
        Ok(())
    }
}

/// Bounds of latency histograms, in seconds.
const SECONDS: [f64; 12] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

impl IngestMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let own = Self {
            accepted: Family::default(),
            unroutable: Family::default(),
            refused: Family::default(),
            answers: Family::default(),
            acknowledgement_seconds: Histogram::new(SECONDS),
            in_flight_bytes: Gauge::default(),
            filtered: Counter::default(),
        };
        let r = registry.sub_registry_with_prefix("seriatim_ingest");
        r.register("accepted", "Requests that are durable in the log", own.accepted.clone());
        r.register("unroutable", "Requests that verified but gave no event id or object", own.unroutable.clone());
        r.register("refused", "Requests that were not believed, by reason", own.refused.clone());
        r.register("answers", "Answers by status", own.answers.clone());
        let help = "Seconds from the whole body to the log's acknowledgement";
        r.register("acknowledgement_seconds", help, own.acknowledgement_seconds.clone());
        r.register("in_flight_bytes", "Bytes of bodies in memory", own.in_flight_bytes.clone());
        r.register("filtered", "Events that the front filter knew, written without their bodies", own.filtered.clone());
        own
    }
}
