//! The loop of one partition. Records are gathered per bucket; a group of them is settled, its effects are
//! emitted, its arrivals recorded, and then its offsets are done. One group of a bucket is under way at a
//! time, so an object's records stay in order; while it is, the next group gathers. Nothing waits to fill.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use seriatim_schemas::id::RecordId;
use seriatim_schemas::key::{ObjectKey, RecordKey, bucket_of};
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::record::{Record, RecordKind, encode};
use seriatim_schemas::row::{ArrivalRow, DeadLetter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use uuid::Uuid;

use crate::budget::Share;
use crate::decide::Verdict;
use crate::log::{Floors, ForeignRecord, Log, LogEntry, position};
use crate::metrics::{OutcomeLabels, PartitionLabels};
use crate::settle::{Backoff, Entry, GivenUp, Lane, Settler};
use crate::sink::{Effect, Sink, idempotency_key};
use crate::store::{Arrival, GroupBounds};
use crate::watermark::Watermark;

/// What all partitions of a process share.
pub struct Shared {
    pub settler: Settler,
    pub log: Arc<dyn Log>,
    pub floors: Floors,
    pub sinks: Vec<Arc<dyn Sink>>,
    pub epoch: u64,
    /// Groups with the store at once.
    pub in_flight: Arc<Semaphore>,
}

/// One partition while this process owns it.
pub struct Partition {
    shared: Arc<Shared>,
    id: i32,
    queues: HashMap<u32, VecDeque<LogEntry>>,
    /// Buckets with records and no group under way, longest waiting first.
    ready: VecDeque<u32>,
    watermark: Watermark,
    /// When each pending record was received, by offset.
    pending: BTreeMap<i64, Timestamp>,
    advanced: i64,
    stop: CancellationToken,
}

/// A group that is done, or was given up.
struct Finished {
    bucket: u32,
    offsets: Vec<i64>,
    result: Result<(), GivenUp>,
}

type Groups = FuturesUnordered<BoxFuture<'static, Finished>>;

impl Partition {
    pub fn new(shared: Arc<Shared>, id: i32, start: i64, stop: CancellationToken) -> Self {
        let watermark = Watermark::new(start);
        Self {
            shared,
            id,
            queues: HashMap::new(),
            ready: VecDeque::new(),
            watermark,
            pending: BTreeMap::new(),
            advanced: start,
            stop,
        }
    }

    /// Runs until stopped, then drains.
    pub async fn run(mut self, mut entries: mpsc::UnboundedReceiver<Vec<LogEntry>>) {
        let config = &self.shared.settler.config;
        let drain = Duration::from_millis(config.drain_timeout_ms);
        let mut tick = tokio::time::interval(Duration::from_millis(config.advance_interval_ms));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let in_flight = self.shared.in_flight.clone();
        let mut groups = Groups::new();
        let mut permit: BoxFuture<'static, OwnedSemaphorePermit> = Box::pin(next_permit(in_flight.clone()));
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                Some(finished) = groups.next() => self.on_finished(finished),
                free = &mut permit, if !self.ready.is_empty() => {
                    permit = Box::pin(next_permit(in_flight.clone()));
                    groups.push(self.start_group(free));
                }
                Some(batch) = entries.recv() => self.on_entries(batch),
                _ = tick.tick() => self.advance().await,
            }
        }
        drop(permit);
        let deadline = Instant::now() + drain;
        while let Ok(Some(finished)) = tokio::time::timeout_at(deadline, groups.next()).await {
            self.on_finished(finished);
        }
        if !groups.is_empty() {
            warn!(partition = self.id, groups = groups.len(), "drain took too long; their records will be read again");
        }
        self.advance().await;
        info!(partition = self.id, low_watermark = self.watermark.low(), "partition let go");
    }

    fn on_entries(&mut self, entries: Vec<LogEntry>) {
        let buckets = self.shared.settler.store.buckets();
        for entry in entries {
            let bucket = bucket_of(entry_key(&entry).as_bytes(), buckets);
            self.watermark.read(entry.offset);
            let recorded = entry.record.as_ref().map_or_else(|_| Timestamp::now(), |r| r.recorded);
            self.pending.insert(entry.offset, recorded);
            let is_idle = !self.queues.contains_key(&bucket);
            self.queues.entry(bucket).or_default().push_back(entry);
            if is_idle {
                self.ready.push_back(bucket);
            }
        }
    }

    /// Takes the next group of the bucket that waits longest. The queue stays, and with it the bucket's turn,
    /// until the group is finished.
    fn start_group(&mut self, permit: OwnedSemaphorePermit) -> BoxFuture<'static, Finished> {
        let bucket = self.ready.pop_front().expect("a permit is taken only for a ready bucket");
        let bounds = self.shared.settler.store.group_bounds();
        let queue = self.queues.get_mut(&bucket).expect("a ready bucket has a queue");
        let group = gather(queue, bounds);
        let (shared, id, stop) = (self.shared.clone(), self.id, self.stop.clone());
        Box::pin(async move {
            let offsets = group.iter().map(|e| e.offset).collect();
            let result = work_group(&shared, id, bucket, group, &stop).await;
            drop(permit);
            Finished { bucket, offsets, result }
        })
    }

    fn on_finished(&mut self, finished: Finished) {
        if finished.result == Ok(()) {
            for offset in &finished.offsets {
                self.watermark.done(*offset);
                self.pending.remove(offset);
            }
        }
        match self.queues.get(&finished.bucket) {
            Some(queue) if !queue.is_empty() => self.ready.push_back(finished.bucket),
            _ => drop(self.queues.remove(&finished.bucket)),
        }
    }

    /// Writes the low watermark: to the store first, since the store's word counts.
    async fn advance(&mut self) {
        let oldest =
            self.pending.values().next().map_or(0, |at| Timestamp::now().as_millisecond() - at.as_millisecond());
        let labels = PartitionLabels { partition: self.id };
        self.shared.settler.metrics.oldest_pending_ms.get_or_create(&labels).set(oldest);
        let low = self.watermark.low();
        if low == self.advanced {
            return;
        }
        if let Err(error) = self.shared.floors.set(self.id, low).await {
            warn!(partition = self.id, %error, "low watermark not written, trying again");
            return;
        }
        self.advanced = low;
        if let Err(error) = self.shared.log.commit(self.id, low).await {
            debug!(partition = self.id, %error, "offset not committed to the log; the store's floor counts");
        }
    }
}

async fn next_permit(in_flight: Arc<Semaphore>) -> OwnedSemaphorePermit {
    in_flight.acquire_owned().await.expect("the semaphore is never closed")
}

fn entry_key(entry: &LogEntry) -> String {
    match &entry.record {
        Ok(record) => record.key.to_string(),
        Err(foreign) => foreign.key.clone(),
    }
}

/// Takes records off the front of a bucket's queue, in order, up to a group's bounds; at least one.
fn gather(queue: &mut VecDeque<LogEntry>, bounds: GroupBounds) -> Vec<LogEntry> {
    let mut group: Vec<LogEntry> = Vec::new();
    let mut keys: HashSet<String> = HashSet::new();
    let mut bytes = 0;
    while let Some(entry) = queue.front() {
        let key = entry_key(entry);
        let is_new = !keys.contains(&key);
        bytes += entry.record.as_ref().map_or(0, Record::size);
        let is_full = group.len() >= bounds.events || (is_new && keys.len() >= bounds.objects) || bytes > bounds.bytes;
        if is_full && !group.is_empty() {
            break;
        }
        if is_new {
            keys.insert(key);
        }
        group.push(queue.pop_front().expect("the front was just seen"));
    }
    group
}

/// One record that was decided.
struct Decided {
    key: ObjectKey,
    record: Record,
    offset: i64,
    verdict: Verdict,
}

/// A group, sorted into the lanes of its objects; what has no object is a dead letter at once.
#[derive(Default)]
struct Sorted {
    lanes: Vec<Lane>,
    /// Of each lane's entries.
    offsets: Vec<Vec<i64>>,
    dead: Vec<DeadLetter>,
    arrivals: Vec<Arrival>,
    /// The group's place in the byte budget.
    shares: Vec<Share>,
}

fn sort_out(shared: &Shared, group: Vec<LogEntry>, at: impl Fn(i64) -> String) -> Sorted {
    let mut sorted = Sorted::default();
    let mut lane_of: HashMap<ObjectKey, usize> = HashMap::new();
    for LogEntry { offset, record, share } in group {
        sorted.shares.push(share);
        match record {
            Ok(record) => match record.key.clone() {
                RecordKey::Object(key) => {
                    let candidate = shared.settler.declarations.interpret(&record, at(offset));
                    let lane = *lane_of.entry(key.clone()).or_insert_with(|| {
                        sorted.lanes.push(Lane { key, entries: Vec::new() });
                        sorted.offsets.push(Vec::new());
                        sorted.lanes.len() - 1
                    });
                    sorted.lanes[lane].entries.push(Entry { record, candidate });
                    sorted.offsets[lane].push(offset);
                }
                // Its items are records of their own.
                RecordKey::Evidence { .. } if record.kind == RecordKind::Evidence => {}
                RecordKey::Unroutable { .. } | RecordKey::Evidence { .. } => {
                    let (cause, detail) = match &record.problem {
                        Some(problem) => ("unroutable", problem.clone()),
                        None => ("unsupported_kind", format!("kind {} is of a newer version", record.kind.as_str())),
                    };
                    let letter = dead_letter(&record, "", cause, detail, at(offset));
                    sorted.arrivals.push(arrival_of_letter(&letter, shared));
                    sorted.dead.push(letter);
                }
            },
            Err(foreign) => sorted.dead.push(foreign_letter(foreign, at(offset), offset)),
        }
    }
    sorted
}

/// The way of one group. Whatever stops it before its end leaves its offsets pending: all is read again.
async fn work_group(
    shared: &Shared,
    partition: i32,
    bucket: u32,
    group: Vec<LogEntry>,
    stop: &CancellationToken,
) -> Result<(), GivenUp> {
    let topic = &shared.floors.log.topic;
    let at = |offset: i64| position(topic, partition, offset);
    let Sorted { lanes, offsets, mut dead, mut arrivals, shares } = sort_out(shared, group, at);
    let verdicts = shared.settler.settle(bucket, &lanes, stop).await?;
    let decided: Vec<Decided> = lanes
        .into_iter()
        .zip(offsets)
        .zip(verdicts)
        .flat_map(|((lane, offsets), verdicts)| {
            let key = lane.key;
            let entries = lane.entries.into_iter().zip(offsets).zip(verdicts);
            entries.map(move |((entry, offset), verdict)| Decided {
                key: key.clone(),
                record: entry.record,
                offset,
                verdict,
            })
        })
        .collect();
    emit(shared, &decided, stop).await?;
    for one in &decided {
        if let Verdict::Dead(cause) = &one.verdict {
            let letter = dead_letter(&one.record, &one.key.object, cause.cause, cause.detail.clone(), at(one.offset));
            warn!(
                idempotency_key = idempotency_key(&one.key, &letter.event_row),
                cause = cause.cause,
                detail = cause.detail,
                "dead letter"
            );
            dead.push(letter);
        }
        arrivals.extend(arrival(shared, one, at(one.offset)));
    }
    record(shared, bucket, &arrivals, &dead, stop).await?;
    for arrival in &arrivals {
        count(shared, arrival);
    }
    drop(shares);
    Ok(())
}

/// Sends the group's effects, object by object in order, to each sink, until it has taken them.
async fn emit(shared: &Shared, decided: &[Decided], stop: &CancellationToken) -> Result<(), GivenUp> {
    let effects: Vec<Effect> = decided.iter().filter_map(|one| effect(one, shared.epoch)).collect();
    if effects.is_empty() {
        return Ok(());
    }
    let resent = effects.iter().filter(|e| e.resent).count();
    shared.settler.metrics.resends.inc_by(resent as u64);
    for sink in &shared.sinks {
        let mut backoff = Backoff::new(&shared.settler.config);
        while let Err(error) = sink.emit(&effects).await {
            warn!(%error, effects = effects.len(), "sink did not take the effects, trying again");
            shared.settler.metrics.sink_errors.inc();
            backoff.wait(stop).await?;
        }
    }
    Ok(())
}

fn effect(one: &Decided, epoch: u64) -> Option<Effect> {
    let (rev, outcome, resent) = match one.verdict {
        Verdict::Apply { rev } => (rev, Outcome::Applied, false),
        Verdict::Resend { rev, outcome } => (rev, outcome, true),
        Verdict::Done | Verdict::Duplicate | Verdict::Stale | Verdict::Dead(_) => return None,
    };
    Some(Effect {
        key: one.key.clone(),
        event_id: one.record.event_id.clone(),
        event_row: one.record.event_row(),
        event_type: one.record.event_type.clone(),
        version: one.record.version.clone(),
        outcome,
        epoch,
        rev,
        resent,
        recorded: one.record.recorded,
        value: one.record.value.clone(),
    })
}

/// What the ledger says of one record; nothing where it said so before.
fn arrival(shared: &Shared, one: &Decided, position: String) -> Option<Arrival> {
    let (outcome, detail) = match &one.verdict {
        Verdict::Apply { .. } => (Outcome::Applied, None),
        Verdict::Resend { outcome, .. } => (*outcome, None),
        Verdict::Duplicate => (Outcome::Duplicate, None),
        Verdict::Stale => (Outcome::Stale, None),
        Verdict::Dead(cause) => (Outcome::Dead, Some(format!("{}: {}", cause.cause, cause.detail))),
        Verdict::Done => return None,
    };
    let row = ArrivalRow {
        event_row: one.record.event_row(),
        event_id: one.record.event_id.clone(),
        record: one.record.id,
        outcome,
        detail,
        position,
        recorded_ms: one.record.recorded.as_millisecond(),
        done_ms: Timestamp::now().as_millisecond(),
    };
    debug!(idempotency_key = idempotency_key(&one.key, &row.event_row), outcome = outcome.as_str(), record = %row.record, "done");
    Some(Arrival {
        ttl_s: shared.settler.declarations.dedupe_window_s(&one.key.tenant, &one.key.source),
        key: one.key.clone(),
        row,
    })
}

async fn record(
    shared: &Shared,
    bucket: u32,
    arrivals: &[Arrival],
    dead: &[DeadLetter],
    stop: &CancellationToken,
) -> Result<(), GivenUp> {
    if arrivals.is_empty() && dead.is_empty() {
        return Ok(());
    }
    let mut backoff = Backoff::new(&shared.settler.config);
    while let Err(error) = shared.settler.store.record(bucket, arrivals, dead).await {
        warn!(bucket, %error, "arrivals not recorded, trying again");
        shared.settler.metrics.store_errors.inc();
        backoff.wait(stop).await?;
    }
    Ok(())
}

fn count(shared: &Shared, arrival: &Arrival) {
    let (tenant, source) = (arrival.key.tenant.clone(), arrival.key.source.clone());
    let labels = OutcomeLabels { tenant, source, outcome: arrival.row.outcome.as_str() };
    shared.settler.metrics.outcomes.get_or_create(&labels).inc();
}

fn dead_letter(record: &Record, object: &str, cause: &str, detail: String, position: String) -> DeadLetter {
    DeadLetter {
        tenant: record.key.tenant().to_owned(),
        source: record.key.source().to_owned(),
        object: object.to_owned(),
        event_row: record.event_row(),
        event_id: record.event_id.clone(),
        event_type: record.event_type.clone(),
        record: record.id,
        cause: cause.to_owned(),
        detail,
        position,
        recorded_ms: record.recorded.as_millisecond(),
        dead_ms: Timestamp::now().as_millisecond(),
        headers: encode(record),
        value: record.value.clone(),
    }
}

fn arrival_of_letter(letter: &DeadLetter, shared: &Shared) -> Arrival {
    Arrival {
        key: ObjectKey::new(&letter.tenant, &letter.source, &letter.object),
        row: ArrivalRow {
            event_row: letter.event_row.clone(),
            event_id: letter.event_id.clone(),
            record: letter.record,
            outcome: Outcome::Dead,
            detail: Some(format!("{}: {}", letter.cause, letter.detail)),
            position: letter.position.clone(),
            recorded_ms: letter.recorded_ms,
            done_ms: letter.dead_ms,
        },
        ttl_s: shared.settler.declarations.dedupe_window_s(&letter.tenant, &letter.source),
    }
}

/// What someone else wrote into the topic. Its position names it: it has no id of ours.
fn foreign_letter(foreign: ForeignRecord, position: String, offset: i64) -> DeadLetter {
    warn!(position, error = %foreign.error, "not a record of ours: kept as a dead letter");
    let now_ms = Timestamp::now().as_millisecond();
    DeadLetter {
        tenant: String::new(),
        source: String::new(),
        object: String::new(),
        event_row: position.clone(),
        event_id: position.clone(),
        event_type: "unknown".to_owned(),
        record: RecordId { request: Uuid::nil(), item: offset as u32 },
        cause: "foreign".to_owned(),
        detail: format!("key {:?}: {}", foreign.key, foreign.error),
        position,
        recorded_ms: now_ms,
        dead_ms: now_ms,
        headers: foreign.headers,
        value: foreign.value,
    }
}
