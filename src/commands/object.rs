//! `object`: the state of one object, and how it came about.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde::Serialize;
use serde_json::value::RawValue;
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::row::EventRow;

use super::{Context, Failure};
use crate::engine;
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
            let key = ObjectKey::new(tenant, source, object);
            let missing = || Failure::NotFound(format!("no object {key}: no event of it was applied"));
            let found = store.object(&key).await?.ok_or_else(missing)?;
            let snapshot = found.head.snapshot;
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
                state,
                state_hex,
            };
            print_fields(context.format, &object)?;
        }
        ObjectCommand::History { tenant, source, object } => {
            let key = ObjectKey::new(tenant, source, object);
            let mut events = store.events(&key).await?;
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
            print_rows(
                context.format,
                &["rev", "event", "type", "version", "outcome", "decided", "position"],
                &rows,
                cells,
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
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
