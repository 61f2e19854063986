//! What a partition knows of its objects' sequences: entries that are set aside until the earlier effects of their
//! object are out, and gaps that are passed when they have lasted long enough.
//!
//! A gap is passed by a record: whoever reads the log again passes it at the same place. The record says up to which
//! number, so that two owners, or one twice, may append it: the second changes nothing. It lies behind everything that
//! came meanwhile, so a processor that is behind its log passes nothing that has arrived.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use seriatim_schemas::control::{BY_TIME, Control, ControlAct};
use seriatim_schemas::key::{ObjectKey, RecordKey};
use seriatim_schemas::row::Waiting;
use seriatim_schemas::sequence::{GapRule, Sequence};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Done, Partition, Shared};
use crate::drain::Waiter;
use crate::group::entry_key;
use crate::log::LogEntry;
use crate::mutant::{self, Mutant};
use crate::settle::GivenUp;
use crate::store::{Freshness, ObjectQuery};

/// Gaps of one partition that are looked at at once.
const PASSES_MAX: usize = 16;
/// After the log did not take a record, in milliseconds.
const AGAIN_MS: i64 = 1000;

#[derive(Debug, Default)]
pub struct Holds {
    aside: HashMap<String, VecDeque<LogEntry>>,
    gaps: HashMap<ObjectKey, Gap>,
    /// What is due first, in milliseconds since 1970.
    due: BTreeSet<(i64, ObjectKey)>,
    asking: usize,
}

#[derive(Debug, Default)]
struct Gap {
    due_ms: Option<i64>,
    /// A record that passes up to here is in the log.
    asked: u64,
    is_asking: bool,
}

/// What looking at a gap came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// There is none, or a record that passes it is in the log.
    Nothing,
    PassedTo(u64),
    /// Not yet, but then.
    At(i64),
}

impl Holds {
    pub fn gaps(&self) -> usize {
        self.gaps.len()
    }

    /// Keeps back an entry whose object has others set aside; every other comes back.
    pub fn set_aside(&mut self, entry: LogEntry) -> Option<LogEntry> {
        let aside = if self.aside.is_empty() { None } else { self.aside.get_mut(&entry_key(&entry)) };
        let Some(aside) = aside else { return Some(entry) };
        aside.push_back(entry);
        None
    }

    pub fn clear_aside(&mut self) {
        self.aside.clear();
    }

    fn set_due(&mut self, key: &ObjectKey, due_ms: Option<i64>) {
        let gap = self.gaps.entry(key.clone()).or_default();
        if let Some(before) = std::mem::replace(&mut gap.due_ms, due_ms) {
            self.due.remove(&(before, key.clone()));
        }
        if let Some(due_ms) = due_ms {
            self.due.insert((due_ms, key.clone()));
        }
    }

    fn forget(&mut self, key: &ObjectKey) {
        self.set_due(key, None);
        if self.gaps.get(key).is_some_and(|gap| !gap.is_asking) {
            self.gaps.remove(key);
        }
    }

    fn start_due(&mut self, now_ms: i64) -> Vec<(ObjectKey, u64)> {
        let room = PASSES_MAX.saturating_sub(self.asking);
        let due: Vec<_> = self.due.iter().take_while(|(at, _)| *at <= now_ms).map(|(_, key)| key.clone()).collect();
        let mut started = Vec::new();
        for key in due.into_iter().filter(|key| !self.gaps[key].is_asking).take(room).collect::<Vec<_>>() {
            self.set_due(&key, None);
            let gap = self.gaps.get_mut(&key).expect("it was just due");
            gap.is_asking = true;
            started.push((key, gap.asked));
        }
        self.asking += started.len();
        started
    }
}

impl Partition {
    /// Keeps the entries back until no effect of their object is on its way.
    pub(super) fn put_aside(&mut self, bucket: u32, key: ObjectKey, mut entries: Vec<LogEntry>) {
        // What stops begins nothing: its next owner reads them again.
        if self.stop.is_cancelled() {
            return;
        }
        if !self.is_busy(&Arc::new(key.clone())) {
            return self.put_back(bucket, entries.into());
        }
        let name = key.to_string();
        if let Some(bucket) = self.buckets.get_mut(&bucket) {
            let (own, others) = std::mem::take(&mut bucket.entries).into_iter().partition(|e| entry_key(e) == name);
            bucket.entries = others;
            entries.extend(VecDeque::<LogEntry>::into_iter(own));
        }
        self.holds.aside.insert(name, entries.into());
    }

    /// Entries are in line again, before what came later.
    pub(super) fn put_back(&mut self, number: u32, entries: VecDeque<LogEntry>) {
        let bucket = self.buckets.entry(number).or_default();
        entries.into_iter().rev().for_each(|entry| bucket.entries.push_front(entry));
        self.wake(number);
    }

    /// An object's effects are out, for one sink: if that was all, what was set aside goes on.
    pub(super) fn on_lane_over(&mut self, key: &Arc<ObjectKey>) {
        if self.holds.aside.is_empty() || self.stop.is_cancelled() || self.is_busy(key) {
            return;
        }
        if let Some(entries) = self.holds.aside.remove(&key.to_string()) {
            self.put_back(self.shared.bucket(key), entries);
        }
    }

    fn is_busy(&self, key: &Arc<ObjectKey>) -> bool {
        let sinks = self.shared.settler.declarations.sinks_of(key);
        sinks.iter().any(|sink| self.lanes.contains_key(&(key.clone(), *sink)))
    }

    /// Objects of a group that have effects on their way, as far as it matters: those whose deltas are numbered.
    pub(super) fn busy_of(&self, entries: &[LogEntry]) -> HashSet<ObjectKey> {
        let keys = entries.iter().filter_map(|entry| match &entry.record.as_ref().ok()?.key {
            RecordKey::Object(key) => Some(key),
            RecordKey::Unroutable { .. } | RecordKey::Evidence { .. } => None,
        });
        let keys = keys.filter(|key| self.shared.settler.gap_rule(key).is_some());
        keys.filter(|key| self.is_busy(&Arc::new((*key).clone()))).cloned().collect()
    }

    /// Where an object stands in its sequence, and what it waits for: some of it may have been put there by what was
    /// released, or by another owner.
    pub(super) fn on_sequence(&mut self, key: ObjectKey, sequence: Option<&Sequence>, waiting: &Waiting) {
        let sinks = self.shared.sinks().to_vec();
        let key = Arc::new(key);
        for (name, waits) in &waiting.0 {
            let Some(index) = sinks.iter().position(|sink| sink.name == *name) else { continue };
            let waiter: Waiter = (key.clone(), index);
            if !self.waiters.has(&waiter) && !mutant::is(Mutant::HeadsWaitingIgnored) {
                self.waiters.add(waiter, waits.parked.is_some(), Duration::ZERO);
            }
        }
        // Of an event that the store refuses nothing was read: its object's gap is as it was.
        let Some(sequence) = sequence else { return };
        self.on_gap(&key, sequence.since_ms.zip(sequence.behind_gap()));
    }

    /// `gap`: since when it is there, and the number behind it.
    pub(super) fn on_gap(&mut self, key: &ObjectKey, gap: Option<(i64, u64)>) {
        let rule = self.shared.settler.gap_rule(key).filter(|rule| rule.gap == GapRule::Pass);
        let (Some((since_ms, behind)), Some(rule)) = (gap, rule) else { return self.holds.forget(key) };
        let hold_ms = i64::try_from(rule.hold_s.saturating_mul(1000)).unwrap_or(i64::MAX);
        let is_asked = self.holds.gaps.get(key).is_some_and(|known| known.asked >= behind);
        self.holds.set_due(key, Some(since_ms.saturating_add(hold_ms)).filter(|_| !is_asked));
    }

    pub(super) fn start_passes(&mut self) {
        if self.stop.is_cancelled() {
            return;
        }
        for (key, asked) in self.holds.start_due(self.shared.settler.outside.now().as_millisecond()) {
            let (shared, stop) = (self.shared.clone(), self.give_up.clone());
            self.work.push(Box::pin(async move {
                let result = ask(&shared, &key, asked, &stop).await;
                Done::Passed { key, result }
            }));
        }
    }

    pub(super) fn on_passed(&mut self, key: &ObjectKey, result: Result<Asked, GivenUp>) {
        self.holds.asking -= 1;
        let gap = self.holds.gaps.get_mut(key).expect("a gap that is looked at is kept");
        gap.is_asking = false;
        match result {
            Ok(Asked::PassedTo(to)) => gap.asked = gap.asked.max(to),
            // What was learned meanwhile is due by itself.
            Ok(Asked::At(due_ms)) if gap.due_ms.is_none() => self.holds.set_due(key, Some(due_ms)),
            Ok(Asked::Nothing) if gap.due_ms.is_none() && gap.asked == 0 => self.holds.forget(key),
            Ok(Asked::At(_) | Asked::Nothing) | Err(GivenUp) => {}
        }
    }
}

/// Looks at a gap, and appends the record that passes it, if it is time.
async fn ask(shared: &Shared, key: &ObjectKey, asked: u64, stop: &CancellationToken) -> Result<Asked, GivenUp> {
    let query = [ObjectQuery { key: key.clone(), event_rows: Vec::new() }];
    let read = || shared.settler.store.read(shared.bucket(key), &query, Freshness::Quorum);
    let view = shared.settler.until_answered("a gap cannot be looked at", stop, read).await?.remove(0);
    let sequence = view.head.and_then(|head| head.sequence).unwrap_or_default();
    let rule = shared.settler.gap_rule(key).filter(|rule| rule.gap == GapRule::Pass);
    let (Some(to), Some(since_ms), Some(rule)) = (sequence.behind_gap(), sequence.since_ms, rule) else {
        return Ok(Asked::Nothing);
    };
    if to <= asked {
        return Ok(Asked::Nothing);
    }
    let outside = &shared.settler.outside;
    let now = outside.now();
    let hold_ms = i64::try_from(rule.hold_s.saturating_mul(1000)).unwrap_or(i64::MAX);
    let due_ms = since_ms.saturating_add(hold_ms);
    if now.as_millisecond() < due_ms {
        return Ok(Asked::At(due_ms));
    }
    let reason = Some(format!("{} for more than {} s", sequence.describe_gap(), rule.hold_s));
    let control = Control { act: ControlAct::Pass { to }, by: BY_TIME.to_owned(), reason };
    match shared.log.append(control.record(RecordKey::Object(key.clone()), outside.id(), now)).await {
        Ok(()) => {
            info!(%key, to, gap = sequence.describe_gap(), "a gap has lasted too long: passed");
            shared.settler.metrics.passed.inc();
            Ok(Asked::PassedTo(to))
        }
        Err(error) => {
            warn!(%key, %error, "the record that passes a gap was not appended, trying again");
            Ok(Asked::At(now.as_millisecond() + AGAIN_MS))
        }
    }
}
