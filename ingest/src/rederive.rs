//! Derives a record anew, by the declaration of today: how an event that could not be decided, or not be routed,
//! finds its object once the declaration is mended. Its bytes, and the time it was received, stay as they were.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use seriatim_schemas::record::Record;
use thiserror::Error;
use uuid::Uuid;

use crate::batch::Item;
use crate::records::{Content, Writer, content};
use crate::sources::LiveSource;
use crate::verify::Verified;
use crate::webhook::Received;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RederiveError {
    #[error("the context of a batch's item cannot be read: {0}")]
    Context(String),
    #[error("the request's method {0:?} is none")]
    Method(String),
}

/// The records that `record` makes now: one, or for a request that is read as a batch by now, all of its items.
/// What was claimed by a JWT is not in the log: a declaration that reads claims finds none.
pub fn rederive(source: &LiveSource, record: &Record) -> Result<Vec<Record>, RederiveError> {
    let received = received(source, record)?;
    let verified = Verified { secret: record.secret.clone(), claims: None };
    let writer = Writer { source, received: &received, request: Uuid::now_v7() };
    if let Some(range) = record.range {
        let derived = writer.item(&record.value, &item(record)?, &verified);
        return Ok(vec![Record { range: Some(range), ..derived }]);
    }
    Ok(match content(source, &received) {
        Ok(Content::Many(document, items)) if !items.is_empty() => {
            let of_items = items.iter().map(|item| writer.item(&document, item, &verified));
            std::iter::once(writer.evidence(&verified)).chain(of_items).collect()
        }
        Ok(Content::Many(..)) => Vec::new(),
        Ok(Content::One(document)) => vec![writer.one(Ok(document), &verified)],
        Err(error) => vec![writer.one(Err(error), &verified)],
    })
}

fn received(source: &LiveSource, record: &Record) -> Result<Received, RederiveError> {
    let method = if record.method.is_empty() { "POST" } else { &record.method };
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| RederiveError::Method(method.to_owned()))?;
    let mut headers = HeaderMap::new();
    let own = [("content-type", &record.content_type), ("traceparent", &record.traceparent)];
    for (name, value) in own {
        if let Some(value) = value.as_ref().and_then(|text| HeaderValue::from_str(text).ok()) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    for (name, value) in &record.http {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    Ok(Received {
        tenant: source.source.tenant.clone(),
        name: source.source.name.clone(),
        method,
        query: record.target.split_once('?').map_or(String::new(), |(_, query)| query.to_owned()),
        target: record.target.clone(),
        headers,
        body: record.value.clone(),
        at: record.recorded,
    })
}

fn item(record: &Record) -> Result<Item, RederiveError> {
    let context = record.context.as_deref().map(serde_json::from_str).transpose();
    let context = context.map_err(|e| RederiveError::Context(e.to_string()))?.unwrap_or_default();
    Ok(Item::from_record(record.id.item.saturating_sub(1), record.value.len(), context))
}
