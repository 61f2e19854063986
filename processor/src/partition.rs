//! The loop of one partition. Records are gathered per bucket and settled, a group of a bucket at a time, so
//! that an object's records stay in order; their effects then go their ways, a lane per object and sink, while
//! the next group is settled. A record is done when every sink has its effect, or the store keeps it for one,
//! and its arrival is recorded. Nothing waits to fill.

mod drains;
mod emit;
mod held_up;
mod holds;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use seriatim_schemas::key::{ObjectKey, bucket_of};
use seriatim_schemas::row::{DeadLetter, WaitingSink};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use uuid::Uuid;

use crate::act::{Act, Acting, Standing};
use crate::budget::{Budget, Share};
use crate::drain::{Drained, Waiter, Waiters};
use crate::error::StoreError;
use crate::group::{self, Decided, Place, Worked, entry_key};
use crate::lane::{Lanes, Pending, Sent, Ticket};
use crate::log::{Floors, Log, LogEntry, position};
use crate::metrics::{OutcomeLabels, PartitionLabels};
use crate::mutant::{self, Mutant};
use crate::settle::{GivenUp, Settler};
use crate::sink::NamedSink;
use crate::store::{Arrival, Letter};
use crate::watermark::Watermark;
use held_up::{HeldUp, ReadAgain};
use holds::{Asked, Holds};

/// How often it is looked whether what waits is due.
const DRAIN_TICK: Duration = Duration::from_millis(20);
/// Records whose arrivals are written together.
const RECORD_MAX: usize = 512;

/// What all partitions of a process share.
pub struct Shared {
    pub settler: Settler,
    pub log: Arc<dyn Log>,
    pub floors: Floors,
    pub epoch: u64,
    pub budget: Budget,
    /// Groups with the store at once.
    pub in_flight: Arc<Semaphore>,
}

impl Shared {
    fn sinks(&self) -> &[Arc<NamedSink>] {
        self.settler.declarations.sinks()
    }

    fn bucket(&self, key: &ObjectKey) -> u32 {
        key.bucket(self.settler.store.buckets())
    }
}

/// One partition while this process owns it.
pub struct Partition {
    shared: Arc<Shared>,
    id: i32,
    /// Names this owner among the writers of waiting effects: what another one put there may have been tried by it,
    /// and this very process is another after it had let the partition go.
    writer: Uuid,
    buckets: HashMap<u32, Bucket>,
    /// Buckets with work and none of it under way, longest waiting first.
    ready: VecDeque<u32>,
    work: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Buckets that wait until the store's floor has come to this offset.
    barred: BTreeMap<i64, u32>,
    lanes: Lanes,
    waiters: Waiters,
    holds: Holds,
    held_up: HeldUp,
    open: HashMap<Ticket, Open>,
    next_ticket: Ticket,
    watermark: Watermark,
    /// When each pending record was received, by offset.
    pending: BTreeMap<i64, Timestamp>,
    advanced: i64,
    stop: CancellationToken,
    /// Ends what is under way when a stop takes too long: the rest waits in the store.
    hasten: CancellationToken,
    /// Ends it all.
    give_up: CancellationToken,
}

/// What a bucket has to do, one thing at a time.
#[derive(Default)]
struct Bucket {
    entries: VecDeque<LogEntry>,
    acts: VecDeque<(Act, Option<Ticket>)>,
    is_busy: bool,
    /// Records that are out, their arrivals not yet written.
    out: Vec<Open>,
    is_recording: bool,
}

/// A record that was decided and is not done.
struct Open {
    bucket: u32,
    offset: i64,
    arrival: Option<Arrival>,
    letters: Vec<DeadLetter>,
    forget: Option<Letter>,
    /// Sinks that have not got its effect, and acts that are not done.
    left: usize,
    _share: Share,
}

/// What has ended.
enum Done {
    Group { bucket: u32, result: Result<Worked, GivenUp> },
    Acts { bucket: u32, acts: Vec<Act>, tickets: Vec<Option<Ticket>>, result: Result<Vec<Standing>, GivenUp> },
    Lane(Sent),
    Drain { waiter: Waiter, result: Result<Drained, GivenUp> },
    Recorded { bucket: u32, records: Vec<Open>, result: Result<(), GivenUp> },
    Waiting(Vec<WaitingSink>),
    Passed { key: ObjectKey, result: Result<Asked, GivenUp> },
    ReadAgain(ReadAgain),
}

impl Partition {
    pub fn new(shared: Arc<Shared>, id: i32, start: i64, stop: CancellationToken) -> Self {
        Self {
            writer: if mutant::is(Mutant::WriterOfProcess) {
                Uuid::from_u128(Arc::as_ptr(&shared) as usize as u128)
            } else {
                shared.settler.outside.id()
            },
            shared,
            id,
            buckets: HashMap::new(),
            ready: VecDeque::new(),
            work: FuturesUnordered::new(),
            barred: BTreeMap::new(),
            lanes: Lanes::default(),
            waiters: Waiters::default(),
            holds: Holds::default(),
            held_up: HeldUp::default(),
            open: HashMap::new(),
            next_ticket: 0,
            watermark: Watermark::new(start),
            pending: BTreeMap::new(),
            advanced: start,
            stop,
            hasten: CancellationToken::new(),
            give_up: CancellationToken::new(),
        }
    }

    /// Runs until stopped, then drains.
    pub async fn run(mut self, mut entries: mpsc::UnboundedReceiver<Vec<LogEntry>>) {
        let config = &self.shared.settler.config;
        let mut advance = tokio::time::interval(Duration::from_millis(config.advance_interval_ms));
        let mut drain = tokio::time::interval(DRAIN_TICK);
        let mut look = tokio::time::interval(Duration::from_millis(config.look_interval_ms));
        advance.set_missed_tick_behavior(MissedTickBehavior::Delay);
        drain.set_missed_tick_behavior(MissedTickBehavior::Delay);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        look.reset();
        let in_flight = self.shared.in_flight.clone();
        let mut permit: BoxFuture<'static, OwnedSemaphorePermit> = Box::pin(next_permit(in_flight.clone()));
        self.find_waiting();
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                Some(done) = self.work.next() => self.on_done(done),
                free = &mut permit, if !self.ready.is_empty() => {
                    permit = Box::pin(next_permit(in_flight.clone()));
                    self.start_work(free);
                }
                Some(batch) = entries.recv() => self.on_entries(batch),
                _ = drain.tick(), if self.waiters.count() + self.holds.gaps() + self.held_up.count() > 0 => {
                    self.start_drains();
                    self.start_passes();
                    self.start_held_up();
                }
                _ = advance.tick() => self.advance().await,
                _ = look.tick(), if !self.waiters.is_looking() && !mutant::is(Mutant::NoLookAgain) => self.find_waiting(),
            }
            self.pass_bars().await;
        }
        drop(permit);
        self.drain().await;
        info!(partition = self.id, low_watermark = self.watermark.low(), "partition let go");
    }

    /// What is under way ends, or waits in the store, or is given up and read again by the next owner.
    async fn drain(&mut self) {
        let within = Duration::from_millis(self.shared.settler.config.drain_timeout_ms);
        let (hasten, deadline) = (Instant::now() + within / 2, Instant::now() + within);
        self.buckets.values_mut().for_each(|bucket| bucket.entries.clear());
        self.holds.clear_aside();
        self.held_up.clear();
        loop {
            while let Some(bucket) = self.ready.pop_front() {
                self.start_acts(bucket, None);
            }
            tokio::select! {
                biased;
                done = self.work.next() => match done {
                    Some(done) => self.on_done(done),
                    None => break,
                },
                () = tokio::time::sleep_until(deadline) => break,
                () = tokio::time::sleep_until(hasten), if !self.hasten.is_cancelled() => self.hasten.cancel(),
            }
        }
        self.give_up.cancel();
        if !self.work.is_empty() {
            warn!(partition = self.id, "drain took too long; records that are pending will be read again");
        }
        self.advance().await;
    }

    fn on_entries(&mut self, entries: Vec<LogEntry>) {
        let buckets = self.shared.settler.store.buckets();
        for entry in entries {
            let bucket = bucket_of(entry_key(&entry).as_bytes(), buckets);
            self.watermark.read(entry.offset);
            let recorded = entry.record.as_ref().map_or_else(|_| self.shared.settler.outside.now(), |r| r.recorded);
            self.pending.insert(entry.offset, recorded);
            let Some(entry) = self.held_up.set_aside(entry) else { continue };
            let Some(entry) = self.holds.set_aside(entry) else { continue };
            self.buckets.entry(bucket).or_default().entries.push_back(entry);
            self.wake(bucket);
        }
    }

    /// Puts a bucket in line, if it has work and none of it is under way.
    fn wake(&mut self, number: u32) {
        let Some(bucket) = self.buckets.get_mut(&number) else { return };
        let bar = bucket.entries.front().filter(|e| group::is_reset(e) && e.offset > self.advanced).map(|e| e.offset);
        if let Some(offset) = bar {
            self.barred.insert(offset, number);
        }
        let has_work = (bar.is_none() && !bucket.entries.is_empty()) || !bucket.acts.is_empty();
        if !bucket.is_busy && has_work {
            bucket.is_busy = true;
            self.ready.push_back(number);
        } else if !bucket.is_busy && !bucket.is_recording && bucket.out.is_empty() && bar.is_none() {
            self.buckets.remove(&number);
        }
    }

    /// Starts what the bucket that waits longest has to do: acts first, since they make room.
    fn start_work(&mut self, permit: OwnedSemaphorePermit) {
        let number = self.ready.pop_front().expect("a permit is taken only for a ready bucket");
        let bucket = self.buckets.get_mut(&number).expect("a ready bucket is there");
        if !bucket.acts.is_empty() {
            return self.start_acts(number, Some(permit));
        }
        let entries = group::gather(&mut bucket.entries, self.shared.settler.store.group_bounds());
        let busy = self.busy_of(&entries);
        let (shared, id, writer, stop) = (self.shared.clone(), self.id, self.writer, self.give_up.clone());
        self.work.push(Box::pin(async move {
            let topic = shared.floors.log.topic.clone();
            let at = move |offset: i64| position(&topic, id, offset);
            let (settler, epoch) = (&shared.settler, shared.epoch);
            let place = Place { settler, epoch, writer, partition: id, at: &at, busy: &busy };
            let result = group::work(place, number, entries, &stop).await;
            drop(permit);
            Done::Group { bucket: number, result }
        }));
        if mutant::is(Mutant::GroupsTogether) {
            self.idle(number);
        }
    }

    fn start_acts(&mut self, number: u32, permit: Option<OwnedSemaphorePermit>) {
        let bounds = self.shared.settler.store.group_bounds();
        let bucket = self.buckets.get_mut(&number).expect("a ready bucket is there");
        let (acts, tickets): (Vec<_>, Vec<_>) =
            gather_acts(&mut bucket.acts, bounds.events, bounds.bytes).into_iter().unzip();
        if acts.is_empty() {
            bucket.is_busy = false;
            return self.wake(number);
        }
        let (shared, writer, stop) = (self.shared.clone(), self.writer, self.give_up.clone());
        self.work.push(Box::pin(async move {
            let acting = Acting { settler: &shared.settler, writer };
            let result = acting.work(number, &acts, &stop).await;
            drop(permit);
            Done::Acts { bucket: number, acts, tickets, result }
        }));
    }

    fn on_done(&mut self, done: Done) {
        match done {
            Done::Group { bucket, result } => {
                self.on_worked(bucket, result.unwrap_or_default());
                self.idle(bucket);
                self.record(bucket);
            }
            Done::Acts { bucket, acts, tickets, result } => {
                self.idle(bucket);
                for ((act, ticket), standing) in acts.into_iter().zip(tickets).zip(result.into_iter().flatten()) {
                    self.on_act(act, ticket, standing);
                }
                self.record(bucket);
            }
            Done::Lane(sent) => self.on_sent(sent),
            Done::Drain { waiter, result } => self.on_drained(waiter, result),
            Done::Recorded { bucket, records, result } => self.on_recorded(bucket, records, result),
            Done::Passed { key, result } => self.on_passed(&key, result),
            Done::ReadAgain(read) => self.on_read_again(read),
            Done::Waiting(all) => {
                let changed = self.waiters.end_look();
                all.into_iter().for_each(|waiting| self.on_waiting(waiting, &changed));
            }
        }
    }

    fn idle(&mut self, number: u32) {
        if let Some(bucket) = self.buckets.get_mut(&number) {
            bucket.is_busy = false;
        }
        self.wake(number);
    }

    /// What waits is known before the effects that must wait behind it.
    fn on_worked(&mut self, bucket: u32, worked: Worked) {
        for (key, sequence, waiting) in worked.sequences {
            self.on_sequence(key, sequence.as_ref(), &waiting);
        }
        worked.held_up.into_iter().for_each(|(key, offsets)| self.hold_up(bucket, &key, offsets));
        worked.decided.into_iter().for_each(|decided| self.on_decided(bucket, decided));
        worked.aside.into_iter().for_each(|(key, entries)| self.put_aside(bucket, key, entries));
    }

    /// A record is decided: its effects go to their lanes.
    fn on_decided(&mut self, bucket: u32, decided: Decided) {
        let Decided { offset, act, forget, effect, arrival, letter, share } = decided;
        self.held_up.decided(offset);
        let targets: Vec<usize> = match &effect {
            None => Vec::new(),
            Some((effect, _)) => {
                let all = self.shared.settler.declarations.sinks_of(&effect.key);
                all.iter().copied().filter(|i| self.shared.sinks()[*i].takes(effect.outcome, effect.mode)).collect()
            }
        };
        let letters = letter.into_iter().collect();
        let left = targets.len() + usize::from(act.is_some());
        let open = Open { bucket, offset, arrival, letters, forget, left, _share: share };
        if left == 0 {
            return self.buckets.entry(bucket).or_default().out.push(open);
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.open.insert(ticket, open);
        if let Some(act) = act {
            self.act_for(act, Some(ticket));
        }
        let Some((effect, waiting)) = effect else { return };
        if effect.resent {
            self.shared.settler.metrics.resends.inc_by(targets.len() as u64);
        }
        for sink in targets {
            self.dispatch(sink, Pending { ticket, effect: effect.clone() }, &waiting);
            if mutant::is(Mutant::RecordedBeforeEmit) {
                self.settle_ticket(ticket);
            }
        }
    }

    /// Writes the arrivals of what is out, a write at a time: what comes meanwhile goes into the next.
    fn record(&mut self, number: u32) {
        let Some(bucket) = self.buckets.get_mut(&number) else { return };
        if bucket.is_recording || bucket.out.is_empty() {
            return;
        }
        let count = bucket.out.len().min(RECORD_MAX);
        let mut records: Vec<Open> = bucket.out.drain(..count).collect();
        bucket.is_recording = true;
        let (shared, stop) = (self.shared.clone(), self.give_up.clone());
        self.work.push(Box::pin(async move {
            let result = record(&shared, number, &mut records, &stop).await;
            Done::Recorded { bucket: number, records, result }
        }));
    }

    fn on_recorded(&mut self, number: u32, records: Vec<Open>, result: Result<(), GivenUp>) {
        if result.is_ok() {
            for record in &records {
                self.watermark.done(record.offset);
                self.pending.remove(&record.offset);
                record.arrival.iter().for_each(|arrival| count(&self.shared, arrival));
            }
        }
        if let Some(bucket) = self.buckets.get_mut(&number) {
            bucket.is_recording = false;
        }
        self.record(number);
        self.wake(number);
    }

    /// Lets go the buckets whose bar the floor has come to; it is written as soon as it may.
    async fn pass_bars(&mut self) {
        let Some((first, _)) = self.barred.first_key_value() else { return };
        if self.advanced < *first && self.watermark.low() >= *first {
            self.advance().await;
        }
        while let Some((offset, bucket)) = self.barred.pop_first() {
            if offset > self.advanced {
                self.barred.insert(offset, bucket);
                return;
            }
            self.wake(bucket);
        }
    }

    /// Writes the low watermark: to the store first, since the store's word counts.
    async fn advance(&mut self) {
        let oldest = self
            .pending
            .values()
            .next()
            .map_or(0, |at| self.shared.settler.outside.now().as_millisecond() - at.as_millisecond());
        let labels = PartitionLabels { partition: self.id };
        self.shared.settler.metrics.oldest_pending_ms.get_or_create(&labels).set(oldest);
        self.shared.settler.metrics.waiting.get_or_create(&labels).set(self.waiters.count() as i64);
        self.shared.settler.metrics.parked.get_or_create(&labels).set(self.waiters.parked() as i64);
        self.shared.settler.metrics.gaps.get_or_create(&labels).set(self.holds.gaps() as i64);
        self.shared.settler.metrics.held_up.get_or_create(&labels).set(self.held_up.count() as i64);
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

/// Takes acts off the front, up to the bounds, at most one for each object and sink: an act sees what the one
/// before it has left in the store.
fn gather_acts(
    queue: &mut VecDeque<(Act, Option<Ticket>)>,
    events_max: usize,
    bytes_max: usize,
) -> Vec<(Act, Option<Ticket>)> {
    let mut seen: HashSet<Waiter> = HashSet::new();
    let (mut acts, mut events, mut bytes) = (Vec::new(), 0, 0);
    while let Some((act, _)) = queue.front() {
        let (count, size) = act.size();
        let is_full = !acts.is_empty() && (events + count > events_max || bytes + size > bytes_max);
        if is_full || (!seen.insert((act.key.clone(), act.sink)) && !mutant::is(Mutant::ActsTogether)) {
            break;
        }
        (events, bytes) = (events + count, bytes + size);
        acts.extend(queue.pop_front());
    }
    acts
}

/// Writes arrivals and dead letters, until the store has them.
async fn record(shared: &Shared, bucket: u32, records: &mut [Open], stop: &CancellationToken) -> Result<(), GivenUp> {
    let now_ms = shared.settler.outside.now().as_millisecond();
    records.iter_mut().flat_map(|r| &mut r.arrival).for_each(|arrival| arrival.row.done_ms = now_ms);
    let arrivals: Vec<Arrival> = records.iter().filter_map(|r| r.arrival.clone()).collect();
    let letters: Vec<DeadLetter> = records.iter().flat_map(|r| r.letters.iter().cloned()).collect();
    let gone: Vec<Letter> = records.iter().filter_map(|r| r.forget.clone()).collect();
    let write = async || {
        let has_letters = !gone.is_empty() || !letters.is_empty();
        let _letters = if has_letters { Some(shared.settler.letters.lock().await) } else { None };
        for letter in &gone {
            shared.settler.store.forget(bucket, letter).await?;
        }
        if !arrivals.is_empty() || !letters.is_empty() {
            shared.settler.store.record(bucket, &arrivals, &letters).await?;
        }
        Ok::<_, StoreError>(())
    };
    let what = format!("arrivals of bucket {bucket} are not recorded");
    shared.settler.until_answered(&what, stop, write).await
}

fn count(shared: &Shared, arrival: &Arrival) {
    let (tenant, source) = (arrival.key.tenant.clone(), arrival.key.source.clone());
    let labels = OutcomeLabels { tenant, source, outcome: arrival.row.outcome.as_str() };
    shared.settler.metrics.outcomes.get_or_create(&labels).inc();
}
