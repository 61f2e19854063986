//! The paths under `/v1`, each with what it says of itself in the OpenAPI document.

mod letters;
mod objects;
mod process;

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::OpenApi;
use utoipa::openapi::content::Content;
use utoipa::openapi::path::Operation;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Ref, SecurityRequirement, Server};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::problem::{ApiError, Problem};

#[derive(OpenApi)]
#[openapi(
    info(title = "Seriatim admin API", description = "What an operator asks and does. Lists come in pages: a page may hold fewer rows than were asked for, and `after` leads to the next."),
    components(schemas(Problem)),
    tags(
        (name = "objects", description = "Objects and their events"),
        (name = "dead letters", description = "Events that could not be decided, and effects that a sink refused"),
        (name = "process", description = "What waits, and how this process fares"),
    )
)]
struct Document;

/// Errors that any route may answer with.
const PROBLEMS: [(&str, &str); 9] = [
    ("400", "The request cannot be read"),
    ("401", "No token, or one that is not configured"),
    ("403", "The token may look, and not act"),
    ("404", "There is no such thing"),
    ("405", "Not by this method"),
    ("413", "The body is too large"),
    ("415", "The body is not application/json"),
    ("422", "Asked in a way that can never be done"),
    ("503", "Log or store are away, or this process is busy: try again after Retry-After"),
];

/// The routes, and their document.
pub fn all() -> (Router<Arc<Api>>, utoipa::openapi::OpenApi) {
    let routes = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(objects::list))
        .routes(routes!(objects::get))
        .routes(routes!(objects::events))
        .routes(routes!(objects::arrivals))
        .routes(routes!(objects::trace))
        .routes(routes!(objects::raw))
        .routes(routes!(objects::redrive))
        .routes(routes!(objects::skip))
        .routes(routes!(objects::reset_version))
        .routes(routes!(objects::pass))
        .routes(routes!(letters::list))
        .routes(routes!(letters::groups))
        .routes(routes!(letters::get))
        .routes(routes!(letters::redrive))
        .routes(routes!(letters::discard))
        .routes(routes!(process::waiting))
        .routes(routes!(process::sinks))
        .routes(routes!(process::lag));
    let (router, mut document) = routes.split_for_parts();
    document.info.version = env!("CARGO_PKG_VERSION").to_owned();
    document.servers = Some(vec![Server::new("/v1")]);
    document.security = Some(vec![SecurityRequirement::new("token", [] as [&str; 0])]);
    let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    document.components.get_or_insert_default().add_security_scheme("token", scheme);
    for item in document.paths.paths.values_mut() {
        [&mut item.get, &mut item.post].into_iter().flatten().for_each(add_problems);
    }
    (router, document)
}

fn add_problems(operation: &mut Operation) {
    for (status, description) in PROBLEMS {
        let content = Content::new(Some(Ref::from_schema_name("Problem")));
        let response = ResponseBuilder::new().description(description).content("application/problem+json", content);
        operation.responses.responses.insert(status.to_owned(), response.build().into());
    }
}

/// Rows as JSON, or why there are none.
fn answer<T: Serialize, E: Into<ApiError>>(rows: Result<T, E>) -> Response {
    match rows {
        Ok(rows) => {
            let body = serde_json::to_vec(&rows).expect("plain data");
            ([(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        Err(error) => error.into().into_response(),
    }
}
