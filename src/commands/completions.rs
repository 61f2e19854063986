//! `completions`: for the shell.

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;

use super::Context;
use crate::output::write_bytes;

/// Print completions for a shell, such as: seriatim completions bash > /etc/bash_completion.d/seriatim
#[derive(Debug, Parser)]
pub struct Args {
    #[arg(value_enum)]
    shell: Shell,
}

pub async fn main(_: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "seriatim", &mut script);
    write_bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}
