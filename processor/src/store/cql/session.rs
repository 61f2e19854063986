//! The session: routing and retries as conditional batches need them, and what each error means.

use std::sync::Arc;
use std::time::Duration;

use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::cluster::{ClusterState, NodeRef};
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use scylla::policies::load_balancing::{DefaultPolicy, FallbackPlan, LoadBalancingPolicy, RoutingInfo};
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::routing::Shard;
use scylla::statement::batch::Batch;
use scylla::statement::{Consistency, SerialConsistency};

use crate::config::CqlConfig;
use crate::error::StoreError;

pub async fn connect(config: &CqlConfig) -> Result<Session, StoreError> {
    let mut policy = DefaultPolicy::builder().token_aware(true);
    if !config.datacenter.is_empty() {
        policy = policy.prefer_datacenter(config.datacenter.clone()).permit_dc_failover(false);
    }
    let profile = ExecutionProfile::builder()
        .consistency(Consistency::LocalQuorum)
        .serial_consistency(Some(SerialConsistency::LocalSerial))
        .request_timeout(Some(Duration::from_millis(config.request_timeout_ms)))
        // A retry of the driver's could apply a batch whose first answer said otherwise: we resolve ourselves.
        .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
        .load_balancing_policy(Arc::new(LwtRouting { inner: policy.build() }))
        .build();
    let session = SessionBuilder::new()
        .known_nodes(&config.nodes)
        // Without it every call waits 40 ms for an acknowledgement.
        .tcp_nodelay(true)
        .connection_timeout(Duration::from_secs(10))
        .default_execution_profile_handle(profile.into_handle())
        .build()
        .await;
    session.map_err(|e| StoreError::Unavailable(format!("no node of {} answers: {e}", config.nodes.join(", "))))
}

/// What a conditional batch needs beside its statements: its serial consistency, and never a second sending.
pub fn make_conditional(batch: &mut Batch) {
    batch.set_consistency(Consistency::LocalQuorum);
    batch.set_serial_consistency(Some(SerialConsistency::LocalSerial));
    batch.set_is_idempotent(false);
}

/// Routes every request as an LWT: always the same replica first, so that proposals do not meet. The driver
/// does so for single statements; for batches it never sets the flag.
#[derive(Debug)]
struct LwtRouting {
    inner: Arc<dyn LoadBalancingPolicy>,
}

fn as_lwt<'a>(request: &RoutingInfo<'a>) -> RoutingInfo<'a> {
    let mut request = request.clone();
    request.is_confirmed_lwt = true;
    request
}

impl LoadBalancingPolicy for LwtRouting {
    fn pick<'a>(
        &'a self,
        request: &'a RoutingInfo<'_>,
        cluster: &'a ClusterState,
    ) -> Option<(NodeRef<'a>, Option<Shard>)> {
        // The first of the plan below; the plan's order is what matters.
        self.fallback(request, cluster).next()
    }

    fn fallback<'a>(&'a self, request: &'a RoutingInfo<'_>, cluster: &'a ClusterState) -> FallbackPlan<'a> {
        let request = as_lwt(request);
        let mut plan: Vec<(NodeRef<'a>, Option<Shard>)> = Vec::new();
        // Nodes live as long as the cluster's state, the request only for this call: so the plan is made here.
        let first = self.inner.pick(&request, cluster).map(|(node, shard)| (node.host_id, shard));
        let rest: Vec<_> = self.inner.fallback(&request, cluster).map(|(node, shard)| (node.host_id, shard)).collect();
        for (host, shard) in first.into_iter().chain(rest) {
            let known = cluster.get_nodes_info().iter().find(|node| node.host_id == host);
            let is_new = !plan.iter().any(|(node, s)| node.host_id == host && *s == shard);
            plan.extend(known.filter(|_| is_new).map(|node| (node, shard)));
        }
        Box::new(plan.into_iter())
    }

    fn name(&self) -> String {
        "LwtRouting".to_owned()
    }
}

/// What a failed conditional batch means. Whatever is not proven to have failed before it ran is unknown.
pub fn batch_failed(error: ExecutionError) -> StoreError {
    let text = error.to_string();
    match error {
        ExecutionError::EmptyPlan | ExecutionError::ConnectionPoolError(_) | ExecutionError::PrepareError(_) => {
            StoreError::Unavailable(text)
        }
        ExecutionError::BadQuery(_) => StoreError::Rejected(text),
        ExecutionError::LastAttemptError(RequestAttemptError::UnableToAllocStreamId) => StoreError::Unavailable(text),
        ExecutionError::LastAttemptError(
            RequestAttemptError::SerializationError(_) | RequestAttemptError::CqlRequestSerialization(_),
        ) => StoreError::Rejected(text),
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(db, message)) => db_failed(&db, &message, text),
        _ => StoreError::Unknown(text),
    }
}

fn db_failed(db: &DbError, message: &str, text: String) -> StoreError {
    match db {
        // Of one batch only if it says so; anything else, a missing table, would reject every batch.
        DbError::Invalid if message.contains("too large") || message.contains("longer than maximum") => {
            StoreError::Rejected(text)
        }
        DbError::Invalid | DbError::SyntaxError | DbError::ConfigError | DbError::Unauthorized => {
            StoreError::Unavailable(text)
        }
        DbError::AuthenticationError | DbError::IsBootstrapping | DbError::Unavailable { .. } => {
            StoreError::Unavailable(text)
        }
        _ => StoreError::Unknown(text),
    }
}

/// A read or a plain write that failed: doing it again is safe.
pub fn plain_failed(error: impl std::fmt::Display) -> StoreError {
    StoreError::Unavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use scylla::errors::WriteType;

    use super::*;

    #[test]
    fn only_a_proven_refusal_is_no_unknown_outcome() {
        let db = |db: DbError, message: &str| {
            batch_failed(ExecutionError::LastAttemptError(RequestAttemptError::DbError(db, message.to_owned())))
        };
        let timeout = DbError::WriteTimeout {
            consistency: Consistency::LocalSerial,
            received: 1,
            required: 2,
            write_type: WriteType::Cas,
        };
        assert!(matches!(db(timeout, ""), StoreError::Unknown(_)));
        assert!(matches!(db(DbError::Overloaded, ""), StoreError::Unknown(_)));
        assert!(matches!(db(DbError::ServerError, ""), StoreError::Unknown(_)));
        assert!(matches!(batch_failed(ExecutionError::RequestTimeout(Duration::from_secs(1))), StoreError::Unknown(_)));
        let unavailable = DbError::Unavailable { consistency: Consistency::LocalSerial, required: 2, alive: 1 };
        assert!(matches!(db(unavailable, ""), StoreError::Unavailable(_)));
        assert!(matches!(db(DbError::Invalid, "Batch too large"), StoreError::Rejected(_)));
        assert!(matches!(db(DbError::Invalid, "unconfigured table"), StoreError::Unavailable(_)));
        assert!(matches!(batch_failed(ExecutionError::EmptyPlan), StoreError::Unavailable(_)));
    }
}
