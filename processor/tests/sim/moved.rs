//! The checker for objects whose records lie in two partitions, since the topic grew: the log says nothing of the order
//! in which these are read, so what must come of them is less, but it is all that does not rest on that order.

use seriatim_processor::inspect::Inspect;
use seriatim_processor::store::Store;
use seriatim_schemas::key::{ObjectKey, RecordKey};
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::record::Record;
use seriatim_schemas::row::EventRow;

use super::check::{Outcomes, ensure, fold_of, newest_of};
use super::traffic::{Newest, Walk, is_snapshot, is_undecidable, number, place};

/// What was applied of an object, in order of the revs.
pub async fn object<S: Store + Inspect>(
    key: &ObjectKey,
    walk: &Walk,
    outcomes: &Outcomes,
    store: &S,
) -> Result<Vec<String>, String> {
    let (rows, noted): (Vec<_>, Vec<_>) =
        store.events(key).await.expect("events answers").into_iter().partition(EventRow::has_effect);
    let is_equal = |row: &EventRow| row.outcome == Outcome::Duplicate && walk.has_twin(walk.of(&row.row));
    ensure!(noted.iter().all(is_equal), "{key}: rows without an effect {noted:?}");
    let revs: Vec<i64> = rows.iter().map(|row| row.rev).collect();
    ensure!(revs == (1..=rows.len() as i64).collect::<Vec<_>>(), "{key}: revs {revs:?}");
    let applied: Vec<String> = rows.iter().map(|row| row.row.clone()).collect();
    order(key, walk, &applied)?;
    nothing_lost(key, walk, outcomes, &applied)?;
    for row in &rows {
        let outcome = outcomes.get(&row.record);
        ensure!(outcome == Some(&Outcome::Applied), "{key}: {} was applied, and counts as {outcome:?}", row.row);
    }
    let Some(object) = store.object(key).await.expect("object answers") else {
        ensure!(applied.is_empty(), "{key} has no head");
        return Ok(applied);
    };
    ensure!(object.head.rev == rows.len() as i64, "{key}: rev {}", object.head.rev);
    ensure!(object.head.waiting.0.is_empty(), "{key} waits: {:?}", object.head.waiting);
    let (folded, deltas) = (fold_of(&object), walk.deltas(&applied));
    ensure!(folded == deltas, "{key}: deltas folded {folded:?}, not {deltas:?}");
    let snapshots = walk.snapshots().into_iter().filter(|r| matches!(&r.key, RecordKey::Object(of) if of == key));
    let expected = snapshots.max_by_key(|record| place(record)).map(Newest::of);
    let newest = newest_of(object);
    ensure!(newest == expected, "{key}: state {newest:?}, not {expected:?}");
    Ok(applied)
}

/// States only become newer, and numbers go up.
fn order(key: &ObjectKey, walk: &Walk, applied: &[String]) -> Result<(), String> {
    let events = walk.events(key);
    let unknown = applied.iter().find(|id| !events.contains_key(id.as_str()));
    ensure!(unknown.is_none(), "{key}: {unknown:?} is no event of it");
    let of = |filter: fn(&Record) -> bool| applied.iter().map(|id| events[id.as_str()]).filter(move |r| filter(r));
    let places: Vec<_> = of(is_snapshot).map(place).collect();
    ensure!(places.is_sorted_by(|one, next| one < next), "{key}: states {places:?}");
    let numbers: Vec<_> = of(|record| number(record).is_some()).map(number).collect();
    ensure!(numbers.is_sorted_by(|one, next| one < next), "{key}: numbers {numbers:?}");
    Ok(())
}

/// Each delta counts once; a numbered one may come after its number was passed, or be another's.
fn nothing_lost(key: &ObjectKey, walk: &Walk, outcomes: &Outcomes, applied: &[String]) -> Result<(), String> {
    for (id, record) in walk.events(key).into_iter().filter(|(_, record)| !is_snapshot(record)) {
        let is_applied = applied.iter().any(|applied| applied == id);
        let cannot_be = walk.poison.contains(id) || is_undecidable(record);
        ensure!(!(is_applied && cannot_be), "{key}: {id} cannot be applied, and is");
        let of = walk.records.iter().filter(|r| r.event_id == *id).filter_map(|r| outcomes.get(&r.id));
        let is_told = of.clone().any(|outcome| matches!(outcome, Outcome::Dead | Outcome::Duplicate));
        let may_be_left = cannot_be || (number(record).is_some() && is_told);
        ensure!(is_applied || may_be_left, "{key}: {id} is lost: {:?}", of.collect::<Vec<_>>());
    }
    Ok(())
}
