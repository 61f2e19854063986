//! Processors that live one after the other, or side by side, over one log and one store; and what must
//! hold of all they did.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use seriatim_processor::config::ProcessorConfig;
use seriatim_processor::inspect::Inspect;
use seriatim_processor::log::memory::MemoryLog;
use seriatim_processor::metrics::ProcessorMetrics;
use seriatim_processor::reduce::Reducer;
use seriatim_processor::run::Processor;
use seriatim_processor::sink::{Effect, NamedSink, SinkPolicy};
use seriatim_processor::store::{GroupBounds, Store};
use seriatim_schemas::key::{ObjectKey, bucket_of};
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::record::Record;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::faults::{End, Faults, FaultyLog, FaultyStore, Life, RecordingSink, Unfinished};
use super::traffic::{Fold, Newest, SOURCE, Traffic, Walk, source};

pub const PARTITIONS: u32 = 4;

/// Longest that one life may take before the test fails: a hang is a bug too.
const LIFE_MAX: Duration = Duration::from_secs(20);

pub struct World<S> {
    pub traffic: Traffic,
    pub store: Arc<S>,
    pub faults: Arc<Faults>,
    pub keeps_floors: bool,
    config: ProcessorConfig,
    bounds: GroupBounds,
    policy: SinkPolicy,
    batch_max: usize,
    sent: Arc<Mutex<Vec<Effect>>>,
    unfinished: Unfinished,
}

impl<S: Store + Inspect> World<S> {
    pub fn new(seed: u64, traffic: Traffic, store: Arc<S>, faults: Faults, keeps_floors: bool) -> Self {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let (config, bounds, policy) = (config(rng), bounds(rng), policy(rng));
        let (sent, unfinished, batch_max) = (Arc::default(), Unfinished::default(), rng.random_range(1..6));
        let faults = Arc::new(faults);
        Self { traffic, store, faults, keeps_floors, config, bounds, policy, batch_max, sent, unfinished }
    }

    /// A life to the end of the log. A record may be appended when all seemed done: then it takes another.
    pub fn finish(&self) -> bool {
        (0..10).any(|_| self.live(&[End::Done]))
    }

    /// Lives of as many processors as there are ends, side by side. True if the log is done.
    pub fn live(&self, ends: &[End]) -> bool {
        let runtime = Runtime::new().expect("a runtime starts");
        let lives = ends.iter().map(|end| self.live_one(*end));
        let done = runtime.block_on(futures::future::join_all(lives)).into_iter().all(|done| done);
        let done = done && runtime.block_on(self.nothing_waits());
        // Ends the tasks of a crashed processor wherever they are.
        runtime.shutdown_timeout(Duration::from_secs(5));
        done
    }

    async fn live_one(&self, end: End) -> bool {
        let life = Arc::new(Life::new(end));
        let store = Arc::new(FaultyStore {
            inner: self.store.clone(),
            faults: self.faults.clone(),
            life: life.clone(),
            unfinished: self.unfinished.clone(),
            bounds: self.bounds,
            poison: self.traffic.poison.clone(),
            keeps_floors: self.keeps_floors,
            progress: Mutex::default(),
        });
        let (sent, faults, batch_max) = (self.sent.clone(), self.faults.clone(), self.batch_max);
        let sink = RecordingSink { sent, faults, life: life.clone(), batch_max };
        let log = FaultyLog {
            inner: MemoryLog::new(PARTITIONS, self.traffic.read()).with_append(self.traffic.append()),
            faults: self.faults.clone(),
            life: life.clone(),
        };
        let processor = Processor {
            config: self.config.clone(),
            log: Arc::new(log),
            store: store.clone(),
            sources: vec![source(&self.traffic.tenant)],
            sinks: vec![NamedSink::new("recording", self.policy.clone(), Arc::new(sink))],
            metrics: ProcessorMetrics::default(),
            fetches: Vec::new(),
            reducer: Some(Arc::new(Noted)),
        };
        let stop = CancellationToken::new();
        let running = tokio::spawn(processor.run(stop.clone()));
        let started = Instant::now();
        while !life.ending.is_cancelled() && !self.is_done(&store.progress).await {
            assert!(started.elapsed() < LIFE_MAX, "after {LIFE_MAX:?} the log is not done, only {:?}", store.progress);
            assert!(!running.is_finished(), "the processor has ended by itself");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if matches!(end, End::Crash(_)) && life.ending.is_cancelled() {
            return false;
        }
        stop.cancel();
        let ended = tokio::time::timeout(LIFE_MAX, running).await.expect("it stops");
        ended.expect("it does not panic").expect("it ends well");
        self.is_read(&store.progress)
    }

    async fn is_done(&self, progress: &Mutex<HashMap<i32, i64>>) -> bool {
        self.is_read(progress) && self.nothing_waits().await
    }

    fn is_read(&self, progress: &Mutex<HashMap<i32, i64>>) -> bool {
        let progress = progress.lock().expect("no panic while locked").clone();
        let records = self.traffic.log();
        let ends = ends(&records);
        (0..PARTITIONS as i32).all(|p| progress.get(&p).is_some_and(|low| *low >= ends.get(&p).copied().unwrap_or(0)))
            && self.traffic.has(records.len())
    }

    async fn nothing_waits(&self) -> bool {
        for bucket in 0..self.store.buckets() {
            if !self.store.waiting(bucket).await.expect("waiting answers").is_empty() {
                return false;
            }
        }
        true
    }

    pub fn sent(&self) -> Vec<Effect> {
        self.sent.lock().expect("no panic while locked").clone()
    }

    /// What was sent, for the first time each, is the fold of each object in its order, and nothing is missing.
    pub fn check_effects(&self) {
        let walk = self.traffic.walk();
        let mut first: BTreeMap<_, Vec<String>> = BTreeMap::new();
        let mut revs = HashMap::new();
        for effect in self.sent() {
            let key = effect.idempotency_key();
            if let Some(rev) = revs.insert(key.clone(), effect.rev) {
                assert_eq!(rev, effect.rev, "{key} is sent with one rev");
                continue;
            }
            let of_object = first.entry(ObjectKey::clone(&effect.key)).or_default();
            let sent = &effect.record;
            of_object.push(sent.event_id.clone());
            assert_eq!(effect.rev, of_object.len() as i64, "{key}: effects come in order of rev");
            let record = walk.of(&sent.event_id);
            assert_eq!(
                (&sent.event_type, &sent.version, &sent.value),
                (&record.event_type, &record.version, &record.value)
            );
            assert_eq!((effect.outcome, sent.event_row(), effect.epoch), (Outcome::Applied, record.event_row(), 1));
        }
        let expected = walk.objects.iter().filter(|(_, fold)| !fold.applied.is_empty());
        let expected: BTreeMap<_, _> = expected.map(|(key, fold)| (key.clone(), fold.applied.clone())).collect();
        assert_eq!(first, expected);
    }

    /// What is not marked as sent again was never sent before.
    pub fn check_marks(&self) {
        let mut seen = HashSet::new();
        for effect in self.sent() {
            let is_first = seen.insert(effect.idempotency_key());
            let all = || self.sent().into_iter().filter(|e| e.idempotency_key() == effect.idempotency_key());
            let how = || all().map(|e| (e.rev, e.resent)).collect::<Vec<_>>();
            assert!(is_first || effect.resent, "{} was sent before: {:?}", effect.idempotency_key(), how());
        }
    }

    /// Heads, event rows, arrivals and dead letters are what the walk over the log says.
    pub fn check_store(&self) {
        let walk = self.traffic.walk();
        Runtime::new().expect("a runtime starts").block_on(async {
            for (key, fold) in &walk.objects {
                self.check_object(key, fold, &walk).await;
            }
            self.check_ledger(&walk).await;
            self.check_dead(&walk).await;
        });
    }

    async fn check_object(&self, key: &ObjectKey, fold: &Fold, walk: &Walk) {
        let mut events = self.store.events(key).await.expect("events answers");
        events.sort_by_key(|row| row.rev);
        let events: Vec<_> = events.into_iter().map(|row| (row.row, row.rev)).collect();
        assert_eq!(events, fold.applied.iter().cloned().zip(1..).collect::<Vec<_>>(), "{key}");
        let Some(object) = self.store.object(key).await.expect("object answers") else {
            assert!(fold.applied.is_empty(), "{key} has no head");
            return;
        };
        assert_eq!(object.head.rev, fold.applied.len() as i64, "{key}");
        assert!(object.head.waiting.0.is_empty(), "{key}: nothing waits");
        let batches_max = (fold.applied.len() + fold.raised) as i64;
        // What waits, or is held, takes batches of its own.
        assert!(
            !self.faults.are_none() || fold.sequence.has_held || object.head.turn <= batches_max,
            "{key}: {} batches, but {batches_max} had cause",
            object.head.turn
        );
        let newest = object.head.snapshot.map(|snapshot| Newest {
            event: snapshot.event_row,
            version: snapshot.version,
            deleted: snapshot.deleted,
            body: object.state.expect("a snapshot has a state").0,
        });
        assert_eq!(newest, fold.newest, "{key}");
        let noted = object.head.fold.map(|noted| String::from_utf8(noted.to_vec()).expect("text"));
        assert_eq!(noted.unwrap_or_default(), walk.deltas(fold), "{key}: each delta is folded once, in order");
    }

    async fn check_ledger(&self, walk: &Walk) {
        let mut outcomes = BTreeMap::new();
        for key in walk.objects.keys() {
            let arrivals = self.store.arrivals(key).await.expect("arrivals answers");
            outcomes.extend(arrivals.into_iter().map(|a| (a.row.record, a.row.outcome)));
        }
        assert_eq!(outcomes.len(), walk.records.len(), "each record has one arrival");
        for record in &walk.records {
            let (expected, found) = (walk.outcomes[&record.id], outcomes[&record.id]);
            // Decided anew when its equal is the state no more, or is it now, it does nothing all the same.
            let does_nothing = |outcome| matches!(outcome, Outcome::Duplicate | Outcome::Stale);
            let is_same = expected == found || (does_nothing(expected) && does_nothing(found) && walk.has_twin(record));
            assert!(is_same, "{} of {}: {found}, not {expected}", record.event_id, record.key);
        }
    }

    async fn check_dead(&self, walk: &Walk) {
        let dead = self.store.dead(Some(&self.traffic.tenant), Some(SOURCE)).await.expect("dead answers");
        let dead: HashSet<_> = dead.into_iter().map(|letter| letter.event_row).collect();
        let is_dead = |record: &&Record| walk.outcomes[&record.id] == Outcome::Dead;
        assert_eq!(dead, walk.records.iter().filter(is_dead).map(Record::event_row).collect());
    }
}

/// One past the last record of each partition.
fn ends(records: &[Record]) -> HashMap<i32, i64> {
    let of = |record: &Record| bucket_of(record.key.to_string().as_bytes(), PARTITIONS) as i32;
    records.iter().zip(1..).map(|(record, next)| (of(record), next)).collect()
}

/// Limits small enough to be met, and other ones for each seed.
fn config(rng: &mut SmallRng) -> ProcessorConfig {
    ProcessorConfig {
        budget_bytes: rng.random_range(32..512) * 1024,
        groups_in_flight_max: rng.random_range(1..8),
        advance_interval_ms: 2,
        drain_timeout_ms: 200,
        retry_min_ms: 1,
        retry_max_ms: 4,
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
        wait_after_ms: 30,
        retry_min_ms: 1,
        retry_max_ms: 4,
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
