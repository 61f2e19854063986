//! Derivation: event id, type, object and version of a verified request.
//!
//! What verified is never refused here. Where no event id or object can be had, the record goes to the log
//! as unroutable, with the reason; where only the version is wrong, the object is known and the processor
//! makes it a dead letter of that object.

use std::borrow::Cow;

use jiff::Timestamp;
use seriatim_schemas::body::{BodyError, document};
use seriatim_schemas::declaration::{Declaration, Mode};
use seriatim_schemas::id::{IdFrom, Sha256Digest};
use seriatim_schemas::selector::{Expression, Place, Selector};
use seriatim_schemas::verification::Verify;
use seriatim_schemas::version::parse_instant;
use thiserror::Error;

use crate::extract::{ExtractError, Extracted, Shape};
use crate::request::{RequestView, SelectError};

/// Longest object id, in bytes: a key must fit into a record's key and a clustering column.
pub const OBJECT_BYTES_MAX: usize = 2048;
/// Longest event id and event type, in bytes, that the record carries.
pub const TEXT_BYTES_MAX: usize = 4096;

/// `ce_type` where nothing says the type.
pub const TYPE_UNKNOWN: &str = "unknown";

/// What a request says about itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Derived {
    pub object: String,
    pub event_id: String,
    pub id_from: IdFrom,
    pub event_type: String,
    pub version: Option<String>,
    pub time: Option<Timestamp>,
    /// What is wrong with the version, where something is.
    pub problem: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IdentifyError {
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error(transparent)]
    Extract(#[from] ExtractError),
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error("no object: {tried} yields nothing")]
    NoObject { tried: String },
    #[error("no object is declared for events of type {event_type:?}")]
    NoObjectDeclared { event_type: String },
    #[error("{what} of {bytes} bytes is longer than {max}")]
    TooLong { what: &'static str, bytes: usize, max: usize },
}

/// A declaration, compiled: one pass over a document finds all that it names.
#[derive(Debug)]
pub struct Identifier {
    declaration: Declaration,
    shape: Shape,
    signed_headers: Vec<String>,
}

impl Identifier {
    pub fn new(declaration: Declaration) -> Self {
        let pointers =
            declaration.expressions().into_iter().flat_map(Expression::selectors).filter_map(|s| match &s.place {
                Place::Body(path) => Some(path.clone()),
                _ => None,
            });
        let shape = Shape::new(pointers);
        let signed_headers = declaration.verify.as_ref().map(Verify::signed_headers).unwrap_or_default();
        Self { declaration, shape, signed_headers }
    }

    pub fn derive(&self, request: &RequestView<'_>, digest: &Sha256Digest) -> Result<Derived, IdentifyError> {
        let content_type = request.header("content-type")?;
        let document: Cow<'_, [u8]> = document(&self.declaration, content_type, request.body)?;
        let extracted = if self.shape.is_empty() { None } else { Some(self.shape.extract(&document)?) };
        let read = Reading { shape: &self.shape, extracted: extracted.as_ref(), request };

        let event_type = read.optional(self.declaration.event_type.as_ref())?.map(|(text, _)| text);
        let event_type = bounded("event type", event_type.unwrap_or_else(|| TYPE_UNKNOWN.to_owned()), TEXT_BYTES_MAX)?;
        let plan = self.declaration.plan(&event_type);
        let object = plan.object.ok_or_else(|| IdentifyError::NoObjectDeclared { event_type: event_type.clone() })?;
        let (object, _) = read.value(object)?.ok_or_else(|| IdentifyError::NoObject { tried: describe(object) })?;
        let object = bounded("object", object, OBJECT_BYTES_MAX)?;
        let (event_id, id_from) = match read.optional(self.declaration.event_id.as_ref())? {
            Some((text, found)) => (bounded("event id", text, TEXT_BYTES_MAX)?, self.trust(found)),
            None => (digest.to_string(), IdFrom::Digest),
        };
        let version = match plan.version.map(|rule| read.value(&rule.from)).transpose() {
            Ok(found) => Ok(found.flatten().map(|(text, _)| text)),
            Err(error) => Err(error.to_string()),
        };
        let missing = plan.mode == Mode::Snapshot && version == Ok(None);
        let problem = match &version {
            Err(problem) => Some(problem.clone()),
            Ok(_) if missing => plan.version.map(|rule| format!("no version: {} yields nothing", describe(&rule.from))),
            Ok(_) => None,
        };
        let time = read.optional(self.declaration.time.as_ref())?.and_then(|(text, _)| read_time(&text));
        Ok(Derived { object, event_id, id_from, event_type, version: version.ok().flatten(), time, problem })
    }

    /// How far an event id can be trusted, by where it was found: as far as the least trusted part of it.
    fn trust(&self, found: &Expression) -> IdFrom {
        let all: Vec<_> = found.selectors().into_iter().map(|s| self.trust_of(s)).collect();
        let worst = [IdFrom::UnsignedHeader, IdFrom::SignedHeader].into_iter().find(|from| all.contains(from));
        worst.unwrap_or(IdFrom::Body)
    }

    fn trust_of(&self, selector: &Selector) -> IdFrom {
        match &selector.place {
            place @ (Place::Body(_) | Place::Form(_))
                if !self.declaration.verify.as_ref().is_some_and(|v| v.covers(place)) =>
            {
                IdFrom::UnsignedHeader
            }
            Place::Body(_) | Place::BodyDigest | Place::Form(_) | Place::Const(_) => IdFrom::Body,
            Place::Header(name) if self.signed_headers.contains(name) => IdFrom::SignedHeader,
            Place::Claim(_) | Place::Setting(_) => IdFrom::SignedHeader,
            Place::Header(_) | Place::Headers(_) | Place::Query(_) => IdFrom::UnsignedHeader,
        }
    }
}

fn bounded(what: &'static str, text: String, max: usize) -> Result<String, IdentifyError> {
    if text.len() > max { Err(IdentifyError::TooLong { what, bytes: text.len(), max }) } else { Ok(text) }
}

fn describe(expression: &Expression) -> String {
    let names: Vec<_> = expression.selectors().iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// An instant as text, or unix seconds or milliseconds.
fn read_time(text: &str) -> Option<Timestamp> {
    const SECONDS_END: i64 = 100_000_000_000;
    match text.parse::<i64>() {
        Ok(seconds) if seconds < SECONDS_END => Timestamp::from_second(seconds).ok(),
        Ok(milliseconds) => Timestamp::from_millisecond(milliseconds).ok(),
        Err(_) => parse_instant(text),
    }
}

struct Reading<'a> {
    shape: &'a Shape,
    extracted: Option<&'a Extracted<'a>>,
    request: &'a RequestView<'a>,
}

impl Reading<'_> {
    fn optional<'e>(
        &self,
        expression: Option<&'e Expression>,
    ) -> Result<Option<(String, &'e Expression)>, IdentifyError> {
        expression.map_or(Ok(None), |e| self.value(e))
    }

    /// The value, and the selector or join that gave it. An empty text counts as missing.
    fn value<'e>(&self, expression: &'e Expression) -> Result<Option<(String, &'e Expression)>, IdentifyError> {
        match expression {
            Expression::One(selector) => Ok(self.one(selector)?.map(|text| (text, expression))),
            Expression::FirstOf(all) => {
                for expression in all {
                    if let Some(found) = self.value(expression)? {
                        return Ok(Some(found));
                    }
                }
                Ok(None)
            }
            Expression::Join { parts, with } => {
                let mut texts = Vec::with_capacity(parts.len());
                for selector in parts {
                    match self.one(selector)? {
                        Some(text) => texts.push(text),
                        None if selector.optional => {}
                        None => return Ok(None),
                    }
                }
                Ok((!texts.is_empty()).then(|| (texts.join(with), expression)))
            }
        }
    }

    fn one(&self, selector: &Selector) -> Result<Option<String>, IdentifyError> {
        let pointer = |path: &[String]| match self.extracted {
            Some(extracted) => Ok(self.shape.text(extracted, path)?),
            None => Ok::<_, IdentifyError>(None),
        };
        let values = self.request.select(selector, pointer)?;
        Ok(values.into_iter().find(|text| !text.is_empty()))
    }
}

#[cfg(test)]
mod tests;
