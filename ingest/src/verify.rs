//! Verification: `HMAC(key, signed content) == signature`, over the raw bytes, with every live secret, in
//! constant time. Whatever is missing, doubled or malformed is refused.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::Mac;
use jiff::Timestamp;
use seriatim_schemas::declaration::{Encoding, TemplatePart, TimestampRule, TimestampUnit, Verify, template_parts};

use crate::error::Refusal;
use crate::request::{RequestView, SelectError};
use crate::secret::LiveKey;

/// Most signatures of one request that are tried.
pub const SIGNATURES_MAX: usize = 16;

#[derive(Debug)]
pub struct Verifier {
    rule: Verify,
    parts: Vec<TemplatePart>,
    keys: Vec<LiveKey>,
}

impl From<SelectError> for Refusal {
    fn from(error: SelectError) -> Self {
        match error {
            SelectError::HeaderDoubled(_) | SelectError::QueryDoubled(_) => Self::HeaderDoubled,
            SelectError::HeaderNotText(_) => Self::SignatureMalformed,
        }
    }
}

impl Verifier {
    /// `rule` was validated; `keys` are not empty.
    pub fn new(rule: Verify, keys: Vec<LiveKey>) -> Self {
        let parts = template_parts(&rule.signed).expect("validated with the declaration");
        Self { rule, parts, keys }
    }

    /// The label of the secret that signed the request.
    pub fn verify(&self, request: &RequestView<'_>, now: Timestamp) -> Result<&str, Refusal> {
        let signatures = self.signatures(request)?;
        let timestamp = self.rule.timestamp.as_ref().map(|rule| read_timestamp(rule, request)).transpose()?;
        let signed = self.signed(request, timestamp.as_deref())?;
        let key = self.keys.iter().find(|key| {
            signatures.iter().any(|signature| {
                let mut mac = key.mac();
                signed.iter().for_each(|part| mac.update(part));
                mac.verify_slice(signature).is_ok()
            })
        });
        let key = key.ok_or(Refusal::SignatureMismatch)?;
        if let (Some(rule), Some(text)) = (&self.rule.timestamp, &timestamp) {
            check_window(rule, text, now)?;
        }
        Ok(&key.label)
    }

    fn signatures(&self, request: &RequestView<'_>) -> Result<Vec<Vec<u8>>, Refusal> {
        let texts = select(&self.rule.signature, request)?;
        if texts.iter().all(String::is_empty) {
            return Err(Refusal::SignatureMissing);
        }
        let decoded = texts.iter().take(SIGNATURES_MAX).filter_map(|text| self.decode(text));
        let decoded: Vec<_> = decoded.collect();
        if decoded.is_empty() { Err(Refusal::SignatureMalformed) } else { Ok(decoded) }
    }

    fn decode(&self, text: &str) -> Option<Vec<u8>> {
        match self.rule.encoding {
            Encoding::Hex => hex::decode(text).ok(),
            Encoding::Base64 => STANDARD.decode(text).ok(),
        }
    }

    fn signed<'r>(&'r self, request: &RequestView<'r>, timestamp: Option<&'r str>) -> Result<Vec<&'r [u8]>, Refusal> {
        let bytes = |part: &'r TemplatePart| {
            Ok(match part {
                TemplatePart::Text(text) => text.as_bytes(),
                TemplatePart::Body => request.body,
                TemplatePart::Timestamp => timestamp.ok_or(Refusal::TimestampMalformed)?.as_bytes(),
                TemplatePart::Header(name) => request.header(name)?.ok_or(Refusal::HeaderMissing)?.as_bytes(),
            })
        };
        self.parts.iter().map(bytes).collect()
    }
}

/// Verification reads no JSON: its selectors were validated not to point into the body.
fn select(selector: &seriatim_schemas::selector::Selector, request: &RequestView<'_>) -> Result<Vec<String>, Refusal> {
    request.select(selector, |_| Ok::<_, Refusal>(None))
}

fn read_timestamp(rule: &TimestampRule, request: &RequestView<'_>) -> Result<String, Refusal> {
    let mut values = select(&rule.from, request)?;
    match (values.pop(), values.is_empty()) {
        (Some(text), true) => Ok(text),
        (Some(_), false) => Err(Refusal::HeaderDoubled),
        (None, _) => Err(Refusal::TimestampMalformed),
    }
}

/// Exactly at a limit passes.
fn check_window(rule: &TimestampRule, text: &str, now: Timestamp) -> Result<(), Refusal> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let value: i64 = text.parse().ok().filter(|_| digits).ok_or(Refusal::TimestampMalformed)?;
    let (unit, now) = match rule.unit {
        TimestampUnit::S => (1, now.as_second()),
        TimestampUnit::Ms => (1000, now.as_millisecond()),
    };
    let limit = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(unit);
    if now.saturating_sub(value) > limit(rule.past_max_s) {
        return Err(Refusal::TimestampTooOld);
    }
    match rule.future_max_s {
        Some(ahead) if value.saturating_sub(now) > limit(ahead) => Err(Refusal::TimestampTooNew),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
