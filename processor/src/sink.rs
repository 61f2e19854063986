//! Where effects go. A sink is sent the effects of one object in their order, each at least once; the
//! idempotency key and the fence tell a resend from a new one.

pub mod json_lines;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use seriatim_schemas::key::{ObjectKey, encode_part};
use seriatim_schemas::outcome::Outcome;

use crate::error::SinkError;

/// What a sink is sent for one decision.
#[derive(Debug, Clone)]
pub struct Effect {
    pub key: ObjectKey,
    pub event_id: String,
    pub event_row: String,
    pub event_type: String,
    pub version: Option<String>,
    pub outcome: Outcome,
    /// Activation epoch and rev: the fence. Per object, an effect with a smaller fence is older.
    pub epoch: u64,
    pub rev: i64,
    /// It may have been sent before.
    pub resent: bool,
    pub recorded: Timestamp,
    pub value: Bytes,
}

impl Effect {
    /// `tenant/source/object/event row`, parts percent-encoded: one per effect, the same for each resend.
    pub fn idempotency_key(&self) -> String {
        idempotency_key(&self.key, &self.event_row)
    }
}

pub fn idempotency_key(key: &ObjectKey, event_row: &str) -> String {
    format!("{key}/{}", encode_part(event_row))
}

#[async_trait]
pub trait Sink: Send + Sync + 'static {
    fn name(&self) -> &str;

    /// Sends all effects in order; returns once the last is acknowledged. After an error, all are sent again.
    async fn emit(&self, effects: &[Effect]) -> Result<(), SinkError>;
}
