//! `object`: the state of one object, and how it came about.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde::Serialize;
use serde_json::value::RawValue;
use seriatim_processor::inspect::Inspect;
use seriatim_schemas::control::ControlAct;
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::row::{EventRow, WaitingSink};

use super::dead::Who;
use super::{Context, Failure};
use crate::engine;
use crate::operate::Operator;
use crate::output::{instant, print_fields, print_rows};

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
    /// The events that were applied, in the order of their rev
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
    /// Let the object's order begin anew: its next event is applied, whatever its version
    ResetVersion {
        tenant: String,
        source: String,
        object: String,
        #[command(flatten)]
        who: Who,
    },
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
    who: Who,
}

#[derive(Serialize)]
struct Waiter {
    tenant: String,
    source: String,
    object: String,
    sink: String,
    state: &'static str,
    cause: String,
    since: String,
    first_event: Option<String>,
    first_rev: Option<i64>,
}

#[derive(Serialize)]
struct Object {
    tenant: String,
    source: String,
    object: String,
    rev: i64,
    deleted: Option<bool>,
    version: Option<String>,
    #[serde(rename = "type")]
    event_type: Option<String>,
    event: Option<String>,
    record: Option<String>,
    sha256: Option<String>,
    /// What a reducer has made of the deltas.
    #[serde(skip_serializing_if = "Option::is_none")]
    fold: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state_hex: Option<String>,
}

#[derive(Serialize)]
struct Row {
    rev: i64,
    event: String,
    #[serde(rename = "type")]
    event_type: String,
    version: Option<String>,
    outcome: &'static str,
    record: String,
    position: String,
    decided: String,
}

pub async fn main(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let store = engine::open_inspect(&context.load_or_dev()?).await?;
    match args.command {
        ObjectCommand::Get { tenant, source, object } => {
            get(context, &*store, ObjectKey::new(tenant, source, object)).await?;
        }
        ObjectCommand::History { tenant, source, object } => {
            history(context, &*store, &ObjectKey::new(tenant, source, object)).await?;
        }
        ObjectCommand::Parked { tenant, source, waiting } => {
            let all = store.waiting_sinks(tenant.as_deref(), source.as_deref()).await?;
            print_waiters(context, &*store, all.into_iter().filter(|w| waiting || w.is_parked).collect()).await?;
        }
        ObjectCommand::Redrive { parked } => {
            let (key, sink, _) = find_parked(&*store, &parked).await?;
            operator(context, parked.who).await?.act_on(key, ControlAct::Redrive { sink }).await?;
        }
        ObjectCommand::Skip { parked } => {
            let (key, sink, rev) = find_parked(&*store, &parked).await?;
            let missing = || Failure::NotFound(format!("nothing of {key} waits for {sink}"));
            let rev = rev.ok_or_else(missing)?;
            operator(context, parked.who).await?.act_on(key, ControlAct::Skip { sink, rev }).await?;
        }
        ObjectCommand::ResetVersion { tenant, source, object, who } => {
            let key = ObjectKey::new(tenant, source, object);
            let missing = || Failure::NotFound(format!("no object {key}: no event of it was applied"));
            store.object(&key).await?.ok_or_else(missing)?;
            operator(context, who).await?.act_on(key, ControlAct::ResetVersion {}).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn get(context: &Context, store: &dyn Inspect, key: ObjectKey) -> anyhow::Result<()> {
    let missing = || Failure::NotFound(format!("no object {key}: no event of it was applied"));
    let found = store.object(&key).await?.ok_or_else(missing)?;
    let snapshot = found.head.snapshot;
    let fold = found.head.fold.map(|fold| {
        let text = || serde_json::Value::String(String::from_utf8_lossy(&fold).into_owned());
        serde_json::from_slice(&fold).unwrap_or_else(|_| text())
    });
    let text = found.state.as_ref().and_then(|s| String::from_utf8(s.0.to_vec()).ok());
    let state = text.and_then(|t| RawValue::from_string(t).ok());
    let state_hex = found.state.filter(|_| state.is_none()).map(|s| hex::encode(&s.0));
    let object = Object {
        tenant: key.tenant,
        source: key.source,
        object: key.object,
        rev: found.head.rev,
        deleted: snapshot.as_ref().map(|s| s.deleted),
        version: snapshot.as_ref().map(|s| s.version.clone()),
        event_type: snapshot.as_ref().map(|s| s.event_type.clone()),
        event: snapshot.as_ref().map(|s| s.event_row.clone()),
        record: snapshot.as_ref().map(|s| s.record.to_string()),
        sha256: snapshot.as_ref().map(|s| s.digest.to_string()),
        fold,
        state,
        state_hex,
    };
    print_fields(context.format, &object)
}

async fn history(context: &Context, store: &dyn Inspect, key: &ObjectKey) -> anyhow::Result<()> {
    let mut events = store.events(key).await?;
    events.sort_by_key(|e| e.rev);
    let rows: Vec<_> = events.into_iter().map(to_row).collect();
    let cells = |r: &Row| {
        vec![
            r.rev.to_string(),
            r.event.clone(),
            r.event_type.clone(),
            r.version.clone().unwrap_or_default(),
            r.outcome.into(),
            r.decided.clone(),
            r.position.clone(),
        ]
    };
    print_rows(context.format, &["rev", "event", "type", "version", "outcome", "decided", "position"], &rows, cells)
}

async fn operator(context: &Context, who: Who) -> anyhow::Result<Operator> {
    let config = context.load_or_dev()?;
    Operator::new(engine::open_append(&config).await?, &config, who.by, who.reason)
}

/// The object, its sink, and the rev of the first effect that is parked.
async fn find_parked(store: &dyn Inspect, parked: &ParkedObject) -> anyhow::Result<(ObjectKey, String, Option<i64>)> {
    let key = ObjectKey::new(&parked.tenant, &parked.source, &parked.object);
    let mut found = store.waiting_sinks(Some(&key.tenant), Some(&key.source)).await?;
    found.retain(|w| w.is_parked && w.key == key && parked.sink.as_ref().is_none_or(|s| *s == w.sink));
    match found.as_slice() {
        [] => Err(Failure::NotFound(format!("{key} is not parked")).into()),
        [one] => {
            let first = store.first_waiting(&key, &one.sink, 1).await?.first().map(|effect| effect.rev);
            // Behind the rows, or without any, effects wait in the log alone.
            let head = store.object(&key).await?.map(|object| object.head);
            let overflow = head.and_then(|head| head.waiting.0.get(&one.sink)?.overflow);
            Ok((key, one.sink.clone(), first.or(overflow.map(|(from, _)| from))))
        }
        more => {
            let names: Vec<_> = more.iter().map(|w| w.sink.as_str()).collect();
            Err(Failure::Config(format!("{key} is parked for {}: name one by --sink", names.join(", "))).into())
        }
    }
}

async fn print_waiters(context: &Context, store: &dyn Inspect, all: Vec<WaitingSink>) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for one in all {
        let first = store.first_waiting(&one.key, &one.sink, 1).await?.pop();
        let id = first.as_ref().and_then(|e| e.headers.iter().find(|(name, _)| name == "ce_id"));
        rows.push(Waiter {
            first_event: id.map(|(_, value)| String::from_utf8_lossy(value).into_owned()),
            first_rev: first.as_ref().map(|e| e.rev),
            tenant: one.key.tenant,
            source: one.key.source,
            object: one.key.object,
            sink: one.sink,
            state: if one.is_parked { "parked" } else { "waiting" },
            cause: one.cause,
            since: instant(one.since_ms),
        });
    }
    let columns = ["tenant", "source", "object", "sink", "state", "cause", "first event", "since"];
    let cells = |w: &Waiter| {
        let first = w.first_event.clone().unwrap_or_default();
        let texts = [&w.tenant, &w.source, &w.object, &w.sink].into_iter().cloned();
        texts.chain([w.state.to_owned(), w.cause.clone(), first, w.since.clone()]).collect()
    };
    print_rows(context.format, &columns, &rows, cells)
}

fn to_row(event: EventRow) -> Row {
    Row {
        rev: event.rev,
        event: event.row,
        event_type: event.event_type,
        version: event.version,
        outcome: event.outcome.as_str(),
        record: event.record.to_string(),
        position: event.position,
        decided: instant(event.decided_ms),
    }
}
