//! The way of one request: route, bounds, verify, derive, publish, answer. In this order, so that nothing
//! is hashed before it is bounded, nothing is read before it is believed, and nothing is acknowledged
//! before it is durable.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use jiff::Timestamp;
use seriatim_schemas::decode::inflate;
use seriatim_schemas::record::{Record, RecordKind};
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use uuid::Uuid;

use crate::body::{InFlight, Share, read_body};
use crate::config::{IngestConfig, RECORD_BYTES_MAX};
use crate::error::{Refusal, WebhookError};
use crate::fetch::{Allowed, FetchError, Fetcher};
use crate::filter::Filter;
use crate::log::Append;
use crate::metrics::{IngestMetrics, RefusedLabels, SourceLabels, StatusLabels};
use crate::records::{Content, Writer, content};
use crate::refused::Refused;
use crate::request::RequestView;
use crate::secret::store_secret;
use crate::sources::{LiveSource, Sources};
use crate::verify::{Verified, Verifier};

/// What every request needs.
#[derive(Clone)]
pub struct Edge {
    pub config: Arc<IngestConfig>,
    pub sources: Arc<Sources>,
    pub log: Arc<dyn Append>,
    pub metrics: IngestMetrics,
    pub in_flight: InFlight,
    pub fetcher: Fetcher,
    pub refused: Arc<Refused>,
    pub filter: Option<Arc<Filter>>,
    /// What time it is.
    pub clock: fn() -> Timestamp,
    /// Appends under way; a stop waits for them.
    pub publishing: TaskTracker,
}

/// A request that may still be anyone's.
pub struct Received {
    pub tenant: String,
    pub name: String,
    pub method: Method,
    pub target: String,
    pub query: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub at: Timestamp,
}

pub async fn handle_webhook(
    State(edge): State<Edge>,
    Path((tenant, name)): Path<(String, String)>,
    request: Request,
) -> Response {
    let answer = match receive(&edge, tenant, name, request).await {
        Ok(answer) => answer,
        Err(error) => refuse(&edge, &error),
    };
    edge.metrics.answers.get_or_create(&StatusLabels { status: answer.status().as_u16() }).inc();
    answer
}

async fn receive(edge: &Edge, tenant: String, name: String, request: Request) -> Result<Response, WebhookError> {
    let (parts, body) = request.into_parts();
    let (body, mut share) = bounded(edge, &parts.headers, body).await?;
    let started = Instant::now();
    let target = parts.uri.path_and_query().map_or(String::new(), |t| t.as_str().to_owned());
    let query = parts.uri.query().unwrap_or("").to_owned();
    let mut received = Received {
        tenant,
        name,
        method: parts.method,
        target,
        query,
        headers: parts.headers,
        body,
        at: (edge.clock)(),
    };
    let found = edge.sources.get(&received.tenant, &received.name);
    let is_known = found.is_some();
    let source = found.unwrap_or_else(|| edge.sources.decoy());
    if source.source.declaration.inflate == Some(true) {
        received.body = inflated(edge, &received, &mut share)?;
    }
    let taken = match take(edge, &source, &received).await {
        Ok(taken) => taken,
        Err(WebhookError::Refused(refusal)) => {
            let refusal = if is_known { refusal } else { Refusal::UnknownSource };
            note_refusal(edge, &source, &received, refusal);
            return Err(refusal.into());
        }
        Err(other) => return Err(other),
    };
    let (mut records, refused) = match taken {
        Taken::Answered(answer) => return Ok(answer),
        Taken::Records(records, refused) => (records, refused),
    };
    if records.iter().any(|record| record.size() > RECORD_BYTES_MAX) {
        return Err(WebhookError::TooLarge { max: RECORD_BYTES_MAX });
    }
    let labels = SourceLabels { tenant: received.tenant, source: received.name };
    let unroutable = records.iter().filter(|record| record.kind == RecordKind::Unroutable).count();
    let fresh = match &edge.filter {
        Some(filter) => filter.apply(&mut records).await,
        None => Vec::new(),
    };
    if !records.is_empty() {
        publish(edge, records, share).await?;
    }
    if let Some(filter) = &edge.filter {
        filter.remember(fresh).await;
    }
    if unroutable > 0 {
        edge.metrics.unroutable.get_or_create(&labels).inc_by(unroutable as u64);
    }
    if let Some(refusal) = refused {
        // What verified is kept; the sender is told to deliver the rest again.
        let labels = RefusedLabels { tenant: labels.tenant, source: labels.source, reason: refusal.label() };
        edge.metrics.refused.get_or_create(&labels).inc();
        return Err(refusal.into());
    }
    edge.metrics.accepted.get_or_create(&labels).inc();
    edge.metrics.acknowledgement_seconds.observe(started.elapsed().as_secs_f64());
    Ok(success(&source))
}

/// What a request of a known source comes to.
enum Taken {
    /// A handshake.
    Answered(Response),
    /// To be published; beside the refusal of those items of a batch that did not verify.
    Records(Vec<Record>, Option<Refusal>),
}

async fn take(edge: &Edge, source: &LiveSource, received: &Received) -> Result<Taken, WebhookError> {
    let view = received.view(&source.verifier);
    if let Some(answer) = shake(edge, source, &view, false).await? {
        return Ok(Taken::Answered(answer));
    }
    if source.verifies_items() {
        return Ok(take_items(source, received)?);
    }
    let verified = believe(edge, source, &view, received.at).await?;
    if let Some(answer) = shake(edge, source, &view, true).await? {
        return Ok(Taken::Answered(answer));
    }
    let writer = Writer { source, received, request: Uuid::now_v7() };
    let records = match content(source, received) {
        Ok(Content::Many(_, items)) if items.is_empty() => Vec::new(),
        Ok(Content::Many(document, items)) => {
            let of_items = items.iter().map(|item| writer.item(&document, item, &verified));
            std::iter::once(writer.evidence(&verified)).chain(of_items).collect()
        }
        Ok(Content::One(document)) => vec![writer.one(Ok(document), &verified)],
        Err(error) => vec![writer.one(Err(error), &verified)],
    };
    Ok(Taken::Records(records, None))
}

/// A batch whose items are signed one by one: those that verify are taken, whatever the others are.
fn take_items(source: &LiveSource, received: &Received) -> Result<Taken, Refusal> {
    let Ok(Content::Many(document, items)) = content(source, received) else { return Err(Refusal::BodyMalformed) };
    let writer = Writer { source, received, request: Uuid::now_v7() };
    let (mut records, mut refused) = (Vec::new(), None);
    for item in &items {
        let body = &document[item.range.0..item.range.1];
        let view = RequestView { body, item: Some(item), ..received.view(&source.verifier) };
        match source.verifier.verify(&view, received.at) {
            Ok(verified) => {
                if records.is_empty() {
                    records.push(writer.evidence(&verified));
                }
                records.push(writer.item(&document, item, &verified));
            }
            Err(refusal) => refused = Some(refusal),
        }
    }
    if records.is_empty() {
        return Err(refused.unwrap_or(Refusal::SignatureMissing));
    }
    Ok(Taken::Records(records, refused))
}

/// Answers a handshake, after what it asks for is done.
async fn shake(
    edge: &Edge,
    source: &LiveSource,
    view: &RequestView<'_>,
    verified: bool,
) -> Result<Option<Response>, WebhookError> {
    let Some(reply) = source.handshakes.reply(view, source.verifier.public_url(), verified) else { return Ok(None) };
    let reply = reply?;
    let (tenant, name) = (&source.source.tenant, &source.source.name);
    if let Some(secret) = reply.store {
        // A blank text would be no secret, and no source could start with it.
        let secret = Some(secret.trim().to_owned()).filter(|text| !text.is_empty()).ok_or(Refusal::ValueMissing)?;
        let path = source.handshake_file().ok_or(Refusal::SecretNotKept)?.to_owned();
        let written = tokio::task::spawn_blocking(move || store_secret(path.as_ref(), &secret)).await;
        written.expect("writing a file does not panic").map_err(|error| {
            warn!(tenant, source = name, %error, "a handshake's secret was not kept; remove the file to allow another");
            Refusal::SecretNotKept
        })?;
        let (_, errors) = edge.sources.reload();
        errors.iter().for_each(|error| warn!(%error, "secrets not read again"));
    }
    if let Some((url, rule)) = reply.fetch {
        let fetched = edge.fetcher.once(&source.named(), &url, Allowed::confirmations(&rule)).await;
        fetched.map_err(|error| {
            warn!(tenant, source = name, %error, "handshake not confirmed");
            not_fetched(error, Refusal::ConfirmationFailed)
        })?;
    }
    info!(tenant, source = name, "handshake answered");
    Ok(Some(reply.answer))
}

/// The plain body of a request that is compressed, under the same bounds.
fn inflated(edge: &Edge, received: &Received, share: &mut Share) -> Result<Bytes, WebhookError> {
    let encoding = received.headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes);
    if encoding.is_none_or(|encoding| !encoding.eq_ignore_ascii_case(b"gzip")) {
        return Ok(received.body.clone());
    }
    let max = edge.config.body_bytes_max;
    let plain = inflate(&received.body, max).map_err(|error| WebhookError::Truncated(error.to_string()))?;
    let plain = plain.ok_or(WebhookError::TooLarge { max })?;
    share.grow(plain.len())?;
    Ok(plain.into())
}

async fn bounded(edge: &Edge, headers: &HeaderMap, body: Body) -> Result<(Bytes, Share), WebhookError> {
    let within = Duration::from_millis(edge.config.body_timeout_ms);
    read_body(headers, body, edge.config.body_bytes_max, within, &edge.in_flight).await
}

/// Counts, keeps and logs a refusal. The same for an unknown source as for a bad signature: it must cost, and
/// answer, the same. Unknown names come from outside: as labels they would be without bound, so theirs are empty.
fn note_refusal(edge: &Edge, source: &LiveSource, received: &Received, refusal: Refusal) {
    let (tenant, name) = (&source.source.tenant, &source.source.name);
    let labels = RefusedLabels { tenant: tenant.clone(), source: name.clone(), reason: refusal.label() };
    edge.metrics.refused.get_or_create(&labels).inc();
    edge.refused.keep(source, received, refusal);
    info!(tenant = received.tenant, source = received.name, reason = refusal.label(), "request refused");
}

/// Who signed: by a live secret, or by the certificate that the request names.
async fn believe(
    edge: &Edge,
    source: &LiveSource,
    view: &RequestView<'_>,
    at: Timestamp,
) -> Result<Verified, WebhookError> {
    let refusal = match source.verifier.verify(view, at) {
        Ok(verified) => return Ok(verified),
        Err(refusal) => refusal,
    };
    if refusal == Refusal::SignatureMissing {
        return Err(refusal.into());
    }
    let Some((url, allowed)) = source.verifier.certificate(view)? else { return Err(refusal.into()) };
    let named = source.named();
    let fetched = edge.fetcher.kept(&named, &url, allowed).await.map_err(|error| {
        warn!(tenant = named.0, source = named.1, %error, "certificate");
        not_fetched(error, Refusal::Certificate)
    })?;
    let pem = std::str::from_utf8(&fetched).map_err(|_| Refusal::Certificate)?;
    let verified = source.verifier.verify_fetched(view, at, pem)?;
    edge.fetcher.prove(&named, &url);
    Ok(verified)
}

/// What is not to be had now may be later: the sender delivers again. Where we may not ask, it will not help.
fn not_fetched(error: FetchError, refusal: Refusal) -> WebhookError {
    match error {
        FetchError::NotAllowed { .. } => refusal.into(),
        FetchError::Failed { .. } | FetchError::TooMany => WebhookError::NotFetched(error),
    }
}

impl Received {
    pub fn view<'r>(&'r self, verifier: &'r Verifier) -> RequestView<'r> {
        RequestView {
            method: self.method.as_str(),
            headers: &self.headers,
            query: &self.query,
            body: &self.body,
            claims: None,
            item: None,
            settings: verifier.settings(),
        }
    }
}

/// Publishes in a task of its own: a sender that hangs up does not cancel it.
async fn publish(edge: &Edge, records: Vec<Record>, share: Share) -> Result<(), WebhookError> {
    let ms = edge.config.publish_timeout_ms;
    let log = edge.log.clone();
    let append = edge.publishing.spawn(async move {
        let result = tokio::time::timeout(Duration::from_millis(ms), log.append(records)).await;
        drop(share);
        result
    });
    match append.await.expect("an append does not panic") {
        Ok(result) => Ok(result?),
        Err(_) => Err(WebhookError::PublishTimeout { ms }),
    }
}

fn success(source: &LiveSource) -> Response {
    match &source.source.declaration.answer {
        Some(answer) => {
            let status = StatusCode::from_u16(answer.status).expect("validated: a success status");
            (status, answer.body.clone()).into_response()
        }
        None => StatusCode::OK.into_response(),
    }
}

fn refuse(edge: &Edge, error: &WebhookError) -> Response {
    let status = error.status();
    if status.is_server_error() {
        warn!(%error, "not accepted: the sender will deliver again");
    }
    let text = error.public_text();
    let mut answer =
        if text.is_empty() { status.into_response() } else { (status, format!("{text}\n")).into_response() };
    if error.leaves_body_unread() {
        // The connection ends here; unannounced, the sender would lose its next event on it.
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        let value = edge.config.retry_after_s.into();
        answer.headers_mut().insert(header::RETRY_AFTER, value);
    }
    answer
}
