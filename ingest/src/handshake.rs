//! Answers requests by which a provider asks whether this address wants its events. They are never published.

use std::cell::OnceCell;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use seriatim_schemas::handshake::{Condition, FetchRule, Handshake, TokenRule};
use seriatim_schemas::selector::Place;
use seriatim_schemas::template::{Part, Template};
use seriatim_schemas::verification::{Algorithm, Encoding, Recipe};

use crate::error::Refusal;
use crate::extract::{Extracted, Shape};
use crate::key::LiveKey;
use crate::request::RequestView;
use crate::secret::SecretError;
use crate::signed::{Piece, pieces, pieces_of};
use crate::verify::{Reading, encode, urls};

/// The handshakes of a source, with its secrets as keys.
#[derive(Debug, Default)]
pub struct Handshakes {
    rules: Vec<Rule>,
    shape: Shape,
}

#[derive(Debug)]
struct Rule {
    handshake: Handshake,
    /// What a token is computed with, and the recipe that says how.
    token: Option<(Recipe, Option<LiveKey>)>,
}

/// What to do for a handshake, and what to answer when it is done.
#[derive(Debug)]
pub struct Reply {
    pub answer: Response<Body>,
    /// A secret to keep.
    pub store: Option<String>,
    /// An address to fetch, and the rule that says which may be.
    pub fetch: Option<(String, FetchRule)>,
}

impl Handshakes {
    /// `secrets` are the texts of the live secrets; the first one makes tokens.
    pub fn new(handshakes: Vec<Handshake>, secrets: &[String]) -> Result<Self, SecretError> {
        let shape = Shape::of(handshakes.iter().flat_map(Handshake::selectors));
        let rule = |handshake: Handshake| {
            let token = handshake.token.as_ref().map(|token| token_key(token, secrets)).transpose()?;
            Ok(Rule { handshake, token })
        };
        Ok(Self { rules: handshakes.into_iter().map(rule).collect::<Result<_, _>>()?, shape })
    }

    /// The answer to `request`, where it is a handshake; `verified` says whether it was believed before.
    pub fn reply(&self, request: &RequestView<'_>, public_url: &str, verified: bool) -> Option<Result<Reply, Refusal>> {
        let due = self.rules.iter().filter(|rule| rule.handshake.before_verification != verified);
        let extracted = OnceCell::new();
        let read = || extracted.get_or_init(|| self.shape.extract(request.body).ok()).as_ref();
        let rule = due.into_iter().find(|rule| rule.matches(request, &self.shape, &read))?;
        let reading = Reading { request, shape: &self.shape, extracted: read() };
        Some(rule.reply(&reading, public_url))
    }
}

impl Rule {
    fn matches<'d>(
        &self,
        request: &RequestView<'_>,
        shape: &Shape,
        document: &dyn Fn() -> Option<&'d Extracted<'d>>,
    ) -> bool {
        let is_method = self.handshake.method.as_deref().is_none_or(|method| method == request.method);
        let holds = |condition: &Condition| {
            let from = &condition.from;
            let reads_document = !from.place.pointers().is_empty();
            if reads_document && !may_hold(condition, request.body) {
                return condition.absent;
            }
            let reading = Reading { request, shape, extracted: if reads_document { document() } else { None } };
            let found = reading.one(from).ok().flatten().filter(|text| !text.is_empty());
            if found.as_deref().is_some_and(|text| condition.bound().is_some_and(|bound| !bound.fits(text))) {
                return false;
            }
            match (&condition.equals, found) {
                (Some(wanted), Some(found)) => reading.one(wanted).ok().flatten().is_some_and(|text| text == found),
                (Some(_), None) => false,
                (None, found) => found.is_some() != condition.absent,
            }
        };
        is_method && self.handshake.when.iter().all(holds)
    }

    fn reply(&self, reading: &Reading<'_>, public_url: &str) -> Result<Reply, Refusal> {
        let url = urls(public_url, reading.request.query, false).remove(0);
        let token = match &self.token {
            None => None,
            Some((_, None)) => return Err(Refusal::SignatureMismatch),
            Some((recipe, Some(key))) => {
                let template = recipe.signed.as_ref().expect("made with one");
                let signature = key.sign(&pieces(template, reading, &url, None)?).expect("a token's key signs");
                Some(encode(recipe, &signature))
            }
        };
        let written = |template: &Template| write(template, reading, &url, token.as_deref());
        let declared = &self.handshake.answer;
        let body = declared.body.as_ref().map(written).transpose()?.unwrap_or_default();
        let mut answer = Response::new(Body::from(body));
        *answer.status_mut() = StatusCode::from_u16(declared.status).expect("validated: a success status");
        let headers = answer.headers_mut();
        if declared.body.is_some() {
            headers.insert(CONTENT_TYPE, value(declared.content_type.as_bytes())?);
            // What is echoed comes from outside: no browser may take it for a page.
            headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        }
        for (name, template) in &declared.headers {
            let name = HeaderName::try_from(name.as_str()).map_err(|_| Refusal::ValueMissing)?;
            headers.insert(name, value(&written(template)?)?);
        }
        let store = self.handshake.store.as_ref().map(|selector| reading.one(selector)).transpose()?.flatten();
        let fetch = match &self.handshake.fetch {
            Some(rule) => Some((reading.one(&rule.url)?.ok_or(Refusal::ValueMissing)?, rule.clone())),
            None => None,
        };
        Ok(Reply { answer, store, fetch })
    }
}

/// A quick look before the body is parsed for a condition: whether the text it asks for is in it at all. Only for
/// texts that no JSON writer has a reason to escape.
fn may_hold(condition: &Condition, body: &[u8]) -> bool {
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    let wanted = match (&condition.equals, &condition.from.place) {
        (Some(equals), _) => match &equals.place {
            Place::Const(text) => text,
            _ => return true,
        },
        (None, Place::Body(pointer)) => match pointer.last() {
            Some(name) => name,
            None => return true,
        },
        _ => return true,
    };
    !plain(wanted) || memchr::memmem::find(body, wanted.as_bytes()).is_some()
}

fn value(bytes: &[u8]) -> Result<HeaderValue, Refusal> {
    HeaderValue::from_bytes(bytes).map_err(|_| Refusal::ValueMissing)
}

fn token_key(token: &TokenRule, secrets: &[String]) -> Result<(Recipe, Option<LiveKey>), SecretError> {
    let recipe = token.recipe();
    debug_assert!(token.encoding != Encoding::Text, "validated");
    let is_hash = matches!(token.algorithm, Algorithm::Sha1 | Algorithm::Sha256);
    let secret = secrets.first().map(String::as_str).or(is_hash.then_some("-"));
    let key = secret.map(|secret| LiveKey::new(0, secret, &recipe)).transpose()?;
    Ok((recipe, key))
}

/// A template as bytes; `{token}` is what was computed.
fn write(template: &Template, reading: &Reading<'_>, url: &str, token: Option<&str>) -> Result<Vec<u8>, Refusal> {
    let mut out = Vec::new();
    for part in &template.parts {
        if *part == Part::Token {
            out.extend_from_slice(token.unwrap_or_default().as_bytes());
            continue;
        }
        for piece in pieces_of(std::slice::from_ref(part), reading, url, None)? {
            if let Piece::Bytes(bytes) = piece {
                out.extend_from_slice(&bytes);
            }
        }
    }
    Ok(out)
}
