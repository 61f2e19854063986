//! Verification: is this request what a holder of a live secret sent? By the recipes of the declaration, over
//! the raw bytes, with every live secret, in constant time. Whatever is missing, doubled or malformed is
//! refused.

pub mod diagnose;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::Timestamp;
use seriatim_schemas::id::Sha256Digest;
use seriatim_schemas::selector::{Place, Selector};
use seriatim_schemas::source::SecretRef;
use seriatim_schemas::template::Template;
use seriatim_schemas::verification::{
    Algorithm, DigestRule, Encoding, KeyStep, Recipe, TimestampRule, TimestampUnit, Verify,
};
use seriatim_schemas::version::parse_instant;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::challenge::Challenges;
use crate::error::Refusal;
use crate::extract::{Extracted, Shape};
use crate::fetch::Allowed;
use crate::jwt::verify_token;
use crate::key::{LiveKey, joined};
use crate::request::{Claims, RequestView, SelectError, Settings};
use crate::secret::{SecretError, read_secrets};
use crate::signed::{Piece, check_listed, pieces};
use seriatim_schemas::form::FormError;

/// Most signatures of one request that are tried.
pub const SIGNATURES_MAX: usize = 16;

/// The recipes of a source, with its secrets as keys.
#[derive(Debug)]
pub struct Verifier {
    recipes: Vec<Keyed>,
    /// Places of the body that recipes read.
    shape: Shape,
    settings: Settings,
    public_url: Option<String>,
    challenges: Challenges,
}

struct Keyed {
    recipe: Recipe,
    keys: Vec<LiveKey>,
    /// The secrets' texts, for a diagnosis that tries other keys of them.
    texts: Arc<[String]>,
}

impl std::fmt::Debug for Keyed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyed").field("recipe", &self.recipe).field("keys", &self.keys).finish_non_exhaustive()
    }
}

/// Who signed, and what the token said where there is one.
#[derive(Debug)]
pub struct Verified {
    /// The label of the secret that signed.
    pub secret: String,
    pub claims: Option<Claims>,
}

/// What a recipe reads of a request.
pub struct Reading<'a> {
    pub request: &'a RequestView<'a>,
    pub shape: &'a Shape,
    /// None where the body is no JSON.
    pub extracted: Option<&'a Extracted<'a>>,
}

impl From<SelectError> for Refusal {
    fn from(error: SelectError) -> Self {
        match error {
            SelectError::HeaderDoubled(_) => Self::ValueDoubled,
            SelectError::Query { error: FormError::Doubled, .. } => Self::ValueDoubled,
            SelectError::Form { error: FormError::Doubled, .. } => Self::ValueDoubled,
            SelectError::Query { .. } | SelectError::Form { .. } => Self::BodyMalformed,
            SelectError::HeaderNotText(_) => Self::SignatureMalformed,
        }
    }
}

impl Verifier {
    /// `verify` was validated. A secret that is a key in none of the recipes is an error.
    pub fn new(verify: Verify, secrets: &[SecretRef]) -> Result<Self, SecretError> {
        let texts = read_secrets(secrets)?;
        Self::with_texts(verify, &texts)
    }

    /// As [`Self::new`], with the texts of the secrets.
    pub fn with_texts(verify: Verify, texts: &[String]) -> Result<Self, SecretError> {
        let shape = Shape::of(verify.0.iter().flat_map(Recipe::selectors));
        let shared: Arc<[String]> = texts.into();
        let keyed = |recipe| Keyed { recipe, keys: Vec::new(), texts: shared.clone() };
        let mut recipes: Vec<_> = verify.0.into_iter().map(keyed).collect();
        let prefixes = told_apart(&recipes);
        for (index, text) in texts.iter().enumerate() {
            let mut problem = None;
            let mut fits = false;
            for keyed in &mut recipes {
                if prefixes.is_some() && !keyed.begins(text) {
                    continue;
                }
                match LiveKey::new(index, text, &keyed.recipe) {
                    Ok(key) => {
                        keyed.keys.push(key);
                        fits = true;
                    }
                    Err(error) => problem = Some(error),
                }
            }
            let unnamed = prefixes.clone().map(|prefixes| SecretError::Prefix { prefixes });
            let problem = problem.or(unnamed);
            if let Some(error) = problem.filter(|_| !fits) {
                return Err(error);
            }
        }
        Ok(Self { recipes, shape, settings: BTreeMap::new(), public_url: None, challenges: Challenges::default() })
    }

    /// With what the source says beside its secrets.
    pub fn with_settings(self, settings: Settings, public_url: Option<String>) -> Self {
        Self { settings, public_url, ..self }
    }

    /// With what the source's handshakes sign for anyone.
    pub fn with_challenges(self, challenges: Challenges) -> Self {
        Self { challenges, ..self }
    }

    pub fn public_url(&self) -> &str {
        self.public_url.as_deref().unwrap_or_default()
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The sender's side: what the first recipe expects where its signature stands, by the first key. None where
    /// only the provider can sign.
    pub fn sign(&self, request: &RequestView<'_>, timestamp: Option<&str>) -> Result<Option<String>, Refusal> {
        let extracted = if self.shape.is_empty() { None } else { self.shape.extract(request.body).ok() };
        let reading = Reading { request, shape: &self.shape, extracted: extracted.as_ref() };
        let Some((keyed, key)) = self.recipes.first().and_then(|k| Some((k, k.keys.first()?))) else {
            return Ok(None);
        };
        let url = urls(self.public_url(), request.query, false).remove(0);
        let template = keyed.recipe.signed.as_ref();
        let signed = template.map_or(Ok(Vec::new()), |t| pieces(t, &reading, &url, timestamp))?;
        Ok(key.sign(&signed).map(|signature| encode(&keyed.recipe, &signature)))
    }

    /// What the first recipe signs of a request, for whoever has the private key.
    pub fn to_sign(&self, request: &RequestView<'_>, timestamp: Option<&str>) -> Result<Vec<u8>, Refusal> {
        let template = self.recipes.first().and_then(|keyed| keyed.recipe.signed.as_ref());
        template.map_or(Ok(Vec::new()), |template| self.written(request, template, timestamp))
    }

    /// The SHA-256 of a template.
    pub fn digest(&self, request: &RequestView<'_>, of: &Template) -> Result<Vec<u8>, Refusal> {
        Ok(Sha256::digest(self.written(request, of, None)?).to_vec())
    }

    /// The one value of a selector, as verification reads it.
    pub fn read(&self, request: &RequestView<'_>, selector: &Selector) -> Result<Option<String>, Refusal> {
        let extracted = if self.shape.is_empty() { None } else { self.shape.extract(request.body).ok() };
        Reading { request, shape: &self.shape, extracted: extracted.as_ref() }.one(selector)
    }

    fn written(
        &self,
        request: &RequestView<'_>,
        template: &Template,
        timestamp: Option<&str>,
    ) -> Result<Vec<u8>, Refusal> {
        let extracted = if self.shape.is_empty() { None } else { self.shape.extract(request.body).ok() };
        let reading = Reading { request, shape: &self.shape, extracted: extracted.as_ref() };
        let url = urls(self.public_url(), request.query, false).remove(0);
        let bytes = |piece: Piece<'_>| match piece {
            Piece::Bytes(bytes) => bytes.into_owned(),
            Piece::Secret => Vec::new(),
        };
        Ok(pieces(template, &reading, &url, timestamp)?.into_iter().flat_map(bytes).collect())
    }

    /// Where the signer's certificate stands, for a recipe that has it fetched, and which addresses may be. Whoever
    /// gives keys believes those, and no others; what the recipe requires must hold before anything is fetched.
    pub fn certificate(&self, request: &RequestView<'_>) -> Result<Option<(String, Allowed<'_>)>, Refusal> {
        if self.keys().next().is_some() {
            return Ok(None);
        }
        let extracted = if self.shape.is_empty() { None } else { self.shape.extract(request.body).ok() };
        let reading = Reading { request, shape: &self.shape, extracted: extracted.as_ref() };
        let mut result = Ok(None);
        for recipe in self.recipes.iter().map(|keyed| &keyed.recipe) {
            let Some(rule) = &recipe.certificate else { continue };
            match check_required(recipe, &reading) {
                Ok(()) => return Ok(reading.one(&rule.from)?.map(|url| (url, Allowed::certificates(rule)))),
                Err(refusal) => result = Err(refusal),
            }
        }
        result
    }

    /// As [`Self::verify`], by the key of a certificate that was fetched for this request.
    pub fn verify_fetched(&self, request: &RequestView<'_>, now: Timestamp, pem: &str) -> Result<Verified, Refusal> {
        let extracted = if self.shape.is_empty() { None } else { self.shape.extract(request.body).ok() };
        let reading = Reading { request, shape: &self.shape, extracted: extracted.as_ref() };
        let mut refusal = Refusal::SignatureMissing;
        for keyed in self.recipes.iter().filter(|keyed| keyed.recipe.certificate.is_some()) {
            let Ok(key) = LiveKey::fetched(pem, &keyed.recipe) else { continue };
            let by_certificate = Keyed { recipe: keyed.recipe.clone(), keys: vec![key], texts: Arc::new([]) };
            match by_certificate.verify(&reading, self, now) {
                Ok(verified) => return Ok(verified),
                Err(Refusal::SignatureMissing) => {}
                Err(other) => refusal = other,
            }
        }
        Err(refusal)
    }

    /// Takes over when each key of `before` last signed.
    pub fn remember_use(&self, before: &Self) {
        for key in self.keys() {
            let same = |old: &&LiveKey| old.name() == key.name();
            let last = before.keys().find(same).map_or(0, |old| old.last_used.load(Ordering::Relaxed));
            key.last_used.store(last, Ordering::Relaxed);
        }
    }

    /// The name of each secret, and when it last verified a request, in unix seconds; 0: never.
    pub fn last_uses(&self) -> BTreeMap<String, i64> {
        let mut all = BTreeMap::new();
        for key in self.keys() {
            let at = all.entry(key.name().to_owned()).or_insert(0);
            *at = key.last_used.load(Ordering::Relaxed).max(*at);
        }
        all
    }

    /// Headers in which the secret itself is sent, in lower case.
    pub fn secret_headers(&self) -> Vec<String> {
        self.sent_secrets().filter_map(Place::header).map(str::to_owned).collect()
    }

    /// Parameters of the query in which the secret itself is sent.
    pub fn secret_parameters(&self) -> Vec<String> {
        let name = |place: &Place| match place {
            Place::Query(name) => Some(name.clone()),
            _ => None,
        };
        self.sent_secrets().filter_map(name).collect()
    }

    fn sent_secrets(&self) -> impl Iterator<Item = &Place> {
        let is_sent = |recipe: &&Recipe| matches!(recipe.algorithm, Algorithm::Static | Algorithm::Basic);
        self.recipes.iter().map(|keyed| &keyed.recipe).filter(is_sent).map(|recipe| &recipe.signature.place)
    }

    /// Every key, with its label and when it last signed.
    pub fn keys(&self) -> impl Iterator<Item = &LiveKey> {
        self.recipes.iter().flat_map(|keyed| &keyed.keys)
    }

    /// The first recipe that holds; else the refusal of the last whose signature was there at all.
    pub fn verify(&self, request: &RequestView<'_>, now: Timestamp) -> Result<Verified, Refusal> {
        let extracted = if self.shape.is_empty() { None } else { self.shape.extract(request.body).ok() };
        let reading = Reading { request, shape: &self.shape, extracted: extracted.as_ref() };
        let mut refusal = Refusal::SignatureMissing;
        for keyed in &self.recipes {
            match keyed.verify(&reading, self, now) {
                Ok(verified) => return Ok(verified),
                Err(Refusal::SignatureMissing) => {}
                Err(other) => refusal = other,
            }
        }
        Err(refusal)
    }
}

/// Where secrets and public keys stand side by side, and prefixes say which is which: those prefixes. A public key
/// that lost its own must not become a secret: everyone has it.
fn told_apart(recipes: &[Keyed]) -> Option<String> {
    let is_public = |keyed: &Keyed| keyed.recipe.algorithm.is_public();
    let prefixes: Vec<_> = recipes.iter().filter_map(Keyed::prefix).collect();
    let both = recipes.iter().any(is_public) && !recipes.iter().all(is_public);
    (both && !prefixes.is_empty()).then(|| prefixes.join(" or "))
}

impl Keyed {
    fn prefix(&self) -> Option<&str> {
        match self.recipe.key.first() {
            Some(KeyStep::Strip(prefix)) => Some(prefix),
            _ => None,
        }
    }

    fn begins(&self, text: &str) -> bool {
        self.prefix().is_none_or(|prefix| text.starts_with(prefix))
    }

    fn verify(&self, reading: &Reading<'_>, verifier: &Verifier, now: Timestamp) -> Result<Verified, Refusal> {
        let recipe = &self.recipe;
        let texts = reading.all(&recipe.signature)?;
        if texts.iter().all(String::is_empty) || self.is_outdone(reading)? {
            return Err(Refusal::SignatureMissing);
        }
        let urls = urls(verifier.public_url(), reading.request.query, recipe.either_port);
        let (key, claims, timestamp) = match &recipe.jwt {
            Some(rule) => {
                let token = texts.first().ok_or(Refusal::SignatureMissing)?;
                let (key, claims) = verify_token(token, rule, &self.keys, now)?;
                let message = || token.rsplit_once('.').map_or("", |(message, _)| message).as_bytes().to_vec();
                if verifier.challenges.may_be(recipe, key, message) {
                    return Err(Refusal::SignedChallenge);
                }
                (key, Some(claims), None)
            }
            None => {
                let (key, timestamp) = self.signer(reading, &texts, &urls, &verifier.challenges)?;
                (key, None, timestamp)
            }
        };
        let request = RequestView { claims: claims.as_ref(), ..*reading.request };
        let believed = Reading { request: &request, ..*reading };
        check_required(recipe, &believed)?;
        for rule in &recipe.digests {
            if !urls.iter().any(|url| check_digest(rule, &believed, url).is_ok()) {
                return Err(Refusal::DigestMismatch);
            }
        }
        if let Some(rule) = &recipe.timestamp {
            let text = timestamp.map_or_else(|| read_timestamp(rule, &believed), Ok)?;
            check_window(rule, &text, now)?;
        }
        key.last_used.store(now.as_second(), Ordering::Relaxed);
        Ok(Verified { secret: key.label.clone(), claims })
    }

    /// Whether the request has a better signature than this recipe's.
    fn is_outdone(&self, reading: &Reading<'_>) -> Result<bool, Refusal> {
        let mut found = self.recipe.unless.iter().map(|place| reading.all(place));
        found.try_fold(false, |any, values| Ok(any || !values?.is_empty()))
    }

    /// The key that made one of the signatures, and the timestamp's text that it signed.
    fn signer(
        &self,
        reading: &Reading<'_>,
        texts: &[String],
        urls: &[Cow<'_, str>],
        challenges: &Challenges,
    ) -> Result<(&LiveKey, Option<String>), Refusal> {
        let decoded = texts.iter().take(SIGNATURES_MAX).filter_map(|text| decode_signature(&self.recipe, text));
        let signatures: Vec<_> = decoded.collect();
        if signatures.is_empty() {
            return Err(Refusal::SignatureMalformed);
        }
        let timestamp = self.recipe.timestamp.as_ref().map(|rule| read_timestamp(rule, reading)).transpose()?;
        if let (Some(rule), Some(template)) = (&self.recipe.timestamp, &self.recipe.signed) {
            check_listed(template, &rule.from, reading)?;
        }
        for url in urls {
            let signed: Vec<Piece<'_>> = match &self.recipe.signed {
                Some(template) => pieces(template, reading, url, timestamp.as_deref())?,
                None => Vec::new(),
            };
            let signs = |key: &&LiveKey| signatures.iter().any(|signature| key.signed(&signed, signature));
            let signer = self.keys.iter().find(signs);
            if let Some(key) = signer {
                if challenges.may_be(&self.recipe, key, || joined(&signed)) {
                    return Err(Refusal::SignedChallenge);
                }
                drop(signed);
                return Ok((key, timestamp));
            }
        }
        Err(Refusal::SignatureMismatch)
    }
}

impl Reading<'_> {
    pub fn all(&self, selector: &Selector) -> Result<Vec<String>, Refusal> {
        let document = |place: &Place| match (place, self.extracted) {
            (Place::BodyDigest, _) => Ok(vec![Sha256Digest::of(self.request.body).to_string()]),
            (_, Some(extracted)) => self.shape.values(extracted, place).map_err(|_| Refusal::BodyMalformed),
            (_, None) => Err(Refusal::BodyMalformed),
        };
        self.request.select(selector, document)
    }

    /// The one value of a selector; two are as bad as a doubled header.
    pub fn one(&self, selector: &Selector) -> Result<Option<String>, Refusal> {
        let mut values = self.all(selector)?;
        match (values.pop(), values.is_empty()) {
            (Some(_), false) => Err(Refusal::ValueDoubled),
            (value, _) => Ok(value),
        }
    }
}

/// A signature's bytes, as the recipe says it is written.
fn decode_signature(recipe: &Recipe, text: &str) -> Option<Vec<u8>> {
    match recipe.algorithm {
        Algorithm::Basic => {
            let (scheme, credentials) = text.split_once(' ')?;
            scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(credentials).ok())?
        }
        _ => decode(recipe.encoding, text),
    }
}

fn decode(encoding: Encoding, text: &str) -> Option<Vec<u8>> {
    match encoding {
        Encoding::Text => Some(text.as_bytes().to_vec()),
        Encoding::Hex => hex::decode(text).ok(),
        Encoding::Base64 => STANDARD.decode(text).ok(),
        Encoding::Base64Url => URL_SAFE_NO_PAD.decode(text).ok(),
    }
}

pub fn encode(recipe: &Recipe, signature: &[u8]) -> String {
    match recipe.algorithm {
        Algorithm::Basic => format!("Basic {}", STANDARD.encode(signature)),
        _ => encode_as(recipe.encoding, signature),
    }
}

pub fn encode_as(encoding: Encoding, bytes: &[u8]) -> String {
    match encoding {
        Encoding::Text => String::from_utf8_lossy(bytes).into_owned(),
        Encoding::Hex => hex::encode(bytes),
        Encoding::Base64 => STANDARD.encode(bytes),
        Encoding::Base64Url => URL_SAFE_NO_PAD.encode(bytes),
    }
}

/// The URL that the provider was given, with the request's query; with and without its port where either may be
/// what was signed.
pub fn urls<'u>(public_url: &'u str, query: &str, either_port: bool) -> Vec<Cow<'u, str>> {
    let with_query = |base: Cow<'u, str>| {
        if query.is_empty() { base } else { Cow::Owned(format!("{base}?{query}")) }
    };
    let mut all = vec![with_query(Cow::Borrowed(public_url))];
    if either_port && let Some((scheme, rest)) = public_url.split_once("://") {
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let other = match host.rsplit_once(':') {
            Some((bare, _)) => format!("{scheme}://{bare}{path}"),
            None => format!("{scheme}://{host}:{}{path}", if scheme == "https" { 443 } else { 80 }),
        };
        all.push(with_query(Cow::Owned(other)));
    }
    all
}

fn check_required(recipe: &Recipe, reading: &Reading<'_>) -> Result<(), Refusal> {
    for require in &recipe.require {
        let (found, wanted) = (reading.one(&require.from)?, reading.one(&require.equals)?);
        if found.is_none() || found != wanted {
            return Err(Refusal::RequireMismatch);
        }
    }
    Ok(())
}

fn check_digest(rule: &DigestRule, reading: &Reading<'_>, url: &str) -> Result<(), Refusal> {
    let found = reading.one(&rule.from)?;
    if rule.absent_if_empty && reading.request.body.is_empty() {
        return if found.is_none() { Ok(()) } else { Err(Refusal::DigestMismatch) };
    }
    let found = found.and_then(|text| decode(rule.encoding, &text)).ok_or(Refusal::DigestMismatch)?;
    let mut hash = Sha256::new();
    for piece in pieces(&rule.of, reading, url, None)? {
        if let Piece::Bytes(bytes) = piece {
            hash.update(bytes);
        }
    }
    if bool::from(hash.finalize().as_slice().ct_eq(&found)) { Ok(()) } else { Err(Refusal::DigestMismatch) }
}

fn read_timestamp(rule: &TimestampRule, reading: &Reading<'_>) -> Result<String, Refusal> {
    reading.one(&rule.from)?.ok_or(Refusal::TimestampMalformed)
}

/// Exactly at a limit passes.
fn check_window(rule: &TimestampRule, text: &str, now: Timestamp) -> Result<(), Refusal> {
    const NS_PER_S: i128 = 1_000_000_000;
    let digits = |unit: i128, now: i128| -> Result<(i128, i128), Refusal> {
        let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let value: i64 = text.parse().ok().filter(|_| is_number).ok_or(Refusal::TimestampMalformed)?;
        Ok((i128::from(value) * unit, now / unit * unit))
    };
    let (at, now) = match rule.unit {
        TimestampUnit::S => digits(NS_PER_S, now.as_nanosecond())?,
        TimestampUnit::Ms => digits(NS_PER_S / 1000, now.as_nanosecond())?,
        TimestampUnit::Iso => {
            (parse_instant(text).ok_or(Refusal::TimestampMalformed)?.as_nanosecond(), now.as_nanosecond())
        }
    };
    let limit = |seconds: u64| i128::from(seconds) * NS_PER_S;
    if now - at > limit(rule.past_max_s) {
        return Err(Refusal::TimestampTooOld);
    }
    match rule.future_max_s {
        Some(ahead) if at - now > limit(ahead) => Err(Refusal::TimestampTooNew),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
