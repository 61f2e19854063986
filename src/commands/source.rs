//! `source`: what can be received.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use seriatim_schemas::preset::Preset;

use super::{Context, Failure};
use crate::output::{Format, print_json, print_rows, write_out};

/// Presets of providers: which there are, and what each says
#[derive(Debug, Parser)]
pub struct Args {
    #[command(subcommand)]
    command: SourceCommand,
}

#[derive(Debug, Subcommand)]
enum SourceCommand {
    /// List the presets, or show one whole
    Presets { name: Option<String> },
}

pub async fn main(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let SourceCommand::Presets { name } = args.command;
    let Some(name) = name else {
        let cells = |p: &Preset| vec![p.name.clone(), p.title.clone(), p.docs.clone()];
        print_rows(context.format, &["preset", "provider", "documentation"], Preset::all(), cells)?;
        return Ok(ExitCode::SUCCESS);
    };
    let unknown = || {
        Failure::NotFound(format!("no preset {name}; there are: {}", Preset::names().collect::<Vec<_>>().join(", ")))
    };
    let preset = Preset::named(&name).ok_or_else(unknown)?;
    match context.format {
        Format::Json => print_json(&preset)?,
        Format::Table => write_out(&toml::to_string_pretty(&preset)?)?,
    }
    Ok(ExitCode::SUCCESS)
}
