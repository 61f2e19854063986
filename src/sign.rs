//! Signs a request as a declaration says it is verified: the sender's side of the same data.

use anyhow::{Context, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::Mac;
use seriatim_ingest::secret::{LiveKey, key_bytes};
use seriatim_schemas::declaration::{Encoding, TemplatePart, TimestampUnit, Verify, template_parts};
use seriatim_schemas::selector::{Place, Selector, Step};

/// One secret of a source, ready to sign.
pub struct Signer {
    rule: Verify,
    parts: Vec<TemplatePart>,
    key: LiveKey,
}

impl Signer {
    pub fn new(rule: Verify, secret: &str) -> anyhow::Result<Self> {
        let key = LiveKey::new(0, &key_bytes(secret, &rule)?);
        let parts = template_parts(&rule.signed).map_err(|part| anyhow::anyhow!("{part} is unknown"))?;
        Ok(Self { rule, parts, key })
    }

    /// Adds the headers that verification reads. Headers that are signed must be there already.
    pub fn sign(&self, headers: &mut Vec<(String, String)>, body: &[u8], now: jiff::Timestamp) -> anyhow::Result<()> {
        let timestamp = self.rule.timestamp.as_ref().map(|rule| match rule.unit {
            TimestampUnit::S => now.as_second().to_string(),
            TimestampUnit::Ms => now.as_millisecond().to_string(),
        });
        let mut mac = self.key.mac();
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => mac.update(text.as_bytes()),
                TemplatePart::Body => mac.update(body),
                TemplatePart::Timestamp => {
                    mac.update(timestamp.as_deref().context("no timestamp is declared")?.as_bytes())
                }
                TemplatePart::Header(name) => {
                    let found = headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
                    mac.update(found.with_context(|| format!("header {name} is signed, but missing"))?.1.as_bytes());
                }
            }
        }
        let signature = mac.finalize().into_bytes();
        let signature = match self.rule.encoding {
            Encoding::Hex => hex::encode(signature),
            Encoding::Base64 => STANDARD.encode(signature),
        };
        if let (Some(rule), Some(text)) = (&self.rule.timestamp, &timestamp) {
            place(headers, &rule.from, text)?;
        }
        place(headers, &self.rule.signature, &signature)
    }
}

/// Puts `value` where `selector` will find it: the inverse of its steps, beside what the header holds already.
fn place(headers: &mut Vec<(String, String)>, selector: &Selector, value: &str) -> anyhow::Result<()> {
    let Place::Header(name) = &selector.place else { bail!("{selector}: only headers can be signed with") };
    let (mut separator, mut member) = (None, value.to_owned());
    for step in selector.steps.iter().rev() {
        match step {
            Step::Strip(prefix) => member.insert_str(0, prefix),
            Step::Split(text) => separator = Some(text),
            Step::Lower => {}
            Step::Before(_) | Step::After(_) => bail!("{selector}: this step cannot be turned round"),
        }
    }
    match (headers.iter_mut().find(|(n, _)| n == name), separator) {
        (Some((_, text)), Some(separator)) => *text = format!("{text}{separator}{member}"),
        (Some(_), None) => bail!("{selector}: the header is taken"),
        (None, _) => headers.push((name.clone(), member)),
    }
    Ok(())
}
