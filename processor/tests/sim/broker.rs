//! A log with partitions and a group, as Kafka's: who owns what may change at any time, and who owned it before may not
//! know yet. What was appended is there for good.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use seriatim_processor::budget::Budget;
use seriatim_processor::error::LogError;
use seriatim_processor::inspect::{Extent, InspectLog, RawEntry};
use seriatim_processor::log::{Floors, Log, LogEntry, LogEvent, LogIdentity};
use seriatim_schemas::key::{ObjectKey, RecordKey, bucket_of};
use seriatim_schemas::record::{Record, RecordKind, encode};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::faults::{Fault, Faults};
use super::process::{BEGIN_MS, Process};

type Partitions = Vec<Vec<Record>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Assign(i32),
    Revoke(i32),
}

struct Handover {
    to: Option<usize>,
    by: Instant,
}

pub struct Broker {
    state: Mutex<State>,
    topic_id: String,
    /// What comes after a record that a processor has appended.
    late: Mutex<Vec<Record>>,
}

#[derive(Default)]
struct State {
    partitions: Partitions,
    /// All of them, as they were appended.
    all: Vec<Record>,
    /// Partitions that hold records of an object.
    homes: BTreeMap<ObjectKey, BTreeSet<i32>>,
    /// Of the time before the last growth, and until when some go by that.
    count_before: usize,
    counts: BTreeSet<u32>,
    heard_at: Option<Instant>,
    owners: BTreeMap<i32, usize>,
    /// Owners that know it.
    active: BTreeMap<i32, usize>,
    handovers: BTreeMap<i32, Handover>,
    members: BTreeMap<usize, VecDeque<Change>>,
    away_until: Option<Instant>,
}

impl Broker {
    pub fn new(partitions: usize, late: Vec<Record>) -> Self {
        let state = State { partitions: vec![Vec::new(); partitions], ..State::default() };
        Self { state: Mutex::new(state), topic_id: "1".to_owned(), late: Mutex::new(late) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while locked")
    }

    pub fn append(&self, record: Record) {
        let mut state = self.state();
        let is_act = record.kind == RecordKind::Control;
        state.append(record);
        if is_act {
            let late = self.late.lock().expect("no panic while locked").pop();
            late.into_iter().for_each(|record| state.append(record));
        }
    }

    pub fn log(&self) -> Vec<Record> {
        self.state().all.clone()
    }

    /// One past the last offset of each partition.
    pub fn ends(&self) -> Vec<i64> {
        self.state().partitions.iter().map(|p| p.len() as i64).collect()
    }

    /// More partitions; some of those who append go by the old count until they hear of it.
    pub fn grow(&self, by: usize, heard_at: Instant) {
        let mut state = self.state();
        let count = state.partitions.len();
        state.partitions.resize(count + by, Vec::new());
        (state.count_before, state.heard_at) = (count, Some(heard_at));
        state.counts.extend([count as u32, (count + by) as u32]);
    }

    /// Objects with records in one partition that belonged into another for a while: two owners know of them.
    pub fn moved(&self) -> BTreeSet<ObjectKey> {
        let state = self.state();
        let is_elsewhere = |key: &ObjectKey, p: &i32| state.counts.iter().any(|count| key.bucket(*count) as i32 != *p);
        let is_moved = |(key, homes): &(&ObjectKey, &BTreeSet<i32>)| homes.iter().any(|p| is_elsewhere(key, p));
        state.homes.iter().filter(is_moved).map(|(key, _)| key.clone()).collect()
    }

    pub fn set_away(&self, until: Instant) {
        self.state().away_until = Some(until);
    }

    /// Shares the partitions out anew among members, from `first` on; those that lose some are told, and waited for.
    pub fn rebalance(&self, members: &[usize], first: usize, grace: Duration) {
        let mut state = self.state();
        for partition in 0..state.partitions.len() as i32 {
            let to = (!members.is_empty()).then(|| members[(partition as usize + first) % members.len()]);
            state.move_to(partition, to, grace);
        }
    }

    /// A member that is gone, or counts as gone, is not waited for.
    pub fn expel(&self, member: usize) {
        let mut state = self.state();
        let now = Instant::now();
        for partition in 0..state.partitions.len() as i32 {
            if state.owners.get(&partition) == Some(&member) {
                state.owners.remove(&partition);
                state.active.remove(&partition);
                state.tell(member, Change::Revoke(partition));
                state.handovers.entry(partition).or_insert(Handover { to: None, by: now }).by = now;
            }
        }
    }

    /// Partitions that have waited long enough go to their new owners.
    pub fn tick(&self) {
        let mut state = self.state();
        let now = Instant::now();
        let due: Vec<i32> = state.handovers.iter().filter(|(_, h)| h.by <= now).map(|(p, _)| *p).collect();
        due.into_iter().for_each(|partition| state.hand_over(partition));
    }

    /// Whether a member owns a partition of an object, and began after all owners before it had lost it.
    pub fn owns(&self, member: usize, key: &ObjectKey) -> bool {
        let state = self.state();
        let home = key.bucket(state.partitions.len() as u32) as i32;
        let mut homes = state.homes.get(key).into_iter().flatten().chain([&home]);
        homes.any(|partition| state.active.get(partition) == Some(&member))
    }

    /// Whether a partition has no owner, and gets none.
    pub fn has_orphans(&self) -> bool {
        let state = self.state();
        let has_owner =
            |p: &i32| state.owners.contains_key(p) || state.handovers.get(p).is_some_and(|h| h.to.is_some());
        !(0..state.partitions.len() as i32).all(|p| has_owner(&p))
    }
}

impl State {
    fn append(&mut self, record: Record) {
        // Received one after the other, by the clock of an edge.
        let recorded = Timestamp::from_millisecond(BEGIN_MS + self.all.len() as i64).expect("a time of this century");
        let record = Record { recorded, ..record };
        let is_unheard = self.heard_at.is_some_and(|at| Instant::now() < at) && self.all.len().is_multiple_of(2);
        let count = if is_unheard { self.count_before } else { self.partitions.len() };
        let partition = bucket_of(record.key.to_string().as_bytes(), count as u32) as usize;
        if let RecordKey::Object(key) = &record.key {
            self.homes.entry(key.clone()).or_default().insert(partition as i32);
        }
        self.partitions[partition].push(record.clone());
        self.all.push(record);
    }

    fn tell(&mut self, member: usize, change: Change) {
        if let Some(changes) = self.members.get_mut(&member) {
            changes.push_back(change);
        }
    }

    fn move_to(&mut self, partition: i32, to: Option<usize>, grace: Duration) {
        let now = Instant::now();
        if let Some(handover) = self.handovers.get_mut(&partition) {
            handover.to = to;
            return;
        }
        match self.owners.get(&partition).copied() {
            owner if owner.is_some() && owner == to => {}
            Some(owner) => {
                self.tell(owner, Change::Revoke(partition));
                self.handovers.insert(partition, Handover { to, by: now + grace });
            }
            None => drop(self.handovers.insert(partition, Handover { to, by: now })),
        }
    }

    fn hand_over(&mut self, partition: i32) {
        let Some(Handover { to, .. }) = self.handovers.remove(&partition) else { return };
        self.owners.remove(&partition);
        self.active.remove(&partition);
        if let Some(member) = to.filter(|member| self.members.contains_key(member)) {
            self.owners.insert(partition, member);
            self.tell(member, Change::Assign(partition));
        }
    }
}

/// The log as one process sees it.
#[derive(Clone)]
pub struct Member {
    pub broker: Arc<Broker>,
    pub process: Arc<Process>,
    pub faults: Arc<Faults>,
}

impl Member {
    fn number(&self) -> usize {
        self.process.number
    }

    async fn read(self, budget: Budget, floors: Floors, events: mpsc::UnboundedSender<LogEvent>) {
        let mut positions: BTreeMap<i32, i64> = BTreeMap::new();
        while !self.process.stop.is_cancelled() {
            self.process.step(1).await;
            while let Some(change) = self.next_change() {
                match change {
                    Change::Assign(partition) => {
                        let start = loop {
                            match floors.get(partition).await {
                                Ok(floor) => break floor.unwrap_or(0),
                                Err(_) => self.process.step(2).await,
                            }
                        };
                        positions.insert(partition, start);
                        self.begin(partition);
                        let _ = events.send(LogEvent::Assigned { partition, start });
                    }
                    Change::Revoke(partition) if positions.remove(&partition).is_some() => {
                        self.give_away(vec![partition], &events).await;
                    }
                    Change::Revoke(_) => {}
                }
            }
            for (partition, at) in &mut positions {
                if budget.is_spent() {
                    break;
                }
                let records = self.fetch(*partition, *at);
                if records.is_empty() {
                    continue;
                }
                let entry = |(record, offset): (Record, i64)| {
                    let share = budget.take(record.size());
                    LogEntry { offset, record: Ok(record), share }
                };
                let count = records.len() as i64;
                let entries = records.into_iter().zip(*at..).map(entry).collect();
                *at += count;
                let _ = events.send(LogEvent::Entries { partition: *partition, entries });
            }
        }
        self.give_away(positions.into_keys().collect(), &events).await;
        self.broker.state().members.remove(&self.number());
    }

    async fn give_away(&self, partitions: Vec<i32>, events: &mpsc::UnboundedSender<LogEvent>) {
        if partitions.is_empty() {
            return;
        }
        let (drained, wait) = oneshot::channel();
        let _ = events.send(LogEvent::Revoked { partitions: partitions.clone(), drained });
        let _ = wait.await;
        self.process.step(3).await;
        let mut state = self.broker.state();
        for partition in
            partitions.into_iter().filter(|p| state.owners.get(p) == Some(&self.number())).collect::<Vec<_>>()
        {
            state.hand_over(partition);
        }
    }

    fn begin(&self, partition: i32) {
        let mut state = self.broker.state();
        if state.owners.get(&partition) == Some(&self.number()) {
            state.active.insert(partition, self.number());
        }
    }

    fn next_change(&self) -> Option<Change> {
        self.broker.state().members.get_mut(&self.number())?.pop_front()
    }

    /// In other portions each time.
    fn fetch(&self, partition: i32, from: i64) -> Vec<Record> {
        let state = self.broker.state();
        if state.owners.get(&partition) != Some(&self.number()) || state.is_away() {
            return Vec::new();
        }
        let max = self.process.random(1..20);
        state.partitions[partition as usize].iter().skip(from as usize).take(max).cloned().collect()
    }
}

impl State {
    fn is_away(&self) -> bool {
        self.away_until.is_some_and(|until| Instant::now() < until)
    }
}

#[async_trait]
impl InspectLog for Member {
    fn identity(&self) -> LogIdentity {
        LogIdentity { topic: "events".to_owned(), topic_id: self.broker.topic_id.clone() }
    }

    async fn extents(&self) -> Result<Vec<Extent>, LogError> {
        let ends = self.broker.ends().into_iter().zip(0..);
        Ok(ends.map(|(next, partition)| Extent { partition, first: 0, next }).collect())
    }

    async fn partitions(&self) -> Result<u32, LogError> {
        Ok(self.broker.state().partitions.len() as u32)
    }

    async fn entries(&self, partition: i32, from: i64, max: usize) -> Result<Vec<RawEntry>, LogError> {
        self.process.step(4).await;
        let state = self.broker.state();
        if state.is_away() {
            return Err(LogError::Unavailable("away".to_owned()));
        }
        let records = state.partitions[partition as usize].iter().skip(from as usize).take(max);
        let entry = |(record, offset): (&Record, i64)| RawEntry {
            offset,
            key: record.key.to_string(),
            headers: encode(record),
            value: record.value.clone(),
        };
        Ok(records.zip(from..).map(entry).collect())
    }
}

#[async_trait]
impl Log for Member {
    async fn start(&self, budget: Budget, floors: Floors) -> Result<mpsc::UnboundedReceiver<LogEvent>, LogError> {
        let (events, receiver) = mpsc::unbounded_channel();
        self.broker.state().members.insert(self.number(), VecDeque::new());
        tokio::spawn(self.clone().read(budget, floors, events));
        Ok(receiver)
    }

    async fn commit(&self, _partition: i32, _next_offset: i64) -> Result<(), LogError> {
        self.process.step(5).await;
        Ok(())
    }

    async fn append(&self, record: Record) -> Result<(), LogError> {
        self.process.step(6).await;
        let fault = self.faults.strike(&Fault::OF_LOG);
        if fault == Some(Fault::AppendUnavailable) || self.broker.state().is_away() {
            return Err(LogError::Unavailable("AppendUnavailable".to_owned()));
        }
        self.broker.append(record);
        self.process.step(7).await;
        fault.map_or(Ok(()), |fault| Err(LogError::Unavailable(format!("{fault:?}"))))
    }

    async fn stop(&self) {
        self.process.stop.cancel();
    }
}
