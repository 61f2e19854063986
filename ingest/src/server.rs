//! Serves the edge until told to stop; then answers what is under way, waits for the log, and returns.

use std::future::Future;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::any;
use axum::serve::Listener as _;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::connection::{Silence, serve_connection};
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
    let silence = Silence::of(&edge.config);
    let mut listener = BoundedListener::new(listener, edge.config.connections_max);
    let (stopping, connections) = (CancellationToken::new(), TaskTracker::new());
    let router = router(edge);
    let accept = async {
        loop {
            let (connection, _) = listener.accept().await;
            connections.spawn(serve_connection(connection, router.clone(), silence, stopping.clone()));
        }
    };
    tokio::select! {
        () = stop => info!("stop: no new requests, finishing those under way"),
        () = accept => unreachable!("there is always a next connection"),
    }
    drop(listener);
    stopping.cancel();
    connections.close();
    if tokio::time::timeout(within, connections.wait()).await.is_err() {
        warn!(ms = within.as_millis() as u64, "stop: some connections did not end in time");
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
