//! Acts of an operator, and of time. They are records of the log, with the key of the object that they are about: so
//! they reach its owner in order, survive what the processor survives, stand in the ledger, and are read at the same
//! place by a replay.

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

use crate::id::{IdFrom, RecordId, Sha256Digest};
use crate::key::RecordKey;
use crate::record::{Record, RecordKind};

/// What an operator does, who does it, and why. The value of the record, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    #[serde(flatten)]
    pub act: ControlAct,
    pub by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case")]
pub enum ControlAct {
    /// What is parked for a sink is sent from here on.
    Redrive { sink: String },
    /// The effect of this rev, if it is the first that is parked for the sink, is left out; the rest is sent.
    Skip { sink: String, rev: i64 },
    /// A dead effect is sent to its sink again, under its old rev.
    RedriveEffect { sink: String, event_row: String },
    /// A dead letter is removed: it was redriven, or nobody wants it. `record` tells it from a later one.
    Discard { letter: String, record: String },
    /// The object's order begins anew: the next snapshot is applied, whatever its version.
    ResetVersion {},
    /// Numbers below `to` that are missing from the object's sequence are not waited for any more. Done twice it
    /// changes nothing.
    Pass { to: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("control record cannot be read: {0}")]
pub struct ControlError(pub String);

/// `ce_type` of the acts that are decided in their object's lane.
pub const RESET_VERSION: &str = "seriatim.reset_version";
pub const PASS: &str = "seriatim.pass";

/// Who passes a gap that has lasted too long.
pub const BY_TIME: &str = "seriatim";

/// What the event rows of control records begin with.
const ROW_PREFIX: &str = "~control/";

impl Control {
    /// `ce_type` of control records.
    pub fn event_type(&self) -> String {
        let act = match self.act {
            ControlAct::Redrive { .. } => "redrive",
            ControlAct::Skip { .. } => "skip",
            ControlAct::RedriveEffect { .. } => "redrive_effect",
            ControlAct::Discard { .. } => "discard",
            ControlAct::ResetVersion {} => "reset_version",
            ControlAct::Pass { .. } => "pass",
        };
        format!("seriatim.{act}")
    }

    pub fn parse(value: &[u8]) -> Result<Self, ControlError> {
        serde_json::from_slice(value).map_err(|e| ControlError(e.to_string()))
    }

    /// One line for the ledger.
    pub fn describe(&self) -> String {
        let reason = self.reason.as_ref().map(|r| format!(": {r}")).unwrap_or_default();
        let act = serde_json::to_string(&self.act).expect("plain data");
        format!("{act} by {}{reason}", self.by)
    }

    /// The record that carries this act to the owner of `key`; nothing else has the id `request`.
    pub fn record(&self, key: RecordKey, request: Uuid, at: Timestamp) -> Record {
        let value = Bytes::from(serde_json::to_vec(self).expect("plain data"));
        let id = RecordId { request, item: 0 };
        Record {
            kind: RecordKind::Control,
            id,
            key,
            declaration: String::new(),
            event_id: format!("{ROW_PREFIX}{id}"),
            id_from: IdFrom::Record,
            event_type: self.event_type(),
            version: None,
            time: None,
            recorded: at,
            digest: Sha256Digest::of(&value),
            id_digest: None,
            secret: String::new(),
            method: String::new(),
            target: String::new(),
            problem: None,
            content_type: Some("application/json".to_owned()),
            traceparent: None,
            range: None,
            context: None,
            http: Vec::new(),
            value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_are_frozen() {
        let acts = [
            (ControlAct::Redrive { sink: "a".into() }, r#"{"act":"redrive","sink":"a","by":"x"}"#),
            (ControlAct::Skip { sink: "a".into(), rev: 7 }, r#"{"act":"skip","sink":"a","rev":7,"by":"x"}"#),
            (
                ControlAct::RedriveEffect { sink: "a".into(), event_row: "e".into() },
                r#"{"act":"redrive_effect","sink":"a","event_row":"e","by":"x"}"#,
            ),
            (
                ControlAct::Discard { letter: "e".into(), record: "r".into() },
                r#"{"act":"discard","letter":"e","record":"r","by":"x"}"#,
            ),
            (ControlAct::ResetVersion {}, r#"{"act":"reset_version","by":"x"}"#),
            (ControlAct::Pass { to: 7 }, r#"{"act":"pass","to":7,"by":"x"}"#),
        ];
        for (act, json) in acts {
            let control = Control { act, by: "x".into(), reason: None };
            assert_eq!(serde_json::to_string(&control).expect("plain data"), json);
            assert_eq!(Control::parse(json.as_bytes()), Ok(control));
        }
        assert!(Control::parse(br#"{"act":"explode","by":"x"}"#).is_err());
    }
}
