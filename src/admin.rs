//! The admin port: /livez, /readyz, /metrics, why requests were refused, and the admin API. Liveness asks nothing of log
//! and store: a restart would not mend them. Readiness does.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener as _;
use prometheus_client::registry::Registry;
use serde::Serialize;
use seriatim_ingest::connection::{Silence, serve_connection};
use seriatim_ingest::listener::BoundedListener;
use seriatim_ingest::log::Append;
use seriatim_ingest::refused::{HIDDEN, Refused, RefusedRequest};
use seriatim_ingest::request::RequestView;
use seriatim_ingest::sources::{LiveSource, Sources};
use seriatim_ingest::verify::diagnose::Diagnosis;
use seriatim_processor::log::Floors;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::api::{self, Api};

/// A part that does not answer by then is not ready.
const CHECK_TIMEOUT: Duration = Duration::from_secs(3);
const CONNECTIONS_MAX: usize = 512;

/// What readiness asks, and what is counted.
#[derive(Clone)]
pub struct Admin {
    pub registry: Arc<Registry>,
    pub append: Option<Arc<dyn Append>>,
    pub floors: Option<Floors>,
    pub refusals: Option<Refusals>,
    /// Cancelled once a stop has begun: not ready any more, so that no new traffic comes.
    pub stop: CancellationToken,
}

/// The edge's last refusals.
#[derive(Clone)]
pub struct Refusals {
    pub sources: Arc<Sources>,
    pub refused: Arc<Refused>,
}

/// One refused request, and what verification makes of it now.
#[derive(Debug, Serialize)]
struct Refusal {
    at: jiff::Timestamp,
    reason: &'static str,
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body_bytes: usize,
    /// None where the body was too large to keep, or the source is unknown.
    diagnosis: Option<Diagnosis>,
}

/// Serves until it is dropped. Connections on which nothing is under way are closed, as at the edge.
pub async fn serve(admin: Admin, api: Arc<Api>, silence: Silence, listener: TcpListener) {
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(handle_ready))
        .route("/metrics", get(handle_metrics))
        .route("/refused/{tenant}/{source}", get(handle_refused))
        .route("/refused", get(handle_unknown))
        .with_state(admin)
        .merge(api::router(api));
    let mut listener = BoundedListener::new(listener, CONNECTIONS_MAX);
    loop {
        let (connection, _) = listener.accept().await;
        tokio::spawn(serve_connection(connection, router.clone(), silence, CancellationToken::new()));
    }
}

async fn handle_ready(State(admin): State<Admin>) -> Response {
    let mut problems = Vec::new();
    if admin.stop.is_cancelled() {
        problems.push("stopping".to_owned());
    }
    if let Some(append) = &admin.append {
        match tokio::time::timeout(CHECK_TIMEOUT, append.check()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => problems.push(format!("log: {error}")),
            Err(_) => problems.push("log: no answer in time".to_owned()),
        }
    }
    if let Some(floors) = &admin.floors {
        match tokio::time::timeout(CHECK_TIMEOUT, floors.get(0)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => problems.push(format!("store: {error}")),
            Err(_) => problems.push("store: no answer in time".to_owned()),
        }
    }
    if problems.is_empty() {
        (StatusCode::OK, "ok\n".to_owned()).into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, problems.join("\n") + "\n").into_response()
    }
}

async fn handle_metrics(State(admin): State<Admin>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &admin.registry) {
        Ok(()) => {
            let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, content_type)], text).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// The last refused requests of a source, the newest first.
async fn handle_refused(State(admin): State<Admin>, Path((tenant, source)): Path<(String, String)>) -> Response {
    let found = admin.refusals.as_ref().and_then(|r| Some((r, r.sources.get(&tenant, &source)?)));
    let Some((refusals, live)) = found else {
        return (StatusCode::NOT_FOUND, "no such source at this edge\n").into_response();
    };
    answer(refusals.refused.of(&tenant, &source), Some(&live))
}

/// The last requests to sources that this edge does not know.
async fn handle_unknown(State(admin): State<Admin>) -> Response {
    answer(admin.refusals.map_or_else(Vec::new, |refusals| refusals.refused.of("", "")), None)
}

fn answer(all: Vec<RefusedRequest>, source: Option<&LiveSource>) -> Response {
    let tell = |request: RefusedRequest| {
        let diagnosis = source.zip(request.body.as_ref()).map(|(LiveSource { verifier, .. }, body)| {
            let view = RequestView {
                method: &request.method,
                headers: &request.headers,
                query: request.query(),
                body,
                claims: None,
                item: None,
                settings: verifier.settings(),
            };
            // As of when it came: a window that has passed since is not why.
            verifier.diagnose(&view, request.at)
        });
        let text = |(name, value): (&HeaderName, &HeaderValue)| {
            let is_told = source.is_none_or(|source| source.tells_header(name.as_str()));
            let value = if is_told { String::from_utf8_lossy(value.as_bytes()) } else { HIDDEN.into() };
            (name.to_string(), value.into_owned())
        };
        Refusal {
            at: request.at,
            reason: request.refusal.label(),
            headers: request.headers.iter().map(text).collect(),
            method: request.method.clone(),
            target: source.map_or_else(|| request.target.clone(), |source| source.told_target(&request.target)),
            body_bytes: request.body_bytes,
            diagnosis,
        }
    };
    let all: Vec<_> = all.into_iter().map(tell).collect();
    let body = serde_json::to_vec(&all).expect("plain data");
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
