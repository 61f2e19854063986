//! The one binary. Each command is a file in `commands/`; what they share stands beside them.

mod admin;
mod api;
mod commands;
mod config;
mod engine;
mod explain;
mod logging;
mod operate;
mod output;
mod secrets;
mod service;
mod sign;
mod signals;
mod traffic;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::commands::{check, completions, dead, dev, event, lag, migrate, object, run, send, source, tail, verify};
use crate::output::Format;

/// Takes in webhooks that arrive late, twice and out of order, and applies each one once and in order,
/// object by object.
#[derive(Debug, Parser)]
#[command(name = "seriatim", version, after_help = EXAMPLES)]
struct Cli {
    /// Configuration file
    #[arg(short, long, global = true, env = "SERIATIM_CONFIG", default_value = config::FILE)]
    config: PathBuf,
    /// How data is written to stdout; everything else goes to stderr
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Admin address of a running process, such as https://seriatim:9464: object, event, dead and lag then ask it,
    /// with the token in SERIATIM_TOKEN; else they open log and store themselves
    #[arg(long, global = true, env = "SERIATIM_SERVER", value_name = "URL")]
    server: Option<String>,
    /// File that holds the token for --server
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  seriatim dev                                   everything in one process, SQLite in ./data, no configuration
  seriatim send --preset stripe --count 1000 --duplicates 20% --shuffle --verify
  seriatim source refused acme billing           why the last requests were refused, step by step
  seriatim object get acme billing sub_1         the state of one object
  seriatim event trace acme billing evt_1        how often an event arrived, and what each arrival did
  seriatim --server https://HOST:9464 dead list  the same as without it, asked of a running process

Exit codes: 0 done; 1 failed; 2 wrong usage or configuration; 3 not found; 4 a check did not hold";

#[derive(Debug, Subcommand)]
enum Command {
    Dev(dev::Args),
    Run(run::Args),
    Check(check::Args),
    Migrate(migrate::Args),
    Send(send::Args),
    Source(source::Args),
    Verify(verify::Args),
    Object(object::Args),
    Event(event::Args),
    Dead(dead::Args),
    Lag(lag::Args),
    Tail(tail::Args),
    Completions(completions::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let Cli { config, output: format, server, token_file, command } = cli;
    let context = commands::Context { config, format, server, token_file };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime can be made");
    let result = runtime.block_on(async {
        match command {
            Command::Dev(args) => dev::main(&context, args).await,
            Command::Run(args) => run::main(&context, args).await,
            Command::Check(args) => check::main(&context, args).await,
            Command::Migrate(args) => migrate::main(&context, args).await,
            Command::Send(args) => send::main(&context, args).await,
            Command::Source(args) => source::main(&context, args).await,
            Command::Verify(args) => verify::main(&context, args).await,
            Command::Object(args) => object::main(&context, args).await,
            Command::Event(args) => event::main(&context, args).await,
            Command::Dead(args) => dead::main(&context, args).await,
            Command::Lag(args) => lag::main(&context, args).await,
            Command::Tail(args) => tail::main(&context, args).await,
            Command::Completions(args) => completions::main(&context, args).await,
        }
    });
    // A consumer that hangs in its library must not hold the process: all that matters is on disk by now.
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    match result {
        Ok(code) => code,
        Err(error) => {
            output::say(&format!("error: {error:#}"));
            ExitCode::from(commands::exit_code(&error))
        }
    }
}
