//! The distributed store: ScyllaDB or Cassandra, one table per class and generation.
//!
//! A bucket is one partition; all that a group decided is one conditional batch on it: one Paxos round for
//! any number of objects, each under its own condition. Reads of heads and rows are one statement, since two
//! reads in the wrong order lose effects.

mod answer;
mod beside;
mod inspect;
mod migrate;
mod probe;
mod row;
mod session;
mod statements;

use std::sync::Arc;

use async_trait::async_trait;
use futures::TryStreamExt;
use futures::future::{try_join, try_join_all};
use scylla::client::session::Session;
use scylla::serialize::row::SerializeRow;
use scylla::statement::Consistency;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use seriatim_schemas::id::{RecordId, arrival_row};
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::record::headers_to_json;
use seriatim_schemas::row::{BacklogRow, DeadLetter, EventRow, State, WaitingEffect, WaitingSink, waiting_row};
use seriatim_schemas::tables::kind;

use super::{Arrival, Committed, FloorKey, Freshness, GroupBounds, Letter, LetterKey, ObjectBatch, ObjectQuery, Store};
use crate::config::CqlConfig;
use crate::decide::View;
use crate::error::StoreError;
use row::Stored;
use session::{batch_failed, plain_failed};
use statements::Statements;

pub use migrate::migrate;

/// Rows of one plain batch: below the size that servers warn about.
const PLAIN_ROWS_MAX: usize = 16;
/// Longest TTL that servers take: 20 years.
const TTL_MAX_S: u64 = 20 * 365 * 24 * 3600;

pub struct CqlStore {
    session: Arc<Session>,
    buckets: u32,
    group: GroupBounds,
    event_index: bool,
    statements: Statements,
}

/// The values of one statement.
type Values = Box<dyn SerializeRow + Send + Sync>;
/// A row by kind, tenant, source, object and row.
type RowKey = (i8, String, String, String, String);

impl CqlStore {
    /// Connects, checks what `migrate` has fixed, and probes that conditional batches do what they must.
    pub async fn connect(
        config: &CqlConfig,
        class: &str,
        generation: &str,
        event_index: bool,
    ) -> Result<Self, StoreError> {
        let session = session::connect(config).await?;
        migrate::check_fixed(&session, config, class, generation).await?;
        let statements = Statements::prepare(&session, config, class, generation).await?;
        let group = GroupBounds {
            events: config.group_events_max,
            objects: config.group_objects_max,
            bytes: config.group_bytes_max,
        };
        let store = Self { session: Arc::new(session), buckets: config.buckets, group, event_index, statements };
        probe::probe(&store).await?;
        Ok(store)
    }

    fn bucket_of(&self, key: &ObjectKey) -> i32 {
        key.bucket(self.buckets) as i32
    }

    async fn rows(&self, statement: &PreparedStatement, values: impl SerializeRow) -> Result<Vec<Stored>, StoreError> {
        let pager = self.session.execute_iter(statement.clone(), values).await.map_err(plain_failed)?;
        let stream = pager.rows_stream::<Stored>().map_err(|e| StoreError::Corrupt(e.to_string()))?;
        stream.try_collect().await.map_err(plain_failed)
    }

    async fn rows_in(&self, bucket: u32, rows: Vec<RowKey>, freshness: Freshness) -> Result<Vec<Stored>, StoreError> {
        let statement = match freshness {
            Freshness::Quorum => &self.statements.read,
            Freshness::Serial => &self.statements.read_serial,
        };
        self.rows(statement, (bucket as i32, rows)).await
    }

    async fn rows_behind(
        &self,
        bucket: u32,
        kind: i8,
        key: &ObjectKey,
        after: String,
        to: String,
        max: usize,
    ) -> Result<Vec<Stored>, StoreError> {
        let max = i32::try_from(max).unwrap_or(i32::MAX);
        let values = (bucket as i32, kind, &key.tenant, &key.source, &key.object, after, to, max);
        self.rows(&self.statements.read_behind, values).await
    }

    /// Arrivals in batches that stay small; all in one partition.
    async fn write_arrivals(&self, bucket: u32, arrivals: &[Arrival]) -> Result<(), StoreError> {
        let write = |chunk: &[Arrival]| {
            let mut batch = Batch::new(BatchType::Unlogged);
            batch.set_consistency(Consistency::LocalQuorum);
            batch.set_is_idempotent(true);
            let mut values: Vec<Values> = Vec::with_capacity(chunk.len());
            for arrival in chunk {
                batch.append_statement(self.statements.insert_arrival.clone());
                values.push(arrival_values(bucket, arrival));
            }
            async move { self.session.batch(&batch, values).await.map(|_| ()).map_err(plain_failed) }
        };
        try_join_all(arrivals.chunks(PLAIN_ROWS_MAX).map(write)).await.map(|_| ())
    }

    async fn write_index(&self, arrivals: &[Arrival]) -> Result<(), StoreError> {
        if !self.event_index {
            return Ok(());
        }
        let write = |arrival: &Arrival| {
            let (key, row) = (&arrival.key, &arrival.row);
            let values = (
                key.tenant.clone(),
                key.source.clone(),
                row.event_id.clone(),
                key.object.clone(),
                row.event_row.clone(),
                ttl(arrival.ttl_s),
            );
            async move {
                self.session
                    .execute_unpaged(&self.statements.insert_index, values)
                    .await
                    .map(|_| ())
                    .map_err(plain_failed)
            }
        };
        try_join_all(arrivals.iter().map(write)).await.map(|_| ())
    }

    async fn write_dead(&self, bucket: u32, letter: &DeadLetter) -> Result<(), StoreError> {
        let values = dead_values(bucket as i32, letter);
        self.session.execute_unpaged(&self.statements.insert_dead, values).await.map(|_| ()).map_err(plain_failed)
    }
}

fn ttl(seconds: u64) -> i32 {
    seconds.min(TTL_MAX_S) as i32
}

fn head_key(key: &ObjectKey) -> RowKey {
    (kind::HEAD, key.tenant.clone(), key.source.clone(), key.object.clone(), String::new())
}

fn row_key(kind: i8, key: &ObjectKey, row: &str) -> RowKey {
    (kind, key.tenant.clone(), key.source.clone(), key.object.clone(), row.to_owned())
}

fn arrival_values(bucket: u32, arrival: &Arrival) -> Values {
    let (key, row) = (arrival.key.clone(), arrival.row.clone());
    Box::new((
        bucket as i32,
        key.tenant,
        key.source,
        key.object,
        arrival_row(&row.event_row, &row.record),
        row.event_id,
        row.outcome.as_str(),
        // Not null: in a plain write that would be a tombstone.
        row.detail.unwrap_or_default(),
        row.record.to_string(),
        row.position,
        row.recorded_ms,
        row.done_ms,
        ttl(arrival.ttl_s),
    ))
}

fn dead_values(bucket: i32, letter: &DeadLetter) -> Values {
    let letter = letter.clone();
    Box::new((
        bucket,
        letter.tenant,
        letter.source,
        letter.object,
        letter.event_row,
        letter.event_id,
        letter.event_type,
        letter.record.to_string(),
        letter.cause,
        letter.detail,
        letter.position,
        letter.recorded_ms,
        letter.dead_ms,
        headers_to_json(&letter.headers),
        letter.value.to_vec(),
    ))
}

/// The statements of a group: event rows, which must not exist, and heads, whose turn must be as it was read.
fn group_batch(statements: &Statements, bucket: u32, objects: &[ObjectBatch]) -> (Batch, Vec<Values>) {
    let mut batch = Batch::new(BatchType::Unlogged);
    let mut values: Vec<Values> = Vec::new();
    let bucket = bucket as i32;
    for object in objects {
        let key = &object.key;
        for row in object.rows.iter().cloned() {
            batch.append_statement(statements.insert_event.clone());
            values.push(Box::new((
                bucket,
                key.tenant.clone(),
                key.source.clone(),
                key.object.clone(),
                row.row,
                row.outcome.as_str(),
                row.rev,
                row.event_type,
                row.version,
                row.digest.0.to_vec(),
                row.record.to_string(),
                row.attempt,
                row.position,
                row.decided_ms,
                ttl(object.rows_ttl_s),
            )));
        }
        let head = &object.head;
        let (statement, value): (_, Values) = match (&object.state, &head.snapshot) {
            (Some(state), Some(snapshot)) => (
                &statements.update_state,
                Box::new((
                    head.rev,
                    head.turn,
                    head.run.map(|run| (run.partition, run.after)),
                    snapshot.order_key.0.clone(),
                    snapshot.version.clone(),
                    snapshot.event_type.clone(),
                    snapshot.event_row.clone(),
                    snapshot.record.to_string(),
                    snapshot.digest.0.to_vec(),
                    snapshot.deleted,
                    State::encode(state),
                    bucket,
                    key.tenant.clone(),
                    key.source.clone(),
                    key.object.clone(),
                    object.turn,
                )),
            ),
            // Deltas touch no state.
            _ => (
                &statements.update_turn,
                Box::new((
                    head.rev,
                    head.turn,
                    head.run.map(|run| (run.partition, run.after)),
                    bucket,
                    key.tenant.clone(),
                    key.source.clone(),
                    key.object.clone(),
                    object.turn,
                )),
            ),
        };
        batch.append_statement(statement.clone());
        values.push(value);
        beside::append(statements, &mut batch, &mut values, bucket, object);
    }
    (batch, values)
}

#[async_trait]
impl Store for CqlStore {
    fn buckets(&self) -> u32 {
        self.buckets
    }

    fn group_bounds(&self) -> GroupBounds {
        self.group
    }

    async fn read(&self, bucket: u32, queries: &[ObjectQuery], freshness: Freshness) -> Result<Vec<View>, StoreError> {
        let events =
            |q: &ObjectQuery| q.event_rows.iter().map(|row| row_key(kind::EVENT, &q.key, row)).collect::<Vec<_>>();
        let keys = queries.iter().flat_map(|q| std::iter::once(head_key(&q.key)).chain(events(q))).collect();
        let mut views: Vec<View> = queries.iter().map(|_| View::default()).collect();
        for stored in self.rows_in(bucket, keys, freshness).await? {
            let of = |q: &ObjectQuery| {
                q.key.tenant == stored.tenant && q.key.source == stored.source && q.key.object == stored.object
            };
            let Some(view) = queries.iter().position(of).map(|i| &mut views[i]) else { continue };
            match stored.kind {
                kind::HEAD => view.head = stored.head()?,
                _ => drop(view.rows.insert(stored.row.clone(), stored.event()?)),
            }
        }
        Ok(views)
    }

    async fn arrived(&self, bucket: u32, of: &[(ObjectKey, String, RecordId)]) -> Result<Vec<RecordId>, StoreError> {
        let keys = of.iter().map(|(key, row, record)| row_key(kind::ARRIVAL, key, &arrival_row(row, record))).collect();
        let rows = self.rows_in(bucket, keys, Freshness::Quorum).await?;
        rows.iter().map(Stored::record_id).collect()
    }

    async fn commit(&self, bucket: u32, batches: &[ObjectBatch]) -> Result<Committed, StoreError> {
        let (mut batch, values) = group_batch(&self.statements, bucket, batches);
        session::make_conditional(&mut batch);
        let result = self.session.batch(&batch, values).await.map_err(batch_failed)?;
        answer::read_answer(result)
    }

    async fn record(&self, bucket: u32, arrivals: &[Arrival], dead: &[DeadLetter]) -> Result<(), StoreError> {
        // Dead letters first: an arrival says that all of its record is done.
        try_join_all(dead.iter().map(|letter| self.write_dead(bucket, letter))).await?;
        try_join(self.write_arrivals(bucket, arrivals), self.write_index(arrivals)).await.map(|_| ())
    }

    async fn waiting_effects(
        &self,
        bucket: u32,
        key: &ObjectKey,
        sink: &str,
        after: i64,
        max: usize,
    ) -> Result<Vec<WaitingEffect>, StoreError> {
        let (from, to) = (waiting_row(sink, after.max(0)), waiting_row(sink, i64::MAX));
        let rows = self.rows_behind(bucket, kind::EFFECT, key, from, to, max).await?;
        rows.iter().map(Stored::waiting_effect).collect()
    }

    async fn waiting(&self, bucket: u32) -> Result<Vec<WaitingSink>, StoreError> {
        let rows = self.rows(&self.statements.read_kind, (bucket as i32, kind::WAITING)).await?;
        Ok(rows.iter().map(Stored::waiting_sink).collect())
    }

    async fn backlog(
        &self,
        bucket: u32,
        key: &ObjectKey,
        from: u64,
        max: usize,
    ) -> Result<Vec<BacklogRow>, StoreError> {
        // Every row is behind the empty one.
        let before = from.checked_sub(1).map(beside::backlog_row).unwrap_or_default();
        let (from, to) = (before, beside::backlog_row(u64::MAX));
        let rows = self.rows_behind(bucket, kind::BACKLOG, key, from, to, max).await?;
        rows.iter().map(Stored::backlog).collect()
    }

    async fn events_from(
        &self,
        bucket: u32,
        key: &ObjectKey,
        rev: i64,
        max: usize,
    ) -> Result<Vec<EventRow>, StoreError> {
        let values = (bucket as i32, kind::EVENT, &key.tenant, &key.source, &key.object);
        let rows = self.rows(&self.statements.read_object, values).await?;
        let mut events: Vec<_> = rows.iter().map(Stored::event).collect::<Result<_, _>>()?;
        events.retain(|row| row.rev >= rev);
        events.sort_by_key(|row| row.rev);
        events.truncate(max);
        Ok(events)
    }

    async fn dead_letter(&self, bucket: u32, of: &LetterKey) -> Result<Option<DeadLetter>, StoreError> {
        let key = &of.key;
        let values = (bucket as i32, kind::DEAD, &key.tenant, &key.source, &key.object, &of.row);
        let rows = self.rows(&self.statements.read_row, values).await?;
        rows.first().map(Stored::dead_letter).transpose()
    }

    /// Read, then deleted: whoever writes letters does one thing at a time.
    async fn forget(&self, bucket: u32, letter: &Letter) -> Result<(), StoreError> {
        let LetterKey { key, row } = &letter.of;
        if self.dead_letter(bucket, &letter.of).await?.is_none_or(|found| found.dead_ms != letter.dead_ms) {
            return Ok(());
        }
        let values = (bucket as i32, kind::DEAD, &key.tenant, &key.source, &key.object, row);
        self.session.execute_unpaged(&self.statements.delete_row, values).await.map(|_| ()).map_err(plain_failed)
    }

    async fn floor(&self, key: &FloorKey) -> Result<Option<i64>, StoreError> {
        let values = (&key.generation, &key.topic, &key.topic_id, key.partition);
        let result = self.session.execute_unpaged(&self.statements.read_floor, values).await.map_err(plain_failed)?;
        let rows = result.into_rows_result().map_err(|e| StoreError::Corrupt(e.to_string()))?;
        let row = rows.maybe_first_row::<(Option<i64>,)>().map_err(|e| StoreError::Corrupt(e.to_string()))?;
        Ok(row.and_then(|(next_offset,)| next_offset))
    }

    async fn set_floor(&self, key: &FloorKey, next_offset: i64) -> Result<(), StoreError> {
        let values = (&key.generation, &key.topic, &key.topic_id, key.partition, next_offset, next_offset + 1);
        self.session.execute_unpaged(&self.statements.set_floor, values).await.map(|_| ()).map_err(plain_failed)
    }

    async fn expire(&self, _now_s: i64) -> Result<(), StoreError> {
        // Rows carry a TTL.
        Ok(())
    }
}
