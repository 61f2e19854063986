//! What waits in the store is found when the partition is assigned, looked for now and then, and sent when it is due.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use seriatim_schemas::key::bucket_of;
use seriatim_schemas::row::WaitingSink;
use seriatim_schemas::sequence::GAP;
use tracing::{debug, warn};

use super::{Done, Partition, Shared};
use crate::act::{Act, Cause, What};
use crate::drain::{Drain, Drained, Waiter};
use crate::error::StoreError;
use crate::settle::GivenUp;

/// Drains of one sink and partition at once.
const DRAINS_MAX: usize = 64;

impl Partition {
    /// Reads which objects of this partition wait.
    pub(super) fn find_waiting(&mut self) {
        self.waiters.begin_look();
        let (shared, id, stop) = (self.shared.clone(), self.id, self.give_up.clone());
        self.work.push(Box::pin(async move {
            let ask = || waiting(&shared, id as u32);
            let found = shared.settler.until_answered("what waits cannot be read", &stop, ask).await;
            Done::Waiting(found.unwrap_or_default())
        }));
    }

    /// `changed`: what was done since it was read is known better.
    pub(super) fn on_waiting(&mut self, waiting: WaitingSink, changed: &HashSet<Waiter>) {
        if waiting.sink == GAP {
            return self.on_gap(&waiting.key, Some((waiting.since_ms, u64::MAX)));
        }
        let Some(index) = self.shared.sinks().iter().position(|sink| sink.name == waiting.sink) else {
            warn!(sink = waiting.sink, object = %waiting.key, "effects wait for a sink that is not configured any more");
            return;
        };
        let waiter: Waiter = (Arc::new(waiting.key), index);
        if !changed.contains(&waiter) {
            self.waiters.add(waiter, waiting.is_parked, Duration::ZERO);
        }
    }

    pub(super) fn start_drains(&mut self) {
        if self.stop.is_cancelled() {
            return;
        }
        for (waiter, tried) in self.waiters.start_due(self.shared.settler.declarations.sinks(), DRAINS_MAX) {
            let (shared, writer, stop) = (self.shared.clone(), self.writer, self.hasten.clone());
            self.work.push(Box::pin(async move {
                let drain = Drain {
                    settler: &shared.settler,
                    log: shared.log.as_ref(),
                    bucket: shared.bucket(&waiter.0),
                    key: &waiter.0,
                    sink: &shared.sinks()[waiter.1],
                    writer,
                    epoch: shared.epoch,
                    stop: &stop,
                };
                let result = drain.work(tried).await;
                Done::Drain { waiter, result }
            }));
        }
    }

    pub(super) fn on_drained(&mut self, waiter: Waiter, result: Result<Drained, GivenUp>) {
        let Ok(Drained { revs, overflow, cause, tried, is_held }) = result else { return };
        let sink = self.shared.sinks()[waiter.1].clone();
        let parks = cause.as_ref().is_some_and(|cause| cause.parks);
        self.waiters.tried_to(&waiter, tried);
        let has_moved = !revs.is_empty() || overflow.is_some();
        if is_held || (!has_moved && cause.is_some() && !parks) {
            if let Some(Cause { reason, .. }) = &cause {
                debug!(sink = sink.name, object = %waiter.0, reason, "waiting effects were not taken");
                self.shared.settler.metrics.sink_errors.inc();
            }
            return self.waiters.again(waiter, cause.is_some(), &sink, self.shared.settler.outside.chance());
        }
        let (key, sink) = waiter;
        self.act(Act { key, sink, what: What::Drained { revs, overflow, cause } });
    }
}

/// What waits in the buckets of a partition.
async fn waiting(shared: &Shared, id: u32) -> Result<Vec<WaitingSink>, StoreError> {
    let partitions = shared.log.partitions().await.map_err(|e| StoreError::Unavailable(e.to_string()))?;
    const READS: usize = 16;
    let buckets = shared.settler.store.buckets();
    // A bucket and a partition are one hash, so where one count divides the other a bucket lies within a partition.
    let is_own = |bucket: &u32| !buckets.is_multiple_of(partitions) || bucket % partitions == id;
    let reads: Vec<_> = (0..buckets).filter(is_own).map(|bucket| shared.settler.store.waiting(bucket)).collect();
    let mut found = Vec::new();
    let mut reads = futures::stream::iter(reads).buffer_unordered(READS);
    while let Some(rows) = reads.next().await {
        let rows = rows?.into_iter();
        found.extend(rows.filter(|w| bucket_of(w.key.to_string().as_bytes(), partitions) == id));
    }
    Ok(found)
}
