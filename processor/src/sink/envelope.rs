//! One effect as JSON: a line of a file, or the body of a push. Documented in docs/formats.md.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::value::RawValue;

use super::Effect;

/// `data` is the body where it is JSON, else `data_base64`.
#[derive(Serialize)]
struct Envelope<'a> {
    idempotency_key: String,
    tenant: &'a str,
    source: &'a str,
    object: &'a str,
    event_id: &'a str,
    #[serde(rename = "type")]
    event_type: &'a str,
    version: Option<&'a str>,
    outcome: &'a str,
    deleted: bool,
    epoch: u64,
    rev: i64,
    resent: bool,
    recorded: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_base64: Option<String>,
}

/// Appends `effect` to `out`, on one line, without its end.
pub fn write(out: &mut Vec<u8>, effect: &Effect) {
    let record = &effect.record;
    let data = serde_json::from_slice::<&RawValue>(&record.value).ok().filter(|raw| !raw.get().contains('\n'));
    let envelope = Envelope {
        idempotency_key: effect.idempotency_key(),
        tenant: &effect.key.tenant,
        source: &effect.key.source,
        object: &effect.key.object,
        event_id: &record.event_id,
        event_type: &record.event_type,
        version: record.version.as_deref(),
        outcome: effect.outcome.as_str(),
        deleted: effect.tombstone,
        epoch: effect.epoch,
        rev: effect.rev,
        resent: effect.resent,
        recorded: record.recorded.to_string(),
        data,
        data_base64: data.is_none().then(|| STANDARD.encode(&record.value)),
    };
    serde_json::to_writer(out, &envelope).expect("an envelope is plain data, written to memory");
}
