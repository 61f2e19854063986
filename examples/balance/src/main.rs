//! A processor with a reducer and a handler of its own. Payments come in as deltas, twice and in any order; each
//! counts once, whatever is killed when. The edge is the ordinary one: `seriatim run --role ingest`.
//!
//! The reducer is pure and runs inside the decision; the handler has effects and runs after it, once or, marked,
//! again.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use async_trait::async_trait;
use clap::Parser;
use serde::{Deserialize, Serialize};
use seriatim_processor::config::{CqlConfig, ProcessorConfig};
use seriatim_processor::log::Log;
use seriatim_processor::metrics::ProcessorMetrics;
use seriatim_processor::reduce::Reducer;
use seriatim_processor::run::Processor;
use seriatim_processor::sink::handler::{Handler, HandlerSink};
use seriatim_processor::sink::{Effect, Fault, NamedSink, SinkPolicy};
use seriatim_processor::store::Store;
use seriatim_schemas::kafka::KafkaConfig;
use seriatim_schemas::record::Record;
use seriatim_schemas::source::SourceConfig;
use seriatim_schemas::tables::FIRST_GENERATION;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What a provider sends.
#[derive(Deserialize)]
struct Payment {
    amount: i64,
}

/// What is kept of an account.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Account {
    balance: i64,
    payments: u64,
}

struct Balances;

impl Reducer for Balances {
    fn fold(&self, current: Option<&[u8]>, event: &Record) -> Result<Vec<u8>, String> {
        let account: Account = match current {
            Some(current) => serde_json::from_slice(current).map_err(|e| format!("stored account: {e}"))?,
            None => Account::default(),
        };
        let payment: Payment = serde_json::from_slice(&event.value).map_err(|e| format!("payment: {e}"))?;
        let balance = account.balance.checked_add(payment.amount).ok_or("the balance would overflow")?;
        let account = Account { balance, payments: account.payments + 1 };
        serde_json::to_vec(&account).map_err(|e| e.to_string())
    }
}

/// Tells the account's owner. A marked effect may have been told before.
struct Tell;

#[async_trait]
impl Handler for Tell {
    async fn handle(&self, effect: &Effect) -> Result<(), Fault> {
        let mark = if effect.resent { " (perhaps again)" } else { "" };
        println!("{} payment {} rev {}{mark}", effect.key.object, effect.record.event_id, effect.rev);
        Ok(())
    }
}

/// Fold payments into balances
#[derive(Debug, Parser)]
struct Args {
    /// Folder of the embedded log and store
    #[arg(long, default_value = "data")]
    data: PathBuf,
    /// HOST:PORT of Kafka; with --cql: the distributed engine
    #[arg(long, requires = "cql")]
    kafka: Option<String>,
    /// HOST:PORT of ScyllaDB or Cassandra
    #[arg(long, requires = "kafka")]
    cql: Option<String>,
    /// Class of tenants, as in the edge's configuration
    #[arg(long, default_value = "main")]
    class: String,
    #[arg(long, default_value = "seriatim")]
    keyspace: String,
    #[arg(long, default_value_t = seriatim_schemas::tables::BUCKETS)]
    buckets: u32,
}

async fn open(args: &Args) -> anyhow::Result<(Arc<dyn Log>, Arc<dyn Store>)> {
    let (Some(kafka), Some(cql)) = (&args.kafka, &args.cql) else {
        use seriatim_processor::{log::sqlite::SqliteLog, store::sqlite::SqliteStore};
        let log = SqliteLog::open(&args.data).context("does the edge run in this folder?")?;
        return Ok((Arc::new(log), Arc::new(SqliteStore::open(&args.data)?)));
    };
    use seriatim_processor::{log::kafka::KafkaLog, store::cql::CqlStore};
    let kafka = KafkaConfig { brokers: kafka.clone(), class: args.class.clone(), ..KafkaConfig::default() };
    let cql = CqlConfig {
        nodes: vec![cql.clone()],
        keyspace: args.keyspace.clone(),
        buckets: args.buckets,
        ..CqlConfig::default()
    };
    let log = KafkaLog::connect(&kafka, FIRST_GENERATION).await?;
    Ok((Arc::new(log), Arc::new(CqlStore::connect(&cql, &args.class, FIRST_GENERATION, true).await?)))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let args = Args::parse();
    // One processor at a time works on the embedded files.
    let _lock = args.kafka.is_none().then(|| seriatim_processor::lock::lock(&args.data, "processor")).transpose()?;
    let (log, store) = open(&args).await?;
    let source: SourceConfig = toml::from_str(include_str!("../source.toml"))?;
    let source = source.resolve().map_err(|problems| anyhow::anyhow!("{problems:?}"))?;
    let processor = Processor {
        config: ProcessorConfig::default(),
        log,
        store,
        sources: vec![source],
        sinks: vec![NamedSink::new("tell", SinkPolicy::default(), Arc::new(HandlerSink(Tell)))],
        metrics: ProcessorMetrics::default(),
        fetches: Vec::new(),
        reducer: Some(Arc::new(Balances)),
    };
    let (stop, mut terminate) = (CancellationToken::new(), signal(SignalKind::terminate())?);
    let stopped = stop.clone();
    tokio::spawn(async move {
        terminate.recv().await;
        stopped.cancel();
    });
    Ok(processor.run(stop).await?)
}
