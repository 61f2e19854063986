//! Serves the edge until told to stop; then answers what is under way, waits for the log, and returns.

use std::future::Future;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::any;
use tokio::net::TcpListener;
use tracing::{info, warn};

use crate::listener::BoundedListener;
use crate::webhook::{Edge, handle_webhook};

pub fn router(edge: Edge) -> Router {
    Router::new()
        .route("/in/{tenant}/{source}", any(handle_webhook))
        .fallback(|| async { (StatusCode::NOT_FOUND, "webhooks go to /in/TENANT/SOURCE\n") })
        .with_state(edge)
}

/// Serves until `stop` resolves. What was answered with success is durable, whenever the process ends.
pub async fn serve(
    edge: Edge,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let within = Duration::from_millis(edge.config.shutdown_timeout_ms);
    let (log, publishing) = (edge.log.clone(), edge.publishing.clone());
    let listener = BoundedListener::new(listener, edge.config.connections_max);
    let (stopping, stopped) = tokio::sync::oneshot::channel();
    let stop = async move {
        stop.await;
        info!("stop: no new requests, finishing those under way");
        let _ = stopping.send(());
    };
    let served = axum::serve(listener, router(edge)).with_graceful_shutdown(stop).into_future();
    let deadline = async {
        // Without a stop there is no deadline.
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(within).await;
    };
    tokio::select! {
        result = served => result?,
        () = deadline => warn!(ms = within.as_millis() as u64, "stop: some connections did not end in time"),
    }
    publishing.close();
    if tokio::time::timeout(within, publishing.wait()).await.is_err() {
        warn!("stop: some appends did not end in time; their senders got no success");
    }
    if let Err(error) = log.close(within).await {
        warn!(%error, "stop: the log did not flush");
    }
    Ok(())
}
