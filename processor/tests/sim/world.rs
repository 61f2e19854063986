//! One history: processes that live beside and after one another over one log, one store and some receivers, on a clock
//! that leaps. What happens is said by a plan; all is well at its end, and then everything must be where it belongs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Once};
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use seriatim_processor::config::ProcessorConfig;
use seriatim_processor::error::RunError;
use seriatim_processor::inspect::Inspect;
use seriatim_processor::metrics::ProcessorMetrics;
use seriatim_processor::reduce::Reducer;
use seriatim_processor::run::Processor;
use seriatim_processor::sink::{NamedSink, SinkPolicy};
use seriatim_processor::store::{GroupBounds, Store};
use seriatim_schemas::control::{Control, ControlAct};
use seriatim_schemas::id::RecordId;
use seriatim_schemas::key::{ObjectKey, RecordKey};
use seriatim_schemas::record::Record;
use seriatim_schemas::row::{Snapshot, State, WaitingSink};
use seriatim_schemas::sequence::GAP;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;

use super::broker::{Broker, Member};
use super::check::check;
use super::faults::{Fault, Faults};
use super::plan::{Incident, Plan};
use super::process::{Pace, Process, Trace};
use super::receiver::{Mood, Receiver, SimulatedSink};
use super::store::{SimulatedStore, StoreWorld};
use super::traffic::{Traffic, Walk, source};

pub const SINKS: [&str; 2] = ["ledger", "mirror"];

/// How often the world looks at what is due.
const TICK: Duration = Duration::from_millis(5);
/// A process that is silent for so long loses its partitions.
const SESSION: Duration = Duration::from_millis(1000);
/// How soon all must be done once all is well.
const SETTLED_WITHIN: Duration = Duration::from_secs(300);

thread_local! {
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

/// An object without what its batches count.
type Lasting = (ObjectKey, i64, Option<Snapshot>, Option<Bytes>, Option<State>);

/// What one history came to.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    pub trace: u64,
    pub steps: u64,
    pub events: usize,
    pub struck: BTreeMap<Fault, u64>,
    pub violation: Option<String>,
    /// What was in the log, where something is not as promised.
    pub log: Option<String>,
}

pub fn run<S: Store + Inspect>(plan: &Plan, store: Arc<S>) -> History {
    count_panics();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime starts").block_on(async {
        let mut world = World::new(plan, store);
        let lived = world.live().await;
        let violation = match lived {
            Ok(()) if PANICS.get() == 0 => world.check().await.err(),
            Ok(()) => Some("something panicked".to_owned()),
            Err(violation) => Some(violation),
        };
        let (trace, steps) = (world.trace.sum(), world.trace.steps());
        let log = violation.as_ref().map(|_| world.tell_log());
        History { trace, steps, events: world.broker.log().len(), struck: world.faults.struck(), violation, log }
    })
}

/// A panic in a task of a processor would be logged, and its records read again.
fn count_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            before(info);
        }));
    });
    PANICS.set(0);
}

struct Running {
    process: Arc<Process>,
    task: JoinHandle<Result<(), RunError>>,
    /// When it loses its partitions, should it be silent until then.
    expelled_at: Option<Instant>,
    thaws_at: Option<Instant>,
}

#[derive(Default)]
struct Slot {
    running: Option<Running>,
    starts_at: Option<Instant>,
}

struct World<'a, S> {
    plan: &'a Plan,
    rng: SmallRng,
    begin: Instant,
    trace: Arc<Trace>,
    faults: Arc<Faults>,
    traffic: Traffic,
    broker: Arc<Broker>,
    store: Arc<S>,
    store_world: Arc<StoreWorld>,
    receivers: Vec<Arc<Receiver>>,
    slots: Vec<Slot>,
    /// Those that are stopping, or dead.
    past: Vec<Running>,
    count: usize,
    config: ProcessorConfig,
    bounds: GroupBounds,
    policies: Vec<SinkPolicy>,
    batch_max: usize,
}

impl<'a, S: Store + Inspect> World<'a, S> {
    fn new(plan: &'a Plan, store: Arc<S>) -> Self {
        let mut rng = SmallRng::seed_from_u64(plan.seed);
        let traffic = Traffic::new(plan.seed, plan.deliveries, plan.objects, plan.poisoned);
        let (config, bounds) = (config(&mut rng), bounds(&mut rng));
        let policies = SINKS.iter().map(|_| policy(&mut rng)).collect();
        Self {
            plan,
            begin: Instant::now(),
            trace: Arc::default(),
            faults: Arc::new(Faults::new(plan.seed, plan.rate, &plan.faults)),
            broker: Arc::new(Broker::new(plan.partitions, traffic.late.clone())),
            traffic,
            store,
            store_world: Arc::default(),
            receivers: SINKS.iter().map(|_| Arc::default()).collect(),
            slots: (0..plan.processes).map(|_| Slot { starts_at: Some(Instant::now()), running: None }).collect(),
            past: Vec::new(),
            count: 0,
            config,
            bounds,
            policies,
            batch_max: rng.random_range(1..6),
            rng,
        }
    }

    async fn live(&mut self) -> Result<(), String> {
        let deliveries: Vec<Record> = self.traffic.records.clone();
        let mut due: Vec<(u64, &Record)> = deliveries
            .iter()
            .enumerate()
            .filter(|(n, _)| !self.plan.left_out.contains(n))
            .map(|(_, record)| (self.rng.random_range(0..self.plan.lasts), record))
            .collect();
        due.sort_by_key(|(at, _)| *at);
        let (mut due, mut incidents) = (due.into_iter().peekable(), self.plan.incidents.iter().peekable());
        loop {
            let now = self.begin.elapsed().as_millis() as u64;
            while let Some((_, record)) = due.next_if(|(at, _)| *at <= now) {
                self.broker.append(record.clone());
            }
            while let Some((_, incident)) = incidents.next_if(|(at, _)| *at <= now) {
                self.befall(*incident);
                if *incident == Incident::Redrive {
                    self.redrive_parked(&self.waiting().await);
                }
            }
            self.tick()?;
            if due.peek().is_none() && incidents.peek().is_none() {
                break;
            }
            tokio::time::sleep(TICK).await;
        }
        self.heal();
        self.rest().await
    }

    /// Until all is done, and nobody runs.
    async fn rest(&mut self) -> Result<(), String> {
        // While they stop, a record that passes a gap may be appended, and what one sends that had slept may begin to
        // wait.
        loop {
            self.settle().await?;
            self.end().await?;
            let ends = self.broker.ends();
            if self.store_world.floors(ends.len()) == ends && self.waiting().await.is_empty() {
                return Ok(());
            }
        }
    }

    fn befall(&mut self, incident: Incident) {
        let now = Instant::now();
        let until = |time: u64| now + Duration::from_millis(time);
        match incident {
            Incident::Crash { process } => {
                if let Some(mut crashed) = self.slots[process].running.take() {
                    crashed.process.kill();
                    crashed.expelled_at = Some(now + SESSION);
                    self.past.push(crashed);
                    self.slots[process].starts_at = Some(until(self.rng.random_range(1..1500)));
                }
            }
            Incident::Freeze { process, time } => {
                if let Some(frozen) = &mut self.slots[process].running {
                    frozen.process.freeze();
                    frozen.thaws_at = Some(until(time));
                    frozen.expelled_at = Some(now + SESSION).filter(|at| *at < until(time));
                }
            }
            Incident::Stop { process } => {
                if let Some(stopping) = self.slots[process].running.take() {
                    self.past.push(stopping);
                    self.rebalance(self.count);
                    self.past.last().expect("it was just put there").process.stop.cancel();
                    self.slots[process].starts_at = Some(until(self.rng.random_range(1..500)));
                }
            }
            Incident::Rebalance { first } => self.rebalance(first),
            Incident::StoreAway { time } => self.store_world.set_away(until(time)),
            Incident::LogAway { time } => self.broker.set_away(until(time)),
            Incident::SinkAway { sink, time } => self.receivers[sink].set(Mood::Away, until(time)),
            Incident::SinkHangs { sink, time } => self.receivers[sink].set(Mood::Hangs, until(time)),
            Incident::SinkRefuses { sink, object, time } => {
                self.receivers[sink].set(Mood::Refuses(format!("object {object}")), until(time));
            }
            Incident::ClockJump { process, by } => {
                self.slots[process].running.iter().for_each(|running| running.process.jump(by));
            }
            Incident::Grows { by, late } => self.broker.grow(by, until(late)),
            // Done by whoever asks what waits.
            Incident::Redrive => {}
            Incident::FloorsLost => {
                (0..self.slots.len()).for_each(|process| self.befall(Incident::Crash { process }));
                self.store_world.lose_floors();
            }
        }
    }

    /// Does what is due: starts, wakes and expels processes, and hands partitions over.
    fn tick(&mut self) -> Result<(), String> {
        let now = Instant::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let mut changed = false;
        for index in 0..self.slots.len() {
            if is_due(self.slots[index].starts_at) && self.slots[index].running.is_none() {
                self.slots[index] = Slot { running: Some(self.start()), starts_at: None };
                changed = true;
            }
        }
        let running = self.slots.iter_mut().filter_map(|slot| slot.running.as_mut());
        for one in running.chain(&mut self.past) {
            if is_due(one.expelled_at) {
                one.expelled_at = None;
                self.broker.expel(one.process.number);
                changed = true;
            }
            if is_due(one.thaws_at) {
                one.thaws_at = None;
                one.process.thaw();
                changed = true;
            }
        }
        for one in self.slots.iter().filter_map(|slot| slot.running.as_ref()) {
            if one.task.is_finished() {
                return Err(format!("process {} has ended by itself", one.process.number));
            }
        }
        if changed || self.broker.has_orphans() {
            self.rebalance(0);
        }
        self.broker.tick();
        Ok(())
    }

    fn rebalance(&mut self, first: usize) {
        let is_member = |one: &&Running| one.expelled_at.is_none() && one.process.is_running();
        let members: Vec<usize> =
            self.slots.iter().filter_map(|s| s.running.as_ref()).filter(is_member).map(|r| r.process.number).collect();
        let grace = Duration::from_millis(self.rng.random_range(20..2000));
        self.broker.rebalance(&members, first, grace);
    }

    fn start(&mut self) -> Running {
        let pace = Pace {
            max: Duration::from_millis(self.plan.step),
            slow_share: 0.01,
            slow: Duration::from_millis(self.plan.slow_step),
        };
        self.count += 1;
        let process = Arc::new(Process::new(self.count, self.plan.seed, self.begin, pace, self.trace.clone()));
        let store = SimulatedStore {
            inner: self.store.clone(),
            faults: self.faults.clone(),
            process: process.clone(),
            bounds: self.bounds,
            poison: self.traffic.poison.clone(),
            world: self.store_world.clone(),
        };
        let (broker, faults) = (self.broker.clone(), self.faults.clone());
        let log = Member { broker, faults, process: process.clone() };
        let sink = |((name, receiver), policy): ((&&str, &Arc<Receiver>), &SinkPolicy)| {
            let (receiver, faults, batch_max) = (receiver.clone(), self.faults.clone(), self.batch_max);
            let (process, broker) = (process.clone(), self.broker.clone());
            let sink = SimulatedSink { receiver, faults, process, broker, batch_max };
            NamedSink::new(*name, policy.clone(), Arc::new(sink))
        };
        let processor = Processor {
            config: self.config.clone(),
            log: Arc::new(log),
            store: Arc::new(store),
            sources: vec![source(&self.traffic.tenant)],
            sinks: SINKS.iter().zip(&self.receivers).zip(&self.policies).map(sink).collect(),
            metrics: ProcessorMetrics::default(),
            fetches: Vec::new(),
            reducer: Some(Arc::new(Noted)),
        };
        let ready = processor.ready_under(process.clone()).expect("nothing is missing");
        let task = tokio::spawn(ready.run(process.stop.clone()));
        Running { process, task, expelled_at: None, thaws_at: None }
    }

    /// What was appended, a line each, for a person.
    fn tell_log(&self) -> String {
        let tell = |r: Record| {
            let poison = if self.traffic.poison.contains(&r.event_id) { " poison" } else { "" };
            let body = String::from_utf8_lossy(&r.value).into_owned();
            format!("{} {} {} {}{poison} {body}", r.key, r.event_id, r.event_type, r.version.unwrap_or_default())
        };
        self.broker.log().into_iter().map(tell).collect::<Vec<_>>().join("\n")
    }

    /// Nothing fails any more.
    fn heal(&mut self) {
        let now = Instant::now();
        self.faults.heal();
        self.store_world.set_away(now);
        self.broker.set_away(now);
        self.receivers.iter().for_each(|receiver| receiver.set(Mood::Away, now));
        for slot in &mut self.slots {
            slot.starts_at = slot.starts_at.map(|_| now);
            if let Some(running) = &mut slot.running {
                running.thaws_at = running.thaws_at.map(|_| now);
            }
        }
    }

    async fn settle(&mut self) -> Result<(), String> {
        let healed = Instant::now();
        loop {
            self.tick()?;
            let waiting = self.waiting().await;
            let ends = self.broker.ends();
            let floors = self.store_world.floors(ends.len());
            // One that was stopped in its sleep ends when it wakes up, and may send till then.
            let is_past = self.past.iter().all(|past| past.process.is_dead() || past.task.is_finished());
            let all_run = self.slots.iter().all(|slot| slot.running.is_some());
            if is_past && all_run && waiting.is_empty() && floors == ends {
                return Ok(());
            }
            if healed.elapsed() > SETTLED_WITHIN {
                return Err(format!(
                    "{SETTLED_WITHIN:?} after all is well: floors {floors:?} of {ends:?}, waiting {waiting:?}"
                ));
            }
            self.redrive_parked(&waiting);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn waiting(&self) -> Vec<WaitingSink> {
        let mut all = Vec::new();
        for bucket in 0..self.store.buckets() {
            all.extend(self.store.waiting(bucket).await.expect("waiting answers"));
        }
        all
    }

    fn redrive_parked(&self, waiting: &[WaitingSink]) {
        let parked = waiting.iter().filter(|w| w.is_parked && w.sink != GAP);
        parked.for_each(|waiting| self.redrive(waiting));
    }

    /// As an operator does.
    fn redrive(&self, waiting: &WaitingSink) {
        let act = ControlAct::Redrive { sink: waiting.sink.clone() };
        let control = Control { act, by: "operator".to_owned(), reason: None };
        let id = Uuid::from_u128(u128::MAX - self.broker.log().len() as u128);
        self.broker.append(control.record(RecordKey::Object(waiting.key.clone()), id, jiff::Timestamp::UNIX_EPOCH));
    }

    /// Each process stops in time.
    async fn end(&mut self) -> Result<(), String> {
        let begin = Some(Instant::now());
        for Running { process, task, .. } in self.slots.iter_mut().filter_map(|slot| slot.running.take()) {
            process.stop.cancel();
            match tokio::time::timeout(Duration::from_secs(60), task).await {
                Ok(Ok(Ok(()))) => {}
                Ok(ended) => return Err(format!("process {} ended badly: {ended:?}", process.number)),
                Err(_) => return Err(format!("process {} does not stop", process.number)),
            }
        }
        self.slots.iter_mut().for_each(|slot| slot.starts_at = begin);
        Ok(())
    }

    async fn check(&mut self) -> Result<(), String> {
        let walk = Walk { moved: self.broker.moved(), ..self.traffic.walk(self.broker.log()) };
        check(&walk, self.store.as_ref(), &self.traffic.tenant, &self.receivers).await?;
        if self.plan.outlives { self.outlive(&walk).await } else { Ok(()) }
    }

    /// When nothing is remembered of its events, an object's state is as it was, whatever comes again.
    async fn outlive(&mut self, walk: &Walk) -> Result<(), String> {
        let before = self.all_there_is(walk).await;
        self.store.expire(i64::MAX).await.expect("expire answers");
        for record in walk.snapshots() {
            let id = RecordId { request: Uuid::from_u128(u128::MAX - self.broker.log().len() as u128), item: 0 };
            self.broker.append(Record { id, ..record.clone() });
        }
        self.rest().await?;
        let after = self.all_there_is(walk).await;
        if before == after { Ok(()) } else { Err(format!("after all rows expired: {after:?}, not {before:?}")) }
    }

    /// Objects as far as they last, and how much was received.
    async fn all_there_is(&self, walk: &Walk) -> (Vec<Lasting>, Vec<usize>) {
        let mut objects = Vec::new();
        for key in walk.objects.keys() {
            let found = self.store.object(key).await.expect("object answers");
            objects.extend(found.map(|o| (o.key, o.head.rev, o.head.snapshot, o.head.fold, o.state)));
        }
        (objects, self.receivers.iter().map(|receiver| receiver.received().len()).collect())
    }
}

/// Limits small enough to be met, and other ones for each seed.
fn config(rng: &mut SmallRng) -> ProcessorConfig {
    ProcessorConfig {
        budget_bytes: rng.random_range(4..64) * 1024,
        groups_in_flight_max: rng.random_range(1..8),
        advance_interval_ms: rng.random_range(2..200),
        look_interval_ms: rng.random_range(200..20_000),
        drain_timeout_ms: rng.random_range(10..1000),
        retry_min_ms: 1,
        retry_max_ms: rng.random_range(2..100),
        ..ProcessorConfig::default()
    }
}

fn bounds(rng: &mut SmallRng) -> GroupBounds {
    GroupBounds {
        events: rng.random_range(2..50),
        objects: rng.random_range(1..25),
        bytes: rng.random_range(2..64) * 1024,
    }
}

/// Limits small enough that effects wait, overflow, and find the sink away.
fn policy(rng: &mut SmallRng) -> SinkPolicy {
    SinkPolicy {
        concurrency: rng.random_range(1..8),
        wait_after_ms: rng.random_range(20..500),
        retry_min_ms: 1,
        retry_max_ms: rng.random_range(4..200),
        failures_max: rng.random_range(1..4),
        waiting_max: rng.random_range(1..20),
        ..SinkPolicy::default()
    }
}

/// Folds the event ids that it is given.
struct Noted;

impl Reducer for Noted {
    fn fold(&self, current: Option<&[u8]>, event: &Record) -> Result<Vec<u8>, String> {
        Ok([current.unwrap_or_default(), event.event_id.as_bytes(), b"\n"].concat())
    }
}
