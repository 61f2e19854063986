//! The admin port: /livez, /readyz, /metrics. Liveness asks nothing of log and store: a restart would not
//! mend them. Readiness does.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;
use seriatim_ingest::log::Append;
use seriatim_processor::log::Floors;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A part that does not answer by then is not ready.
const CHECK_TIMEOUT: Duration = Duration::from_secs(3);

/// What readiness asks, and what is counted.
#[derive(Clone)]
pub struct Admin {
    pub registry: Arc<Registry>,
    pub append: Option<Arc<dyn Append>>,
    pub floors: Option<Floors>,
    /// Cancelled once a stop has begun: not ready any more, so that no new traffic comes.
    pub stop: CancellationToken,
}

pub async fn serve(admin: Admin, listener: TcpListener) -> std::io::Result<()> {
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(handle_ready))
        .route("/metrics", get(handle_metrics))
        .with_state(admin);
    axum::serve(listener, router).await
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
