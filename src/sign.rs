//! Signs a request as a declaration says it is verified: the sender's side of the same data.

use anyhow::{Context, bail};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use seriatim_ingest::request::RequestView;
use seriatim_ingest::verify::Verifier;
use seriatim_schemas::selector::{Place, Selector, Step};
use seriatim_schemas::source::{SecretRef, Source};
use seriatim_schemas::verification::{Recipe, TimestampUnit};

/// One secret of a source, ready to sign by the first recipe.
pub struct Signer {
    recipe: Recipe,
    verifier: Verifier,
}

impl Signer {
    pub fn new(source: &Source, secret: &str) -> anyhow::Result<Self> {
        let verify = source.declaration.verify.clone().context("the source verifies nothing")?;
        let recipe = verify.0.first().context("the source verifies nothing")?.clone();
        let verifier = Verifier::new(verify, &[SecretRef::Value(secret.to_owned())])?;
        Ok(Self { recipe, verifier: verifier.with_settings(source.settings.clone(), source.public_url.clone()) })
    }

    /// Adds the headers that verification reads. Headers that are signed must be there already.
    pub fn sign(&self, headers: &mut Vec<(String, String)>, body: &[u8], now: jiff::Timestamp) -> anyhow::Result<()> {
        let timestamp = self.recipe.timestamp.as_ref().map(|rule| match rule.unit {
            TimestampUnit::S => now.as_second().to_string(),
            TimestampUnit::Ms => now.as_millisecond().to_string(),
            TimestampUnit::Iso => now.to_string(),
        });
        if let (Some(rule), Some(text)) = (&self.recipe.timestamp, &timestamp) {
            place(headers, &rule.from, text)?;
        }
        let map = header_map(headers)?;
        let request = RequestView {
            method: "POST",
            headers: &map,
            query: "",
            body,
            claims: None,
            item: None,
            settings: self.verifier.settings(),
        };
        let signature = self.verifier.sign(&request, timestamp.as_deref()).context("the request cannot be signed")?;
        let signature = signature.context("only the provider can sign: its secret key stays with it")?;
        place(headers, &self.recipe.signature, &signature)
    }
}

fn header_map(headers: &[(String, String)]) -> anyhow::Result<HeaderMap> {
    let pair = |(name, value): &(String, String)| -> anyhow::Result<_> {
        Ok((HeaderName::try_from(name.as_str())?, HeaderValue::try_from(value.as_str())?))
    };
    headers.iter().map(pair).collect()
}

/// Puts `value` where `selector` will find it: the inverse of its steps, beside what the header holds already.
fn place(headers: &mut Vec<(String, String)>, selector: &Selector, value: &str) -> anyhow::Result<()> {
    let Place::Header(name) = &selector.place else { bail!("{selector}: only headers can be signed with") };
    let (mut separator, mut member) = (None, value.to_owned());
    for step in selector.steps.iter().rev() {
        match step {
            Step::Strip(prefix) => member.insert_str(0, prefix),
            Step::Split(text) => separator = Some(text),
            Step::Lower | Step::Trim => {}
            _ => {
                bail!("{selector}: this step cannot be turned round")
            }
        }
    }
    match (headers.iter_mut().find(|(n, _)| n == name), separator) {
        (Some((_, text)), Some(separator)) => *text = format!("{text}{separator}{member}"),
        (Some(_), None) => bail!("{selector}: the header is taken"),
        (None, _) => headers.push((name.clone(), member)),
    }
    Ok(())
}
