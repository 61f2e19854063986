//! Traffic, and what must come of it: a naive walk over the log, one object at a time, written from the
//! promises alone.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use jiff::Timestamp;
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use seriatim_schemas::control::{Control, ControlAct};
use seriatim_schemas::id::{IdFrom, RecordId, Sha256Digest};
use seriatim_schemas::key::{ObjectKey, RecordKey};
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::record::{Record, RecordKind};
use seriatim_schemas::source::Source;
use uuid::Uuid;

pub const SOURCE: &str = "crm";

/// Types from lowest to highest rank; `noted` is a delta, and `counted` one with a number.
const TYPES: [&str; 7] = ["created", "updated", "renamed", "deleted", "noted", "counted", "counted"];
const DELTA: &str = "noted";
const NUMBERED: &str = "counted";
const TOMBSTONE: &str = "deleted";
/// Few versions for many events, so that ties are common.
const VERSIONS: u64 = 40;
/// Share of the numbered events that never come, and of those that come late: after a gap was passed.
const MISSING: f64 = 0.05;
const LATE: f64 = 0.02;
/// Share of the events that are equal to another one.
const TWINS: f64 = 0.05;

pub fn source(tenant: &str) -> Source {
    let declaration = serde_json::json!({
        "version": { "from": "body:/version", "kind": "integer" },
        "rank": ["created", "*", TOMBSTONE],
        "tombstones": [TOMBSTONE],
        "events": [
            { "type": DELTA, "mode": "delta" },
            { "type": NUMBERED, "mode": "delta", "sequence": { "from": "body:/version", "start": 1, "hold_s": 1 } },
        ],
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
    pub sequence: Sequence,
    /// Events that say what the newest said when they came, under another id.
    pub equal: BTreeSet<String>,
}

/// Where an object stands in its sequence.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sequence {
    /// Numbers that are done with, and their events; none where a number was passed.
    done: Vec<Option<Record>>,
    held: BTreeMap<u64, Record>,
}

impl Sequence {
    fn next(&self) -> u64 {
        self.done.len() as u64 + 1
    }

    /// How many events wait for their turn.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}

impl Newest {
    pub fn of(record: &Record) -> Self {
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
    pub records: Vec<Record>,
    /// What comes after gaps were passed.
    pub late: Vec<Record>,
    /// Events that the store refuses for good, whatever it is asked.
    pub poison: BTreeSet<String>,
}

/// What must come of a log.
#[derive(Default)]
pub struct Walk {
    /// Events that the store refuses.
    pub poison: BTreeSet<String>,
    pub records: Vec<Record>,
    pub objects: BTreeMap<ObjectKey, Fold>,
    pub outcomes: BTreeMap<RecordId, Outcome>,
    /// Objects whose records lie in several partitions: their order is not that of the log.
    pub moved: BTreeSet<ObjectKey>,
}

impl Traffic {
    /// `deliveries` records about `objects` objects, a fifth of them duplicates, in any order; the
    /// store refuses `poisoned` of them.
    pub fn new(seed: u64, deliveries: usize, objects: usize, poisoned: usize) -> Self {
        let (rng, tenant) = (&mut SmallRng::seed_from_u64(seed), format!("tenant-{seed:x}"));
        let mut records: Vec<Record> = Vec::with_capacity(deliveries);
        let (mut counts, mut late) = (BTreeMap::new(), Vec::new());
        for number in 0..deliveries * 4 / 5 {
            let twin = records.choose(rng).filter(|_| rng.random_bool(TWINS)).cloned();
            let mut record = twin.unwrap_or_else(|| record(rng, &tenant, number, objects, &mut counts));
            // Ids in an order of their own, so that ties are not won by the later in the log.
            record.event_id = format!("evt_{:08x}_{number}", rng.random::<u32>());
            match record.event_type == NUMBERED {
                true if rng.random_bool(MISSING) => {}
                true if rng.random_bool(LATE) => late.push(record),
                _ => records.push(record),
            }
        }
        // What is refused and has a twin is decided by whichever of the two is read first, and they may be read again.
        let has_twin = |r: &&Record| records.iter().chain(&late).any(|other| other != *r && is_twin(other, r));
        let may_be_poison: Vec<_> = records.iter().filter(|r| !has_twin(r)).collect();
        let poison = may_be_poison.choose_multiple(rng, poisoned).map(|r| r.event_id.clone()).collect();
        while records.len() < deliveries {
            let again = records.choose(rng).expect("there are records").clone();
            records.push(again);
        }
        records.shuffle(rng);
        for (number, record) in records.iter_mut().chain(&mut late).enumerate() {
            record.id = RecordId { request: Uuid::from_u128(number as u128 + 1), item: 0 };
        }
        Self { tenant, records, late, poison }
    }

    /// What must come of these records, if they are appended in this order.
    pub fn walk(&self, records: Vec<Record>) -> Walk {
        let mut walk = Walk { records, poison: self.poison.clone(), ..Walk::default() };
        let mut newest: BTreeMap<ObjectKey, Record> = BTreeMap::new();
        for record in &walk.records {
            let RecordKey::Object(key) = &record.key else { panic!("all records are of objects") };
            let fold = walk.objects.entry(key.clone()).or_default();
            if record.kind == RecordKind::Control {
                walk.outcomes.insert(record.id, Outcome::Applied);
                if let ControlAct::Pass { to } = Control::parse(&record.value).expect("an act").act {
                    self.pass(fold, to, &mut walk.outcomes);
                }
                continue;
            }
            if record.event_type == NUMBERED {
                let outcome = self.on_number(fold, record);
                walk.outcomes.insert(record.id, outcome);
                self.release(fold, &mut walk.outcomes);
                continue;
            }
            let current = newest.get(key);
            let is_snapshot = is_snapshot(record);
            let is_newer = current.is_none_or(|current| place(record) > place(current));
            let outcome = if fold.applied.contains(&record.event_id) || fold.equal.contains(&record.event_id) {
                Outcome::Duplicate
            } else if is_undecidable(record) {
                Outcome::Dead
            } else if is_snapshot && current.is_some_and(|current| is_twin(record, current)) {
                fold.equal.insert(record.event_id.clone());
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
            let is_equal = outcome == Outcome::Duplicate && fold.equal.contains(&record.event_id);
            if is_snapshot && is_newer && (outcome == Outcome::Applied || is_equal) {
                fold.newest = Some(Newest::of(record));
                newest.insert(key.clone(), record.clone());
            }
            walk.outcomes.insert(record.id, outcome);
        }
        walk
    }

    fn on_number(&self, fold: &mut Fold, record: &Record) -> Outcome {
        let number: u64 = match record.version.as_ref().and_then(|v| v.parse().ok()) {
            _ if fold.applied.contains(&record.event_id) => return Outcome::Duplicate,
            None => return Outcome::Dead,
            Some(number) => number,
        };
        let sequence = &mut fold.sequence;
        if number < sequence.next() {
            return match &sequence.done[number as usize - 1] {
                Some(done) if is_twin(record, done) => Outcome::Duplicate,
                Some(_) | None => Outcome::Dead,
            };
        }
        if let Some(held) = sequence.held.get(&number) {
            let is_same = held.event_id == record.event_id || is_twin(record, held);
            return if is_same { Outcome::Duplicate } else { Outcome::Dead };
        }
        if number == sequence.next() && self.poison.contains(&record.event_id) {
            return Outcome::Dead;
        }
        sequence.held.insert(number, record.clone());
        Outcome::Parked
    }

    /// Whatever is held and whose turn it is, in its order.
    fn release(&self, fold: &mut Fold, outcomes: &mut BTreeMap<RecordId, Outcome>) {
        while let Some(record) = fold.sequence.held.remove(&fold.sequence.next()) {
            let is_dead = self.poison.contains(&record.event_id);
            outcomes.insert(record.id, if is_dead { Outcome::Dead } else { Outcome::Applied });
            if !is_dead {
                fold.applied.push(record.event_id.clone());
                fold.sequence.done.push(Some(record));
            }
        }
    }

    fn pass(&self, fold: &mut Fold, to: u64, outcomes: &mut BTreeMap<RecordId, Outcome>) {
        self.release(fold, outcomes);
        while fold.sequence.next() < to {
            fold.sequence.done.push(None);
            self.release(fold, outcomes);
        }
    }
}

impl Walk {
    pub fn of(&self, event_id: &str) -> &Record {
        self.records.iter().find(|r| r.event_id == event_id).expect("an event of this traffic")
    }

    /// The deltas among what was applied, a line each.
    pub fn deltas(&self, applied: &[String]) -> String {
        let is_delta = |id: &&String| !is_snapshot(self.of(id));
        applied.iter().filter(is_delta).map(|id| format!("{id}\n")).collect()
    }

    /// The decidable snapshots that the store takes, each event once.
    pub fn snapshots(&self) -> Vec<&Record> {
        let mut seen = BTreeSet::new();
        let all = self.records.iter().filter(|r| r.kind == RecordKind::Event && is_snapshot(r) && !is_undecidable(r));
        all.filter(|r| !self.poison.contains(&r.event_id) && seen.insert(&r.event_id)).collect()
    }

    /// Each event of an object that is no act, with a record of it.
    pub fn events(&self, key: &ObjectKey) -> BTreeMap<&str, &Record> {
        let of = self.records.iter().filter(|r| r.kind == RecordKind::Event);
        let of = of.filter(|r| matches!(&r.key, RecordKey::Object(of) if of == key));
        of.map(|record| (record.event_id.as_str(), record)).collect()
    }

    pub fn has_twin(&self, record: &Record) -> bool {
        let is_other = |r: &&Record| r.event_id != record.event_id && r.key == record.key;
        self.records.iter().filter(is_other).any(|other| is_twin(record, other))
    }
}

pub fn is_snapshot(record: &Record) -> bool {
    ![DELTA, NUMBERED].contains(&record.event_type.as_str())
}

/// The number of a numbered delta.
pub fn number(record: &Record) -> Option<u64> {
    let version = record.version.as_ref().filter(|_| record.event_type == NUMBERED)?;
    version.parse().ok()
}

/// One change that was sent under two ids.
fn is_twin(one: &Record, other: &Record) -> bool {
    one.event_type == other.event_type && one.version == other.version && one.value == other.value
}

pub fn is_undecidable(record: &Record) -> bool {
    record.event_type != DELTA && record.version.as_deref().is_some_and(|v| v.parse::<u64>().is_err())
}

/// Where a snapshot stands in its object's order: version, then rank, then id.
pub fn place(record: &Record) -> (u64, u8, String) {
    let version = record.version.as_ref().and_then(|v| v.parse().ok()).unwrap_or_default();
    let rank = match record.event_type.as_str() {
        "created" => 0,
        TOMBSTONE => 2,
        _ => 1,
    };
    (version, rank, record.event_id.clone())
}

/// `counts`: the last number of each object.
fn record(
    rng: &mut SmallRng,
    tenant: &str,
    number: usize,
    objects: usize,
    counts: &mut BTreeMap<String, u64>,
) -> Record {
    let object = format!("object {}", rng.random_range(0..objects));
    let event_type = *TYPES.choose(rng).expect("there are types");
    let version = if rng.random_bool(0.02) {
        "soon".to_owned()
    } else if event_type == NUMBERED {
        let count = counts.entry(object.clone()).or_default();
        *count += 1;
        count.to_string()
    } else {
        rng.random_range(0..VERSIONS).to_string()
    };
    let body = serde_json::json!({ "number": number, "object": object, "type": event_type, "version": version });
    event(ObjectKey::new(tenant, SOURCE, object), event_type, version, Bytes::from(body.to_string()))
}

/// An event without ids.
pub fn event(key: ObjectKey, event_type: &str, version: String, value: Bytes) -> Record {
    Record {
        kind: RecordKind::Event,
        id: RecordId { request: Uuid::nil(), item: 0 },
        key: RecordKey::Object(key),
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
