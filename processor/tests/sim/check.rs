//! The checker: whether what the receivers saw, and what the store holds, is what was promised of a log. It knows
//! nothing of how a processor works.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use seriatim_processor::inspect::{Inspect, ObjectState};
use seriatim_processor::store::Store;
use seriatim_schemas::id::RecordId;
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::key::RecordKey;
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::record::{Record, RecordKind};
use seriatim_schemas::row::{DeadLetter, EventRow, parse_refused_row};

use super::moved;
use super::receiver::{Received, Receiver};
use super::traffic::{Fold, Newest, SOURCE, Walk};
use super::world::SINKS;

/// What each record did, by the ledger.
pub type Outcomes = BTreeMap<RecordId, Outcome>;

/// Says what is not as promised.
macro_rules! ensure {
    ($holds:expr, $($said:tt)*) => {
        if !$holds {
            return Err(format!($($said)*));
        }
    };
}
pub(crate) use ensure;

/// `walk`: what must come of the log.
pub async fn check<S: Store + Inspect>(
    walk: &Walk,
    store: &S,
    tenant: &str,
    receivers: &[Arc<Receiver>],
) -> Result<(), String> {
    let outcomes = ledger(walk, store).await?;
    let mut applied = BTreeMap::new();
    for (key, fold) in &walk.objects {
        let of = match walk.moved.contains(key) {
            true => moved::object(key, walk, &outcomes, store).await?,
            false => object(key, fold, walk, store).await?,
        };
        applied.insert(key.clone(), of);
    }
    let refused = dead(walk, &outcomes, store, tenant).await?;
    for (sink, receiver) in SINKS.iter().zip(receivers) {
        effects(walk, &applied, sink, receiver, &refused)?;
    }
    Ok(())
}

/// Each applied event once, in order of its object's revs, under one key and rev; what may be a repeat says so.
fn effects(
    walk: &Walk,
    applied: &BTreeMap<ObjectKey, Vec<String>>,
    sink: &str,
    receiver: &Receiver,
    refused: &HashSet<String>,
) -> Result<(), String> {
    let mut first: BTreeMap<_, Vec<String>> = BTreeMap::new();
    let (mut revs, mut by_owner) = (HashMap::new(), HashSet::new());
    let (mut taken, mut unmarked) = (HashSet::new(), HashSet::new());
    for received in receiver.received() {
        let effect = &received.effect;
        let (key, sent) = (effect.idempotency_key(), &effect.record);
        if !received.is_refused {
            taken.insert(sent.event_id.clone());
        }
        ensure!(
            effect.resent || unmarked.insert(key.clone()),
            "{sink}: {key} was sent twice without a mark: {}",
            sends(receiver, &key)
        );
        let earlier = revs.insert(key.clone(), effect.rev);
        let was_sent = by_owner.contains(&key);
        if !received.is_late {
            by_owner.insert(key.clone());
        }
        if let Some(rev) = earlier {
            ensure!(rev == effect.rev, "{sink}: {key} has two revs: {rev} and {}", effect.rev);
            // Whoever slept and lost the partition may send what it had begun, and two owners what waits of an object
            // in two partitions: then nobody knows who was first.
            let is_known = !received.is_late && !walk.moved.contains(&*effect.key);
            ensure!(
                effect.resent || !is_known || !was_sent,
                "{sink}: {key} was sent before, and does not say so: {}",
                sends(receiver, &key)
            );
            continue;
        }
        let of_object = first.entry(ObjectKey::clone(&effect.key)).or_default();
        of_object.push(sent.event_id.clone());
        ensure!(
            effect.rev == of_object.len() as i64,
            "{sink}: {key} has rev {} and comes as number {}: {}",
            effect.rev,
            of_object.len(),
            sends_of_object(receiver, &effect.key)
        );
        let record = walk.of(&sent.event_id);
        let is_same =
            sent.event_type == record.event_type && sent.version == record.version && sent.value == record.value;
        ensure!(is_same && effect.outcome == Outcome::Applied, "{sink}: {key} is not what was acknowledged");
    }
    for (key, applied) in applied {
        let sent = first.remove(key).unwrap_or_default();
        ensure!(sent == *applied, "{sink}: {key} was sent {sent:?}, not {applied:?}");
        let lost = applied.iter().find(|id| !taken.contains(*id) && !refused.contains(&format!("{sink} {id}")));
        ensure!(lost.is_none(), "{sink}: {lost:?} of {key} was never taken, and is no dead letter");
    }
    ensure!(first.is_empty(), "{sink}: {:?} were never acknowledged", first.keys());
    Ok(())
}

/// All sends of an object's effects, for a person.
fn sends_of_object(receiver: &Receiver, key: &ObjectKey) -> String {
    let of: HashSet<_> =
        receiver.received().iter().filter(|r| *r.effect.key == *key).map(|r| r.effect.idempotency_key()).collect();
    of.iter().map(|key| format!("\n{key} {}", sends(receiver, key))).collect()
}

/// All sends of an effect, for a person.
fn sends(receiver: &Receiver, key: &str) -> String {
    let received = receiver.received();
    let begin = received.first().map(|first| first.at);
    let of = received.iter().filter(|r| r.effect.idempotency_key() == key);
    let tell = |r: &Received| {
        let (at, mark) = (begin.map(|begin| r.at - begin), if r.effect.resent { "marked" } else { "unmarked" });
        let late = if r.is_late { ", not the owner" } else { "" };
        format!("by process {} at {at:?} {mark}{late}", r.process)
    };
    of.map(tell).collect::<Vec<_>>().join("; ")
}

/// What was applied of an object, in order of the revs.
async fn object<S: Store + Inspect>(
    key: &ObjectKey,
    fold: &Fold,
    walk: &Walk,
    store: &S,
) -> Result<Vec<String>, String> {
    let (events, noted): (Vec<_>, Vec<_>) =
        store.events(key).await.expect("events answers").into_iter().partition(EventRow::has_effect);
    let events: Vec<_> = events.into_iter().map(|row| (row.row, row.rev)).collect();
    let expected: Vec<_> = fold.applied.iter().cloned().zip(1..).collect();
    ensure!(events == expected, "{key}: events {events:?}, not {expected:?}");
    let is_noted = |id: &String| noted.iter().any(|row| row.row == *id);
    // What was stale and not yet in the ledger may have been read again when its equal was the state.
    let is_equal = |row: &EventRow| fold.equal.contains(&row.row) || walk.has_twin(walk.of(&row.row));
    ensure!(
        fold.equal.iter().all(is_noted) && noted.iter().all(|row| row.outcome == Outcome::Duplicate && is_equal(row)),
        "{key}: rows without an effect {noted:?}, not {:?}",
        fold.equal
    );
    let Some(object) = store.object(key).await.expect("object answers") else {
        ensure!(fold.applied.is_empty(), "{key} has no head");
        return Ok(Vec::new());
    };
    ensure!(object.head.rev == fold.applied.len() as i64, "{key}: rev {}", object.head.rev);
    ensure!(object.head.waiting.0.is_empty(), "{key} waits: {:?}", object.head.waiting);
    ensure!(fold.sequence.held() == 0, "{key} holds {} events behind a gap", fold.sequence.held());
    let noted = fold_of(&object);
    let newest = newest_of(object);
    ensure!(newest == fold.newest, "{key}: state {newest:?}, not {:?}", fold.newest);
    let deltas = walk.deltas(&fold.applied);
    ensure!(noted == deltas, "{key}: deltas folded {noted:?}, not {deltas:?}");
    Ok(fold.applied.clone())
}

/// The state that the store holds.
pub fn newest_of(object: ObjectState) -> Option<Newest> {
    let state = object.state;
    object.head.snapshot.map(|snapshot| Newest {
        event: snapshot.event_row,
        version: snapshot.version,
        deleted: snapshot.deleted,
        body: state.expect("a snapshot has a state").0,
    })
}

/// What the reducer has made of an object.
pub fn fold_of(object: &ObjectState) -> String {
    let fold = object.head.fold.clone().unwrap_or_default();
    String::from_utf8(fold.to_vec()).expect("text")
}

/// Each record has one arrival, which says what it did.
async fn ledger<S: Store + Inspect>(walk: &Walk, store: &S) -> Result<Outcomes, String> {
    let mut outcomes = Outcomes::new();
    for key in walk.objects.keys() {
        let arrivals = store.arrivals(key).await.expect("arrivals answers");
        outcomes.extend(arrivals.into_iter().map(|a| (a.row.record, a.row.outcome)));
    }
    for record in &walk.records {
        let expected = walk.outcomes[&record.id];
        let Some(found) = outcomes.get(&record.id).copied() else {
            return Err(format!("{} of {} has no arrival", record.event_id, record.key));
        };
        // Read again before it was in the ledger, when its equal had become the state.
        let is_equal = (expected, found) == (Outcome::Stale, Outcome::Duplicate) && walk.has_twin(record);
        // What the store refuses is decided anew when it is read again: it may be old by then, or have no twin any more.
        let is_undone = |outcome| matches!(outcome, Outcome::Duplicate | Outcome::Stale | Outcome::Dead);
        let is_poison = walk.poison.contains(&record.event_id) && is_undone(expected) && is_undone(found);
        let is_moved = matches!(&record.key, RecordKey::Object(key) if walk.moved.contains(key));
        let is_same = expected == found || is_equal || is_poison || is_moved;
        ensure!(is_same, "{} of {}: {found}, not {expected}", record.event_id, record.key);
    }
    ensure!(outcomes.len() == walk.records.len(), "{} records have {} arrivals", walk.records.len(), outcomes.len());
    Ok(outcomes)
}

/// What could not be decided is a dead letter; and so is what a sink has refused, which is told.
async fn dead<S: Store + Inspect>(
    walk: &Walk,
    outcomes: &Outcomes,
    store: &S,
    tenant: &str,
) -> Result<HashSet<String>, String> {
    let letters = store.dead(Some(tenant), Some(SOURCE)).await.expect("dead answers");
    let is_moved = |letter: &DeadLetter| walk.moved.contains(&ObjectKey::new(tenant, SOURCE, &letter.object));
    let mut dead: HashSet<_> =
        letters.iter().filter(|l| l.cause != "refused" && !is_moved(l)).map(|l| l.event_row.clone()).collect();
    let may_be_dead = |record: &&Record| walk.outcomes[&record.id] == Outcome::Dead && record.kind == RecordKind::Event;
    for record in walk.records.iter().filter(may_be_dead) {
        dead.remove(&record.event_row());
        let is_there = letters.iter().any(|letter| letter.event_row == record.event_row());
        ensure!(
            is_there || outcomes[&record.id] != Outcome::Dead,
            "{} of {} is dead, and no letter",
            record.event_id,
            record.key
        );
    }
    ensure!(dead.is_empty(), "letters of what is not dead: {dead:?}");
    let refused = letters.iter().filter_map(|letter| parse_refused_row(&letter.event_row));
    Ok(refused.map(|(sink, event_row)| format!("{sink} {event_row}")).collect())
}
