//! `check`: is the configuration good? Before a deployment, and in a pipeline.

use std::process::ExitCode;

use clap::Parser;
use serde::Serialize;
use seriatim_ingest::sources::Sources;

use super::{Context, Failure};
use crate::api::auth::Tokens;
use crate::engine;
use crate::output::{print_rows, say};

/// Check the configuration: every mistake at once, each with its line
///
/// Reads secrets too, and never prints them. Exit code 2 where something is wrong.
#[derive(Debug, Parser)]
pub struct Args {
    /// Leave secrets alone: they may not be at hand where the file is checked
    #[arg(long)]
    without_secrets: bool,
}

#[derive(Serialize)]
struct Row {
    tenant: String,
    source: String,
    preset: String,
    revision: String,
    secrets: usize,
}

pub async fn main(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let config = context.load()?;
    let sources = config.sources();
    if !args.without_secrets {
        Sources::new(sources.clone(), [0; 32]).map_err(|error| Failure::Config(error.to_string()))?;
        Tokens::read(&config.admin.tokens).map_err(|error| Failure::Config(format!("{error:#}")))?;
        engine::check_sinks(&config).map_err(|error| Failure::Config(format!("{error:#}")))?;
    }
    let rows: Vec<_> = sources
        .into_iter()
        .map(|s| Row {
            tenant: s.tenant,
            source: s.name,
            preset: s.preset.unwrap_or_default(),
            revision: s.revision,
            secrets: s.secrets.len(),
        })
        .collect();
    let cells =
        |r: &Row| vec![r.tenant.clone(), r.source.clone(), r.preset.clone(), r.revision.clone(), r.secrets.to_string()];
    print_rows(context.format, &["tenant", "source", "preset", "revision", "secrets"], &rows, cells)?;
    say(&format!("{}: good", context.config.display()));
    Ok(ExitCode::SUCCESS)
}
