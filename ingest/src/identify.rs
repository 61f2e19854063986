//! Derivation: event id, type, object and version of a verified request.
//!
//! What verified is never refused here. Where no event id or object can be had, the record goes to the log
//! as unroutable, with the reason; where only the version is wrong, the object is known and the processor
//! makes it a dead letter of that object.

use jiff::Timestamp;
use seriatim_schemas::declaration::Declaration;
use seriatim_schemas::expression::Expression;
use seriatim_schemas::id::{IdFrom, Sha256Digest};
use seriatim_schemas::pointer::{Pointer, parse_pointer};
use seriatim_schemas::selector::{Place, Selector};
use seriatim_schemas::verification::Verify;
use seriatim_schemas::version::{ZoneOffset, parse_any_instant};
use sha2::{Digest, Sha256};
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
    /// The digest without what a retry changes, where it counts for the id.
    pub id_digest: Option<Sha256Digest>,
    pub event_type: String,
    pub version: Option<String>,
    pub time: Option<Timestamp>,
    /// What is wrong with the version, where something is.
    pub problem: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IdentifyError {
    #[error(transparent)]
    Extract(#[from] ExtractError),
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error("no object: {tried} yields nothing")]
    NoObject { tried: String },
    #[error("no event id: the request has neither a body nor a query that a digest could stand for")]
    NoEventId,
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
    /// Values that the digest leaves out.
    ignored: Vec<Pointer>,
}

impl Identifier {
    pub fn new(declaration: Declaration) -> Self {
        let ignored: Vec<_> = declaration.digest_ignores.iter().flatten().filter_map(|t| parse_pointer(t)).collect();
        let read = declaration.expressions().into_iter().flat_map(Expression::selectors);
        let shape = Shape::new(read.flat_map(|s| s.place.pointers()).chain(ignored.iter().cloned()));
        let signed_headers = declaration.verify.as_ref().map(Verify::signed_headers).unwrap_or_default();
        Self { declaration, shape, signed_headers, ignored }
    }

    /// `document` is the JSON of the request, or of the item; none where it has none. `digest` is that of the
    /// record's value.
    pub fn derive(
        &self,
        request: &RequestView<'_>,
        document: Option<&[u8]>,
        digest: &Sha256Digest,
    ) -> Result<Derived, IdentifyError> {
        let reads = document.filter(|_| !self.shape.is_empty());
        let extracted = reads.map(|document| self.shape.extract(document)).transpose()?;
        let own_digest = match (&extracted, document) {
            (Some(extracted), Some(document)) if !self.ignored.is_empty() => self.digest(extracted, document),
            _ if request.body.is_empty() => Sha256Digest::of(request.query.as_bytes()),
            _ => *digest,
        };
        let read = Reading { shape: &self.shape, extracted: extracted.as_ref(), request, digest: &own_digest };

        let event_type = read.optional(self.declaration.event_type.as_ref())?.map(|(text, _)| text);
        let event_type = bounded("event type", event_type.unwrap_or_else(|| TYPE_UNKNOWN.to_owned()), TEXT_BYTES_MAX)?;
        let plan = self.declaration.plan(&event_type);
        let object = plan.object.ok_or_else(|| IdentifyError::NoObjectDeclared { event_type: event_type.clone() })?;
        let (object, _) = read.value(object)?.ok_or_else(|| IdentifyError::NoObject { tried: describe(object) })?;
        let object = bounded("object", object, OBJECT_BYTES_MAX)?;
        let (event_id, id_from) = match read.optional(self.declaration.event_id.as_ref())? {
            Some((text, found)) => (bounded("event id", text, TEXT_BYTES_MAX)?, self.trust(found)),
            None if request.body.is_empty() && request.query.is_empty() => return Err(IdentifyError::NoEventId),
            None => (own_digest.to_string(), IdFrom::Digest),
        };
        let version = match plan.order_from().map(|from| read.value(from)).transpose() {
            Ok(found) => Ok(found.flatten().map(|(text, _)| text)),
            Err(error) => Err(error.to_string()),
        };
        let missing = plan.needs_order() && version == Ok(None);
        let problem = match &version {
            Err(problem) => Some(problem.clone()),
            Ok(_) if missing => plan.order_from().map(|from| format!("no version: {} yields nothing", describe(from))),
            Ok(_) => None,
        };
        let time = read.optional(self.declaration.time.as_ref())?.and_then(|(text, _)| read_time(&text));
        let id_digest = (own_digest != *digest && id_from == IdFrom::UnsignedHeader).then_some(own_digest);
        Ok(Derived { object, event_id, id_from, id_digest, event_type, version: version.ok().flatten(), time, problem })
    }

    /// How far an event id can be trusted, by where it was found: as far as the least trusted part of it.
    fn trust(&self, found: &Expression) -> IdFrom {
        let all: Vec<_> = found.selectors().into_iter().map(|s| self.trust_of(s)).collect();
        let worst = [IdFrom::UnsignedHeader, IdFrom::SignedHeader].into_iter().find(|from| all.contains(from));
        worst.unwrap_or(IdFrom::Body)
    }

    fn trust_of(&self, selector: &Selector) -> IdFrom {
        let verify = self.declaration.verify.as_ref();
        let of_item = self.declaration.batch.as_ref().is_some_and(|batch| batch.verify_each);
        match &selector.place {
            place @ (Place::Body(_) | Place::BodyBy(_) | Place::Keys(_) | Place::Form(_))
                if !verify.is_some_and(|v| v.covers(place)) =>
            {
                IdFrom::UnsignedHeader
            }
            // Where each item is signed by itself, what stands around it is not.
            Place::Batch(_) | Place::BatchIndex | Place::BatchPath if of_item => IdFrom::UnsignedHeader,
            Place::Body(_) | Place::BodyBy(_) | Place::Keys(_) | Place::Form(_) => IdFrom::Body,
            Place::Batch(_) | Place::BatchIndex | Place::BatchPath => IdFrom::Body,
            Place::BodyDigest | Place::Const(_) => IdFrom::Body,
            Place::Header(name) if self.signed_headers.contains(name) => IdFrom::SignedHeader,
            Place::Claim(_) | Place::Setting(_) => IdFrom::SignedHeader,
            Place::Header(_) | Place::Headers(_) | Place::Query(_) => IdFrom::UnsignedHeader,
        }
    }

    /// The digest of a document without the values that a retry changes.
    fn digest(&self, extracted: &Extracted<'_>, document: &[u8]) -> Sha256Digest {
        let start = document.as_ptr() as usize;
        let place = |raw: &str| (raw.as_ptr() as usize - start, raw.as_ptr() as usize - start + raw.len());
        let mut gaps: Vec<_> = self.ignored.iter().filter_map(|p| self.shape.raw(extracted, p)).map(place).collect();
        gaps.sort_unstable();
        let mut hash = Sha256::new();
        let mut from = 0;
        for (first, end) in gaps {
            if first >= from {
                hash.update(&document[from..first]);
                hash.update([0]);
                from = end;
            }
        }
        hash.update(&document[from..]);
        Sha256Digest(hash.finalize().into())
    }
}

fn bounded(what: &'static str, text: String, max: usize) -> Result<String, IdentifyError> {
    if text.len() > max { Err(IdentifyError::TooLong { what, bytes: text.len(), max }) } else { Ok(text) }
}

fn describe(expression: &Expression) -> String {
    let names: Vec<_> = expression.selectors().iter().map(ToString::to_string).collect();
    names.join(", ")
}

fn read_time(text: &str) -> Option<Timestamp> {
    Timestamp::from_nanosecond(parse_any_instant(text, ZoneOffset::UTC)?).ok()
}

struct Reading<'a> {
    shape: &'a Shape,
    extracted: Option<&'a Extracted<'a>>,
    request: &'a RequestView<'a>,
    digest: &'a Sha256Digest,
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
        let document = |place: &Place| match (place, self.extracted) {
            (Place::BodyDigest, _) => Ok(vec![self.digest.to_string()]),
            (_, Some(extracted)) => Ok(self.shape.values(extracted, place)?),
            (_, None) => Ok::<_, IdentifyError>(Vec::new()),
        };
        let values = self.request.select(selector, document)?;
        Ok(values.into_iter().find(|text| !text.is_empty()))
    }
}

#[cfg(test)]
mod tests;
