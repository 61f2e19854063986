//! A processor: one task per partition that the log assigns, started and drained here.

use std::collections::BTreeMap;
use std::sync::Arc;

use seriatim_schemas::record::DecodeError;
use seriatim_schemas::source::Source;
use seriatim_schemas::tables::{FIRST_EPOCH, FIRST_GENERATION};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::budget::Budget;
use crate::candidate::Declarations;
use crate::config::ProcessorConfig;
use crate::error::{LogError, RunError};
use crate::log::{Floors, Log, LogEntry, LogEvent};
use crate::metrics::ProcessorMetrics;
use crate::outside::{Machine, Outside};
use crate::partition::{Partition, Shared};
use crate::reduce::Reducer;
use crate::settle::Settler;
use crate::sink::NamedSink;
use crate::sink::fetch::Fetch;
use crate::store::Store;

/// How often what has outlived its time is removed.
const EXPIRE_INTERVAL_S: u64 = 600;

/// What a processor is made of.
pub struct Processor {
    pub config: ProcessorConfig,
    pub log: Arc<dyn Log>,
    pub store: Arc<dyn Store>,
    pub sources: Vec<Source>,
    pub sinks: Vec<NamedSink>,
    pub metrics: ProcessorMetrics,
    /// One for each source that fetches the documents of its thin events.
    pub fetches: Vec<Fetch>,
    /// Folds deltas, where the program that embeds the processor has something to fold.
    pub reducer: Option<Arc<dyn Reducer>>,
}

/// A processor that is ready to run.
pub struct Ready {
    shared: Arc<Shared>,
}

struct Owned {
    entries: mpsc::UnboundedSender<Vec<LogEntry>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Processor {
    /// Runs until `stop`, then drains every partition. Ends by itself only where going on would lose records.
    pub async fn run(self, stop: CancellationToken) -> Result<(), RunError> {
        self.ready()?.run(stop).await
    }

    /// Refuses what would not be sent anywhere.
    pub fn ready(self) -> Result<Ready, RunError> {
        self.ready_under(Arc::new(Machine))
    }

    /// As [`Processor::ready`], with a clock, ids and chance of the caller's.
    pub fn ready_under(self, outside: Arc<dyn Outside>) -> Result<Ready, RunError> {
        let is_fetched = |source: &&Source| self.fetches.iter().any(|fetch| fetch.is_of(source));
        if let Some(source) = self.sources.iter().filter(|s| s.fetch.is_some()).find(|s| !is_fetched(s)) {
            let problem = format!("{}/{} has thin events, and nothing that fetches them", source.tenant, source.name);
            return Err(LogError::Refused(problem).into());
        }
        Ok(Ready { shared: Arc::new(self.into_shared(outside)) })
    }

    fn into_shared(self, outside: Arc<dyn Outside>) -> Shared {
        let floors =
            Floors { store: self.store.clone(), generation: FIRST_GENERATION.to_owned(), log: self.log.identity() };
        let budget = Budget::new(self.config.budget_bytes);
        let in_flight = Arc::new(Semaphore::new(self.config.groups_in_flight_max));
        let fetch = |fetch: Fetch| fetch.into_sink(self.store.clone(), self.log.clone(), FIRST_EPOCH);
        let sinks = self.sinks.into_iter().chain(self.fetches.into_iter().map(fetch)).map(Arc::new).collect();
        let declarations = Arc::new(Declarations::new(&self.sources, sinks));
        let settler = Settler {
            store: self.store,
            declarations,
            config: self.config,
            metrics: self.metrics,
            reducer: self.reducer,
            letters: Default::default(),
            outside,
        };
        Shared { settler, log: self.log, floors, epoch: FIRST_EPOCH, budget, in_flight }
    }
}

impl Ready {
    /// All sinks, and what fetches the documents of thin events: for whoever shows how they fare.
    pub fn sinks(&self) -> Vec<Arc<NamedSink>> {
        self.shared.settler.declarations.sinks().to_vec()
    }

    /// As [`Processor::run`].
    pub async fn run(self, stop: CancellationToken) -> Result<(), RunError> {
        let shared = self.shared;
        let budget = shared.budget.clone();
        let (log, metrics) = (shared.log.clone(), shared.settler.metrics.clone());
        let expiring = tokio::spawn(expire(shared.clone(), stop.clone()));
        let mut events = log.start(budget.clone(), shared.floors.clone()).await?;
        let mut owned: BTreeMap<i32, Owned> = BTreeMap::new();
        let mut result = Ok(());
        let mut leaving: Option<JoinHandle<()>> = None;
        loop {
            let event = tokio::select! {
                biased;
                event = events.recv() => event,
                () = stop.cancelled(), if leaving.is_none() => {
                    let log = log.clone();
                    leaving = Some(tokio::spawn(async move { log.stop().await }));
                    continue;
                }
                // The log has let go: what it had to say has been heard.
                Some(_) = ended(&mut leaving) => break,
            };
            metrics.budget_used_bytes.set(budget.used() as i64);
            match event {
                Some(LogEvent::Assigned { partition, start }) => {
                    info!(partition, start, "partition assigned");
                    owned.insert(partition, own(&shared, partition, start));
                }
                Some(LogEvent::Entries { entries, .. }) if let Some(error) = newer_record(&entries) => {
                    error!(%error, "a record is of a newer version");
                    result = Err(error.into());
                    stop.cancel();
                }
                Some(LogEvent::Entries { partition, entries }) => {
                    // Entries of a partition that is gone are read by its new owner.
                    if let Some(owned) = owned.get(&partition) {
                        let _ = owned.entries.send(entries);
                    }
                }
                Some(LogEvent::Revoked { partitions, drained }) => {
                    drain(partitions.iter().filter_map(|p| owned.remove(p)).collect()).await;
                    let _ = drained.send(());
                }
                Some(LogEvent::Failed(error)) => {
                    error!(%error, "the log cannot be read on");
                    result = Err(error.into());
                    stop.cancel();
                }
                None => break,
            }
            metrics.assigned_partitions.set(owned.len() as i64);
        }
        drain(owned.into_values().collect()).await;
        stop.cancel();
        let _ = expiring.await;
        result
    }
}

/// A record that this process must not read: passing it by would lose it.
fn newer_record(entries: &[LogEntry]) -> Option<LogError> {
    let of = |entry: &LogEntry| match &entry.record {
        Err(foreign) if matches!(foreign.error, DecodeError::Newer { .. }) => Some(foreign.error.to_string()),
        _ => None,
    };
    entries.iter().find_map(of).map(LogError::Refused)
}

fn own(shared: &Arc<Shared>, partition: i32, start: i64) -> Owned {
    let (entries, queue) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let task = tokio::spawn(Partition::new(shared.clone(), partition, start, stop.clone()).run(queue));
    Owned { entries, stop, task }
}

async fn ended(task: &mut Option<JoinHandle<()>>) -> Option<()> {
    match task {
        Some(task) => task.await.ok().or(Some(())),
        None => std::future::pending().await,
    }
}

async fn drain(owned: Vec<Owned>) {
    owned.iter().for_each(|o| o.stop.cancel());
    for one in owned {
        if let Err(error) = one.task.await {
            error!(%error, "a partition's task ended badly; its records will be read again");
        }
    }
}

async fn expire(shared: Arc<Shared>, stop: CancellationToken) {
    let mut tick = tokio::time::interval(std::time::Duration::from_secs(EXPIRE_INTERVAL_S));
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        let settler = &shared.settler;
        if let Err(error) = settler.store.expire(settler.outside.now().as_second()).await {
            info!(%error, "old rows stay until the next try");
        }
    }
}
