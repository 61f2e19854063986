//! The whole processor over a log in memory, with a store whose faults have names: what was committed is
//! emitted, once or again with the same rev, whatever answers are lost and wherever it is stopped.

#[path = "flow/lives.rs"]
mod lives;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use seriatim_processor::config::ProcessorConfig;
use seriatim_processor::decide::View;
use seriatim_processor::error::{SinkError, StoreError};
use seriatim_processor::inspect::Inspect;
use seriatim_processor::log::memory::MemoryLog;
use seriatim_processor::metrics::ProcessorMetrics;
use seriatim_processor::run::Processor;
use seriatim_processor::sink::{Effect, Sink};
use seriatim_processor::store::memory::MemoryStore;
use seriatim_processor::store::sqlite::SqliteStore;
use seriatim_processor::store::{
    Arrival, Committed, FloorKey, Freshness, GroupBounds, ObjectBatch, ObjectQuery, Store,
};
use seriatim_schemas::declaration::Source;
use seriatim_schemas::id::{IdFrom, RecordId, Sha256Digest};
use seriatim_schemas::key::{ObjectKey, RecordKey};
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::preset::Preset;
use seriatim_schemas::record::{Record, RecordKind};
use seriatim_schemas::row::DeadLetter;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const EVENTS: usize = 1600;
const REPEATED: usize = 400;
const OBJECTS: u64 = 50;
const PARTITIONS: u32 = 3;

/// What a store does at a call, now and then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Nothing is done, and it says so.
    Away,
    /// It is done, and the answer is lost.
    AnswerLost,
    /// Nothing is done, and the answer is lost.
    RequestLost,
    /// Refused, though every condition holds.
    Refused,
}

/// A store with faults at calls chosen by a seed, and, if asked, one that forgets floors.
struct Faulty {
    inner: MemoryStore,
    rng: Mutex<SmallRng>,
    forgets_floors: bool,
}

impl Faulty {
    fn fault(&self) -> Fault {
        match self.rng.lock().expect("no panic while locked").random_range(0..10) {
            0 => Fault::Away,
            1 => Fault::AnswerLost,
            2 => Fault::RequestLost,
            3 => Fault::Refused,
            _ => Fault::None,
        }
    }

    /// For calls that change nothing when done again.
    fn plain(&self) -> Result<(), StoreError> {
        match self.fault() {
            Fault::Away | Fault::RequestLost => Err(StoreError::Unavailable("away".to_owned())),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Store for Faulty {
    fn buckets(&self) -> u32 {
        self.inner.buckets()
    }

    fn group_bounds(&self) -> GroupBounds {
        self.inner.group_bounds()
    }

    async fn read(&self, bucket: u32, queries: &[ObjectQuery], freshness: Freshness) -> Result<Vec<View>, StoreError> {
        self.plain()?;
        self.inner.read(bucket, queries, freshness).await
    }

    async fn arrived(&self, bucket: u32, of: &[(ObjectKey, String, RecordId)]) -> Result<Vec<RecordId>, StoreError> {
        self.plain()?;
        self.inner.arrived(bucket, of).await
    }

    async fn commit(&self, bucket: u32, batches: &[ObjectBatch]) -> Result<Committed, StoreError> {
        match self.fault() {
            Fault::None => self.inner.commit(bucket, batches).await,
            Fault::Away => Err(StoreError::Unavailable("away".to_owned())),
            Fault::RequestLost => Err(StoreError::Unknown("request lost".to_owned())),
            Fault::Refused => Ok(Committed::Refused),
            Fault::AnswerLost => {
                self.inner.commit(bucket, batches).await?;
                Err(StoreError::Unknown("answer lost".to_owned()))
            }
        }
    }

    async fn record(&self, bucket: u32, arrivals: &[Arrival], dead: &[DeadLetter]) -> Result<(), StoreError> {
        self.plain()?;
        self.inner.record(bucket, arrivals, dead).await
    }

    async fn floor(&self, key: &FloorKey) -> Result<Option<i64>, StoreError> {
        self.inner.floor(key).await
    }

    async fn set_floor(&self, key: &FloorKey, next_offset: i64) -> Result<(), StoreError> {
        if self.forgets_floors { Ok(()) } else { self.inner.set_floor(key, next_offset).await }
    }

    async fn expire(&self, _now_s: i64) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Remembers what it was sent, and now and then does not take it.
struct Recorder {
    effects: Mutex<Vec<Effect>>,
    rng: Mutex<SmallRng>,
}

#[async_trait]
impl Sink for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    async fn emit(&self, effects: &[Effect]) -> Result<(), SinkError> {
        if self.rng.lock().expect("no panic while locked").random_range(0..20) == 0 {
            return Err(SinkError { sink: "recorder".to_owned(), message: "not now".to_owned() });
        }
        self.effects.lock().expect("no panic while locked").extend(effects.iter().cloned());
        Ok(())
    }
}

fn source() -> Source {
    let mut declaration = Preset::named("hmac").expect("a preset").declare;
    declaration.object = Some(selector("body:/object"));
    declaration.version = Some(toml::from_str("from = 'body:/version'\nkind = 'integer'").expect("a version rule"));
    Source {
        tenant: "t".into(),
        name: "s".into(),
        preset: None,
        secrets: vec![],
        revision: declaration.revision(),
        declaration,
    }
}

fn selector(text: &str) -> seriatim_schemas::selector::Expression {
    seriatim_schemas::selector::Expression::One(text.parse().expect("a selector"))
}

fn record(event: usize, arrival: usize) -> Record {
    let value = Bytes::from(format!("{{\"event\":{event}}}"));
    Record {
        kind: RecordKind::Event,
        id: RecordId { request: Uuid::from_u128(arrival as u128), item: 0 },
        key: RecordKey::Object(ObjectKey::new("t", "s", format!("o{}", event as u64 % OBJECTS))),
        declaration: String::new(),
        event_id: format!("e{event}"),
        id_from: IdFrom::Body,
        event_type: "updated".into(),
        version: Some((event as u64 / OBJECTS + 1).to_string()),
        time: None,
        recorded: jiff::Timestamp::UNIX_EPOCH,
        digest: Sha256Digest::of(&value),
        secret: String::new(),
        method: "POST".into(),
        target: String::new(),
        problem: None,
        content_type: None,
        traceparent: None,
        http: vec![],
        value,
    }
}

/// Events repeated and shuffled by `seed`.
fn records(seed: u64) -> Vec<Record> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut events: Vec<usize> = (0..EVENTS).chain((0..REPEATED).map(|_| rng.random_range(0..EVENTS))).collect();
    events.shuffle(&mut rng);
    events.into_iter().enumerate().map(|(arrival, event)| record(event, arrival)).collect()
}

fn recorder(seed: u64) -> Arc<Recorder> {
    Arc::new(Recorder { effects: Mutex::default(), rng: Mutex::new(SmallRng::seed_from_u64(seed)) })
}

/// Runs a processor over `records` until `until` holds.
async fn run(records: &Arc<Vec<Record>>, store: Arc<dyn Store>, sink: Arc<Recorder>, until: impl AsyncFn() -> bool) {
    let records = records.clone();
    let log = MemoryLog::new(PARTITIONS, move |from, max| records.iter().skip(from).take(max).cloned().collect());
    let stop = CancellationToken::new();
    let config = ProcessorConfig { advance_interval_ms: 5, retry_min_ms: 1, retry_max_ms: 4, ..Default::default() };
    let sinks: Vec<Arc<dyn Sink>> = vec![sink];
    let metrics = ProcessorMetrics::default();
    let processor = Processor { config, log: Arc::new(log), store, sources: vec![source()], sinks, metrics };
    let task = tokio::spawn(processor.run(stop.clone()));
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !until().await {
        assert!(tokio::time::Instant::now() < deadline, "not done in time");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    stop.cancel();
    task.await.expect("no panic").expect("no error");
}

async fn arrivals(store: &impl Inspect) -> Vec<Arrival> {
    let mut all = Vec::new();
    for object in 0..OBJECTS {
        all.extend(store.arrivals(&ObjectKey::new("t", "s", format!("o{object}"))).await.expect("readable"));
    }
    all
}

/// The promises, against the ledger of what was in the log.
async fn check(store: &impl Inspect, effects: &[Effect], seed: u64) {
    let arrivals = arrivals(store).await;
    assert_eq!(arrivals.len(), EVENTS + REPEATED, "each record has its arrival (seed {seed})");
    let applied: Vec<_> = arrivals.iter().filter(|a| a.row.outcome == Outcome::Applied).collect();
    let mut revs: HashMap<String, i64> = HashMap::new();
    let mut newest: BTreeMap<String, i64> = BTreeMap::new();
    for effect in effects {
        let key = effect.idempotency_key();
        let known = revs.insert(key.clone(), effect.rev);
        assert!(known.is_none_or(|rev| rev == effect.rev), "{key} has two revs (seed {seed})");
        if known.is_none() {
            let before = newest.insert(effect.key.object.clone(), effect.rev).unwrap_or(0);
            assert!(effect.rev > before, "first effects of {} out of order (seed {seed})", effect.key.object);
        }
    }
    assert_eq!(revs.len(), applied.len(), "each applied event has an effect, and nothing else (seed {seed})");
    for object in 0..OBJECTS {
        let key = ObjectKey::new("t", "s", format!("o{object}"));
        let state = store.object(&key).await.expect("readable").expect("every object was seen");
        let last = EVENTS as u64 - OBJECTS + object;
        let snapshot = state.head.snapshot.expect("snapshots only");
        assert_eq!(snapshot.event_row, format!("e{last}"), "the newest event is the state (seed {seed})");
        let of_object = applied.iter().filter(|a| a.key == key).count();
        assert_eq!(state.head.rev, of_object as i64, "rev counts decisions (seed {seed})");
    }
}

async fn all_arrived(store: &impl Inspect) -> bool {
    arrivals(store).await.len() == EVENTS + REPEATED
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeats_and_disorder_leave_one_effect_per_event_embedded() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Arc::new(SqliteStore::open(folder.path()).expect("opens"));
    let (records, sink) = (Arc::new(records(1)), recorder(1));
    run(&records, store.clone(), sink.clone(), async || all_arrived(store.as_ref()).await).await;
    let effects = sink.effects.lock().expect("free").clone();
    check(store.as_ref(), &effects, 1).await;
    // The same log once more, as after a restart: all of it is done.
    run(&records, store.clone(), sink.clone(), async || true).await;
    assert_eq!(sink.effects.lock().expect("free").len(), effects.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answers_and_spurious_refusals_change_nothing() {
    for seed in 0..6 {
        println!("seed {seed}");
        let inner = MemoryStore::new(9);
        let rng = Mutex::new(SmallRng::seed_from_u64(seed));
        let store = Arc::new(Faulty { inner: inner.clone(), rng, forgets_floors: false });
        let sink = recorder(seed);
        run(&Arc::new(records(seed)), store, sink.clone(), async || all_arrived(&inner).await).await;
        let effects = sink.effects.lock().expect("free").clone();
        check(&inner, &effects, seed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stops_in_the_middle_with_floors_lost_only_send_again_what_may_have_been_sent() {
    for seed in 0..4 {
        println!("seed {seed}");
        let inner = MemoryStore::new(9);
        let (records, sink) = (Arc::new(records(seed)), recorder(seed));
        let mut stops = SmallRng::seed_from_u64(seed);
        for part in 1..=5 {
            let rng = Mutex::new(SmallRng::seed_from_u64(seed * 10 + part));
            let store = Arc::new(Faulty { inner: inner.clone(), rng, forgets_floors: true });
            let enough = if part == 5 { EVENTS + REPEATED } else { stops.random_range(0..(EVENTS + REPEATED)) };
            run(&records, store, sink.clone(), async || arrivals(&inner).await.len() >= enough).await;
        }
        let effects = sink.effects.lock().expect("free").clone();
        check(&inner, &effects, seed).await;
    }
}
