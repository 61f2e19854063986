//! `object`: the state of one object, how it came about, and acts on it.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use seriatim_schemas::key::ObjectKey;

use super::Context;
use super::dead::Who;
use crate::api::operations::{ObjectAct, Operations, collect};
use crate::api::rows::{Event, ObjectRequest, ObjectSummary, Paging, WaiterRow, WaitingQuery};
use crate::output::{at, print_fields, print_rows, say};

/// The state of an object, and its history
#[derive(Debug, Parser)]
pub struct Args {
    #[command(subcommand)]
    command: ObjectCommand,
}

#[derive(Debug, Subcommand)]
enum ObjectCommand {
    /// The object as it is stored: its version, its last event, its state
    Get { tenant: String, source: String, object: String },
    /// The objects of a source, without their states
    List {
        tenant: String,
        source: String,
        /// So many at most
        #[arg(long, default_value_t = 1000)]
        limit: usize,
    },
    /// The events that were decided, in the order of their rev; at the end those of which nothing was sent
    History { tenant: String, source: String, object: String },
    /// Objects whose effects wait for an operator
    Parked {
        #[arg(long)]
        tenant: Option<String>,
        #[arg(long)]
        source: Option<String>,
        /// Also those that wait for a sink that is away
        #[arg(long)]
        waiting: bool,
    },
    /// Send what is parked, from the first effect on
    Redrive {
        #[command(flatten)]
        parked: ParkedObject,
    },
    /// Leave out the first effect that is parked, and send the rest
    Skip {
        #[command(flatten)]
        parked: ParkedObject,
    },
    /// Wait no longer for what is missing from its sequence, and release what is held behind it
    Pass {
        #[command(flatten)]
        passing: Passing,
    },
    /// Let the object's order begin anew: its next event is applied, whatever its version
    ResetVersion {
        tenant: String,
        source: String,
        object: String,
        #[command(flatten)]
        how: How,
    },
}

#[derive(Debug, clap::Args)]
struct Passing {
    tenant: String,
    source: String,
    object: String,
    /// The number that is next [default: the lowest that is held]
    #[arg(long)]
    to: Option<u64>,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, clap::Args)]
struct ParkedObject {
    tenant: String,
    source: String,
    object: String,
    /// The sink; left out where the object is parked for one only
    #[arg(long)]
    sink: Option<String>,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, clap::Args)]
struct How {
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    who: Who,
}

pub async fn main(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let operations = context.operations()?;
    match args.command {
        ObjectCommand::Get { tenant, source, object } => {
            let key = ObjectKey::new(tenant, source, object);
            print_fields(context.format, &operations.object(&key).await?)?;
        }
        ObjectCommand::List { tenant, source, limit } => list(context, &*operations, &tenant, &source, limit).await?,
        ObjectCommand::History { tenant, source, object } => {
            history(context, &*operations, &ObjectKey::new(tenant, source, object)).await?;
        }
        ObjectCommand::Parked { tenant, source, waiting } => {
            let parked = (!waiting).then_some(true);
            let query = WaitingQuery { tenant, source, parked, ..WaitingQuery::default() };
            print_waiters(context, &*operations, query).await?;
        }
        ObjectCommand::Redrive { parked } => act_on_parked(&*operations, ObjectAct::Redrive, parked).await?,
        ObjectCommand::Skip { parked } => act_on_parked(&*operations, ObjectAct::Skip, parked).await?,
        ObjectCommand::Pass { passing: Passing { tenant, source, object, to, how } } => {
            let (key, request) = (ObjectKey::new(tenant, source, object), ObjectRequest { to, ..Default::default() });
            act(&*operations, &key, ObjectAct::Pass, request, how).await?;
        }
        ObjectCommand::ResetVersion { tenant, source, object, how } => {
            let key = ObjectKey::new(tenant, source, object);
            act(&*operations, &key, ObjectAct::ResetVersion, ObjectRequest::default(), how).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn act_on_parked(operations: &dyn Operations, of: ObjectAct, parked: ParkedObject) -> anyhow::Result<()> {
    let ParkedObject { tenant, source, object, sink, how } = parked;
    let request = ObjectRequest { sink, ..Default::default() };
    act(operations, &ObjectKey::new(tenant, source, object), of, request, how).await
}

async fn act(
    operations: &dyn Operations,
    key: &ObjectKey,
    act: ObjectAct,
    request: ObjectRequest,
    how: How,
) -> anyhow::Result<()> {
    let How { dry_run, who: Who { by, reason } } = how;
    let request = ObjectRequest { reason, dry_run, ..request };
    let done = operations.act_on_object(key, act, &request, &by).await?;
    if dry_run {
        let sink = done.sink.map(|sink| format!(" for sink {sink}")).unwrap_or_default();
        let rev = done.rev.map(|rev| format!(" from rev {rev} on")).unwrap_or_default();
        let to = done.to.map(|to| format!(" to {to}")).unwrap_or_default();
        say(&format!("would {} {key}{sink}{rev}{to}", act.as_str()));
    }
    Ok(())
}

async fn list(
    context: &Context,
    operations: &dyn Operations,
    tenant: &str,
    source: &str,
    limit: usize,
) -> anyhow::Result<()> {
    let (mut rows, mut paging) = (Vec::new(), Paging::largest());
    while rows.len() < limit {
        let page = operations.objects(tenant, source, &paging).await?;
        rows.extend(page.rows);
        paging.after = page.after;
        if paging.after.is_none() {
            break;
        }
    }
    let more = paging.after.is_some() || rows.len() > limit;
    rows.truncate(limit);
    let cells = |o: &ObjectSummary| {
        let state = if o.deleted == Some(true) { "deleted" } else { "" };
        let texts = [&o.version, &o.event_type, &o.event].map(|text| text.clone().unwrap_or_default());
        [vec![o.object.clone(), o.rev.to_string()], texts.to_vec(), vec![state.to_owned()]].concat()
    };
    print_rows(context.format, &["object", "rev", "version", "type", "event", "state"], &rows, cells)?;
    if more {
        say("there are more: see --limit");
    }
    Ok(())
}

async fn history(context: &Context, operations: &dyn Operations, key: &ObjectKey) -> anyhow::Result<()> {
    let mut rows = collect(async |paging| operations.events(key, &paging).await).await?;
    rows.sort_by_key(|event| (event.rev.is_none(), event.rev, at(&event.decided)));
    let cells = |r: &Event| {
        vec![
            r.rev.map_or_else(|| "none".to_owned(), |rev| rev.to_string()),
            r.event.clone(),
            r.event_type.clone(),
            r.version.clone().unwrap_or_default(),
            r.outcome.clone(),
            r.decided.clone(),
            r.position.clone(),
        ]
    };
    print_rows(context.format, &["rev", "event", "type", "version", "outcome", "decided", "position"], &rows, cells)
}

async fn print_waiters(context: &Context, operations: &dyn Operations, query: WaitingQuery) -> anyhow::Result<()> {
    let mut rows = collect(async |paging| operations.waiting(&query, &paging).await).await?;
    rows.sort_by_cached_key(|w| {
        let name = [&w.tenant, &w.source, &w.object, &w.sink].map(String::clone);
        (at(&w.since), name)
    });
    let columns = ["tenant", "source", "object", "sink", "state", "cause", "first event", "since"];
    let cells = |w: &WaiterRow| {
        let first = w.first_event.clone().unwrap_or_default();
        let texts = [&w.tenant, &w.source, &w.object, &w.sink, &w.state, &w.cause].into_iter().cloned();
        texts.chain([first, w.since.clone()]).collect()
    };
    print_rows(context.format, &columns, &rows, cells)
}
