//! Runs the parts of one process, edge, processor and admin port, until a signal; then stops them in the
//! order that loses nothing: the edge first, then the processor.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use prometheus_client::registry::Registry;
use seriatim_ingest::body::InFlight;
use seriatim_ingest::connection::Silence;
use seriatim_ingest::fetch::{Fetcher, Https};
use seriatim_ingest::filter::Filter;
use seriatim_ingest::metrics::{IngestMetrics, SecretUse};
use seriatim_ingest::sources::Sources;
use seriatim_ingest::webhook::Edge;
use seriatim_processor::lock::{DataLock, lock};
use seriatim_processor::log::Floors;
use seriatim_processor::metrics::ProcessorMetrics;
use seriatim_processor::run::Processor;
use seriatim_schemas::tables::FIRST_GENERATION;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use crate::admin::{self, Admin, Refusals};
use crate::api::Api;
use crate::api::auth::Tokens;
use crate::api::direct::Direct;
use crate::config::{Config, Engine};
use crate::signals::Signals;
use crate::{engine, secrets};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    pub ingest: bool,
    pub processor: bool,
}

/// The running parts, and where they listen.
pub struct Service {
    pub edge_addr: Option<SocketAddr>,
    pub admin_addr: SocketAddr,
    stop: CancellationToken,
    edge: Option<JoinHandle<std::io::Result<()>>>,
    processor: Option<JoinHandle<Result<(), seriatim_processor::error::RunError>>>,
    admin: JoinHandle<()>,
    edge_stop: CancellationToken,
    _locks: Vec<DataLock>,
}

impl Service {
    /// Starts all parts; each listens when this returns.
    pub async fn start(config: &Config, roles: Roles) -> anyhow::Result<Self> {
        let own = [("ingest", roles.ingest), ("processor", roles.processor)];
        let own = own.into_iter().filter(|(_, is_own)| *is_own && config.engine == Engine::Embedded);
        let locks = own.map(|(role, _)| lock(&config.data, role)).collect::<Result<_, _>>()?;
        let tokens = Tokens::read(&config.admin.tokens)?;
        if !tokens.is_empty() && !config.admin.listen.ip().is_loopback() {
            let listen = config.admin.listen;
            warn!(%listen, "tokens of the admin API cross a network readable: put a proxy that ends TLS before it");
        }
        let mut registry = Registry::default();
        let (stop, edge_stop) = (CancellationToken::new(), CancellationToken::new());
        let append = match config.engine {
            // The embedded log's file is made by its writer, so a lone processor opens it too.
            Engine::Embedded => Some(engine::open_append(config).await?),
            Engine::Distributed if roles.ingest => Some(engine::open_append(config).await?),
            Engine::Distributed => None,
        };
        let (mut floors, mut processor, mut watched) = (None, None, Vec::new());
        if roles.processor {
            let log = engine::open_log(config).await?;
            let store = engine::open_store(config).await?;
            floors =
                Some(Floors { store: store.clone(), generation: FIRST_GENERATION.to_owned(), log: log.identity() });
            let metrics = ProcessorMetrics::register(&mut registry);
            let (sinks, fetches) = (engine::open_sinks(config)?, engine::open_fetches(config)?);
            let (sources, config) = (config.sources(), config.processor.clone());
            let ready = Processor { config, log, store, sources, sinks, fetches, metrics, reducer: None }.ready()?;
            watched = ready.sinks();
            processor = Some(tokio::spawn(ready.run(stop.clone())));
        }
        let (mut edge_addr, mut edge, mut refusals) = (None, None, None);
        if roles.ingest {
            let listener = bind(config.ingest.listen, "ingest.listen").await?;
            edge_addr = Some(listener.local_addr()?);
            let log = append.clone().expect("an edge has a log to append to");
            let parts = edge_parts(config, log, IngestMetrics::register(&mut registry)).await?;
            registry.register_collector(Box::new(SecretUse(parts.sources.clone())));
            tokio::spawn(secrets::watch(parts.sources.clone(), stop.clone()));
            refusals = Some(Refusals { sources: parts.sources.clone(), refused: parts.refused.clone() });
            edge = Some(tokio::spawn(seriatim_ingest::server::serve(
                parts,
                listener,
                edge_stop.clone().cancelled_owned(),
            )));
        }
        let listener = bind(config.admin.listen, "admin.listen").await?;
        let admin_addr = listener.local_addr()?;
        let shared = Arc::new(config.clone());
        let api = Api::new(Direct::new(shared.clone(), append.clone()), shared, watched, tokens);
        let append = append.filter(|_| roles.ingest);
        let admin = Admin { registry: Arc::new(registry), append, floors, refusals, stop: edge_stop.clone() };
        let admin = tokio::spawn(admin::serve(admin, Arc::new(api), Silence::of(&config.ingest), listener));
        info!(edge = ?edge_addr, admin = %admin_addr, "started");
        Ok(Self { edge_addr, admin_addr, stop, edge, processor, admin, edge_stop, _locks: locks })
    }

    /// Runs until SIGTERM or SIGINT, `done`, or until a part ends by itself; then stops all parts.
    pub async fn run(mut self, mut signals: Signals, done: impl Future<Output = ()>) -> anyhow::Result<()> {
        let own_end = async {
            match &mut self.processor {
                Some(processor) => processor.await,
                None => std::future::pending().await,
            }
        };
        let mut ended = None;
        tokio::select! {
            signal = signals.next() => info!("{signal}: stopping"),
            () = done => {}
            result = own_end => ended = Some(result),
        }
        self.edge_stop.cancel();
        if let Some(edge) = self.edge.take() {
            edge.await.context("the edge ended badly")??;
        }
        self.stop.cancel();
        let result = match (ended, self.processor.take()) {
            (Some(result), _) => result,
            (None, Some(processor)) => processor.await,
            (None, None) => Ok(Ok(())),
        };
        self.admin.abort();
        if let Ok(Err(error)) = &result {
            error!(%error, "the processor ended");
        }
        result.context("the processor ended badly")??;
        info!("stopped");
        Ok(())
    }
}

async fn bind(addr: SocketAddr, setting: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(addr).await.with_context(|| format!("{setting}: cannot listen on {addr}"))
}

async fn edge_parts(
    config: &Config,
    log: Arc<dyn seriatim_ingest::log::Append>,
    metrics: IngestMetrics,
) -> anyhow::Result<Edge> {
    let mut decoy_key = [0; 32];
    decoy_key[..16].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
    decoy_key[16..].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
    let filter = match &config.ingest.filter {
        Some(filter) => {
            let filter = Filter::open(filter, log.clone(), metrics.filtered.clone()).await;
            Some(Arc::new(filter.context("ingest.filter.redis")?))
        }
        None => None,
    };
    Ok(Edge {
        sources: Arc::new(Sources::new(config.sources(), decoy_key)?),
        clock: jiff::Timestamp::now,
        fetcher: Fetcher::new(Arc::new(Https::new()?)),
        refused: Default::default(),
        filter,
        in_flight: InFlight::new(config.ingest.in_flight_bytes_max, metrics.in_flight_bytes.clone()),
        config: Arc::new(config.ingest.clone()),
        log,
        metrics,
        publishing: TaskTracker::new(),
    })
}
