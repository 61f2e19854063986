//! What waits, and how this process fares.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use seriatim_processor::sink::NamedSink;

use super::answer;
use crate::api::Api;
use crate::api::extract::QueryOf;
use crate::api::operations::Operations as _;
use crate::api::problem::ApiError;
use crate::api::rows::{Page, PartitionLag, SinkRow, WaiterRow, WaitingQuery};

/// Objects that wait for a sink, or for an operator
#[utoipa::path(get, path = "/waiting", tag = "process", operation_id = "list_waiting",
    params(WaitingQuery), responses((status = 200, description = "A page", body = Page<WaiterRow>)))]
pub async fn waiting(State(api): State<Arc<Api>>, QueryOf(query): QueryOf<WaitingQuery>) -> Response {
    answer(api.direct.waiting(&query, &query.paging()).await)
}

/// The sinks of this process; none where it runs no processor
#[utoipa::path(get, path = "/sinks", tag = "process", operation_id = "list_sinks",
    responses((status = 200, description = "All sinks", body = Page<SinkRow>)))]
pub async fn sinks(State(api): State<Arc<Api>>) -> Response {
    let kind = |sink: &NamedSink| match api.config.sink.iter().find(|config| config.name == sink.name) {
        Some(config) => config.kind(),
        None => "fetch",
    };
    let row = |sink: &Arc<NamedSink>| SinkRow {
        name: sink.name.clone(),
        kind: kind(sink).to_owned(),
        away: !sink.gate.is_closed(),
        pending_bytes: sink.pending() as u64,
        under_way: sink.gate.under_way() as u64,
    };
    answer(Ok::<_, ApiError>(Page { rows: api.sinks.iter().map(row).collect(), after: None }))
}

/// How much of the log is not done, by partition
#[utoipa::path(get, path = "/lag", tag = "process", operation_id = "get_lag",
    responses((status = 200, description = "All partitions", body = Page<PartitionLag>)))]
pub async fn lag(State(api): State<Arc<Api>>) -> Response {
    answer(api.direct.lag().await)
}
