//! Where effects go. A sink is sent the effects of one object in their order, each at least once; the
//! idempotency key and the fence tell a resend from a new one.

mod envelope;
pub mod fetch;
pub mod gate;
pub mod handler;
pub mod json_lines;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod push;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use seriatim_schemas::declaration::Mode;
use seriatim_schemas::key::{ObjectKey, encode_part};
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::problem::Problem;
use seriatim_schemas::record::Record;
use thiserror::Error;

/// What a sink is sent for one decision.
#[derive(Debug, Clone)]
pub struct Effect {
    pub key: Arc<ObjectKey>,
    /// The record that was decided, whole: its value is the body as it was received.
    pub record: Arc<Record>,
    /// Applied, or stale where the sink asks for those too.
    pub outcome: Outcome,
    pub mode: Mode,
    /// The event deletes its object.
    pub tombstone: bool,
    /// Activation epoch and rev: the fence. Per object, an effect with a smaller fence is older.
    pub epoch: u64,
    pub rev: i64,
    /// It may have been sent before.
    pub resent: bool,
}

impl Effect {
    /// `tenant/source/object/event row`, parts percent-encoded: one per effect, the same for each resend.
    pub fn idempotency_key(&self) -> String {
        idempotency_key(&self.key, &self.record.event_row())
    }

    pub fn value(&self) -> &Bytes {
        &self.record.value
    }
}

pub fn idempotency_key(key: &ObjectKey, event_row: &str) -> String {
    format!("{key}/{}", encode_part(event_row))
}

/// Why a sink did not take an effect: whose fault it is decides what happens.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    /// The sink's: away, slow, overloaded, or not set up. The effect waits.
    #[error("{reason}")]
    Unavailable { reason: String, retry_after: Option<Duration> },
    /// Nobody's: what the event is about is not there yet. It waits, and the sink is well.
    #[error("{reason}")]
    NotYet { reason: String },
    /// The event's: the sink is well and does not want this one.
    #[error("{reason}")]
    Refused { reason: String },
}

/// How far a sink came with the effects it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emitted {
    /// So many, from the first on, were acknowledged.
    pub taken: usize,
    /// Why the next one was not; none if all were taken.
    pub fault: Option<Fault>,
}

impl Emitted {
    pub fn all(count: usize) -> Self {
        Self { taken: count, fault: None }
    }

    pub fn unavailable(taken: usize, reason: impl Into<String>) -> Self {
        Self { taken, fault: Some(Fault::Unavailable { reason: reason.into(), retry_after: None }) }
    }

    pub fn refused(taken: usize, reason: impl Into<String>) -> Self {
        Self { taken, fault: Some(Fault::Refused { reason: reason.into() }) }
    }
}

#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// Sends effects of one object in order, up to the first that is not taken.
    async fn emit(&self, effects: &[Effect]) -> Emitted;

    /// Most effects of one call.
    fn batch_max(&self) -> usize {
        1
    }

    /// What becomes of stale events where the policy does not say.
    fn stale(&self) -> Stale {
        Stale::Drop
    }
}

/// A sink, and what stands before it.
pub struct NamedSink {
    pub name: String,
    pub policy: SinkPolicy,
    pub sink: Arc<dyn Sink>,
    pub gate: gate::Gate,
    /// Bytes of effects that are in memory for it.
    pending: AtomicUsize,
}

impl NamedSink {
    pub fn new(name: impl Into<String>, policy: SinkPolicy, sink: Arc<dyn Sink>) -> Self {
        let gate = gate::Gate::new(&policy);
        Self { name: name.into(), policy, sink, gate, pending: AtomicUsize::new(0) }
    }

    /// As the sink does it, but never for ever.
    pub async fn emit(&self, effects: &[Effect]) -> Emitted {
        let within = Duration::from_millis(self.policy.wait_after_ms);
        let emitted = tokio::time::timeout(within, self.sink.emit(effects)).await;
        emitted.unwrap_or_else(|_| Emitted::unavailable(0, format!("no answer within {within:?}")))
    }

    pub fn delivers_stale(&self) -> bool {
        self.policy.stale.unwrap_or_else(|| self.sink.stale()) == Stale::DeliverMarked
    }

    /// Whether effects of this outcome, and mode, are sent to it. Thin events are for what fetches their documents.
    pub fn takes(&self, outcome: Outcome, mode: Mode) -> bool {
        self.takes_outcome(outcome) && (mode == Mode::Thin) == self.is_fetch()
    }

    pub(crate) fn takes_outcome(&self, outcome: Outcome) -> bool {
        outcome == Outcome::Applied || self.delivers_stale()
    }

    /// Whether it fetches the documents of a source's thin events.
    pub fn is_fetch(&self) -> bool {
        self.name.starts_with(fetch::PREFIX)
    }

    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    pub(crate) fn add_pending(&self, bytes: usize) {
        self.pending.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sub_pending(&self, bytes: usize) {
        self.pending.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What holds for a sink, whatever its kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SinkPolicy {
    /// Which effects a sink is sent that was away.
    pub deliver: Deliver,
    /// What becomes of events that are older than the object's state. Left out: each kind of sink has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale: Option<Stale>,
    /// What becomes of an object whose event the sink refuses for good.
    pub refused: OnRefused,
    /// Sends under way at once.
    pub concurrency: usize,
    /// Effects a second; 0: no limit.
    pub rate_per_s: u32,
    /// An effect that was not taken after so long waits in the store, and holds nothing else up.
    pub wait_after_ms: u64,
    /// First and longest wait between tries while the sink is away, and for an object that it does not take.
    pub retry_min_ms: u64,
    pub retry_max_ms: u64,
    /// So many failures in a row make the sink count as away.
    pub failures_max: u32,
    /// Effects of an object that are kept for the sink; behind them the log is the backlog.
    pub waiting_max: u64,
}

impl Default for SinkPolicy {
    fn default() -> Self {
        Self {
            deliver: Deliver::Every,
            stale: None,
            refused: OnRefused::ByMode,
            concurrency: 64,
            rate_per_s: 0,
            wait_after_ms: 30_000,
            retry_min_ms: 500,
            retry_max_ms: 60_000,
            failures_max: 5,
            waiting_max: 1000,
        }
    }
}

impl SinkPolicy {
    pub fn problems(&self) -> Vec<Problem> {
        let limits = [
            (self.concurrency > 0, "concurrency", "is 0: nothing would be sent"),
            (self.wait_after_ms > 0, "wait_after_ms", "is 0: nothing would be sent"),
            (self.retry_min_ms > 0, "retry_min_ms", "is 0"),
            (self.retry_max_ms >= self.retry_min_ms, "retry_max_ms", "is below retry_min_ms"),
            (self.failures_max > 0, "failures_max", "is 0: the sink would always count as away"),
        ];
        limits.iter().filter(|(ok, ..)| !ok).map(|(_, field, message)| Problem::at(*field, *message)).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Deliver {
    /// Each of them.
    Every,
    /// Of snapshots that waited, the newest of each object; the others are superseded.
    Newest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stale {
    /// They change nothing and are not sent.
    Drop,
    /// They are sent, marked, where their type is another than that of the event that superseded them.
    DeliverMarked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnRefused {
    /// Snapshots: a dead letter, and the object goes on. Deltas: the object is parked for this sink.
    ByMode,
    Dead,
    Park,
}

impl OnRefused {
    pub fn parks(self, mode: Mode) -> bool {
        match self {
            Self::ByMode => mode == Mode::Delta,
            Self::Dead => false,
            Self::Park => true,
        }
    }
}
