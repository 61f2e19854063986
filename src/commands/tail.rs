//! `tail`: records as they come into the log.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde::Serialize;
use seriatim_processor::inspect::RawEntry;
use seriatim_schemas::record::decode;

use super::Context;
use crate::engine;
use crate::output::{Format, write_out};

/// How often the log is looked at.
const INTERVAL: Duration = Duration::from_millis(200);
const READ_MAX: usize = 500;

/// Show records as they come into the log, one per line
#[derive(Debug, Parser)]
pub struct Args {
    /// Only this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only this source
    #[arg(long)]
    source: Option<String>,
    /// Begin with the oldest record that is kept
    #[arg(long)]
    from_start: bool,
    /// Stop at the end of the log
    #[arg(long)]
    no_follow: bool,
    /// Stop after so many records
    #[arg(long)]
    count: Option<usize>,
}

#[derive(Serialize)]
struct Line {
    received: String,
    kind: &'static str,
    record: String,
    key: String,
    event_id: String,
    #[serde(rename = "type")]
    event_type: String,
    version: Option<String>,
    bytes: usize,
    partition: i32,
    offset: i64,
}

pub async fn main(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let log = engine::open_inspect_log(&context.load_or_dev()?).await?;
    let mut positions: HashMap<i32, i64> = HashMap::new();
    let mut left = args.count.unwrap_or(usize::MAX);
    loop {
        let mut was_idle = true;
        for extent in log.extents().await? {
            let start = if args.from_start { extent.first } else { extent.next };
            let from = *positions.entry(extent.partition).or_insert(start);
            if from >= extent.next {
                continue;
            }
            let entries = log.entries(extent.partition, from, READ_MAX).await?;
            was_idle &= entries.is_empty();
            for entry in entries {
                positions.insert(extent.partition, entry.offset + 1);
                let Some(line) = line(extent.partition, entry, &args) else { continue };
                write_out(&text(context.format, &line)?)?;
                left -= 1;
                if left == 0 {
                    return Ok(ExitCode::SUCCESS);
                }
            }
        }
        if was_idle && args.no_follow {
            return Ok(ExitCode::SUCCESS);
        }
        if was_idle {
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

fn line(partition: i32, entry: RawEntry, args: &Args) -> Option<Line> {
    let bytes = entry.value.len();
    let record = decode(&entry.key, &entry.headers, entry.value).ok()?;
    let is_other = |wanted: &Option<String>, found: &str| wanted.as_deref().is_some_and(|w| w != found);
    if is_other(&args.tenant, record.key.tenant()) || is_other(&args.source, record.key.source()) {
        return None;
    }
    Some(Line {
        received: record.recorded.to_string(),
        kind: record.kind.as_str(),
        record: record.id.to_string(),
        key: entry.key,
        event_id: record.event_id,
        event_type: record.event_type,
        version: record.version,
        bytes,
        partition,
        offset: entry.offset,
    })
}

fn text(format: Format, line: &Line) -> anyhow::Result<String> {
    Ok(match format {
        Format::Json => serde_json::to_string(line)? + "\n",
        Format::Table => {
            let version = line.version.as_deref().unwrap_or("-");
            format!(
                "{}  {}  {}  {}  {version}  {} B  {}/{}\n",
                line.received, line.key, line.event_id, line.event_type, line.bytes, line.partition, line.offset
            )
        }
    })
}
