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
use seriatim_schemas::id::{IdFrom, RecordId, Sha256Digest};
use seriatim_schemas::key::{ObjectKey, RecordKey};
use seriatim_schemas::record::{Record, RecordKind};
use seriatim_schemas::selector::is_header;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};
use uuid::Uuid;

use crate::body::{InFlight, Share, read_body};
use crate::config::{IngestConfig, RECORD_BYTES_MAX};
use crate::error::{Refusal, WebhookError};
use crate::identify::{Derived, TYPE_UNKNOWN};
use crate::log::Append;
use crate::metrics::{IngestMetrics, RefusedLabels, SourceLabels, StatusLabels};
use crate::request::RequestView;
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
    /// What time it is.
    pub clock: fn() -> Timestamp,
    /// Appends under way; a stop waits for them.
    pub publishing: TaskTracker,
}

/// A request that may still be anyone's.
struct Received {
    tenant: String,
    name: String,
    method: Method,
    target: String,
    query: String,
    headers: HeaderMap,
    body: Bytes,
    at: Timestamp,
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
    let (body, share) = bounded(edge, &parts.headers, body).await?;
    let started = Instant::now();
    let target = parts.uri.path_and_query().map_or(String::new(), |t| t.as_str().to_owned());
    let query = parts.uri.query().unwrap_or("").to_owned();
    let received = Received {
        tenant,
        name,
        method: parts.method,
        target,
        query,
        headers: parts.headers,
        body,
        at: (edge.clock)(),
    };
    let (source, verified) = believe(edge, &received)?;
    let record = to_record(source, &received, &verified);
    if record.size() > RECORD_BYTES_MAX {
        return Err(WebhookError::TooLarge { max: RECORD_BYTES_MAX });
    }
    let labels = SourceLabels { tenant: received.tenant, source: received.name };
    let unroutable = record.kind == RecordKind::Unroutable;
    publish(edge, record, share).await?;
    if unroutable {
        edge.metrics.unroutable.get_or_create(&labels).inc();
    }
    edge.metrics.accepted.get_or_create(&labels).inc();
    edge.metrics.acknowledgement_seconds.observe(started.elapsed().as_secs_f64());
    Ok(success(source))
}

async fn bounded(edge: &Edge, headers: &HeaderMap, body: Body) -> Result<(Bytes, Share), WebhookError> {
    let within = Duration::from_millis(edge.config.body_timeout_ms);
    read_body(headers, body, edge.config.body_bytes_max, within, &edge.in_flight).await
}

/// The source, and who signed. An unknown source is checked against a decoy: it must cost, and
/// answer, the same as a bad signature.
fn believe<'e>(edge: &'e Edge, received: &Received) -> Result<(&'e LiveSource, Verified<'e>), WebhookError> {
    let found = edge.sources.get(&received.tenant, &received.name);
    let decoy = edge.sources.decoy();
    let view = received.view(found.map_or(decoy, |source| &source.verifier));
    let verified = match found {
        Some(source) => source.verifier.verify(&view, received.at).map(|verified| (source, verified)),
        None => decoy.verify(&view, received.at).and(Err(Refusal::UnknownSource)),
    };
    verified.map_err(|refusal| {
        let refusal = if found.is_none() { Refusal::UnknownSource } else { refusal };
        // Unknown names come from outside: as labels they would be without bound.
        let known = |text: &str| if found.is_some() { text.to_owned() } else { String::new() };
        let (tenant, source) = (known(&received.tenant), known(&received.name));
        edge.metrics.refused.get_or_create(&RefusedLabels { tenant, source, reason: refusal.label() }).inc();
        info!(tenant = received.tenant, source = received.name, reason = refusal.label(), "request refused");
        refusal.into()
    })
}

impl Received {
    fn view<'r>(&'r self, verifier: &'r Verifier) -> RequestView<'r> {
        RequestView {
            method: self.method.as_str(),
            headers: &self.headers,
            query: &self.query,
            body: &self.body,
            claims: None,
            settings: verifier.settings(),
        }
    }
}

fn to_record(source: &LiveSource, received: &Received, verified: &Verified<'_>) -> Record {
    let digest = Sha256Digest::of(&received.body);
    let id = RecordId { request: Uuid::now_v7(), item: 0 };
    let (tenant, name) = (&source.source.tenant, &source.source.name);
    let view = RequestView { claims: verified.claims.as_ref(), ..received.view(&source.verifier) };
    let (kind, key, derived) = match source.identifier.derive(&view, &digest) {
        Ok(derived) => {
            let key = ObjectKey::new(tenant, name, &derived.object);
            (RecordKind::Event, RecordKey::Object(key), derived)
        }
        Err(error) => {
            warn!(tenant, source = name, record = %id, reason = %error, "verified, but unroutable");
            let key = RecordKey::Unroutable { tenant: tenant.clone(), source: name.clone(), record: id.to_string() };
            (RecordKind::Unroutable, key, nothing_derived(&id, error.to_string()))
        }
    };
    debug!(key = %key, event_id = derived.event_id, record = %id, "publish");
    Record {
        kind,
        id,
        key,
        declaration: source.source.revision.clone(),
        event_id: derived.event_id,
        id_from: derived.id_from,
        event_type: derived.event_type,
        version: derived.version,
        time: derived.time,
        recorded: received.at,
        digest,
        secret: verified.secret.to_owned(),
        method: received.method.to_string(),
        target: received.target.clone(),
        problem: derived.problem,
        content_type: text_header(&received.headers, "content-type"),
        traceparent: text_header(&received.headers, "traceparent").filter(|t| is_traceparent(t)),
        http: kept_headers(source, &received.headers),
        value: received.body.clone(),
    }
}

fn nothing_derived(id: &RecordId, problem: String) -> Derived {
    Derived {
        object: String::new(),
        event_id: id.to_string(),
        id_from: IdFrom::Record,
        event_type: TYPE_UNKNOWN.to_owned(),
        version: None,
        time: None,
        problem: Some(problem),
    }
}

fn kept_headers(source: &LiveSource, headers: &HeaderMap) -> Vec<(String, Bytes)> {
    let is_kept = |name: &str| source.kept_headers.iter().any(|wanted| is_header(wanted, name));
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

/// Publishes in a task of its own: a sender that hangs up does not cancel it.
async fn publish(edge: &Edge, record: Record, share: Share) -> Result<(), WebhookError> {
    let ms = edge.config.publish_timeout_ms;
    let log = edge.log.clone();
    let append = edge.publishing.spawn(async move {
        let result = tokio::time::timeout(Duration::from_millis(ms), log.append(vec![record])).await;
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
    let mut answer = (status, format!("{}\n", error.public_text())).into_response();
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
