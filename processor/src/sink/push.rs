//! Pushes effects over HTTP. Each carries its idempotency key and its fence, and is signed by the Standard
//! Webhooks scheme (<https://www.standardwebhooks.com>), so that a receiver needs nothing of ours to verify it.

use std::error::Error;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use seriatim_schemas::id::Sha256Digest;
use seriatim_schemas::key::encode_part;
use seriatim_schemas::source::SecretRef;
use sha2::Sha256;
use thiserror::Error;

use super::{Effect, Emitted, Fault, Sink, Stale, envelope};
use crate::outbound::{Guard, Network, OutboundError};

/// Bytes of an answer that are read, so that its connection can be used again.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Shortest and longest key, in bytes, as the Standard Webhooks specification has it.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PushConfig {
    pub url: String,
    /// Signing secrets of the form whsec_BASE64. With several each request carries a signature of each, so that
    /// they are rotated without a gap.
    #[serde(default)]
    pub secrets: Vec<SecretRef>,
    /// Headers that each request carries, such as `authorization`; their values are secrets.
    #[serde(default)]
    pub headers: std::collections::BTreeMap<String, SecretRef>,
    #[serde(default)]
    pub body: Body,
    /// How long one request may take.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    /// With body = "envelope": so many effects of one object in one request, as a JSON array. 0: one, not in an array.
    #[serde(default)]
    pub batch_max: usize,
    /// Private networks that may be pushed to, such as "10.0.0.0/8". All others are refused.
    #[serde(default)]
    pub allow_networks: Vec<Network>,
}

fn timeout_ms() -> u64 {
    10_000
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// The bytes of the event as the provider sent them, with their content type.
    #[default]
    Received,
    /// A JSON object of ours around them; see docs/formats.md.
    Envelope,
}

#[derive(Debug, Error)]
pub enum PushError {
    #[error(transparent)]
    Outbound(#[from] OutboundError),
    #[error("a secret is not of the form whsec_BASE64 with 24 to 64 bytes")]
    Secret,
    #[error("headers.{0}: its name or its value is no header")]
    Header(String),
}

pub struct Push {
    client: Client,
    url: Url,
    keys: Vec<Vec<u8>>,
    headers: HeaderMap,
    body: Body,
    batch_max: usize,
}

impl Push {
    /// `secrets` and `headers`: the values of those that `config` names.
    pub fn new(config: &PushConfig, secrets: &[String], headers: &[(String, String)]) -> Result<Self, PushError> {
        let guard = Guard::new(config.allow_networks.clone());
        let timeout = Duration::from_millis(config.timeout_ms);
        Ok(Self {
            url: guard.check_url(&config.url)?,
            client: guard.client(timeout, timeout)?,
            keys: secrets.iter().map(|secret| key(secret)).collect::<Result<_, _>>()?,
            headers: headers.iter().map(|(name, value)| header(name, value)).collect::<Result<_, _>>()?,
            body: config.body,
            batch_max: config.batch_max,
        })
    }

    async fn post(&self, effects: &[Effect]) -> Option<Fault> {
        let (body, content_type) = self.body(effects);
        let last = effects.last().expect("at least one effect is sent");
        let mut headers = self.headers.clone();
        headers.insert(CONTENT_TYPE, content_type);
        describe(&mut headers, last);
        sign(&mut headers, &self.keys, last, &body, Timestamp::now().as_second());
        match self.client.post(self.url.clone()).headers(headers).body(body).send().await {
            Ok(answer) => judge(answer).await,
            Err(error) => Some(Fault::Unavailable { reason: reason(error), retry_after: None }),
        }
    }

    fn body(&self, effects: &[Effect]) -> (Vec<u8>, HeaderValue) {
        let json = HeaderValue::from_static("application/json");
        match (self.body, effects) {
            (Body::Received, [effect, ..]) => {
                let content_type = effect.record.content_type.as_deref().and_then(|t| HeaderValue::from_str(t).ok());
                let unknown = HeaderValue::from_static("application/octet-stream");
                (effect.value().to_vec(), content_type.unwrap_or(unknown))
            }
            _ if self.batch_max == 0 => {
                let mut body = Vec::new();
                effects.iter().for_each(|effect| envelope::write(&mut body, effect));
                (body, json)
            }
            _ => {
                let mut body = vec![b'['];
                for (index, effect) in effects.iter().enumerate() {
                    if index > 0 {
                        body.push(b',');
                    }
                    envelope::write(&mut body, effect);
                }
                body.push(b']');
                (body, json)
            }
        }
    }
}

fn key(secret: &str) -> Result<Vec<u8>, PushError> {
    let bytes = secret.strip_prefix("whsec_").and_then(|text| STANDARD.decode(text).ok());
    bytes.filter(|bytes| KEY_BYTES.contains(&bytes.len())).ok_or(PushError::Secret)
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), PushError> {
    let parsed = HeaderName::try_from(name).ok().zip(HeaderValue::from_str(value).ok());
    let (name, mut value) = parsed.ok_or_else(|| PushError::Header(name.to_owned()))?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// The key, the fence, and what the event is; of a batch, those of its last effect.
fn describe(headers: &mut HeaderMap, effect: &Effect) {
    let mut put = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    put("idempotency-key", &effect.idempotency_key());
    put("seriatim-epoch", &effect.epoch.to_string());
    put("seriatim-rev", &effect.rev.to_string());
    put("seriatim-outcome", effect.outcome.as_str());
    put("seriatim-resent", if effect.resent { "true" } else { "false" });
    put("seriatim-deleted", if effect.tombstone { "true" } else { "false" });
    put("seriatim-type", &encode_part(&effect.record.event_type));
    if let Some(version) = &effect.record.version {
        put("seriatim-version", &encode_part(version));
    }
    if let Some(traceparent) = &effect.record.traceparent {
        put("traceparent", traceparent);
    }
}

/// `webhook-id` is the same for each resend, and holds no full stop: it is part of what is signed.
fn sign(headers: &mut HeaderMap, keys: &[Vec<u8>], effect: &Effect, body: &[u8], now_s: i64) {
    let id = format!("msg_{}", &Sha256Digest::of(effect.idempotency_key().as_bytes()).to_string()[..32]);
    let signature = |key: &Vec<u8>| {
        let mut mac: Hmac<Sha256> = KeyInit::new_from_slice(key).expect("HMAC takes keys of any length");
        mac.update(format!("{id}.{now_s}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    };
    let signatures = keys.iter().map(signature).collect::<Vec<_>>().join(" ");
    let values = [("webhook-id", id), ("webhook-timestamp", now_s.to_string()), ("webhook-signature", signatures)];
    for (name, value) in values.into_iter().filter(|(_, value)| !value.is_empty()) {
        headers.insert(name, HeaderValue::try_from(value).expect("hex, digits and base64"));
    }
}

/// What an answer says, and about whom. Answers that come of how the endpoint is set up are the sink's fault: an
/// address that moved must not turn every event into a dead letter.
async fn judge(answer: Response) -> Option<Fault> {
    let status = answer.status();
    let retry_after = retry_after_of(&answer);
    drain(answer).await;
    if status.is_success() {
        return None;
    }
    let reason = format!("status {}", status.as_u16());
    Some(if is_refusal(status) { Fault::Refused { reason } } else { Fault::Unavailable { reason, retry_after } })
}

fn is_refusal(status: StatusCode) -> bool {
    const OF_THE_ENDPOINT: [u16; 12] = [401, 403, 404, 405, 407, 408, 410, 421, 423, 425, 426, 429];
    status.is_client_error() && !OF_THE_ENDPOINT.contains(&status.as_u16())
}

async fn drain(mut answer: Response) {
    let mut read = 0;
    while let Ok(Some(chunk)) = answer.chunk().await {
        read += chunk.len();
        if read > ANSWER_BYTES_MAX {
            return;
        }
    }
}

pub(super) fn retry_after_of(answer: &Response) -> Option<Duration> {
    retry_after(answer.headers().get(RETRY_AFTER)?.to_str().ok()?, Timestamp::now())
}

/// Seconds, or an HTTP date.
fn retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    Duration::try_from(at.duration_since(now)).ok()
}

/// The error and what is behind it, without the address: it may hold a secret.
pub(super) fn reason(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(&format!(": {inner}"));
        source = inner.source();
    }
    text
}

#[async_trait]
impl Sink for Push {
    async fn emit(&self, effects: &[Effect]) -> Emitted {
        let fault = self.post(effects).await;
        match fault {
            None => Emitted::all(effects.len()),
            // One of many was refused: one by one it shows which.
            Some(Fault::Refused { .. }) if effects.len() > 1 => {
                for (index, effect) in effects.iter().enumerate() {
                    if let Some(fault) = self.post(std::slice::from_ref(effect)).await {
                        return Emitted { taken: index, fault: Some(fault) };
                    }
                }
                Emitted::all(effects.len())
            }
            Some(fault) => Emitted { taken: 0, fault: Some(fault) },
        }
    }

    fn batch_max(&self) -> usize {
        if self.body == Body::Envelope { self.batch_max.max(1) } else { 1 }
    }

    fn stale(&self) -> Stale {
        Stale::DeliverMarked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_as_the_specification_has_them() {
        assert_eq!(key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a key").len(), 24);
        for bad in ["", "whsec_", "whsec_MfKQ", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_?"] {
            assert!(key(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn whose_fault_an_answer_is() {
        let of = |status: u16| is_refusal(StatusCode::from_u16(status).expect("a status"));
        for refused in [400, 402, 409, 413, 415, 422, 451] {
            assert!(of(refused), "{refused}");
        }
        for waits in [301, 302, 307, 401, 403, 404, 408, 410, 425, 429, 500, 502, 503, 504] {
            assert!(!of(waits), "{waits}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("an instant");
        assert_eq!(retry_after("120", now), Some(Duration::from_secs(120)));
        assert_eq!(retry_after("Thu, 01 Jan 2026 00:01:00 GMT", now), Some(Duration::from_secs(60)));
        for bad in ["", "-1", "soon", "Wed, 31 Dec 2025 00:00:00 GMT"] {
            assert_eq!(retry_after(bad, now), None, "{bad}");
        }
    }
}
