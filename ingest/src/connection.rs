//! One connection. It is closed when no request is under way on it for too long, so that silent ones do not hold the
//! places of others: before the first request, where headers trickle in, and between requests; HTTP/1 and HTTP/2.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::IngestConfig;
use crate::listener::Connection;

/// How long a connection that is told to end may take, when nothing is under way on it.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// How long a connection may be silent.
#[derive(Debug, Clone, Copy)]
pub struct Silence {
    /// Before its first request.
    first: Duration,
    between: Duration,
}

impl Silence {
    pub fn of(config: &IngestConfig) -> Self {
        Self {
            first: Duration::from_millis(config.header_timeout_ms),
            between: Duration::from_millis(config.idle_timeout_ms),
        }
    }
}

/// Serves a connection until it ends by itself, is silent for too long, or, once stopping, has nothing under way.
pub async fn serve_connection(io: Connection, router: Router, silence: Silence, stopping: CancellationToken) {
    let (requests, mut watched) = watch::channel(Requests::default());
    let service = Watched { router: TowerToHyperService::new(router), requests };
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(silence.between);
    builder.http2().timer(TokioTimer::new());
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stopping.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
            return;
        }
        () = silent(&mut watched, silence) => connection.as_mut().graceful_shutdown(),
    }
    // A request may have come at the last moment.
    tokio::select! {
        _ = connection => {}
        () = silent(&mut watched, Silence { first: ENDS_WITHIN, between: ENDS_WITHIN }) => {}
    }
}

/// What is under way on a connection.
#[derive(Debug, Default)]
struct Requests {
    open: usize,
    any: bool,
}

/// Until no request was under way for so long.
async fn silent(requests: &mut watch::Receiver<Requests>, silence: Silence) {
    loop {
        let limit = {
            let now = requests.borrow_and_update();
            let limit = if now.any { silence.between } else { silence.first };
            (now.open == 0).then_some(limit)
        };
        let changed = requests.changed();
        let ended = match limit {
            None => changed.await.is_err(),
            Some(limit) => match tokio::time::timeout(limit, changed).await {
                Ok(changed) => changed.is_err(),
                Err(_) => return,
            },
        };
        if ended {
            // The connection is at its end: that is for itself to say.
            std::future::pending::<()>().await;
        }
    }
}

/// The edge, with an eye on what is under way.
struct Watched {
    router: TowerToHyperService<Router>,
    requests: watch::Sender<Requests>,
}

/// Counts one request for as long as it lives.
struct Open(watch::Sender<Requests>);

impl Open {
    fn new(requests: &watch::Sender<Requests>) -> Self {
        requests.send_modify(|now| *now = Requests { open: now.open + 1, any: true });
        Self(requests.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.send_modify(|now| now.open -= 1);
    }
}

impl Service<Request<Incoming>> for Watched {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let open = Open::new(&self.requests);
        let answer = self.router.call(request);
        Box::pin(async move {
            let answer = answer.await;
            drop(open);
            answer
        })
    }
}
