//! One group of a bucket: its records are gathered, sorted into the lanes of their objects, and settled.
//! What each of them did is then known; its effects are not out yet.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use seriatim_schemas::control::{Control, ControlAct, PASS, RESET_VERSION};
use seriatim_schemas::id::RecordId;
use seriatim_schemas::key::{ObjectKey, RecordKey};
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::record::{Record, RecordKind, decode, encode};
use seriatim_schemas::row::{ArrivalRow, DeadLetter, Waiting, refused_row};
use seriatim_schemas::sequence::Sequence;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use uuid::Uuid;

use crate::act::{Act, Waits, What};
use crate::budget::Share;
use crate::decide::Verdict;
use crate::log::{ForeignRecord, LogEntry};
use crate::mutant::{self, Mutant};
use crate::settle::{Entry, GivenUp, Lane, Pending, Settled, Settler};
use crate::sink::{Effect, idempotency_key};
use crate::store::{Arrival, Freshness, GroupBounds, Letter, LetterKey, ObjectQuery};

/// For the log: a question for what an operator's act is about has no answer yet.
const ASKED: &str = "what an act is about cannot be read";

pub fn entry_key(entry: &LogEntry) -> String {
    match &entry.record {
        Ok(record) => record.key.to_string(),
        Err(foreign) => foreign.key.clone(),
    }
}

/// Whether an entry lets an object's order begin anew. Nothing before it may be read again once it is decided: what
/// was stale then has left no row, and would be newer than nothing.
pub fn is_reset(entry: &LogEntry) -> bool {
    entry.record.as_ref().is_ok_and(|record| record.kind == RecordKind::Control && record.event_type == RESET_VERSION)
}

/// Whether a record is an act that is decided in its object's lane.
fn is_decided(record: &Record) -> bool {
    [RESET_VERSION, PASS].contains(&record.event_type.as_str()) && matches!(record.key, RecordKey::Object(_))
}

/// Takes records off the front of a bucket's queue, in order, up to a group's bounds; at least one. A reset of an
/// object's order begins a group.
pub fn gather(queue: &mut VecDeque<LogEntry>, bounds: GroupBounds) -> Vec<LogEntry> {
    let mut group: Vec<LogEntry> = Vec::new();
    let mut keys: HashSet<String> = HashSet::new();
    let mut bytes = 0;
    while let Some(entry) = queue.front() {
        let key = entry_key(entry);
        let is_new = !keys.contains(&key);
        bytes += entry.record.as_ref().map_or(0, Record::size);
        let is_full = group.len() >= bounds.events || (is_new && keys.len() >= bounds.objects) || bytes > bounds.bytes;
        if (is_full || is_reset(entry)) && !group.is_empty() {
            break;
        }
        if is_new {
            keys.insert(key);
        }
        group.push(queue.pop_front().expect("the front was just seen"));
    }
    group
}

/// One record whose fate is known.
pub struct Decided {
    pub offset: i64,
    /// What an operator's act does to what waits.
    pub act: Option<Act>,
    /// The dead letter that goes when all else is done.
    pub forget: Option<Letter>,
    /// What is to be sent, and for which sinks the object waited when it was decided.
    pub effect: Option<(Effect, Waiting)>,
    /// What the ledger will say, once all is out; nothing where it said so before.
    pub arrival: Option<Arrival>,
    pub letter: Option<DeadLetter>,
    /// Its place in the byte budget.
    pub share: Share,
}

impl Decided {
    fn nothing(offset: i64, share: Share) -> Self {
        Self { offset, act: None, forget: None, effect: None, arrival: None, letter: None, share }
    }
}

/// What a group came to.
#[derive(Default)]
pub struct Worked {
    pub decided: Vec<Decided>,
    /// Of objects whose deltas are numbered: where they stand now, and what they wait for.
    pub sequences: Vec<(ObjectKey, Option<Sequence>, Waiting)>,
    /// Entries that release what their objects hold, and what comes behind them: they are decided once the earlier
    /// effects of these objects are out.
    pub aside: Vec<(ObjectKey, Vec<LogEntry>)>,
    /// Offsets of entries that wait for another partition's owner, by object.
    pub held_up: Vec<(ObjectKey, Vec<i64>)>,
}

/// What a group's records need beside the settler.
pub struct Place<'a> {
    pub settler: &'a Settler,
    pub epoch: u64,
    /// As [`crate::partition::Partition`] names itself.
    pub writer: Uuid,
    pub partition: i32,
    pub at: &'a (dyn Fn(i64) -> String + Send + Sync),
    /// Objects with effects on their way.
    pub busy: &'a HashSet<ObjectKey>,
}

/// A group, sorted into the lanes of its objects; what has no object is decided at once.
#[derive(Default)]
struct Sorted {
    lanes: Vec<Lane>,
    /// Of each lane's entries.
    shares: Vec<Vec<(i64, Share)>>,
    decided: Vec<Decided>,
    /// Acts of an operator that decide nothing.
    controls: Vec<(i64, Record, Share)>,
}

/// Settles a group. Whatever stops it leaves its offsets pending: all is read again.
pub async fn work(
    place: Place<'_>,
    bucket: u32,
    group: Vec<LogEntry>,
    stop: &CancellationToken,
) -> Result<Worked, GivenUp> {
    let Sorted { lanes, shares, decided, controls } = place.sort_out(group);
    let mut worked = Worked { decided, ..Worked::default() };
    for (offset, record, share) in controls {
        worked.decided.push(place.control(bucket, offset, record, share, stop).await?);
    }
    let settled = place.settler.settle(bucket, &lanes, stop).await?;
    for ((lane, shares), settled) in lanes.into_iter().zip(shares).zip(settled) {
        let settled = place.release(bucket, &lane, settled, stop).await?;
        let (mut aside, mut held_up) = (Vec::new(), Vec::new());
        let entries = lane.entries.into_iter().zip(shares).zip(settled.verdicts);
        for ((entry, (offset, share)), verdict) in entries {
            match verdict {
                Verdict::Later if settled.is_held_up => held_up.push(offset),
                Verdict::Later => aside.push(LogEntry { offset, record: Ok(entry.record), share }),
                verdict => {
                    let decided = place.decided(&lane.key, entry.record, verdict, &settled.waiting, offset, share);
                    worked.decided.push(decided);
                }
            }
        }
        if place.settler.gap_rule(&lane.key).is_some() {
            worked.sequences.push((lane.key.clone(), settled.sequence, settled.waiting));
        }
        if !held_up.is_empty() {
            worked.held_up.push((lane.key, held_up));
        } else if !aside.is_empty() {
            worked.aside.push((lane.key, aside));
        }
    }
    Ok(worked)
}

impl Place<'_> {
    /// Releases what a lane's object holds, if it may be released now.
    async fn release(
        &self,
        bucket: u32,
        lane: &Lane,
        settled: Settled,
        stop: &CancellationToken,
    ) -> Result<Settled, GivenUp> {
        let Some(pending) = settled.release else { return Ok(settled) };
        let has_effect =
            |v: &Verdict| matches!(v, Verdict::Apply { .. } | Verdict::Deliver { .. } | Verdict::Resend { .. });
        let is_busy = self.busy.contains(&lane.key) || settled.verdicts.iter().any(has_effect);
        if pending == Pending::Begins && is_busy && !mutant::is(Mutant::NotPutAside) {
            return Ok(settled);
        }
        let mut verdicts = settled.verdicts;
        verdicts.retain(|verdict| *verdict != Verdict::Later);
        let rest = lane.with(&lane.entries[verdicts.len()..]);
        let released = self.settler.settle_in_sequence(bucket, &rest, self.writer, stop).await?;
        verdicts.extend(released.verdicts);
        let mut waiting = settled.waiting;
        waiting.0.extend(released.waiting.0);
        let Settled { sequence, is_held_up, .. } = released;
        Ok(Settled { verdicts, waiting, sequence, release: None, is_held_up })
    }

    fn sort_out(&self, group: Vec<LogEntry>) -> Sorted {
        let mut sorted = Sorted::default();
        let mut lane_of: HashMap<ObjectKey, usize> = HashMap::new();
        for LogEntry { offset, record, share } in group {
            let record = match record {
                Ok(record) => record,
                Err(foreign) => {
                    let letter = foreign_letter(foreign, (self.at)(offset), offset, self.settler.outside.now());
                    sorted.decided.push(Decided { letter: Some(letter), ..Decided::nothing(offset, share) });
                    continue;
                }
            };
            if record.kind == RecordKind::Control && !is_decided(&record) {
                sorted.controls.push((offset, record, share));
                continue;
            }
            let RecordKey::Object(key) = record.key.clone() else {
                sorted.decided.push(self.without_object(record, offset, share));
                continue;
            };
            let candidate = self.settler.declarations.interpret(&record, (self.at)(offset));
            let lane = *lane_of.entry(key.clone()).or_insert_with(|| {
                sorted.lanes.push(Lane { key, partition: self.partition, entries: Vec::new() });
                sorted.shares.push(Vec::new());
                sorted.lanes.len() - 1
            });
            sorted.lanes[lane].entries.push(Entry { record, candidate });
            sorted.shares[lane].push((offset, share));
        }
        sorted
    }

    /// The evidence of a batch, whose items are records of their own; or what could not be routed.
    fn without_object(&self, record: Record, offset: i64, share: Share) -> Decided {
        let is_evidence = matches!(record.key, RecordKey::Evidence { .. }) && record.kind == RecordKind::Evidence;
        if is_evidence {
            return Decided::nothing(offset, share);
        }
        let (cause, detail) = match &record.problem {
            Some(problem) => ("unroutable", problem.clone()),
            None => ("unsupported_kind", format!("kind {} is of a newer version", record.kind.as_str())),
        };
        let letter = dead_letter(&record, "", cause, detail, (self.at)(offset), self.settler.outside.now());
        let arrival = Some(self.arrival_of_letter(&letter));
        Decided { arrival, letter: Some(letter), ..Decided::nothing(offset, share) }
    }

    fn decided(
        &self,
        key: &ObjectKey,
        record: Record,
        verdict: Verdict,
        waiting: &Waiting,
        offset: i64,
        share: Share,
    ) -> Decided {
        let position = (self.at)(offset);
        let letter = match &verdict {
            Verdict::Dead(cause) => {
                let detail = cause.detail.clone();
                let letter = dead_letter(
                    &record,
                    &key.object,
                    cause.cause,
                    detail,
                    position.clone(),
                    self.settler.outside.now(),
                );
                let key = idempotency_key(key, &letter.event_row);
                warn!(idempotency_key = key, cause = cause.cause, detail = cause.detail, "dead letter");
                Some(letter)
            }
            _ => None,
        };
        let arrival = self.arrival(key, &record, &verdict, position);
        let sent = match verdict {
            Verdict::Apply { rev } => Some((rev, Outcome::Applied, false)),
            Verdict::Deliver { rev } => Some((rev, Outcome::Stale, false)),
            Verdict::Resend { rev, outcome } => Some((rev, outcome, !mutant::is(Mutant::ResendUnmarked))),
            Verdict::Done | Verdict::Acted | Verdict::Duplicate | Verdict::Stale | Verdict::Dead(_) => None,
            Verdict::Hold { .. } | Verdict::Stored { .. } | Verdict::Later => None,
        };
        let effect = sent.map(|(rev, outcome, resent)| {
            let effect = self.settler.declarations.effect(key.clone(), record, outcome, rev, self.epoch);
            (Effect { resent, ..effect }, waiting.clone())
        });
        Decided { effect, arrival, letter, ..Decided::nothing(offset, share) }
    }

    /// What an operator asked for. What it is about may be gone by now: then there is nothing to do.
    async fn control(
        &self,
        bucket: u32,
        offset: i64,
        record: Record,
        share: Share,
        stop: &CancellationToken,
    ) -> Result<Decided, GivenUp> {
        let object = match &record.key {
            RecordKey::Object(key) => key.object.clone(),
            RecordKey::Unroutable { .. } | RecordKey::Evidence { .. } => String::new(),
        };
        let key = ObjectKey::new(record.key.tenant(), record.key.source(), object);
        let control = match Control::parse(&record.value) {
            Ok(control) => control,
            Err(error) => {
                let letter = dead_letter(
                    &record,
                    &key.object,
                    "control",
                    error.to_string(),
                    (self.at)(offset),
                    self.settler.outside.now(),
                );
                let arrival = Some(self.arrival_of_letter(&letter));
                return Ok(Decided { arrival, letter: Some(letter), ..Decided::nothing(offset, share) });
            }
        };
        info!(key = %key, act = control.describe(), "act of an operator");
        let mut arrival = self.arrival(&key, &record, &Verdict::Apply { rev: 0 }, (self.at)(offset));
        if let Some(arrival) = &mut arrival {
            arrival.row.detail = Some(control.describe());
        }
        let nothing = Decided { arrival, ..Decided::nothing(offset, share) };
        let release = |sink: &str, skip| {
            let sink = self.sink(sink)?;
            Some(Act { key: Arc::new(key.clone()), sink, what: What::Release { skip } })
        };
        Ok(match control.act {
            ControlAct::Redrive { sink } => Decided { act: release(&sink, None), ..nothing },
            ControlAct::Skip { sink, rev } => Decided { act: release(&sink, Some(rev)), ..nothing },
            ControlAct::RedriveEffect { sink, event_row } => {
                let row = refused_row(&sink, &event_row);
                let of = LetterKey { key: key.clone(), row };
                let (act, forget) = self.redrive_effect(bucket, of, &sink, event_row, stop).await?.unzip();
                Decided { act, forget, ..nothing }
            }
            ControlAct::Discard { letter, record } => {
                let of = LetterKey { key, row: letter };
                let found =
                    self.settler.until_answered(ASKED, stop, || self.settler.store.dead_letter(bucket, &of)).await?;
                let found = found.filter(|letter| letter.record.to_string() == record);
                Decided { forget: found.map(|letter| Letter { of, dead_ms: letter.dead_ms }), ..nothing }
            }
            // Decided in its object's lane; without an object it means nothing.
            ControlAct::ResetVersion {} | ControlAct::Pass { .. } => nothing,
        })
    }

    fn sink(&self, name: &str) -> Option<usize> {
        let found = self.settler.declarations.sinks().iter().position(|sink| sink.name == name);
        if found.is_none() {
            warn!(sink = name, "an act on a sink that is not configured does nothing");
        }
        found
    }

    /// A dead effect waits again, marked: its sink has seen it. Where it cannot, its letter stays.
    async fn redrive_effect(
        &self,
        bucket: u32,
        of: LetterKey,
        sink: &str,
        event_row: String,
        stop: &CancellationToken,
    ) -> Result<Option<(Act, Letter)>, GivenUp> {
        let Some(sink) = self.sink(sink) else { return Ok(None) };
        let letter = self.settler.until_answered(ASKED, stop, || self.settler.store.dead_letter(bucket, &of)).await?;
        let queries = [ObjectQuery { key: of.key.clone(), event_rows: vec![event_row.clone()] }];
        let read = || self.settler.store.read(bucket, &queries, Freshness::Quorum);
        let view = self.settler.until_answered(ASKED, stop, read).await?.remove(0);
        let (Some(letter), Some(row)) = (letter, view.rows.get(&event_row)) else {
            warn!(key = %of.key, event_row, "a dead effect is gone, or its event row has expired");
            return Ok(None);
        };
        let Ok(record) = decode(&of.key.to_string(), &letter.headers, letter.value) else {
            warn!(key = %of.key, event_row, "a dead effect's record cannot be read");
            return Ok(None);
        };
        let effect = self.settler.declarations.effect(of.key.clone(), record, row.outcome, row.rev, self.epoch);
        let effect = Box::new(Waits { effect: Effect { resent: true, ..effect }, attempted: true });
        let act = Act { key: Arc::new(of.key.clone()), sink, what: What::Redrive { effect } };
        Ok(Some((act, Letter { of, dead_ms: letter.dead_ms })))
    }

    fn arrival(&self, key: &ObjectKey, record: &Record, verdict: &Verdict, position: String) -> Option<Arrival> {
        let (outcome, detail) = match verdict {
            Verdict::Apply { .. } => (Outcome::Applied, None),
            Verdict::Acted => (Outcome::Applied, Control::parse(&record.value).ok().map(|c| c.describe())),
            Verdict::Deliver { .. } | Verdict::Stale => (Outcome::Stale, None),
            Verdict::Resend { outcome, .. } => (*outcome, None),
            Verdict::Duplicate => (Outcome::Duplicate, None),
            Verdict::Dead(cause) => (Outcome::Dead, Some(format!("{}: {}", cause.cause, cause.detail))),
            Verdict::Hold { detail } => (Outcome::Parked, Some(detail.clone())),
            Verdict::Stored { outcome, .. } => (*outcome, None),
            Verdict::Done | Verdict::Later => return None,
        };
        let row = ArrivalRow {
            event_row: record.event_row(),
            event_id: record.event_id.clone(),
            record: record.id,
            outcome,
            detail,
            position,
            recorded_ms: record.recorded.as_millisecond(),
            done_ms: 0,
        };
        debug!(idempotency_key = idempotency_key(key, &row.event_row), outcome = outcome.as_str(), record = %row.record, "decided");
        Some(Arrival {
            ttl_s: self.settler.declarations.dedupe_window_s(&key.tenant, &key.source),
            key: key.clone(),
            row,
        })
    }

    fn arrival_of_letter(&self, letter: &DeadLetter) -> Arrival {
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
            ttl_s: self.settler.declarations.dedupe_window_s(&letter.tenant, &letter.source),
        }
    }
}

pub fn dead_letter(
    record: &Record,
    object: &str,
    cause: &str,
    detail: String,
    position: String,
    now: Timestamp,
) -> DeadLetter {
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
        dead_ms: now.as_millisecond(),
        headers: encode(record),
        value: record.value.clone(),
    }
}

/// What someone else wrote into the topic. Its position names it: it has no id of ours.
fn foreign_letter(foreign: ForeignRecord, position: String, offset: i64, now: Timestamp) -> DeadLetter {
    warn!(position, error = %foreign.error, "not a record of ours: kept as a dead letter");
    let now_ms = now.as_millisecond();
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
