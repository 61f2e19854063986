//! `event`: one event: what is stored of it, its raw bytes, and every arrival of it.

use std::process::ExitCode;

use anyhow::anyhow;
use clap::{Parser, Subcommand};
use serde::Serialize;
use seriatim_processor::store::Arrival;

use super::{Context, Failure};
use crate::engine;
use crate::output::{instant, print_fields, print_rows, write_bytes};

/// One event: how it was decided, its raw bytes, and each of its arrivals
#[derive(Debug, Parser)]
pub struct Args {
    #[command(subcommand)]
    command: EventCommand,
}

#[derive(Debug, Subcommand)]
enum EventCommand {
    /// How the event was decided
    Get { tenant: String, source: String, id: String },
    /// The bytes that were signed, as they lie in the log
    Raw { tenant: String, source: String, id: String },
    /// How often the event arrived, and what each arrival did
    Trace { tenant: String, source: String, id: String },
}

#[derive(Serialize)]
struct Event {
    object: String,
    event: String,
    outcome: &'static str,
    rev: i64,
    #[serde(rename = "type")]
    event_type: String,
    version: Option<String>,
    sha256: String,
    record: String,
    position: String,
    decided: String,
}

#[derive(Serialize)]
struct Row {
    object: String,
    event: String,
    outcome: &'static str,
    /// The rev of the effect that this arrival had.
    rev: Option<i64>,
    received: String,
    done: String,
    record: String,
    position: String,
    detail: Option<String>,
}

pub async fn main(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let config = context.load_or_dev()?;
    let store = engine::open_inspect(&config).await?;
    let (EventCommand::Get { tenant, source, id }
    | EventCommand::Raw { tenant, source, id }
    | EventCommand::Trace { tenant, source, id }) = &args.command;
    let arrivals = store.trace(tenant, source, id).await?;
    let Some(first) = arrivals.first() else {
        return Err(
            Failure::NotFound(format!("no event {id} of {tenant}/{source} has arrived, or it has expired")).into()
        );
    };
    let decided = store.events(&first.key).await?.into_iter().find(|e| e.row == first.row.event_row);
    match args.command {
        EventCommand::Get { .. } => {
            let missing = || Failure::NotFound(format!("event {id} was not decided: see `seriatim event trace`"));
            let row = decided.ok_or_else(missing)?;
            let event = Event {
                object: first.key.object.clone(),
                event: row.row,
                outcome: row.outcome.as_str(),
                rev: row.rev,
                event_type: row.event_type,
                version: row.version,
                sha256: row.digest.to_string(),
                record: row.record.to_string(),
                position: row.position,
                decided: instant(row.decided_ms),
            };
            print_fields(context.format, &event)?;
        }
        EventCommand::Raw { .. } => write_bytes(&raw(&config, first).await?)?,
        EventCommand::Trace { .. } => {
            let rev = |a: &Arrival| decided.as_ref().filter(|e| e.record == a.row.record).map(|e| e.rev);
            let rows: Vec<_> = arrivals.iter().map(|a| to_row(a, rev(a))).collect();
            let cells = |r: &Row| {
                let effect = r.rev.map_or_else(|| "none".to_owned(), |rev| format!("rev {rev}"));
                vec![
                    r.received.clone(),
                    r.outcome.into(),
                    effect,
                    r.object.clone(),
                    r.record.clone(),
                    r.detail.clone().unwrap_or_default(),
                ]
            };
            print_rows(context.format, &["received", "outcome", "effect", "object", "record", "detail"], &rows, cells)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The value of the record that an arrival was read from. Its position is a hint, its id decides.
async fn raw(config: &crate::config::Config, arrival: &Arrival) -> anyhow::Result<bytes::Bytes> {
    let gone = || anyhow!("the record at {} is not in the log any more", arrival.row.position);
    let mut parts = arrival.row.position.rsplit('/');
    let (offset, partition) = (parts.next(), parts.next());
    let offset: i64 = offset.and_then(|o| o.parse().ok()).ok_or_else(gone)?;
    let partition: i32 = partition.and_then(|p| p.parse().ok()).ok_or_else(gone)?;
    let entries = engine::open_inspect_log(config).await?.entries(partition, offset, 1).await?;
    let id = arrival.row.record.to_string();
    let is_it = |h: &(String, bytes::Bytes)| h.0 == "st_record" && h.1 == id.as_bytes();
    entries.into_iter().find(|e| e.headers.iter().any(is_it)).map(|e| e.value).ok_or_else(gone)
}

fn to_row(arrival: &Arrival, rev: Option<i64>) -> Row {
    Row {
        object: arrival.key.object.clone(),
        event: arrival.row.event_row.clone(),
        outcome: arrival.row.outcome.as_str(),
        rev,
        received: instant(arrival.row.recorded_ms),
        done: instant(arrival.row.done_ms),
        record: arrival.row.record.to_string(),
        position: arrival.row.position.clone(),
        detail: arrival.row.detail.clone(),
    }
}
