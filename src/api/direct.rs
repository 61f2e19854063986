//! Asked of log and store, which are opened when they are first needed: a server starts without them, and a command
//! opens only what it uses.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use seriatim_ingest::log::Append;
use seriatim_processor::inspect::{self, After, AfterArrival, Inspect, InspectLog, Scope};
use seriatim_processor::log::parse_position;
use seriatim_processor::store::Arrival;
use seriatim_schemas::control::ControlAct;
use seriatim_schemas::id::arrival_row;
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::row::{EventRow, Snapshot, WaitingSink};
use seriatim_schemas::sequence::{NUMBER_MAX, Sequence};
use seriatim_schemas::source::Source;
use tokio::sync::OnceCell;

use super::lag::aged_lags;
use super::operations::{LettersAct, ObjectAct, OperationError, Operations};
use super::rows::{
    ArrivalRow, Event, Group, LetterFilter, LetterRow, LetterSummary, LettersDone, LettersRequest, ObjectDone,
    ObjectRequest, ObjectRow, ObjectSummary, Page, Paging, PartitionLag, SequenceRow, Trace, WaiterRow, WaitingFor,
    WaitingQuery,
};
use crate::config::Config;
use crate::engine;
use crate::operate::{Operator, Who};
use crate::output::instant;

/// Reads of single rows at once, for one page.
const READS_AT_ONCE: usize = 16;
/// Rows of one read where all are looked at.
pub(super) const SCAN_PAGE: usize = 500;
/// How long pages are read on that hold nothing of what is looked for.
const SEARCH_WITHIN: Duration = Duration::from_secs(5);

pub struct Direct {
    config: Arc<Config>,
    store: OnceCell<Arc<dyn Inspect>>,
    log: OnceCell<Arc<dyn InspectLog>>,
    operator: OnceCell<Operator>,
    append: Option<Arc<dyn Append>>,
}

impl Direct {
    /// `append`: the log to append to, where the process has it open.
    pub fn new(config: Arc<Config>, append: Option<Arc<dyn Append>>) -> Self {
        Self { config, store: OnceCell::new(), log: OnceCell::new(), operator: OnceCell::new(), append }
    }

    pub(super) async fn store(&self) -> Result<&dyn Inspect, OperationError> {
        let store = self.store.get_or_try_init(|| engine::open_inspect(&self.config)).await;
        store.map(|store| &**store).map_err(|error| away(&error))
    }

    async fn log(&self) -> Result<&dyn InspectLog, OperationError> {
        let log = self.log.get_or_try_init(|| engine::open_inspect_log(&self.config)).await;
        log.map(|log| &**log).map_err(|error| away(&error))
    }

    pub(super) async fn operator(&self) -> Result<&Operator, OperationError> {
        let open = async || {
            let log = match &self.append {
                Some(append) => append.clone(),
                None => engine::open_append(&self.config).await?,
            };
            Operator::new(log, &self.config)
        };
        self.operator.get_or_try_init(open).await.map_err(|error| away(&error))
    }

    /// All arrivals of an object, whatever event they are of.
    pub async fn arrivals(&self, key: &ObjectKey, paging: &Paging) -> Result<Page<ArrivalRow>, OperationError> {
        let (store, limit) = (self.store().await?, paging.limit()?);
        let after: String = read_place(paging)?.unwrap_or_default();
        let mut found = store.arrivals_behind(key, &after, limit).await?;
        if found.is_empty() && paging.after.is_none() {
            return Err(OperationError::NotFound(format!(
                "no object {key}: nothing of it has arrived, or it has expired"
            )));
        }
        let last = found.last().map(|a| arrival_row(&a.row.event_row, &a.row.record));
        let after = last.filter(|_| found.len() == limit).map(|last| place(&last));
        found.sort_by_key(|a| (a.row.recorded_ms, a.row.record));
        let decided = decided(store, &found).await?;
        Ok(Page { rows: found.iter().map(|a| to_arrival(a, &decided)).collect(), after })
    }

    /// The arrival of an event id that was received first.
    async fn first_arrival(
        &self,
        tenant: &str,
        source: &str,
        event_id: &str,
    ) -> Result<Option<Arrival>, OperationError> {
        let store = self.store().await?;
        let (mut first, mut after): (Option<Arrival>, _) = (None, AfterArrival::default());
        loop {
            let page = store.trace_behind(tenant, source, event_id, &after, SCAN_PAGE).await?;
            let Some(last) = page.last() else { return Ok(first) };
            after = AfterArrival::of(last);
            first = first.into_iter().chain(page).min_by_key(|a| (a.row.recorded_ms, a.row.record));
        }
    }

    /// The number that a pass leads to.
    async fn pass_to(&self, key: &ObjectKey, to: Option<u64>) -> Result<u64, OperationError> {
        let is_its = |source: &Source| source.tenant == key.tenant && source.name == key.source;
        if !self.config.sources().iter().any(|source| is_its(source) && source.declaration.sequence().is_some()) {
            return Err(OperationError::Invalid(format!("{}/{} declares no sequence", key.tenant, key.source)));
        }
        let found = self.store().await?.object(key).await?.ok_or_else(|| missing(key))?;
        let sequence = found.head.sequence.unwrap_or_default();
        let to = to.or(sequence.behind_gap());
        let to =
            to.ok_or_else(|| OperationError::NotFound(format!("nothing is missing from the sequence of {key}")))?;
        if to > NUMBER_MAX || sequence.next.is_some_and(|next| to <= next) {
            let next = sequence.next.map_or("not known".to_owned(), |next| next.to_string());
            let text = format!("to is {to}: give a number up to {NUMBER_MAX} and above the next one, which is {next}");
            return Err(OperationError::Invalid(text));
        }
        Ok(to)
    }

    /// The sink that an object is parked for, and the rev of the first effect that is.
    async fn parked(&self, key: &ObjectKey, sink: Option<&str>) -> Result<(String, Option<i64>), OperationError> {
        let store = self.store().await?;
        let head = store.object(key).await?.map(|object| object.head).unwrap_or_default();
        let has_gap = head.sequence.is_some_and(|sequence| sequence.behind_gap().is_some());
        let mut found: Vec<_> = head.waiting.0.into_iter().filter(|(_, waiting)| waiting.parked.is_some()).collect();
        found.retain(|(name, _)| sink.is_none_or(|sink| sink == name));
        match found.as_slice() {
            [] => {
                let remedy = if has_gap { ": what it holds behind a gap is released by `object pass`" } else { "" };
                Err(OperationError::NotFound(format!("{key} is not parked{remedy}")))
            }
            [(name, waiting)] => {
                let first = store.first_waiting(key, name, 1).await?.first().map(|effect| effect.rev);
                // Behind the rows, or without any, effects wait in the log alone.
                Ok((name.clone(), first.or(waiting.overflow.map(|(from, _)| from))))
            }
            more => {
                let names: Vec<_> = more.iter().map(|(name, _)| name.as_str()).collect();
                Err(OperationError::Invalid(format!("{key} is parked for {}: name one sink", names.join(", "))))
            }
        }
    }
}

fn away(error: &anyhow::Error) -> OperationError {
    OperationError::Away(format!("{error:#}"))
}

/// A place in a list, for whoever is to give it back as it is.
pub(super) fn place(of: &impl Serialize) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(of).expect("plain data"))
}

pub(super) fn read_place<T: DeserializeOwned>(paging: &Paging) -> Result<Option<T>, OperationError> {
    parse_place(paging.after.as_deref())
}

pub(super) fn parse_place<T: DeserializeOwned>(after: Option<&str>) -> Result<Option<T>, OperationError> {
    let Some(text) = after else { return Ok(None) };
    let bytes = URL_SAFE_NO_PAD.decode(text).ok();
    let place = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    place.map(Some).ok_or_else(|| OperationError::Invalid("after is not what a page before gave".to_owned()))
}

/// Reads pages of a store until one holds something of what is wanted, or it takes too long.
pub(super) struct Search {
    pub after: After,
    pub limit: usize,
    deadline: Instant,
}

impl Search {
    pub fn begin(paging: &Paging) -> Result<Self, OperationError> {
        let after = read_place(paging)?.unwrap_or_default();
        Ok(Self { after, limit: paging.limit()?, deadline: Instant::now() + SEARCH_WITHIN })
    }

    /// Breaks with where the next page begins.
    pub fn go_on<T>(&mut self, found: &[T], next: Option<After>) -> ControlFlow<Option<String>> {
        match next {
            Some(next) if found.is_empty() && Instant::now() < self.deadline => {
                self.after = next;
                ControlFlow::Continue(())
            }
            next => ControlFlow::Break(next.as_ref().map(place)),
        }
    }
}

/// How the events of these arrivals were decided, by object and row.
async fn decided(
    store: &dyn Inspect,
    arrivals: &[Arrival],
) -> Result<HashMap<(String, String), EventRow>, OperationError> {
    let mut names: Vec<_> = arrivals.iter().map(|a| (&a.key, &a.row.event_row)).collect();
    names.sort();
    names.dedup();
    let read = |(key, row): (&ObjectKey, &String)| {
        let (key, row) = (key.clone(), row.clone());
        async move {
            let event = store.event(&key, &row).await?;
            Ok::<_, OperationError>(event.map(|event| ((key.object, row), event)))
        }
    };
    let found = futures::stream::iter(names.into_iter().map(read)).buffer_unordered(READS_AT_ONCE);
    found.try_filter_map(|event| async { Ok(event) }).try_collect().await
}

#[async_trait]
impl Operations for Direct {
    async fn objects(
        &self,
        tenant: &str,
        source: &str,
        paging: &Paging,
    ) -> Result<Page<ObjectSummary>, OperationError> {
        let after: After = read_place(paging)?.unwrap_or_default();
        let page = self.store().await?.heads(tenant, source, &after, paging.limit()?).await?;
        let row = |object: inspect::ObjectHead| {
            let snapshot = object.head.snapshot;
            let of = |value: fn(&Snapshot) -> &str| snapshot.as_ref().map(|s| value(s).to_owned());
            ObjectSummary {
                object: object.key.object,
                rev: object.head.rev,
                deleted: snapshot.as_ref().map(|s| s.deleted),
                version: of(|s| &s.version),
                event_type: of(|s| &s.event_type),
                event: of(|s| &s.event_row),
            }
        };
        Ok(Page { rows: page.rows.into_iter().map(row).collect(), after: page.next.as_ref().map(place) })
    }

    async fn object(&self, key: &ObjectKey) -> Result<ObjectRow, OperationError> {
        let found = self.store().await?.object(key).await?.ok_or_else(|| missing(key))?;
        let snapshot = found.head.snapshot;
        let fold = found.head.fold.map(|fold| {
            let text = || serde_json::Value::String(String::from_utf8_lossy(&fold).into_owned());
            serde_json::from_slice(&fold).unwrap_or_else(|_| text())
        });
        let text = found.state.as_ref().and_then(|s| String::from_utf8(s.0.to_vec()).ok());
        let state = text.and_then(|t| RawValue::from_string(t).ok());
        let state_base64 = found.state.filter(|_| state.is_none()).map(|s| STANDARD.encode(&s.0));
        let waiting = found.head.waiting.0.into_iter();
        let of = |value: fn(&Snapshot) -> String| snapshot.as_ref().map(value);
        let ObjectKey { tenant, source, object } = key.clone();
        Ok(ObjectRow {
            tenant,
            source,
            object,
            rev: found.head.rev,
            deleted: snapshot.as_ref().map(|s| s.deleted),
            version: of(|s| s.version.clone()),
            event_type: of(|s| s.event_type.clone()),
            event: of(|s| s.event_row.clone()),
            record: of(|s| s.record.to_string()),
            sha256: of(|s| s.digest.to_string()),
            waiting: waiting.map(|(sink, w)| WaitingFor { sink, queued: w.queued, parked: w.parked }).collect(),
            sequence: found.head.sequence.map(|sequence| to_sequence(&sequence)),
            fold,
            state,
            state_base64,
        })
    }

    async fn events(&self, key: &ObjectKey, paging: &Paging) -> Result<Page<Event>, OperationError> {
        let (store, limit) = (self.store().await?, paging.limit()?);
        let after: String = read_place(paging)?.unwrap_or_default();
        let mut found = store.events_behind(key, &after, limit).await?;
        let after = found.last().filter(|_| found.len() == limit).map(|last| place(&last.row));
        found.sort_by_key(|event| (!event.has_effect(), event.rev, event.decided_ms));
        Ok(Page { rows: found.into_iter().map(|event| to_event(&key.object, event)).collect(), after })
    }

    async fn trace(
        &self,
        tenant: &str,
        source: &str,
        event_id: &str,
        paging: &Paging,
    ) -> Result<Trace, OperationError> {
        let (store, limit) = (self.store().await?, paging.limit()?);
        let after: AfterArrival = read_place(paging)?.unwrap_or_default();
        let mut found = store.trace_behind(tenant, source, event_id, &after, limit).await?;
        if found.is_empty() && paging.after.is_none() {
            return Err(never_arrived(tenant, source, event_id));
        }
        let after = found.last().filter(|_| found.len() == limit).map(|last| place(&AfterArrival::of(last)));
        found.sort_by_key(|a| (a.row.recorded_ms, a.row.record));
        let decided = decided(store, &found).await?;
        let arrivals = found.iter().map(|a| to_arrival(a, &decided)).collect();
        let mut decided: Vec<_> = decided.into_iter().map(|((object, _), event)| to_event(&object, event)).collect();
        decided.sort_by(|a, b| (&a.object, a.rev).cmp(&(&b.object, b.rev)));
        Ok(Trace { decided, arrivals, after })
    }

    async fn raw(&self, tenant: &str, source: &str, event_id: &str) -> Result<Bytes, OperationError> {
        let first = self.first_arrival(tenant, source, event_id).await?;
        let first = first.ok_or_else(|| never_arrived(tenant, source, event_id))?;
        // Its position is a hint, its id decides.
        let gone =
            || OperationError::NotFound(format!("the record at {} is not in the log any more", first.row.position));
        let log = self.log().await?;
        let (partition, offset) = parse_position(&log.identity().topic, &first.row.position).ok_or_else(gone)?;
        let entries = log.entries(partition, offset, 1).await?;
        let id = first.row.record.to_string();
        let is_it = |h: &(String, Bytes)| h.0 == "st_record" && h.1 == id.as_bytes();
        entries.into_iter().find(|e| e.headers.iter().any(is_it)).map(|e| e.value).ok_or_else(gone)
    }

    async fn letters(&self, filter: &LetterFilter, paging: &Paging) -> Result<Page<LetterSummary>, OperationError> {
        self.list_letters(filter, paging).await
    }

    async fn letter_groups(&self, filter: &LetterFilter) -> Result<Page<Group>, OperationError> {
        self.group_letters(filter).await
    }

    async fn letter(&self, tenant: &str, source: &str, id: &str) -> Result<LetterRow, OperationError> {
        self.find_letter(tenant, source, id).await
    }

    async fn act_on_letters(
        &self,
        act: LettersAct,
        request: &LettersRequest,
        by: &str,
    ) -> Result<LettersDone, OperationError> {
        request.check()?;
        let who = Who { by: by.to_owned(), reason: request.reason.clone() };
        self.act_on_some(act, request, &who).await
    }

    async fn waiting(&self, query: &WaitingQuery, paging: &Paging) -> Result<Page<WaiterRow>, OperationError> {
        let store = self.store().await?;
        let scope = Scope { tenant: query.tenant.as_deref(), source: query.source.as_deref() };
        let mut search = Search::begin(paging)?;
        let (found, after) = loop {
            let page = store.waiters(scope, &search.after, search.limit).await?;
            let mut found = page.rows;
            found.retain(|w| query.parked.is_none_or(|parked| parked == w.is_parked));
            if let ControlFlow::Break(after) = search.go_on(&found, page.next) {
                break (found, after);
            }
        };
        let row = |one: WaitingSink| async move {
            let first = store.first_waiting(&one.key, &one.sink, 1).await?.pop();
            let id = first.as_ref().and_then(|e| e.headers.iter().find(|(name, _)| name == "ce_id"));
            Ok::<_, OperationError>(WaiterRow {
                first_event: id.map(|(_, value)| String::from_utf8_lossy(value).into_owned()),
                first_rev: first.as_ref().map(|e| e.rev),
                tenant: one.key.tenant,
                source: one.key.source,
                object: one.key.object,
                sink: one.sink,
                state: if one.is_parked { "parked" } else { "waiting" }.to_owned(),
                cause: one.cause,
                since: instant(one.since_ms),
            })
        };
        let rows = futures::stream::iter(found.into_iter().map(row)).buffered(READS_AT_ONCE).try_collect().await?;
        Ok(Page { rows, after })
    }

    async fn act_on_object(
        &self,
        key: &ObjectKey,
        act: ObjectAct,
        request: &ObjectRequest,
        by: &str,
    ) -> Result<ObjectDone, OperationError> {
        request.check()?;
        let is_of_order = matches!(act, ObjectAct::ResetVersion | ObjectAct::Pass);
        if is_of_order && request.sink.is_some() {
            return Err(OperationError::Invalid(format!("a {} is of no sink: leave it out", act.as_str())));
        }
        if act != ObjectAct::Pass && request.to.is_some() {
            return Err(OperationError::Invalid(format!("to is of a pass: a {} takes none", act.as_str())));
        }
        let (sink, rev, act) = match act {
            ObjectAct::Redrive => {
                let (sink, rev) = self.parked(key, request.sink.as_deref()).await?;
                (Some(sink.clone()), rev, ControlAct::Redrive { sink })
            }
            ObjectAct::Skip => {
                let (sink, rev) = self.parked(key, request.sink.as_deref()).await?;
                let missing = || OperationError::NotFound(format!("nothing of {key} waits for {sink}"));
                let rev = rev.ok_or_else(missing)?;
                (Some(sink.clone()), Some(rev), ControlAct::Skip { sink, rev })
            }
            ObjectAct::ResetVersion => {
                self.store().await?.object(key).await?.ok_or_else(|| missing(key))?;
                (None, None, ControlAct::ResetVersion {})
            }
            ObjectAct::Pass => (None, None, ControlAct::Pass { to: self.pass_to(key, request.to).await? }),
        };
        let to = match &act {
            ControlAct::Pass { to } => Some(*to),
            _ => None,
        };
        if !request.dry_run {
            let who = Who { by: by.to_owned(), reason: request.reason.clone() };
            let acted = self.operator().await?.act_on(key.clone(), act, &who).await;
            acted.map_err(|error| OperationError::from(error).under("the log did not take the act"))?;
        }
        let ObjectKey { tenant, source, object } = key.clone();
        Ok(ObjectDone { tenant, source, object, sink, rev, to, dry_run: request.dry_run })
    }

    async fn lag(&self) -> Result<Page<PartitionLag>, OperationError> {
        Ok(Page { rows: aged_lags(self.store().await?, self.log().await?).await?, after: None })
    }
}

fn missing(key: &ObjectKey) -> OperationError {
    OperationError::NotFound(format!("no object {key}: no event of it was applied"))
}

fn never_arrived(tenant: &str, source: &str, event_id: &str) -> OperationError {
    OperationError::NotFound(format!("no event {event_id} of {tenant}/{source} has arrived, or it has expired"))
}

fn to_sequence(sequence: &Sequence) -> SequenceRow {
    SequenceRow {
        next: sequence.next,
        held: sequence.held.count(),
        held_from: sequence.held.first(),
        since: sequence.since_ms.map(instant),
    }
}

fn to_event(object: &str, row: EventRow) -> Event {
    Event {
        rev: row.has_effect().then_some(row.rev),
        object: object.to_owned(),
        event: row.row,
        outcome: row.outcome.as_str().to_owned(),
        event_type: row.event_type,
        version: row.version,
        sha256: row.digest.to_string(),
        record: row.record.to_string(),
        position: row.position,
        decided: instant(row.decided_ms),
    }
}

fn to_arrival(arrival: &Arrival, decided: &HashMap<(String, String), EventRow>) -> ArrivalRow {
    let row = &arrival.row;
    let event = decided.get(&(arrival.key.object.clone(), row.event_row.clone()));
    ArrivalRow {
        object: arrival.key.object.clone(),
        event: row.event_row.clone(),
        outcome: row.outcome.as_str().to_owned(),
        rev: event.filter(|event| event.record == row.record && event.has_effect()).map(|event| event.rev),
        received: instant(row.recorded_ms),
        done: instant(row.done_ms),
        record: row.record.to_string(),
        position: row.position.clone(),
        detail: row.detail.clone(),
    }
}
