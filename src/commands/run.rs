//! `run`: serve with a configuration file.

use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use super::Context;
use crate::logging;
use crate::service::{Roles, Service};
use crate::signals::Signals;

/// Serve: the edge, the processor, or both
#[derive(Debug, Parser)]
pub struct Args {
    /// Which parts this process runs
    #[arg(long, value_enum, default_value_t = Role::All)]
    role: Role,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    All,
    Ingest,
    Processor,
}

pub async fn main(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    logging::start("info");
    let config = context.load()?;
    let roles = match args.role {
        Role::All => Roles { ingest: true, processor: true },
        Role::Ingest => Roles { ingest: true, processor: false },
        Role::Processor => Roles { ingest: false, processor: true },
    };
    let mut signals = Signals::catch()?;
    if let Some(service) = signals.unless(Service::start(&config, roles)).await {
        service?.run(signals, std::future::pending()).await?;
    }
    Ok(ExitCode::SUCCESS)
}
