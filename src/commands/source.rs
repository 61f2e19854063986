//! `source`: what can be received.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use seriatim_schemas::preset::Preset;

use super::{Context, Failure};
use crate::explain::{page, summary};
use crate::output::{Format, print_json, print_rows, write_out};

/// Presets of providers: which there are, and what each says
#[derive(Debug, Parser)]
pub struct Args {
    #[command(subcommand)]
    command: SourceCommand,
}

#[derive(Debug, Subcommand)]
enum SourceCommand {
    /// List the presets, or explain one and show its file
    Presets { name: Option<String> },
}

pub async fn main(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let SourceCommand::Presets { name } = args.command;
    let Some(name) = name else {
        let cells = |p: &Preset| {
            let row = summary(p);
            vec![row.name, row.title, row.verified_by, row.order, row.retries, row.state.to_owned()]
        };
        let columns = ["preset", "provider", "verified by", "order by", "tries again for", "state"];
        print_rows(context.format, &columns, &Preset::all(), cells)?;
        return Ok(ExitCode::SUCCESS);
    };
    let preset = Preset::named(&name).ok_or_else(|| Failure::NotFound(format!("preset {}", Preset::unknown(&name))))?;
    match context.format {
        Format::Json => print_json(&preset)?,
        Format::Table => write_out(&page(&preset, Preset::text(&name).unwrap_or_default()))?,
    }
    Ok(ExitCode::SUCCESS)
}
