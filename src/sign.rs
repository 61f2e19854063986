//! Signs a request as a declaration says it is verified: the sender's side of the same data. What verification
//! reads and the request lacks is put where it will be looked for.

pub mod private_key;

use std::sync::Arc;

use anyhow::{Context, bail};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde_json::{Value, json};
use seriatim_ingest::request::RequestView;
use seriatim_ingest::verify::{Verifier, encode_as};
use seriatim_schemas::batch::{BatchRule, EVERY};
use seriatim_schemas::pointer::write_pointer;
use seriatim_schemas::selector::{Place, Selector, Step};
use seriatim_schemas::source::Source;
use seriatim_schemas::template::Part;
use seriatim_schemas::verification::{Algorithm, JwtRule, Recipe, TimestampUnit, Verify};

use private_key::PrivateKey;

/// A request that is about to be sent.
#[derive(Debug, Clone)]
pub struct Outgoing {
    pub method: String,
    pub query: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// How a source is signed for: by the first recipe that a request fits, with one secret or one private key.
pub struct Signer {
    recipes: Vec<RecipeSigner>,
    batch: Option<BatchRule>,
}

struct RecipeSigner {
    recipe: Recipe,
    verifier: Verifier,
    private: Option<Arc<PrivateKey>>,
    secret: String,
}

impl Signer {
    pub fn new(source: &Source, secret: &str, private: Option<PrivateKey>) -> anyhow::Result<Self> {
        let verify = source.declaration.verify.clone().context("the source verifies nothing")?;
        let private = private.map(Arc::new);
        let mut recipes = Vec::new();
        let mut problem = None;
        for recipe in verify.0 {
            match RecipeSigner::new(source, recipe, secret, private.clone()) {
                Ok(signer) => recipes.push(signer),
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        match problem {
            Some(error) if recipes.is_empty() => Err(error),
            _ => Ok(Self { recipes, batch: source.declaration.batch.clone().filter(|batch| batch.verify_each) }),
        }
    }

    /// Adds all that verification reads.
    pub fn sign(&self, request: &mut Outgoing, now: Timestamp) -> anyhow::Result<()> {
        if self.batch.is_some() {
            return self.sign_items(request, now);
        }
        let mut problem = None;
        for signer in &self.recipes {
            let mut signed = request.clone();
            match signer.sign(&mut signed, now) {
                Ok(()) => {
                    *request = signed;
                    return Ok(());
                }
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        Err(problem.context("the source verifies nothing")?)
    }

    /// Signs each item of a batch by itself, in place.
    fn sign_items(&self, request: &mut Outgoing, now: Timestamp) -> anyhow::Result<()> {
        let signer = self.recipes.first().context("the source verifies nothing")?;
        let mut document: Value = serde_json::from_slice(&request.body).context("the body is not JSON")?;
        for pattern in self.batch.iter().flat_map(|batch| &batch.items) {
            for_each_item(&mut document, &pattern.0, &mut |item| {
                let mut alone = Outgoing { body: serde_json::to_vec(item)?, ..request.clone() };
                signer.sign(&mut alone, now)?;
                *item = serde_json::from_slice(&alone.body)?;
                Ok(())
            })?;
        }
        request.body = serde_json::to_vec(&document)?;
        Ok(())
    }
}

impl RecipeSigner {
    fn new(source: &Source, recipe: Recipe, secret: &str, private: Option<Arc<PrivateKey>>) -> anyhow::Result<Self> {
        let is_private = recipe.algorithm.is_public() || recipe.algorithm == Algorithm::Jwt && private.is_some();
        if is_private && private.is_none() {
            bail!("only the provider can sign: give --private-key, and configure the public key that it prints");
        }
        let texts = if is_private { Vec::new() } else { vec![secret.to_owned()] };
        let verifier = Verifier::with_texts(Verify(vec![recipe.clone()]), &texts)?;
        let verifier = verifier.with_settings(source.settings.clone(), source.public_url.clone());
        let private = private.filter(|_| is_private);
        Ok(Self { recipe, verifier, private, secret: secret.to_owned() })
    }

    fn sign(&self, request: &mut Outgoing, now: Timestamp) -> anyhow::Result<()> {
        let signature = self.prepare(request, now)?;
        place(request, &self.recipe.signature, &signature)
    }

    /// All but the signature itself, which is returned.
    fn prepare(&self, request: &mut Outgoing, now: Timestamp) -> anyhow::Result<String> {
        let recipe = &self.recipe;
        let timestamp = recipe.timestamp.as_ref().map(|rule| match rule.unit {
            TimestampUnit::S => now.as_second().to_string(),
            TimestampUnit::Ms => now.as_millisecond().to_string(),
            TimestampUnit::Iso => now.to_string(),
        });
        if let (Some(rule), Some(text)) = (&recipe.timestamp, &timestamp) {
            place(request, &rule.from, text)?;
        }
        for require in &recipe.require {
            let wanted = self.read(request, &require.equals)?.context("a required value is not set")?;
            if self.read(request, &require.from)?.as_ref() != Some(&wanted) {
                place(request, &require.from, &wanted)?;
            }
        }
        self.fill_in(request)?;
        if let Some(rule) = &recipe.jwt {
            return self.token(request, rule, now);
        }
        for rule in &recipe.digests {
            let signed = self.verifier.digest(&view(request, &header_map(request)?, &self.verifier), &rule.of)?;
            place(request, &rule.from, &encode_as(rule.encoding, &signed))?;
        }
        let headers = header_map(request)?;
        let view = view(request, &headers, &self.verifier);
        match &self.private {
            Some(key) => {
                let signed = self.verifier.to_sign(&view, timestamp.as_deref())?;
                Ok(encode_as(recipe.encoding, &key.sign(recipe.algorithm, &signed)?))
            }
            None => {
                let signature = self.verifier.sign(&view, timestamp.as_deref()).context("it cannot be signed")?;
                signature.context("only the provider can sign: its private key stays with it")
            }
        }
    }

    /// Values that are signed and that the request lacks: any text will do.
    fn fill_in(&self, request: &mut Outgoing) -> anyhow::Result<()> {
        for part in self.recipe.signed.iter().flat_map(|template| template.flat()) {
            match part {
                Part::Value(selector) if !selector.optional => {
                    let is_open = matches!(selector.place, Place::Header(_) | Place::Query(_));
                    if is_open && self.read(request, selector)?.is_none() {
                        place(request, selector, &uuid::Uuid::new_v4().to_string())?;
                    }
                }
                Part::HeadersNamedBy(name) if !request.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name)) => {
                    let timestamp = self.recipe.timestamp.as_ref().and_then(|rule| rule.from.place.header());
                    let names: Vec<_> = [Some(name.as_str()), timestamp].into_iter().flatten().collect();
                    request.headers.push((name.clone(), names.join(",")));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn read(&self, request: &Outgoing, selector: &Selector) -> anyhow::Result<Option<String>> {
        let headers = header_map(request)?;
        Ok(self.verifier.read(&view(request, &headers, &self.verifier), selector).unwrap_or(None))
    }

    fn token(&self, request: &Outgoing, rule: &JwtRule, now: Timestamp) -> anyhow::Result<String> {
        const VALID_S: i64 = 300;
        let at = now.as_second();
        let jti = uuid::Uuid::new_v4().to_string();
        let mut claims = json!({ "iat": at, "nbf": at, "exp": at + VALID_S, "jti": jti });
        if let Some(issuer) = &rule.issuer {
            claims["iss"] = issuer.as_str().into();
        }
        let headers = header_map(request)?;
        for digest in &self.recipe.digests {
            let Place::Claim(name) = &digest.from.place else { bail!("{}: not a claim", digest.from) };
            if !(digest.absent_if_empty && request.body.is_empty()) {
                let of = self.verifier.digest(&view(request, &headers, &self.verifier), &digest.of)?;
                claims[name.as_str()] = encode_as(digest.encoding, &of).into();
            }
        }
        private_key::token(&rule.algorithms, self.private.as_deref(), self.secret.as_bytes(), &claims)
    }
}

fn for_each_item(
    value: &mut Value,
    pattern: &[String],
    act: &mut impl FnMut(&mut Value) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    match pattern.split_first() {
        None => act(value),
        Some((segment, rest)) if segment == EVERY => match value.as_array_mut() {
            Some(items) => items.iter_mut().try_for_each(|item| for_each_item(item, rest, act)),
            None => Ok(()),
        },
        Some((segment, rest)) => match value.get_mut(segment.as_str()) {
            Some(inner) => for_each_item(inner, rest, act),
            None => Ok(()),
        },
    }
}

fn view<'a>(request: &'a Outgoing, headers: &'a HeaderMap, verifier: &'a Verifier) -> RequestView<'a> {
    RequestView {
        method: &request.method,
        headers,
        query: &request.query,
        body: &request.body,
        claims: None,
        item: None,
        settings: verifier.settings(),
    }
}

fn header_map(request: &Outgoing) -> anyhow::Result<HeaderMap> {
    let pair = |(name, value): &(String, String)| -> anyhow::Result<_> {
        Ok((HeaderName::try_from(name.as_str())?, HeaderValue::try_from(value.as_str())?))
    };
    request.headers.iter().map(pair).collect()
}

/// Puts `value` where `selector` will find it: the inverse of its steps, beside what stands there already.
fn place(request: &mut Outgoing, selector: &Selector, value: &str) -> anyhow::Result<()> {
    let (mut separator, mut member) = (None, value.to_owned());
    for step in selector.steps.iter().rev() {
        match step {
            Step::Strip(text) => member.insert_str(0, text),
            Step::After(text) => member.insert_str(0, &format!("-{text}")),
            Step::Before(text) => member = format!("{member}{text}-"),
            Step::Split(text) => separator = Some(text.as_str()),
            Step::Lower | Step::Trim | Step::Item(_) | Step::Skip(_) | Step::Not(_) => {}
            Step::Base64Json(_) | Step::Json(_) | Step::Quote => bail!("{selector}: this step cannot be turned round"),
        }
    }
    match &selector.place {
        Place::Header(name) | Place::Headers(name) => {
            let name = name.replace('*', "1");
            match (request.headers.iter_mut().find(|(n, _)| n.eq_ignore_ascii_case(&name)), separator) {
                (Some((_, text)), Some(separator)) => *text = format!("{text}{separator}{member}"),
                (Some((_, text)), None) => *text = member,
                (None, _) => request.headers.push((name, member)),
            }
        }
        Place::Query(name) => request.query = with_pair(&request.query, name, &member),
        Place::Form(name) => {
            let form = String::from_utf8_lossy(&request.body).into_owned();
            request.body = with_pair(&form, name, &member).into_bytes();
        }
        Place::Body(pointer) => {
            let mut document: Value = serde_json::from_slice(&request.body).context("the body is not JSON")?;
            let (last, parents) = pointer.split_last().context("the whole body cannot be a signature")?;
            let parent = document.pointer_mut(&write_pointer(parents)).and_then(Value::as_object_mut);
            let parent = parent.with_context(|| format!("{selector}: nothing to put it into"))?;
            let is_number = parent.get(last).is_some_and(Value::is_number);
            let number = member.parse::<i64>().ok().filter(|_| is_number);
            parent.insert(last.clone(), number.map_or(Value::String(member), Value::from));
            request.body = serde_json::to_vec(&document)?;
        }
        _ => bail!("{selector}: nothing can be put there"),
    }
    Ok(())
}

/// The pairs, with one of them replaced or added.
fn with_pair(pairs: &str, name: &str, value: &str) -> String {
    let others = form_urlencoded::parse(pairs.as_bytes()).filter(|(n, _)| n != name);
    form_urlencoded::Serializer::new(String::new()).extend_pairs(others).append_pair(name, value).finish()
}

/// A JWS in compact form (RFC 7515).
fn compact(
    header: &Value,
    claims: &Value,
    sign: impl FnOnce(&[u8]) -> anyhow::Result<Vec<u8>>,
) -> anyhow::Result<String> {
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", encode(header), encode(claims));
    let signature = URL_SAFE_NO_PAD.encode(sign(message.as_bytes())?);
    Ok(format!("{message}.{signature}"))
}

/// How the text of a public key is written for a recipe, so that its key steps read it.
fn public_text(recipe: &Recipe, spki: &[u8]) -> String {
    use base64::engine::general_purpose::STANDARD;
    use seriatim_schemas::verification::KeyStep;
    /// Ed25519 keys stand bare at the end of their DER form.
    const BARE: usize = 32;
    let bare = &spki[spki.len().saturating_sub(BARE)..];
    let is_ed25519 = recipe.algorithm == Algorithm::Ed25519;
    match recipe.key.as_slice() {
        [KeyStep::Hex] => hex::encode(if is_ed25519 { bare } else { spki }),
        [.., KeyStep::Base64] => STANDARD.encode(if is_ed25519 { bare } else { spki }),
        _ => format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----", STANDARD.encode(spki)),
    }
}

#[cfg(test)]
mod tests;
