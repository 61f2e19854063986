//! Entries of objects that wait for the owner of another partition: a topic that was given partitions has an object's
//! earlier records in one and its later ones in another. Only offsets are kept, and the entries are read again when it
//! is time: else they would fill the byte budget, and what they wait for could not be read.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::record::decode;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::{Done, Partition, Shared};
use crate::error::LogError;
use crate::group::entry_key;
use crate::inspect::RawEntry;
use crate::log::{ForeignRecord, LogEntry};

/// First and longest wait before an object is decided again, doubling.
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_secs(2);
/// Entries of one object that are read again together, and of all.
const OF_OBJECT_MAX: usize = 50;
const TOGETHER_MAX: usize = 500;

#[derive(Debug, Default)]
pub struct HeldUp {
    objects: HashMap<String, Object>,
    due: BTreeSet<(Instant, String)>,
    /// Offsets that are being read or decided again, and their objects.
    tried: HashMap<i64, String>,
    is_reading: bool,
}

#[derive(Debug)]
struct Object {
    bucket: u32,
    offsets: VecDeque<i64>,
    /// So many of its entries are being read or decided again.
    tried: usize,
    wait: Duration,
}

/// What reading entries again came to: their offsets in the order of the log, and the entries.
pub struct ReadAgain {
    offsets: Vec<i64>,
    result: Result<Vec<LogEntry>, LogError>,
}

impl HeldUp {
    pub fn count(&self) -> usize {
        self.objects.len()
    }

    /// Keeps back an entry whose object is held up; every other comes back.
    pub fn set_aside(&mut self, entry: LogEntry) -> Option<LogEntry> {
        let object = if self.objects.is_empty() { None } else { self.objects.get_mut(&entry_key(&entry)) };
        let Some(object) = object else { return Some(entry) };
        object.offsets.push_back(entry.offset);
        None
    }

    pub fn clear(&mut self) {
        *self = Self { is_reading: self.is_reading, ..Self::default() };
    }

    /// Entries of an object wait, before those that do so already.
    fn hold(&mut self, bucket: u32, name: &str, offsets: Vec<i64>) {
        let object = self.objects.entry(name.to_owned()).or_insert_with(|| Object {
            bucket,
            offsets: VecDeque::new(),
            tried: 0,
            wait: AGAIN_MIN,
        });
        for offset in offsets.into_iter().rev() {
            object.tried -= usize::from(self.tried.remove(&offset).is_some());
            object.offsets.push_front(offset);
        }
        if object.tried == 0 {
            self.due.insert((Instant::now() + object.wait, name.to_owned()));
            object.wait = (object.wait * 2).min(AGAIN_MAX);
        }
    }

    /// An entry was decided: once all that were tried are, the next of its object follow.
    pub fn decided(&mut self, offset: i64) {
        let Some(name) = self.tried.remove(&offset) else { return };
        let object = self.objects.get_mut(&name).expect("an object is kept while its entries are tried");
        object.tried -= 1;
        if object.tried > 0 {
            return;
        }
        object.wait = AGAIN_MIN;
        if object.offsets.is_empty() {
            self.objects.remove(&name);
        } else {
            self.due.insert((Instant::now(), name));
        }
    }

    /// Offsets that are to be read again now.
    fn start_due(&mut self) -> Vec<i64> {
        let now = Instant::now();
        let mut offsets = Vec::new();
        while offsets.len() < TOGETHER_MAX && self.due.first().is_some_and(|(at, _)| *at <= now) {
            let (_, name) = self.due.pop_first().expect("it was just seen");
            let object = self.objects.get_mut(&name).expect("what is due is kept");
            let count = object.offsets.len().min(OF_OBJECT_MAX);
            object.tried += count;
            for offset in object.offsets.drain(..count) {
                self.tried.insert(offset, name.clone());
                offsets.push(offset);
            }
        }
        offsets.sort_unstable();
        offsets
    }
}

impl Partition {
    /// `offsets`: of entries that were not decided. What else of the object is in line goes behind them.
    pub(super) fn hold_up(&mut self, number: u32, key: &ObjectKey, mut offsets: Vec<i64>) {
        // What stops waits for nothing: its next owner reads it again.
        if self.stop.is_cancelled() {
            return;
        }
        let name = key.to_string();
        debug!(%key, entries = offsets.len(), "held up: another partition's owner has effects of the object");
        if let Some(bucket) = self.buckets.get_mut(&number) {
            bucket.entries.retain(|entry| {
                let is_own = entry_key(entry) == name;
                offsets.extend(is_own.then_some(entry.offset));
                !is_own
            });
        }
        self.held_up.hold(number, &name, offsets);
    }

    pub(super) fn start_held_up(&mut self) {
        if self.stop.is_cancelled() || self.held_up.is_reading {
            return;
        }
        let offsets = self.held_up.start_due();
        if offsets.is_empty() {
            return;
        }
        self.held_up.is_reading = true;
        let (shared, id) = (self.shared.clone(), self.id);
        self.work.push(Box::pin(async move {
            let result = read_again(&shared, id, &offsets).await;
            Done::ReadAgain(ReadAgain { offsets, result })
        }));
    }

    pub(super) fn on_read_again(&mut self, read: ReadAgain) {
        self.held_up.is_reading = false;
        if self.stop.is_cancelled() {
            return;
        }
        let entries = read.result.unwrap_or_else(|error| {
            warn!(partition = self.id, %error, "what is held up cannot be read again, trying again");
            Vec::new()
        });
        let mut missing: HashMap<String, Vec<i64>> = HashMap::new();
        for offset in read.offsets.into_iter().filter(|offset| !entries.iter().any(|e| e.offset == *offset)) {
            let name = self.held_up.tried[&offset].clone();
            missing.entry(name).or_default().push(offset);
        }
        let mut of_bucket: HashMap<u32, VecDeque<LogEntry>> = HashMap::new();
        for entry in entries {
            let name = &self.held_up.tried[&entry.offset];
            // Behind one that is missing nothing is decided.
            match missing.get_mut(name) {
                Some(missing) => missing.push(entry.offset),
                None => of_bucket.entry(self.held_up.objects[name].bucket).or_default().push_back(entry),
            }
        }
        for (name, mut offsets) in missing {
            offsets.sort_unstable();
            let bucket = self.held_up.objects[&name].bucket;
            self.held_up.hold(bucket, &name, offsets);
        }
        of_bucket.into_iter().for_each(|(bucket, entries)| self.put_back(bucket, entries));
    }
}

/// The entries at these offsets, counted in the byte budget.
async fn read_again(shared: &Shared, id: i32, offsets: &[i64]) -> Result<Vec<LogEntry>, LogError> {
    let found = shared.log.entries_at(id, offsets).await?;
    if found.len() < offsets.len() {
        let gone = offsets.len() - found.len();
        warn!(partition = id, gone, "held up entries are not in the log any more: its retention is too short");
    }
    Ok(found.into_iter().map(|entry| counted(shared, entry)).collect())
}

fn counted(shared: &Shared, entry: RawEntry) -> LogEntry {
    let RawEntry { offset, key, headers, value } = entry;
    let record = decode(&key, &headers, value.clone());
    let share = shared.budget.take(record.as_ref().map_or(value.len(), |record| record.size()));
    let record = record.map_err(|error| ForeignRecord { key, error, headers, value });
    LogEntry { offset, record, share }
}
