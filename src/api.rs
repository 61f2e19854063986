//! The admin API: what an operator asks and does, over HTTP under `/v1` of the admin port.
//!
//! - [`operations`]: what can be asked and done; the same for the command line, which asks the stores itself or a server
//! - [`direct`], [`letters`], [`lag`]: asked of log and store; [`client`]: asked of a server
//! - [`rows`]: what is told and asked, in one form for both
//! - [`routes`]: the paths, each with its documentation; [`extract`]: what a request says; [`problem`]: what errors say
//! - [`auth`]: who may
//!
//! Reads have a connection to the store of their own, and come in pages: a slow one holds neither the processor, nor
//! more than a page in memory.

pub mod auth;
pub mod client;
pub mod direct;
pub mod extract;
pub mod lag;
pub mod letters;
pub mod operations;
pub mod problem;
pub mod routes;
pub mod rows;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use seriatim_processor::sink::NamedSink;
use tokio::sync::Semaphore;
use tracing::warn;

use crate::config::Config;
use auth::Tokens;
use direct::Direct;
use problem::ApiError;

/// Requests under way at once; past the bound, 503.
const REQUESTS_MAX: usize = 64;
/// How long a request may take. Acts on many letters stop well before, and say where to go on.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// What the routes work with.
pub struct Api {
    pub direct: Direct,
    pub config: Arc<Config>,
    /// The sinks of this process; none where it runs no processor.
    pub sinks: Vec<Arc<NamedSink>>,
    tokens: Tokens,
    places: Semaphore,
}

impl Api {
    pub fn new(direct: Direct, config: Arc<Config>, sinks: Vec<Arc<NamedSink>>, tokens: Tokens) -> Self {
        Self { direct, config, sinks, tokens, places: Semaphore::new(REQUESTS_MAX) }
    }
}

/// Everything under `/v1`. Its own documentation is open, all else needs a token.
pub fn router(api: Arc<Api>) -> Router {
    let (routes, document) = routes::all();
    let guarded = routes
        .method_not_allowed_fallback(|| async { ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "not by this method") })
        .layer(from_fn_with_state(api.clone(), guard))
        .with_state(api);
    let document = serde_json::to_string_pretty(&document).expect("plain data");
    let open = get(|| async { ([("content-type", "application/json")], document) });
    let no_such_path = || async { ApiError::not_found("no such path: /v1/openapi.json names all there are") };
    let v1 = Router::new().route("/openapi.json", open).merge(guarded).fallback(no_such_path);
    Router::new().nest("/v1", v1)
}

/// Who asks, whether there is room, and an end to it.
async fn guard(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let caller = match api.tokens.caller(request.headers()) {
        Ok(caller) => caller,
        Err(error) => return error.into_response(),
    };
    request.extensions_mut().insert(caller);
    let Ok(_place) = api.places.try_acquire() else {
        return ApiError::away(format!("{REQUESTS_MAX} requests are under way")).into_response();
    };
    let answer = match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(answer) => answer,
        Err(_) => ApiError::away(format!("not done within {} s", REQUEST_TIMEOUT.as_secs())).into_response(),
    };
    if answer.status().is_server_error() {
        warn!(status = answer.status().as_u16(), "a request of the admin API failed");
    }
    answer
}
