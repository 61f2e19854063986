//! `lag`: how much of the log is not done yet.

use std::process::ExitCode;

use clap::Parser;
use serde::Serialize;
use seriatim_processor::inspect::{Inspect, InspectLog};
use seriatim_schemas::tables::FIRST_GENERATION;

use super::Context;
use crate::engine;
use crate::output::print_rows;

/// How many records are not done, by partition, and the age of the oldest
#[derive(Debug, Parser)]
pub struct Args {}

#[derive(Debug, Serialize)]
pub struct PartitionLag {
    pub partition: i32,
    /// All offsets below it are done.
    pub low_watermark: i64,
    pub next: i64,
    pub lag: i64,
    /// Age of the oldest record that is not done.
    pub oldest_s: Option<i64>,
}

pub async fn main(context: &Context, _: Args) -> anyhow::Result<ExitCode> {
    let config = context.load_or_dev()?;
    let (store, log) = (engine::open_inspect(&config).await?, engine::open_inspect_log(&config).await?);
    let mut rows = lags(store.as_ref(), log.as_ref()).await?;
    for row in rows.iter_mut().filter(|r| r.lag > 0) {
        let entries = log.entries(row.partition, row.low_watermark, 1).await?;
        let recorded = entries.first().and_then(|e| e.headers.iter().find(|(n, _)| n == "ce_recordedtime"));
        let at = recorded.and_then(|(_, v)| std::str::from_utf8(v).ok()?.parse::<jiff::Timestamp>().ok());
        row.oldest_s = at.map(|at| jiff::Timestamp::now().as_second() - at.as_second());
    }
    let cells = |r: &PartitionLag| {
        let oldest = r.oldest_s.map_or_else(|| "-".to_owned(), |s| format!("{s} s"));
        vec![r.partition.to_string(), r.low_watermark.to_string(), r.next.to_string(), r.lag.to_string(), oldest]
    };
    print_rows(context.format, &["partition", "low watermark", "next", "lag", "oldest"], &rows, cells)?;
    Ok(ExitCode::SUCCESS)
}

/// The lag of each partition of the log. The low watermark is written about once a second.
pub async fn lags(store: &dyn Inspect, log: &dyn InspectLog) -> anyhow::Result<Vec<PartitionLag>> {
    let identity = log.identity();
    let floors = store.floors().await?;
    let floor = |partition: i32| {
        let is_it = |(key, _): &&(seriatim_processor::store::FloorKey, i64)| {
            key.partition == partition && key.topic_id == identity.topic_id && key.generation == FIRST_GENERATION
        };
        floors.iter().find(is_it).map(|(_, next)| *next)
    };
    let row = |e: seriatim_processor::inspect::Extent| {
        let low_watermark = floor(e.partition).unwrap_or(e.first);
        PartitionLag {
            partition: e.partition,
            low_watermark,
            next: e.next,
            lag: e.next - low_watermark,
            oldest_s: None,
        }
    };
    Ok(log.extents().await?.into_iter().map(row).collect())
}
