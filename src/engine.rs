//! From the configuration to the two halves of a log and a store: one `match`, here.

use std::sync::Arc;

use anyhow::Context;
use seriatim_ingest::log::Append;
use seriatim_ingest::secret::{read_secret, read_secrets};
use seriatim_processor::inspect::{Inspect, InspectLog};
use seriatim_processor::log::Log;
use seriatim_processor::sink::fetch::{Fetch, Hosts};
use seriatim_processor::sink::json_lines::JsonLines;
use seriatim_processor::sink::push::{Push, PushConfig};
use seriatim_processor::sink::{NamedSink, Sink};
use seriatim_processor::store::Store;
use seriatim_processor::store::sqlite::SqliteStore;
#[cfg(any(feature = "kafka", feature = "cql"))]
use seriatim_schemas::tables::FIRST_GENERATION;

use seriatim_schemas::source::{SecretRef, Source};

use crate::config::{Config, Engine, SinkConfig};

pub async fn open_append(config: &Config) -> anyhow::Result<Arc<dyn Append>> {
    match config.engine {
        Engine::Embedded => {
            let log = seriatim_ingest::log::sqlite::SqliteLog::open(&config.data, config.embedded.log_bytes_max);
            Ok(Arc::new(log.with_context(|| format!("the log in {}", config.data.display()))?))
        }
        #[cfg(feature = "kafka")]
        Engine::Distributed => {
            use seriatim_ingest::log::kafka::KafkaLog;
            Ok(Arc::new(KafkaLog::new(&config.kafka, config.ingest.publish_timeout_ms)?))
        }
        #[cfg(not(feature = "kafka"))]
        Engine::Distributed => anyhow::bail!("this binary was built without the feature kafka"),
    }
}

pub async fn open_log(config: &Config) -> anyhow::Result<Arc<dyn Log>> {
    match config.engine {
        Engine::Embedded => Ok(Arc::new(seriatim_processor::log::sqlite::SqliteLog::open(&config.data)?)),
        #[cfg(feature = "kafka")]
        Engine::Distributed => {
            use seriatim_processor::log::kafka::KafkaLog;
            Ok(Arc::new(KafkaLog::connect(&config.kafka, FIRST_GENERATION).await?))
        }
        #[cfg(not(feature = "kafka"))]
        Engine::Distributed => anyhow::bail!("this binary was built without the feature kafka"),
    }
}

pub async fn open_store(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    match config.engine {
        Engine::Embedded => Ok(Arc::new(SqliteStore::open(&config.data)?)),
        #[cfg(feature = "cql")]
        Engine::Distributed => Ok(Arc::new(open_cql(config).await?)),
        #[cfg(not(feature = "cql"))]
        Engine::Distributed => anyhow::bail!("this binary was built without the feature cql"),
    }
}

/// The store to look into, beside a processor that may be at work on it.
pub async fn open_inspect(config: &Config) -> anyhow::Result<Arc<dyn Inspect>> {
    match config.engine {
        Engine::Embedded => {
            let store = SqliteStore::open_read_only(&config.data);
            Ok(Arc::new(store.context("is this the right data folder, and was it ever used?")?))
        }
        #[cfg(feature = "cql")]
        Engine::Distributed => Ok(Arc::new(open_cql(config).await?)),
        #[cfg(not(feature = "cql"))]
        Engine::Distributed => anyhow::bail!("this binary was built without the feature cql"),
    }
}

/// The log to look into.
pub async fn open_inspect_log(config: &Config) -> anyhow::Result<Arc<dyn InspectLog>> {
    match config.engine {
        Engine::Embedded => {
            let log = seriatim_processor::log::sqlite::SqliteLog::open(&config.data);
            Ok(Arc::new(log.context("is this the right data folder, and was it ever used?")?))
        }
        #[cfg(feature = "kafka")]
        Engine::Distributed => {
            use seriatim_processor::log::kafka::KafkaLog;
            Ok(Arc::new(KafkaLog::connect(&config.kafka, FIRST_GENERATION).await?))
        }
        #[cfg(not(feature = "kafka"))]
        Engine::Distributed => anyhow::bail!("this binary was built without the feature kafka"),
    }
}

#[cfg(feature = "cql")]
async fn open_cql(config: &Config) -> anyhow::Result<seriatim_processor::store::cql::CqlStore> {
    use seriatim_processor::store::cql::CqlStore;
    Ok(CqlStore::connect(&config.cql, &config.kafka.class, FIRST_GENERATION, config.processor.event_index).await?)
}

pub fn open_sinks(config: &Config) -> anyhow::Result<Vec<NamedSink>> {
    let open = |sink: &SinkConfig| {
        let opened = open_sink(config, sink).with_context(|| format!("sink {}", sink.name))?;
        Ok(NamedSink::new(&sink.name, sink.policy.clone(), opened))
    };
    config.sink.iter().map(open).collect()
}

fn open_sink(config: &Config, sink: &SinkConfig) -> anyhow::Result<Arc<dyn Sink>> {
    #[cfg(feature = "kafka")]
    if let Some(topic) = &sink.kafka {
        use seriatim_processor::sink::kafka::CleanTopic;
        return Ok(Arc::new(CleanTopic::new(topic, &config.kafka.brokers, sink.policy.wait_after_ms)?));
    }
    #[cfg(not(feature = "kafka"))]
    let _ = config;
    if let Some(lines) = &sink.json_lines {
        if let Some(folder) = lines.path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let opened = JsonLines::open(&lines.path).with_context(|| format!("cannot open {}", lines.path.display()))?;
        return Ok(Arc::new(opened));
    }
    let push = sink.push.as_ref().expect("validated: a sink has a kind");
    Ok(Arc::new(open_push(push)?))
}

fn open_push(push: &PushConfig) -> anyhow::Result<Push> {
    let secrets = read_secrets(&push.secrets).context("push.secrets")?;
    let header = |(name, value): (&String, &SecretRef)| Ok((name.clone(), read_secret(value)?));
    let headers = push.headers.iter().map(header).collect::<anyhow::Result<Vec<_>>>().context("push.headers")?;
    Ok(Push::new(push, &secrets, &headers)?)
}

/// What fetches the documents of thin events, one for each source that asks for it.
pub fn open_fetches(config: &Config) -> anyhow::Result<Vec<Fetch>> {
    let hosts = Arc::new(Hosts::new(config.processor.fetch_rate_per_host_s));
    let open = |source: Source| {
        let token = source.fetch.as_ref().and_then(|fetch| fetch.token.as_ref()).map(read_secret).transpose();
        let name = format!("source {}/{}: fetch.token", source.tenant, source.name);
        Ok(Fetch::new(&source, token.context(name)?.as_deref(), hosts.clone())?)
    };
    config.sources().into_iter().filter(|source| source.fetch.is_some()).map(open).collect()
}

/// Reads the secrets of all sinks and fetches, and opens nothing.
pub fn check_sinks(config: &Config) -> anyhow::Result<()> {
    let check = |sink: &SinkConfig| match &sink.push {
        Some(push) => open_push(push).map(|_| ()).with_context(|| format!("sink {}", sink.name)),
        None => Ok(()),
    };
    config.sink.iter().try_for_each(check)?;
    open_fetches(config).map(|_| ())
}
