//! Objects and their events, and acts on one object.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use seriatim_schemas::key::ObjectKey;
use utoipa::IntoParams;

use super::answer;
use crate::api::Api;
use crate::api::auth::Operates;
use crate::api::extract::{JsonOf, PathOf, QueryOf};
use crate::api::operations::{ObjectAct, Operations as _};
use crate::api::problem::ApiError;
use crate::api::rows::{ArrivalRow, Event, ObjectDone, ObjectRequest, ObjectRow, ObjectSummary, Page, Paging, Trace};

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct SourcePath {
    tenant: String,
    source: String,
}

/// Names are percent-encoded.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ObjectPath {
    tenant: String,
    source: String,
    object: String,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct EventPath {
    tenant: String,
    source: String,
    /// The provider's id of the event
    event_id: String,
}

impl ObjectPath {
    fn key(self) -> ObjectKey {
        ObjectKey::new(self.tenant, self.source, self.object)
    }
}

/// The objects of a source, in an order that stays
#[utoipa::path(get, path = "/tenants/{tenant}/sources/{source}/objects", tag = "objects", operation_id = "list_objects",
    params(SourcePath, Paging), responses((status = 200, description = "A page", body = Page<ObjectSummary>)))]
pub async fn list(
    State(api): State<Arc<Api>>,
    PathOf(of): PathOf<SourcePath>,
    QueryOf(paging): QueryOf<Paging>,
) -> Response {
    answer(api.direct.objects(&of.tenant, &of.source, &paging).await)
}

/// One object: its last event, its state, and which sinks it waits for
#[utoipa::path(get, path = "/tenants/{tenant}/sources/{source}/objects/{object}", tag = "objects", operation_id = "get_object",
    params(ObjectPath), responses((status = 200, description = "The object", body = ObjectRow)))]
pub async fn get(State(api): State<Arc<Api>>, PathOf(of): PathOf<ObjectPath>) -> Response {
    answer(api.direct.object(&of.key()).await)
}

/// The decided events of an object that have not expired; each page in order of rev; those of which nothing was sent come last
#[utoipa::path(get, path = "/tenants/{tenant}/sources/{source}/objects/{object}/events", tag = "objects", operation_id = "list_events",
    params(ObjectPath, Paging), responses((status = 200, description = "A page", body = Page<Event>)))]
pub async fn events(
    State(api): State<Arc<Api>>,
    PathOf(of): PathOf<ObjectPath>,
    QueryOf(paging): QueryOf<Paging>,
) -> Response {
    answer(api.direct.events(&of.key(), &paging).await)
}

/// The ledger of an object: every arrival, and what it did; each page in the order in which they were received
#[utoipa::path(get, path = "/tenants/{tenant}/sources/{source}/objects/{object}/arrivals", tag = "objects", operation_id = "list_arrivals",
    params(ObjectPath, Paging), responses((status = 200, description = "A page", body = Page<ArrivalRow>)))]
pub async fn arrivals(
    State(api): State<Arc<Api>>,
    PathOf(of): PathOf<ObjectPath>,
    QueryOf(paging): QueryOf<Paging>,
) -> Response {
    answer(api.direct.arrivals(&of.key(), &paging).await)
}

/// How often an event arrived, whatever object it is about, and what each arrival did
#[utoipa::path(get, path = "/tenants/{tenant}/sources/{source}/events/{event_id}", tag = "objects", operation_id = "trace_event",
    params(EventPath, Paging), responses((status = 200, description = "A page", body = Trace)))]
pub async fn trace(
    State(api): State<Arc<Api>>,
    PathOf(of): PathOf<EventPath>,
    QueryOf(paging): QueryOf<Paging>,
) -> Response {
    answer(api.direct.trace(&of.tenant, &of.source, &of.event_id, &paging).await)
}

/// The bytes that were signed, as they lie in the log
#[utoipa::path(get, path = "/tenants/{tenant}/sources/{source}/events/{event_id}/raw", tag = "objects", operation_id = "get_raw_event",
    params(EventPath), responses((status = 200, description = "The bytes", body = Vec<u8>, content_type = "application/octet-stream")))]
pub async fn raw(State(api): State<Arc<Api>>, PathOf(of): PathOf<EventPath>) -> Response {
    match api.direct.raw(&of.tenant, &of.source, &of.event_id).await {
        Ok(bytes) => ([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response(),
        Err(error) => ApiError::from(error).into_response(),
    }
}

/// Send what is parked for a sink, from the first effect on
#[utoipa::path(post, path = "/tenants/{tenant}/sources/{source}/objects/{object}/redrive", tag = "objects", operation_id = "redrive_object",
    params(ObjectPath), request_body = ObjectRequest, responses((status = 200, description = "The act is in the log", body = ObjectDone)))]
pub async fn redrive(
    State(api): State<Arc<Api>>,
    operator: Operates,
    PathOf(of): PathOf<ObjectPath>,
    JsonOf(request): JsonOf<ObjectRequest>,
) -> Response {
    act(&api, &operator, of, ObjectAct::Redrive, &request).await
}

/// Leave out the first effect that is parked for a sink, and send the rest
#[utoipa::path(post, path = "/tenants/{tenant}/sources/{source}/objects/{object}/skip", tag = "objects", operation_id = "skip_object",
    params(ObjectPath), request_body = ObjectRequest, responses((status = 200, description = "The act is in the log", body = ObjectDone)))]
pub async fn skip(
    State(api): State<Arc<Api>>,
    operator: Operates,
    PathOf(of): PathOf<ObjectPath>,
    JsonOf(request): JsonOf<ObjectRequest>,
) -> Response {
    act(&api, &operator, of, ObjectAct::Skip, &request).await
}

/// Let the object's order begin anew: its next event is applied, whatever its version
#[utoipa::path(post, path = "/tenants/{tenant}/sources/{source}/objects/{object}/reset-version", tag = "objects", operation_id = "reset_object_version",
    params(ObjectPath), request_body = ObjectRequest, responses((status = 200, description = "The act is in the log", body = ObjectDone)))]
pub async fn reset_version(
    State(api): State<Arc<Api>>,
    operator: Operates,
    PathOf(of): PathOf<ObjectPath>,
    JsonOf(request): JsonOf<ObjectRequest>,
) -> Response {
    act(&api, &operator, of, ObjectAct::ResetVersion, &request).await
}

/// Wait no longer for what is missing from the object's sequence, and release what is held behind it
#[utoipa::path(post, path = "/tenants/{tenant}/sources/{source}/objects/{object}/pass", tag = "objects", operation_id = "pass_object_gap",
    params(ObjectPath), request_body = ObjectRequest, responses((status = 200, description = "The act is in the log", body = ObjectDone)))]
pub async fn pass(
    State(api): State<Arc<Api>>,
    operator: Operates,
    PathOf(of): PathOf<ObjectPath>,
    JsonOf(request): JsonOf<ObjectRequest>,
) -> Response {
    act(&api, &operator, of, ObjectAct::Pass, &request).await
}

async fn act(api: &Api, Operates(who): &Operates, of: ObjectPath, act: ObjectAct, request: &ObjectRequest) -> Response {
    answer(api.direct.act_on_object(&of.key(), act, request, &who.name).await)
}
