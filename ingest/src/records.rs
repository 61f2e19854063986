//! From a verified request to the records of the log: one, or for a batch one per item beside the evidence.

use axum::http::HeaderMap;
use bytes::Bytes;
use seriatim_schemas::id::{IdFrom, RecordId, Sha256Digest};
use seriatim_schemas::key::{ObjectKey, RecordKey};
use seriatim_schemas::record::{Record, RecordKind};
use seriatim_schemas::selector::is_header;
use thiserror::Error;
use tracing::{debug, warn};
use uuid::Uuid;

use crate::batch::{BatchError, Item};
use crate::identify::{Derived, IdentifyError, TYPE_UNKNOWN};
use crate::request::{RequestView, SelectError};
use crate::sources::LiveSource;
use crate::verify::Verified;
use crate::webhook::Received;
use seriatim_schemas::decode::{DecodeError, document};
use seriatim_schemas::form::FormKind;

/// Why nothing could be derived of what verified.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnroutableError {
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error(transparent)]
    Batch(#[from] BatchError),
    #[error(transparent)]
    Identify(#[from] IdentifyError),
}

/// What a request holds.
pub enum Content {
    /// One event; its document, where it has one.
    One(Option<Bytes>),
    /// Many; the document that they are slices of.
    Many(Bytes, Vec<Item>),
}

/// Decodes a request, and splits it where it is a batch.
pub fn content(source: &LiveSource, received: &Received) -> Result<Content, UnroutableError> {
    let view = received.view(&source.verifier);
    let steps = source.source.declaration.decode.as_deref().unwrap_or_default();
    // Where no step reads forms, what looks like JSON is JSON: many senders leave the content type to a default.
    let is_json = steps.is_empty() && received.body.starts_with(b"{");
    let form = if is_json { FormKind::None } else { view.form_kind()? };
    let document = document(steps, &form, &received.body)?;
    let (Some(splitter), Some(document)) = (&source.splitter, &document) else { return Ok(Content::One(document)) };
    Ok(match splitter.split(document)? {
        Some(items) => Content::Many(document.clone(), items),
        None => Content::One(Some(document.clone())),
    })
}

/// Makes the records of one request.
pub struct Writer<'a> {
    pub source: &'a LiveSource,
    pub received: &'a Received,
    /// Shared by all records of the request.
    pub request: Uuid,
}

impl Writer<'_> {
    /// The record of a request that is one event, or that cannot be read.
    pub fn one(&self, content: Result<Option<Bytes>, UnroutableError>, verified: &Verified) -> Record {
        let digest = Sha256Digest::of(&self.received.body);
        let view = RequestView { claims: verified.claims.as_ref(), ..self.received.view(&self.source.verifier) };
        let derived = content.and_then(|document| {
            self.source.identifier.derive(&view, document.as_deref(), &digest).map_err(UnroutableError::from)
        });
        let http = kept_headers(&self.source.kept_headers, &self.received.headers);
        self.record(0, self.received.body.clone(), digest, derived, verified, http)
    }

    /// The record of one item; its number is that of the item + 1, the evidence being 0.
    pub fn item(&self, document: &Bytes, item: &Item, verified: &Verified) -> Record {
        let value = document.slice(item.range.0..item.range.1);
        let digest = Sha256Digest::of(&value);
        let view = RequestView {
            claims: verified.claims.as_ref(),
            item: Some(item),
            body: &value,
            ..self.received.view(&self.source.verifier)
        };
        let derived = self.source.identifier.derive(&view, Some(&value), &digest).map_err(UnroutableError::from);
        let http = kept_headers(&self.source.item_headers, &self.received.headers);
        let record = self.record(item.index + 1, value.clone(), digest, derived, verified, http);
        Record {
            range: Some(item.range),
            context: item.context_json(),
            content_type: Some("application/json".to_owned()),
            ..record
        }
    }

    /// The whole request, so that its signature can be checked again.
    pub fn evidence(&self, verified: &Verified) -> Record {
        let id = RecordId { request: self.request, item: 0 };
        let digest = Sha256Digest::of(&self.received.body);
        let nothing = Derived { problem: None, ..nothing_derived(&id, String::new()) };
        let http = kept_headers(&self.source.kept_headers, &self.received.headers);
        let record = self.record(0, self.received.body.clone(), digest, Ok(nothing), verified, http);
        let source = &self.source.source;
        let key = RecordKey::Evidence {
            tenant: source.tenant.clone(),
            source: source.name.clone(),
            request: self.request.to_string(),
        };
        Record { kind: RecordKind::Evidence, key, ..record }
    }

    fn record(
        &self,
        item: u32,
        value: Bytes,
        digest: Sha256Digest,
        derived: Result<Derived, UnroutableError>,
        verified: &Verified,
        http: Vec<(String, Bytes)>,
    ) -> Record {
        let id = RecordId { request: self.request, item };
        let (tenant, name) = (&self.source.source.tenant, &self.source.source.name);
        let (kind, key, derived) = match derived {
            Ok(derived) => {
                let key = ObjectKey::new(tenant, name, &derived.object);
                (RecordKind::Event, RecordKey::Object(key), derived)
            }
            Err(error) => {
                warn!(tenant, source = name, record = %id, reason = %error, "verified, but unroutable");
                let key =
                    RecordKey::Unroutable { tenant: tenant.clone(), source: name.clone(), record: id.to_string() };
                (RecordKind::Unroutable, key, nothing_derived(&id, error.to_string()))
            }
        };
        debug!(key = %key, event_id = derived.event_id, record = %id, "publish");
        let headers = &self.received.headers;
        Record {
            kind,
            id,
            key,
            declaration: self.source.source.revision.clone(),
            event_id: derived.event_id,
            id_from: derived.id_from,
            id_digest: derived.id_digest,
            event_type: derived.event_type,
            version: derived.version,
            time: derived.time,
            recorded: self.received.at,
            digest,
            secret: verified.secret.clone(),
            method: self.received.method.to_string(),
            target: self.source.kept_target(&self.received.target),
            problem: derived.problem,
            content_type: text_header(headers, "content-type"),
            traceparent: text_header(headers, "traceparent").filter(|t| is_traceparent(t)),
            range: None,
            context: None,
            http,
            value,
        }
    }
}

fn nothing_derived(id: &RecordId, problem: String) -> Derived {
    Derived {
        object: String::new(),
        event_id: id.to_string(),
        id_from: IdFrom::Record,
        id_digest: None,
        event_type: TYPE_UNKNOWN.to_owned(),
        version: None,
        time: None,
        problem: Some(problem),
    }
}

fn kept_headers(wanted: &[String], headers: &HeaderMap) -> Vec<(String, Bytes)> {
    let is_kept = |name: &str| wanted.iter().any(|wanted| is_header(wanted, name));
    let kept = headers.iter().filter(|(name, _)| is_kept(name.as_str()));
    let mut kept: Vec<_> = kept.map(|(name, v)| (name.to_string(), Bytes::copy_from_slice(v.as_bytes()))).collect();
    // A stable sort: values of one header stay in their order.
    kept.sort_by(|a, b| a.0.cmp(&b.0));
    kept
}

fn text_header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned)
}

/// `VERSION-TRACE-PARENT-FLAGS` of W3C Trace Context.
fn is_traceparent(text: &str) -> bool {
    let lengths: Vec<_> = text.split('-').map(str::len).collect();
    lengths == [2, 32, 16, 2] && text.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
}
