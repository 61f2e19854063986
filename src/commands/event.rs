//! `event`: one event: what is stored of it, its raw bytes, and every arrival of it.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use super::{Context, Failure};
use crate::api::operations::{OperationError, Operations};
use crate::api::rows::{ArrivalRow, Paging, Trace};
use crate::output::{at, print_fields, print_rows, write_bytes};

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

pub async fn main(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let operations = context.operations()?;
    match args.command {
        EventCommand::Get { tenant, source, id } => {
            let Trace { decided, arrivals, .. } = trace(&*operations, &tenant, &source, &id).await?;
            let is_first = |row: &ArrivalRow, object: &str, event: &str| row.object == object && row.event == event;
            let first = arrivals.first();
            let event = decided.into_iter().find(|e| first.is_some_and(|row| is_first(row, &e.object, &e.event)));
            let missing = || Failure::NotFound(format!("event {id} was not decided: see `seriatim event trace`"));
            print_fields(context.format, &event.ok_or_else(missing)?)?;
        }
        EventCommand::Raw { tenant, source, id } => write_bytes(&operations.raw(&tenant, &source, &id).await?)?,
        EventCommand::Trace { tenant, source, id } => {
            let rows = trace(&*operations, &tenant, &source, &id).await?.arrivals;
            let cells = |r: &ArrivalRow| {
                let effect = r.rev.map_or_else(|| "none".to_owned(), |rev| format!("rev {rev}"));
                vec![
                    r.received.clone(),
                    r.outcome.clone(),
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

/// All pages, as one, in the order in which the arrivals were received.
async fn trace(operations: &dyn Operations, tenant: &str, source: &str, id: &str) -> Result<Trace, OperationError> {
    let mut paging = Paging::largest();
    let mut whole = operations.trace(tenant, source, id, &paging).await?;
    while let Some(after) = whole.after.take() {
        paging.after = Some(after);
        let next = operations.trace(tenant, source, id, &paging).await?;
        whole.decided.extend(next.decided);
        whole.arrivals.extend(next.arrivals);
        whole.after = next.after;
    }
    whole.arrivals.sort_by(|a, b| (at(&a.received), &a.record).cmp(&(at(&b.received), &b.record)));
    Ok(whole)
}
