//! An hour beside neighbours that are not well, on a clock that leaps: ten tenants, each with a sink of its own, whose
//! policy is the one that is shipped. One sink is away, one refuses an object, one hangs. The others must not feel it,
//! and when all are well again every effect is where it belongs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use seriatim_processor::config::ProcessorConfig;
use seriatim_processor::inspect::Inspect;
use seriatim_processor::log::memory::MemoryLog;
use seriatim_processor::metrics::ProcessorMetrics;
use seriatim_processor::run::Processor;
use seriatim_processor::sink::{Effect, Emitted, NamedSink, Sink, SinkPolicy};
use seriatim_processor::store::Store;
use seriatim_processor::store::memory::MemoryStore;
use seriatim_schemas::id::RecordId;
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::record::Record;
use seriatim_schemas::source::Source;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::faults::Faults;
use super::process::{Pace, Process};
use super::seed;
use super::store::SimulatedStore;
use super::traffic::{SOURCE, event, source};

const PARTITIONS: u32 = 4;
const TENANTS: usize = 10;
const AWAY: usize = 0;
const REFUSING: usize = 1;
const HANGING: usize = 2;

/// Fewer events of an object than an outage brings wait in the store: those behind are read from the log again.
const OBJECTS: usize = 10;
const REFUSED: &str = "object 0";
/// Of each tenant an event comes so often.
const EVERY: Duration = Duration::from_millis(250);
const CALM: Duration = Duration::from_secs(600);
const OUTAGE: Duration = Duration::from_secs(3600);
/// How soon all must be where it belongs, once all sinks are well: the longest wait before a probe is 90 s, behind one
/// that hangs.
const RECOVERED_WITHIN: Duration = Duration::from_secs(180);
/// How long a push waits for an answer.
const HANGS_FOR: Duration = Duration::from_secs(10);
const SINK_LATENCY: Duration = Duration::from_millis(10);

#[test]
fn an_hour_beside_sinks_that_are_not_well_on_a_near_store() {
    an_hour(Duration::from_millis(1));
}

#[test]
fn an_hour_beside_sinks_that_are_not_well_on_a_far_store() {
    an_hour(Duration::from_millis(10));
}

fn an_hour(store_latency: Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime starts").block_on(Hour::new(seed(), store_latency).pass());
}

/// How long an answer takes.
struct Latency(Mutex<SmallRng>);

impl Latency {
    async fn pass(&self) {
        let share = self.0.lock().expect("no panic while locked").random_range(0.1..1.0);
        tokio::time::sleep(SINK_LATENCY.mul_f64(share)).await;
    }
}

/// A receiver, and what it has seen.
struct Receiver {
    tenant: usize,
    is_well: Arc<AtomicBool>,
    latency: Latency,
    received: Mutex<Vec<Received>>,
}

#[derive(Debug, Clone)]
struct Received {
    id: String,
    object: String,
    rev: i64,
    resent: bool,
    is_taken: bool,
    at: Instant,
}

impl Receiver {
    fn note(&self, effect: &Effect, is_taken: bool) {
        let (id, object) = (effect.record.event_id.clone(), effect.key.object.clone());
        let received = Received { id, object, rev: effect.rev, resent: effect.resent, is_taken, at: Instant::now() };
        self.received.lock().expect("no panic while locked").push(received);
    }

    fn received(&self) -> Vec<Received> {
        self.received.lock().expect("no panic while locked").clone()
    }

    fn ids(&self, which: impl Fn(&Received) -> bool) -> BTreeSet<String> {
        self.received().into_iter().filter(|r| which(r)).map(|r| r.id).collect()
    }

    /// First effects of an object come in order of rev, and only the first of an event is not marked.
    fn check(&self) {
        let (mut revs, mut seen) = (HashMap::new(), HashMap::new());
        for Received { id, object, rev, resent, .. } in self.received() {
            match seen.insert(id.clone(), rev) {
                Some(before) => assert!(before == rev && resent, "{id} is sent again: rev {before}, then {rev}"),
                None => {
                    let last: Option<i64> = revs.insert(object.clone(), rev);
                    assert_eq!(rev, last.unwrap_or_default() + 1, "{id} of {object}");
                }
            }
        }
    }
}

struct ReceivingSink(Arc<Receiver>);

#[async_trait]
impl Sink for ReceivingSink {
    async fn emit(&self, effects: &[Effect]) -> Emitted {
        let receiver = &self.0;
        let is_well = receiver.is_well.load(Ordering::Relaxed);
        receiver.latency.pass().await;
        for (taken, effect) in effects.iter().enumerate() {
            match receiver.tenant {
                AWAY if !is_well => return Emitted::unavailable(taken, "connection refused"),
                HANGING if !is_well => {
                    receiver.note(effect, false);
                    tokio::time::sleep(HANGS_FOR).await;
                    return Emitted::unavailable(taken, "no answer");
                }
                REFUSING if !is_well && effect.key.object == REFUSED => {
                    receiver.note(effect, false);
                    return Emitted::refused(taken, "400");
                }
                _ => receiver.note(effect, true),
            }
        }
        Emitted::all(effects.len())
    }
}

/// When each event came into the log.
type Sent = BTreeMap<String, Instant>;

struct Hour {
    records: Arc<Mutex<Vec<Record>>>,
    store: Arc<MemoryStore>,
    receivers: Vec<Arc<Receiver>>,
    is_well: Arc<AtomicBool>,
    seed: u64,
    store_latency: Duration,
    sent: Vec<Sent>,
}

impl Hour {
    fn new(seed: u64, store_latency: Duration) -> Self {
        let is_well = Arc::new(AtomicBool::new(true));
        let receiver = |tenant: usize| {
            let latency = Latency(Mutex::new(SmallRng::seed_from_u64(seed.wrapping_add(tenant as u64))));
            Arc::new(Receiver { tenant, is_well: is_well.clone(), latency, received: Mutex::default() })
        };
        let receivers = (0..TENANTS).map(receiver).collect();
        let (records, store) = (Arc::default(), Arc::new(MemoryStore::new(2 * PARTITIONS)));
        Self { records, store, receivers, is_well, seed, store_latency, sent: vec![Sent::new(); TENANTS] }
    }

    async fn pass(mut self) {
        let stop = CancellationToken::new();
        let running = tokio::spawn(self.processor().run(stop.clone()));
        let calm = Instant::now();
        self.send(CALM).await;
        let outage = Instant::now();
        self.is_well.store(false, Ordering::Relaxed);
        self.send(OUTAGE).await;
        self.is_well.store(true, Ordering::Relaxed);
        let well = Instant::now();
        while !self.is_all_received().await {
            assert!(well.elapsed() < RECOVERED_WITHIN, "something is missing {:?} after the outage", well.elapsed());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let recovered = well.elapsed();
        stop.cancel();
        running.await.expect("it does not panic").expect("it ends well");

        println!("store {:?}: all was where it belongs {recovered:?} after the outage", self.store_latency);
        self.check_letters().await;
        for receiver in &self.receivers {
            receiver.check();
            self.check_pace(receiver, calm, outage);
        }
    }

    fn processor(&self) -> Processor {
        let pace = Pace { max: self.store_latency, slow_share: 0.0, slow: Duration::ZERO };
        let process = Process::new(1, self.seed, Instant::now(), pace, Arc::default());
        let store = SimulatedStore {
            inner: self.store.clone(),
            faults: Arc::new(Faults::new(self.seed, 0.0, &[])),
            process: Arc::new(process),
            bounds: self.store.group_bounds(),
            poison: BTreeSet::new(),
            world: Arc::default(),
        };
        let records = self.records.clone();
        let read = move |from: usize, max: usize| -> Vec<Record> {
            records.lock().expect("no panic while locked").iter().skip(from).take(max).cloned().collect()
        };
        let sink = |receiver: &Arc<Receiver>| {
            let sink = Arc::new(ReceivingSink(receiver.clone()));
            NamedSink::new(name(receiver.tenant), SinkPolicy::default(), sink)
        };
        Processor {
            config: ProcessorConfig::default(),
            log: Arc::new(MemoryLog::new(PARTITIONS, read)),
            store: Arc::new(store),
            sources: (0..TENANTS).map(|t| Source { sinks: Some(vec![name(t)]), ..source(&name(t)) }).collect(),
            sinks: self.receivers.iter().map(sink).collect(),
            metrics: ProcessorMetrics::default(),
            fetches: Vec::new(),
            reducer: None,
        }
    }

    /// Events of all tenants, evenly, for so long.
    async fn send(&mut self, time: Duration) {
        let mut tick = tokio::time::interval(EVERY / TENANTS as u32);
        let until = Instant::now() + time;
        while tick.tick().await < until {
            let mut records = self.records.lock().expect("no panic while locked");
            let (number, tenant) = (records.len() / TENANTS, records.len() % TENANTS);
            let object = format!("object {}", number % OBJECTS);
            let key = ObjectKey::new(name(tenant), SOURCE, object);
            let mut record = event(key, "updated", number.to_string(), Bytes::from(number.to_string()));
            record.event_id = number.to_string();
            record.id = RecordId { request: Uuid::from_u128(records.len() as u128 + 1), item: 0 };
            self.sent[tenant].insert(record.event_id.clone(), Instant::now());
            records.push(record);
        }
    }

    async fn is_all_received(&self) -> bool {
        let has_all = |receiver: &Arc<Receiver>| {
            let is_done = |r: &Received| r.is_taken || (receiver.tenant == REFUSING && r.object == REFUSED);
            receiver.ids(is_done).len() == self.sent[receiver.tenant].len()
        };
        if !self.receivers.iter().all(has_all) {
            return false;
        }
        for bucket in 0..self.store.buckets() {
            if !self.store.waiting(bucket).await.expect("waiting answers").is_empty() {
                return false;
            }
        }
        true
    }

    /// What was refused is a dead letter, and nothing else is.
    async fn check_letters(&self) {
        let letters = self.store.dead(None, None).await.expect("dead answers");
        assert!(letters.iter().all(|letter| letter.tenant == name(REFUSING) && letter.object == REFUSED));
        let refusing = &self.receivers[REFUSING];
        let (refused, taken) = (refusing.ids(|r| !r.is_taken), refusing.ids(|r| r.is_taken));
        assert!(!refused.is_empty() && refused.is_disjoint(&taken));
        assert_eq!(letters.len(), refused.len());
    }

    /// Whoever is well does not feel the outage.
    fn check_pace(&self, receiver: &Receiver, calm: Instant, outage: Instant) {
        let mut arrived = HashMap::new();
        for received in receiver.received() {
            if received.object != REFUSED || receiver.tenant != REFUSING {
                arrived.entry(received.id).or_insert(received.at);
            }
        }
        let p99 = |from: Instant, time: Duration| {
            let sent = self.sent[receiver.tenant].iter().filter(|(_, at)| (from..from + time).contains(at));
            let mut all: Vec<_> = sent.filter_map(|(id, at)| Some(*arrived.get(id)? - *at)).collect();
            all.sort();
            all[all.len() * 99 / 100]
        };
        let (calm, disturbed) = (p99(calm, CALM), p99(outage, OUTAGE));
        println!("{} {:>6} events, p99 calm {calm:?}, disturbed {disturbed:?}", name(receiver.tenant), arrived.len());
        if ![AWAY, HANGING].contains(&receiver.tenant) {
            assert!(disturbed <= calm * 2, "{}: {disturbed:?}, was {calm:?}", name(receiver.tenant));
        }
    }
}

fn name(tenant: usize) -> String {
    format!("t{tenant}")
}
