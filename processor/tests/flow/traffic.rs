//! Traffic, and what must come of it: a naive walk over the log, one object at a time, written from the
//! promises alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use seriatim_schemas::id::{IdFrom, RecordId, Sha256Digest};
use seriatim_schemas::key::{ObjectKey, RecordKey};
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::record::{Record, RecordKind};
use seriatim_schemas::source::Source;
use uuid::Uuid;

pub const SOURCE: &str = "crm";

/// Types from lowest to highest rank; `noted` is a delta.
const TYPES: [&str; 5] = ["created", "updated", "renamed", "deleted", "noted"];
const DELTA: &str = "noted";
const TOMBSTONE: &str = "deleted";
/// Few versions for many events, so that ties are common.
const VERSIONS: u64 = 40;
/// Share of the events that are equal to another one.
const TWINS: f64 = 0.05;

pub fn source(tenant: &str) -> Source {
    let declaration = serde_json::json!({
        "version": { "from": "body:/version", "kind": "integer" },
        "rank": ["created", "*", TOMBSTONE],
        "tombstones": [TOMBSTONE],
        "events": [{ "type": DELTA, "mode": "delta" }],
    });
    let declaration = serde_json::from_value(declaration).expect("a declaration");
    Source {
        tenant: tenant.to_owned(),
        name: SOURCE.to_owned(),
        preset: None,
        secrets: Vec::new(),
        public_url: None,
        settings: Default::default(),
        sinks: None,
        fetch: None,
        declaration,
        revision: "1".to_owned(),
    }
}

/// The newest snapshot of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Newest {
    pub event: String,
    pub version: String,
    pub deleted: bool,
    pub body: Bytes,
}

/// What one object must come to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fold {
    /// Event ids, in order of their revs.
    pub applied: Vec<String>,
    pub newest: Option<Newest>,
    /// How often an equal event under a greater id became the newest, without an effect.
    pub raised: usize,
}

impl Newest {
    fn of(record: &Record) -> Self {
        Self {
            event: record.event_id.clone(),
            version: record.version.clone().expect("snapshots have versions"),
            deleted: record.event_type == TOMBSTONE,
            body: record.value.clone(),
        }
    }
}

pub struct Traffic {
    /// Its own, so that one store can take several.
    pub tenant: String,
    pub records: Arc<Vec<Record>>,
    /// Events that the store refuses for good, whatever it is asked.
    pub poison: BTreeSet<String>,
    pub objects: BTreeMap<ObjectKey, Fold>,
    pub outcomes: BTreeMap<RecordId, Outcome>,
}

impl Traffic {
    /// `deliveries` records about `objects` objects, a fifth of them duplicates, in any order.
    pub fn new(seed: u64, deliveries: usize, objects: usize) -> Self {
        Self::poisoned(seed, deliveries, objects, 0)
    }

    pub fn poisoned(seed: u64, deliveries: usize, objects: usize, poisoned: usize) -> Self {
        let (rng, tenant) = (&mut SmallRng::seed_from_u64(seed), format!("tenant-{seed:x}"));
        let mut records: Vec<Record> = Vec::with_capacity(deliveries);
        for number in 0..deliveries * 4 / 5 {
            let twin = records.choose(rng).filter(|_| rng.random_bool(TWINS)).cloned();
            let mut record = twin.unwrap_or_else(|| record(rng, &tenant, number, objects));
            // Ids in an order of their own, so that ties are not won by the later in the log.
            record.event_id = format!("evt_{:08x}_{number}", rng.random::<u32>());
            records.push(record);
        }
        let poison = records.choose_multiple(rng, poisoned).map(|r| r.event_id.clone()).collect();
        while records.len() < deliveries {
            let again = records.choose(rng).expect("there are records").clone();
            records.push(again);
        }
        records.shuffle(rng);
        for (number, record) in records.iter_mut().enumerate() {
            record.id = RecordId { request: Uuid::from_u128(number as u128 + 1), item: 0 };
        }
        let (objects, outcomes) = (BTreeMap::new(), BTreeMap::new());
        let mut traffic = Self { tenant, records: Arc::new(records), poison, objects, outcomes };
        traffic.walk();
        traffic
    }

    fn walk(&mut self) {
        let mut newest: BTreeMap<ObjectKey, &Record> = BTreeMap::new();
        for record in self.records.iter() {
            let RecordKey::Object(key) = &record.key else { panic!("all records are of objects") };
            let fold = self.objects.entry(key.clone()).or_default();
            let current = newest.get(key);
            let is_snapshot = record.event_type != DELTA;
            let is_newer = current.is_none_or(|current| place(record) > place(current));
            let outcome = if fold.applied.contains(&record.event_id) {
                Outcome::Duplicate
            } else if is_undecidable(record) {
                Outcome::Dead
            } else if is_snapshot && current.is_some_and(|current| is_twin(record, current)) {
                Outcome::Duplicate
            } else if is_snapshot && !is_newer {
                Outcome::Stale
            } else if self.poison.contains(&record.event_id) {
                Outcome::Dead
            } else {
                Outcome::Applied
            };
            if outcome == Outcome::Applied {
                fold.applied.push(record.event_id.clone());
            }
            let is_twin = outcome == Outcome::Duplicate && !fold.applied.contains(&record.event_id);
            if is_snapshot && is_newer && (outcome == Outcome::Applied || is_twin) {
                fold.newest = Some(Newest::of(record));
                fold.raised += usize::from(is_twin);
                newest.insert(key.clone(), record);
            }
            self.outcomes.insert(record.id, outcome);
        }
    }

    pub fn of(&self, event_id: &str) -> &Record {
        self.records.iter().find(|r| r.event_id == event_id).expect("an event of this traffic")
    }

    /// The deltas among what was applied, a line each.
    pub fn deltas(&self, fold: &Fold) -> String {
        fold.applied.iter().filter(|id| self.of(id).event_type == DELTA).map(|id| format!("{id}\n")).collect()
    }

    pub fn has_twin(&self, record: &Record) -> bool {
        let is_other = |r: &&Record| r.event_id != record.event_id && r.key == record.key;
        self.records.iter().filter(is_other).any(|other| is_twin(record, other))
    }

    pub fn effects(&self) -> usize {
        self.objects.values().map(|fold| fold.applied.len()).sum()
    }
}

/// One change that was sent under two ids.
fn is_twin(one: &Record, other: &Record) -> bool {
    one.event_type == other.event_type && one.version == other.version && one.value == other.value
}

fn is_undecidable(record: &Record) -> bool {
    record.event_type != DELTA && record.version.as_deref().is_some_and(|v| v.parse::<u64>().is_err())
}

/// Where a snapshot stands in its object's order: version, then rank, then id.
fn place(record: &Record) -> (u64, u8, String) {
    let version = record.version.as_ref().and_then(|v| v.parse().ok()).unwrap_or_default();
    let rank = match record.event_type.as_str() {
        "created" => 0,
        TOMBSTONE => 2,
        _ => 1,
    };
    (version, rank, record.event_id.clone())
}

fn record(rng: &mut SmallRng, tenant: &str, number: usize, objects: usize) -> Record {
    let object = format!("object {}", rng.random_range(0..objects));
    let event_type = *TYPES.choose(rng).expect("there are types");
    let version = if rng.random_bool(0.02) { "soon".to_owned() } else { rng.random_range(0..VERSIONS).to_string() };
    let body = serde_json::json!({ "number": number, "object": object, "type": event_type, "version": version });
    let value = Bytes::from(body.to_string());
    Record {
        kind: RecordKind::Event,
        id: RecordId { request: Uuid::nil(), item: 0 },
        key: RecordKey::Object(ObjectKey::new(tenant, SOURCE, object)),
        declaration: "1".to_owned(),
        event_id: String::new(),
        id_from: IdFrom::Body,
        event_type: event_type.to_owned(),
        version: Some(version),
        time: None,
        recorded: Timestamp::UNIX_EPOCH,
        digest: Sha256Digest::of(&value),
        secret: "0 00000000".to_owned(),
        method: "POST".to_owned(),
        target: "/in/acme/crm".to_owned(),
        problem: None,
        content_type: Some("application/json".to_owned()),
        traceparent: None,
        range: None,
        context: None,
        id_digest: None,
        http: Vec::new(),
        value,
    }
}
