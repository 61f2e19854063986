//! How much of the log is not done.

use jiff::Timestamp;
use seriatim_processor::inspect::{Extent, Inspect, InspectLog};
use seriatim_processor::store::FloorKey;
use seriatim_schemas::tables::FIRST_GENERATION;

use super::operations::OperationError;
use super::rows::PartitionLag;

/// The lag of each partition of the log. The low watermark is written about once a second.
pub async fn lags(store: &dyn Inspect, log: &dyn InspectLog) -> Result<Vec<PartitionLag>, OperationError> {
    let identity = log.identity();
    let floors = store.floors().await?;
    let floor = |partition: i32| {
        let is_it = |(key, _): &&(FloorKey, i64)| {
            key.partition == partition && key.topic_id == identity.topic_id && key.generation == FIRST_GENERATION
        };
        floors.iter().find(is_it).map(|(_, next)| *next)
    };
    let row = |e: Extent| {
        let low_watermark = floor(e.partition).unwrap_or(e.first);
        let lag = e.next - low_watermark;
        PartitionLag { partition: e.partition, low_watermark, next: e.next, lag, oldest_s: None }
    };
    Ok(log.extents().await?.into_iter().map(row).collect())
}

/// And how old the oldest record of each is that is not done.
pub async fn aged_lags(store: &dyn Inspect, log: &dyn InspectLog) -> Result<Vec<PartitionLag>, OperationError> {
    let mut rows = lags(store, log).await?;
    for row in rows.iter_mut().filter(|r| r.lag > 0) {
        let entries = log.entries(row.partition, row.low_watermark, 1).await?;
        let recorded = entries.first().and_then(|e| e.headers.iter().find(|(n, _)| n == "ce_recordedtime"));
        let at = recorded.and_then(|(_, v)| std::str::from_utf8(v).ok()?.parse::<Timestamp>().ok());
        row.oldest_s = at.map(|at| Timestamp::now().as_second() - at.as_second());
    }
    Ok(rows)
}
