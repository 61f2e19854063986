//! `migrate`: makes, or checks, what the servers must have before traffic.

use std::process::ExitCode;

use clap::Parser;
use seriatim_processor::lock::lock;

use super::Context;
use crate::config::Engine;
use crate::engine;
use crate::output::say;

/// Make the topic, the keyspace and the tables, or check those that are there; safe to run again
///
/// Refuses a topic or tables with which records could be lost: fewer copies than configured, records that
/// are dropped too early, buckets that do not fit the partitions.
#[derive(Debug, Parser)]
pub struct Args {
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

pub async fn main(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let config = context.load()?;
    match config.engine {
        Engine::Embedded if args.dry_run => {
            say(&format!("would make log.db and state.db in {}", config.data.display()))
        }
        Engine::Embedded => {
            let _locks = (lock(&config.data, "ingest")?, lock(&config.data, "processor")?);
            engine::open_append(&config).await?;
            engine::open_store(&config).await?;
            say(&format!("log.db and state.db in {}: good", config.data.display()));
        }
        Engine::Distributed => distributed(&config, args.dry_run).await?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(all(feature = "kafka", feature = "cql"))]
async fn distributed(config: &crate::config::Config, dry_run: bool) -> anyhow::Result<()> {
    use seriatim_processor::{log, store};
    use seriatim_schemas::tables::FIRST_GENERATION;

    let lines = log::kafka::migrate(&config.kafka, dry_run).await?;
    lines.iter().for_each(|line| say(line));
    for topic in config.sink.iter().filter_map(|sink| sink.kafka.as_ref()) {
        say(&seriatim_processor::sink::kafka::migrate(topic, &config.kafka, dry_run).await?);
    }
    let lines = store::cql::migrate(&config.cql, &config.kafka.class, FIRST_GENERATION, dry_run).await?;
    lines.iter().for_each(|line| say(line));
    Ok(())
}

#[cfg(not(all(feature = "kafka", feature = "cql")))]
async fn distributed(_: &crate::config::Config, _: bool) -> anyhow::Result<()> {
    anyhow::bail!("this binary was built without the features kafka and cql")
}
