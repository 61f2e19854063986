//! A store in memory: for tests, and the reference that the others are compared with.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use seriatim_schemas::id::{RecordId, arrival_row};
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::row::{BacklogRow, DeadLetter, EventRow, Head, State, WaitingEffect, WaitingSink};

use super::{
    Arrival, Committed, FloorKey, Freshness, GroupBounds, Letter, LetterKey, ObjectBatch, ObjectQuery, SideKey,
    SideRow, Store,
};
use crate::decide::View;
use crate::error::StoreError;
use crate::inspect::{
    After, AfterArrival, Inspect, LetterHead, ObjectHead, ObjectState, Page, RowName, Scope, what_became,
};
use crate::mutant::{self, Mutant};

#[derive(Debug, Default)]
struct Tables {
    heads: BTreeMap<ObjectKey, (Head, Option<State>)>,
    events: BTreeMap<(ObjectKey, String), EventRow>,
    /// Until when event rows live, in seconds since 1970.
    expiries: BTreeMap<(ObjectKey, String), i64>,
    arrivals: BTreeMap<(ObjectKey, String), Arrival>,
    dead: BTreeMap<(String, String, String, String), DeadLetter>,
    floors: HashMap<FloorKey, i64>,
    waiting: BTreeMap<(ObjectKey, String), WaitingSink>,
    effects: BTreeMap<(ObjectKey, String, i64), WaitingEffect>,
    backlog: BTreeMap<(ObjectKey, u64), BacklogRow>,
}

impl Tables {
    fn put(&mut self, key: &ObjectKey, row: &SideRow) {
        match row {
            SideRow::Waiting(w) => drop(self.waiting.insert((key.clone(), w.sink.clone()), w.clone())),
            SideRow::Effect(e) => drop(self.effects.insert((key.clone(), e.sink.clone(), e.rev), e.clone())),
            SideRow::Backlog(b) => drop(self.backlog.insert((key.clone(), b.number), b.clone())),
            SideRow::Dead(letter) => self.bury(letter),
        }
    }

    fn bury(&mut self, letter: &DeadLetter) {
        let key = (letter.tenant.clone(), letter.source.clone(), letter.object.clone(), letter.event_row.clone());
        self.dead.insert(key, letter.clone());
    }

    fn delete(&mut self, key: &ObjectKey, row: &SideKey) {
        match row {
            SideKey::Waiting { sink } => drop(self.waiting.remove(&(key.clone(), sink.clone()))),
            SideKey::Effect { sink, rev } => drop(self.effects.remove(&(key.clone(), sink.clone(), *rev))),
            SideKey::Backlog { number } => drop(self.backlog.remove(&(key.clone(), *number))),
        }
    }
}

#[derive(Debug, Clone)]
pub struct MemoryStore {
    tables: Arc<Mutex<Tables>>,
    buckets: u32,
}

impl MemoryStore {
    pub fn new(buckets: u32) -> Self {
        Self { tables: Arc::default(), buckets }
    }

    fn tables(&self) -> std::sync::MutexGuard<'_, Tables> {
        self.tables.lock().expect("no panic while locked")
    }
}

/// `ttl_s` after a time in milliseconds, in seconds since 1970.
fn expires_s(from_ms: i64, ttl_s: u64) -> i64 {
    (from_ms / 1000).saturating_add(i64::try_from(ttl_s).unwrap_or(i64::MAX))
}

fn letter_key(of: &LetterKey) -> (String, String, String, String) {
    let ObjectKey { tenant, source, object } = of.key.clone();
    (tenant, source, object, of.row.clone())
}

#[async_trait]
impl Store for MemoryStore {
    fn buckets(&self) -> u32 {
        self.buckets
    }

    fn group_bounds(&self) -> GroupBounds {
        GroupBounds { events: 50, objects: 25, bytes: 512 * 1024 }
    }

    async fn read(
        &self,
        _bucket: u32,
        queries: &[ObjectQuery],
        _freshness: Freshness,
    ) -> Result<Vec<View>, StoreError> {
        let tables = self.tables();
        let view = |query: &ObjectQuery| {
            let row = |row: &String| Some((row.clone(), tables.events.get(&(query.key.clone(), row.clone()))?.clone()));
            View {
                head: tables.heads.get(&query.key).map(|(head, _)| head.clone()),
                rows: query.event_rows.iter().filter_map(row).collect(),
                ..View::default()
            }
        };
        Ok(queries.iter().map(view).collect())
    }

    async fn arrived(&self, _bucket: u32, of: &[(ObjectKey, String, RecordId)]) -> Result<Vec<RecordId>, StoreError> {
        let tables = self.tables();
        let is_there = |(key, row, record): &&(ObjectKey, String, RecordId)| {
            tables.arrivals.contains_key(&(key.clone(), arrival_row(row, record)))
        };
        Ok(of.iter().filter(is_there).map(|(_, _, record)| *record).collect())
    }

    async fn commit(&self, _bucket: u32, batches: &[ObjectBatch]) -> Result<Committed, StoreError> {
        let mut tables = self.tables();
        for batch in batches {
            let turn = tables.heads.get(&batch.key).map(|(head, _)| head.turn);
            let has_row = |row: &EventRow| tables.events.contains_key(&(batch.key.clone(), row.row.clone()));
            if (turn != batch.turn && !mutant::is(Mutant::CommitWithoutTurn)) || batch.rows.iter().any(has_row) {
                return Ok(Committed::Refused);
            }
        }
        for batch in batches {
            let before = tables.heads.remove(&batch.key).and_then(|(_, state)| state);
            tables.heads.insert(batch.key.clone(), (batch.head.clone(), batch.state.clone().or(before)));
            for row in &batch.rows {
                let name = (batch.key.clone(), row.row.clone());
                tables.expiries.insert(name.clone(), expires_s(row.decided_ms, batch.rows_ttl_s));
                tables.events.insert(name, row.clone());
            }
            batch.beside.delete.iter().for_each(|row| tables.delete(&batch.key, row));
            batch.beside.put.iter().for_each(|row| tables.put(&batch.key, row));
        }
        Ok(Committed::Applied)
    }

    async fn record(&self, _bucket: u32, arrivals: &[Arrival], dead: &[DeadLetter]) -> Result<(), StoreError> {
        let mut tables = self.tables();
        for arrival in arrivals {
            let row = arrival_row(&arrival.row.event_row, &arrival.row.record);
            tables.arrivals.insert((arrival.key.clone(), row), arrival.clone());
        }
        dead.iter().for_each(|letter| tables.bury(letter));
        Ok(())
    }

    async fn waiting_effects(
        &self,
        _bucket: u32,
        key: &ObjectKey,
        sink: &str,
        after: i64,
        max: usize,
    ) -> Result<Vec<WaitingEffect>, StoreError> {
        let tables = self.tables();
        let of = tables.effects.iter().filter(|((k, s, rev), _)| k == key && s == sink && *rev > after);
        Ok(of.map(|(_, effect)| effect.clone()).take(max).collect())
    }

    async fn waiting(&self, bucket: u32) -> Result<Vec<WaitingSink>, StoreError> {
        let tables = self.tables();
        Ok(tables.waiting.values().filter(|w| w.key.bucket(self.buckets) == bucket).cloned().collect())
    }

    async fn backlog(
        &self,
        _bucket: u32,
        key: &ObjectKey,
        from: u64,
        max: usize,
    ) -> Result<Vec<BacklogRow>, StoreError> {
        let tables = self.tables();
        let of = tables.backlog.iter().filter(|((k, number), _)| k == key && *number >= from);
        Ok(of.map(|(_, row)| row.clone()).take(max).collect())
    }

    async fn events_from(
        &self,
        _bucket: u32,
        key: &ObjectKey,
        rev: i64,
        max: usize,
    ) -> Result<Vec<EventRow>, StoreError> {
        let mut rows = self.events(key).await?;
        rows.retain(|row| row.rev >= rev);
        rows.sort_by_key(|row| row.rev);
        rows.truncate(max);
        Ok(rows)
    }

    async fn dead_letter(&self, _bucket: u32, of: &LetterKey) -> Result<Option<DeadLetter>, StoreError> {
        Ok(self.tables().dead.get(&letter_key(of)).cloned())
    }

    async fn forget(&self, _bucket: u32, letter: &Letter) -> Result<(), StoreError> {
        let (key, mut tables) = (letter_key(&letter.of), self.tables());
        if tables.dead.get(&key).is_some_and(|found| found.dead_ms == letter.dead_ms) {
            tables.dead.remove(&key);
        }
        Ok(())
    }

    async fn floor(&self, key: &FloorKey) -> Result<Option<i64>, StoreError> {
        Ok(self.tables().floors.get(key).copied())
    }

    async fn set_floor(&self, key: &FloorKey, next_offset: i64) -> Result<(), StoreError> {
        let mut tables = self.tables();
        let floor = tables.floors.entry(key.clone()).or_insert(next_offset);
        *floor = next_offset.max(*floor);
        Ok(())
    }

    async fn expire(&self, now_s: i64) -> Result<(), StoreError> {
        let mut tables = self.tables();
        let Tables { heads, events, expiries, arrivals, .. } = &mut *tables;
        expiries.retain(|_, at| *at >= now_s);
        if mutant::is(Mutant::HeadExpires) {
            heads.retain(|key, _| !events.keys().any(|(of, _)| of == key));
        }
        events.retain(|name, _| expiries.contains_key(name));
        arrivals.retain(|_, arrival| expires_s(arrival.row.done_ms, arrival.ttl_s) >= now_s);
        Ok(())
    }
}

/// A page of rows that come in order of their names: all of them are one bucket.
fn page<T>(rows: impl Iterator<Item = (RowName, T)>, scope: Scope<'_>, after: &After, max: usize) -> Page<T> {
    let mut rows = rows.filter(|(name, _)| scope.has(&name.tenant, &name.source));
    let behind = |(name, _): &(RowName, T)| after.row.as_ref().is_none_or(|after| name > after);
    let (mut out, mut last) = (Vec::new(), None);
    for (name, row) in rows.by_ref().filter(behind).take(max) {
        out.push(row);
        last = Some(name);
    }
    let next = (out.len() == max).then_some(After { bucket: 0, row: last });
    Page { rows: out, next }
}

#[async_trait]
impl Inspect for MemoryStore {
    async fn object(&self, key: &ObjectKey) -> Result<Option<ObjectState>, StoreError> {
        let found = self.tables().heads.get(key).cloned();
        Ok(found.map(|(head, state)| ObjectState { key: key.clone(), head, state }))
    }

    async fn event(&self, key: &ObjectKey, row: &str) -> Result<Option<EventRow>, StoreError> {
        Ok(self.tables().events.get(&(key.clone(), row.to_owned())).cloned())
    }

    async fn letter(&self, head: &LetterHead) -> Result<Option<DeadLetter>, StoreError> {
        Ok(self.tables().dead.get(&letter_key(&head.of)).cloned())
    }

    async fn heads(
        &self,
        tenant: &str,
        source: &str,
        after: &After,
        max: usize,
    ) -> Result<Page<ObjectHead>, StoreError> {
        let scope = Scope { tenant: Some(tenant), source: Some(source) };
        let tables = self.tables();
        let of = |(key, (head, _)): (&ObjectKey, &(Head, _))| {
            (RowName::new(key, ""), ObjectHead { key: key.clone(), head: head.clone() })
        };
        Ok(page(tables.heads.iter().map(of), scope, after, max))
    }

    async fn letters(&self, scope: Scope<'_>, after: &After, max: usize) -> Result<Page<LetterHead>, StoreError> {
        let tables = self.tables();
        let of = |letter: &DeadLetter| {
            let head = LetterHead::of(0, letter.clone());
            (RowName::new(&head.of.key, &head.of.row), head)
        };
        Ok(page(tables.dead.values().map(of), scope, after, max))
    }

    async fn waiters(&self, scope: Scope<'_>, after: &After, max: usize) -> Result<Page<WaitingSink>, StoreError> {
        let tables = self.tables();
        Ok(page(tables.waiting.values().map(|w| (RowName::new(&w.key, &w.sink), w.clone())), scope, after, max))
    }

    async fn events_behind(&self, key: &ObjectKey, after: &str, max: usize) -> Result<Vec<EventRow>, StoreError> {
        let tables = self.tables();
        let of = tables.events.iter().filter(|((k, row), _)| k == key && row.as_str() > after);
        Ok(of.map(|(_, row)| row.clone()).take(max).collect())
    }

    async fn arrivals_behind(&self, key: &ObjectKey, after: &str, max: usize) -> Result<Vec<Arrival>, StoreError> {
        let is_it = |k: &ObjectKey, row: &str| k == key && row > after;
        let of = |tables: &Tables| {
            let of = tables.arrivals.iter().filter(|((k, row), _)| is_it(k, row));
            of.map(|(_, arrival)| arrival.clone()).take(max).collect()
        };
        let found = of(&self.tables());
        what_became(self, found).await
    }

    async fn trace_behind(
        &self,
        tenant: &str,
        source: &str,
        event_id: &str,
        after: &AfterArrival,
        max: usize,
    ) -> Result<Vec<Arrival>, StoreError> {
        let is_it = |a: &&Arrival| a.key.tenant == tenant && a.key.source == source && a.row.event_id == event_id;
        let place = |a: &Arrival| {
            let AfterArrival { object, event_row, record } = AfterArrival::of(a);
            (object, event_row, record)
        };
        let after = (after.object.clone(), after.event_row.clone(), after.record.clone());
        let mut all: Vec<Arrival> =
            self.tables().arrivals.values().filter(is_it).filter(|a| place(a) > after).cloned().collect();
        all.sort_by_key(place);
        all.truncate(max);
        what_became(self, all).await
    }

    async fn first_waiting(&self, key: &ObjectKey, sink: &str, max: usize) -> Result<Vec<WaitingEffect>, StoreError> {
        self.waiting_effects(0, key, sink, 0, max).await
    }

    async fn floors(&self) -> Result<Vec<(FloorKey, i64)>, StoreError> {
        Ok(self.tables().floors.iter().map(|(key, next)| (key.clone(), *next)).collect())
    }
}
