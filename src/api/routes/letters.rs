//! Dead letters.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use super::answer;
use crate::api::Api;
use crate::api::auth::Operates;
use crate::api::extract::{JsonOf, PathOf, QueryOf};
use crate::api::operations::{LettersAct, Operations as _};
use crate::api::rows::{
    Group, LetterFilter, LetterRow, LetterSummary, LettersDone, LettersQuery, LettersRequest, Page,
};

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct LetterPath {
    tenant: String,
    source: String,
    /// Event id or record id
    id: String,
}

/// Dead letters that all of this is true of, without what they hold
#[utoipa::path(get, path = "/dead-letters", tag = "dead letters", operation_id = "list_dead_letters",
    params(LettersQuery), responses((status = 200, description = "A page", body = Page<LetterSummary>)))]
pub async fn list(State(api): State<Arc<Api>>, QueryOf(query): QueryOf<LettersQuery>) -> Response {
    let (filter, paging) = query.split();
    answer(api.direct.letters(&filter, &paging).await)
}

/// Dead letters counted by tenant, source and cause
#[utoipa::path(get, path = "/dead-letters/groups", tag = "dead letters", operation_id = "group_dead_letters",
    params(LetterFilter), responses((status = 200, description = "All groups", body = Page<Group>)))]
pub async fn groups(State(api): State<Arc<Api>>, QueryOf(filter): QueryOf<LetterFilter>) -> Response {
    answer(api.direct.letter_groups(&filter).await)
}

/// One dead letter, whole
#[utoipa::path(get, path = "/dead-letters/{tenant}/{source}/{id}", tag = "dead letters", operation_id = "get_dead_letter",
    params(LetterPath), responses((status = 200, description = "The letter", body = LetterRow)))]
pub async fn get(State(api): State<Arc<Api>>, PathOf(of): PathOf<LetterPath>) -> Response {
    answer(api.direct.letter(&of.tenant, &of.source, &of.id).await)
}

/// Decide events again by the declaration of today, and send refused effects again
///
/// In the order in which they were received, for some 20 s; `after` leads on. What would be dead again is left alone.
#[utoipa::path(post, path = "/dead-letters/redrive", tag = "dead letters", operation_id = "redrive_dead_letters",
    request_body = LettersRequest, responses((status = 200, description = "What is in the log now", body = LettersDone)))]
pub async fn redrive(
    State(api): State<Arc<Api>>,
    Operates(who): Operates,
    JsonOf(request): JsonOf<LettersRequest>,
) -> Response {
    answer(api.direct.act_on_letters(LettersAct::Redrive, &request, &who.name).await)
}

/// Remove dead letters that nobody wants, for some 20 s; `after` leads on
#[utoipa::path(post, path = "/dead-letters/discard", tag = "dead letters", operation_id = "discard_dead_letters",
    request_body = LettersRequest, responses((status = 200, description = "What is in the log now", body = LettersDone)))]
pub async fn discard(
    State(api): State<Arc<Api>>,
    Operates(who): Operates,
    JsonOf(request): JsonOf<LettersRequest>,
) -> Response {
    answer(api.direct.act_on_letters(LettersAct::Discard, &request, &who.name).await)
}
