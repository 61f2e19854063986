//! `lag`: how much of the log is not done yet.

use std::process::ExitCode;

use clap::Parser;

use super::Context;
use crate::api::rows::PartitionLag;
use crate::output::print_rows;

/// How many records are not done, by partition, and the age of the oldest
#[derive(Debug, Parser)]
pub struct Args {}

pub async fn main(context: &Context, _: Args) -> anyhow::Result<ExitCode> {
    let rows = context.operations()?.lag().await?.rows;
    let cells = |r: &PartitionLag| {
        let oldest = r.oldest_s.map_or_else(|| "-".to_owned(), |s| format!("{s} s"));
        vec![r.partition.to_string(), r.low_watermark.to_string(), r.next.to_string(), r.lag.to_string(), oldest]
    };
    print_rows(context.format, &["partition", "low watermark", "next", "lag", "oldest"], &rows, cells)?;
    Ok(ExitCode::SUCCESS)
}
