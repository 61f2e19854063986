//! `dead`: events that could not be decided, kept whole.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde::Serialize;
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::row::DeadLetter;

use super::{Context, Failure};
use crate::engine;
use crate::output::{instant, print_fields, print_rows, write_bytes};

/// Dead letters: events that could not be decided
#[derive(Debug, Parser)]
pub struct Args {
    #[command(subcommand)]
    command: DeadCommand,
}

#[derive(Debug, Subcommand)]
enum DeadCommand {
    /// All dead letters, or those of a tenant or source
    List {
        #[arg(long)]
        tenant: Option<String>,
        #[arg(long)]
        source: Option<String>,
    },
    /// One dead letter, by its event id or record id
    Show {
        tenant: String,
        source: String,
        id: String,
        /// Write the raw bytes to stdout, and nothing else
        #[arg(long)]
        raw: bool,
    },
}

#[derive(Serialize)]
struct Letter {
    tenant: String,
    source: String,
    object: String,
    event_id: String,
    #[serde(rename = "type")]
    event_type: String,
    record: String,
    cause: String,
    detail: String,
    /// A later delivery of the same event was applied.
    resolved: bool,
    received: String,
    dead: String,
    position: String,
    bytes: usize,
    headers: Vec<(String, String)>,
    value: String,
}

pub async fn main(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let store = engine::open_inspect(&context.load_or_dev()?).await?;
    match args.command {
        DeadCommand::List { tenant, source } => {
            let mut letters = Vec::new();
            for letter in store.dead(tenant.as_deref(), source.as_deref()).await? {
                let key = ObjectKey::new(&letter.tenant, &letter.source, &letter.object);
                let resolved = store.events(&key).await?.iter().any(|e| e.row == letter.event_row);
                letters.push(to_letter(letter, resolved));
            }
            let cells = |l: &Letter| {
                let state = if l.resolved { "resolved" } else { "dead" };
                vec![
                    l.tenant.clone(),
                    l.source.clone(),
                    l.object.clone(),
                    l.event_id.clone(),
                    l.cause.clone(),
                    l.detail.clone(),
                    state.into(),
                    l.dead.clone(),
                ]
            };
            print_rows(
                context.format,
                &["tenant", "source", "object", "event", "cause", "detail", "state", "since"],
                &letters,
                cells,
            )?;
        }
        DeadCommand::Show { tenant, source, id, raw } => {
            let letters = store.dead(Some(&tenant), Some(&source)).await?;
            let is_it = |l: &DeadLetter| l.event_id == id || l.record.to_string() == id;
            let missing = || Failure::NotFound(format!("no dead letter {id} of {tenant}/{source}"));
            let letter = letters.into_iter().find(is_it).ok_or_else(missing)?;
            if raw {
                write_bytes(&letter.value)?;
            } else {
                let key = ObjectKey::new(&letter.tenant, &letter.source, &letter.object);
                let resolved = store.events(&key).await?.iter().any(|e| e.row == letter.event_row);
                print_fields(context.format, &to_letter(letter, resolved))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn to_letter(letter: DeadLetter, resolved: bool) -> Letter {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Letter {
        tenant: letter.tenant,
        source: letter.source,
        object: letter.object,
        event_id: letter.event_id,
        event_type: letter.event_type,
        record: letter.record.to_string(),
        cause: letter.cause,
        detail: letter.detail,
        resolved,
        received: instant(letter.recorded_ms),
        dead: instant(letter.dead_ms),
        position: letter.position,
        bytes: letter.value.len(),
        headers: letter.headers.iter().map(|(n, v)| (n.clone(), text(v))).collect(),
        value: text(&letter.value),
    }
}
