//! What an operator asks the distributed store.

use std::cmp::Ordering;

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::row::{DeadLetter, EventRow, WaitingEffect, WaitingSink};
use seriatim_schemas::tables::kind;

use super::CqlStore;
use super::row::Stored;
use super::session::plain_failed;
use super::statements::Statements;
use crate::error::StoreError;
use crate::inspect::{
    After, AfterArrival, Inspect, LetterHead, ObjectHead, ObjectState, Page, RowName, Scope, what_became,
};
use crate::store::{Arrival, FloorKey, Store};

/// Buckets asked at once where a page spans many.
const BUCKETS_AT_ONCE: usize = 16;

fn to_arrival(stored: &Stored) -> Result<Arrival, StoreError> {
    // What is left of the TTL is not read: it only matters when an arrival is written.
    Ok(Arrival { key: stored.key(), row: stored.arrival()?, ttl_s: 0 })
}

fn corrupt(error: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt(error.to_string())
}

impl CqlStore {
    /// Rows of a kind, bucket by bucket, each in its clustering order.
    async fn page<T>(
        &self,
        kind: i8,
        scope: Scope<'_>,
        after: &After,
        max: usize,
        to_row: impl Fn(u32, &Stored) -> Result<Option<T>, StoreError>,
    ) -> Result<Page<T>, StoreError> {
        let ask = (after.bucket..self.buckets).map(|bucket| async move {
            let behind = after.row.as_ref().filter(|_| bucket == after.bucket);
            Ok::<_, StoreError>((bucket, self.scan(bucket, kind, scope, behind, max).await?))
        });
        let mut asked = futures::stream::iter(ask).buffered(BUCKETS_AT_ONCE);
        let mut rows = Vec::new();
        while let Some((bucket, found)) = asked.try_next().await? {
            let is_last_of_bucket = found.len() < max;
            for stored in &found {
                if scope.has(&stored.tenant, &stored.source) {
                    rows.extend(to_row(bucket, stored)?);
                }
                if rows.len() == max {
                    let next = After { bucket, row: Some(RowName::new(&stored.key(), &stored.row)) };
                    return Ok(Page { rows, next: Some(next) });
                }
            }
            if let Some(last) = found.last().filter(|_| !is_last_of_bucket) {
                let next = After { bucket, row: Some(RowName::new(&last.key(), &last.row)) };
                return Ok(Page { rows, next: Some(next) });
            }
        }
        Ok(Page { rows, next: None })
    }

    async fn scan(
        &self,
        bucket: u32,
        kind: i8,
        scope: Scope<'_>,
        behind: Option<&RowName>,
        max: usize,
    ) -> Result<Vec<Stored>, StoreError> {
        let (bucket, max) = (bucket as i32, i32::try_from(max).unwrap_or(i32::MAX));
        let Statements { scan_source, scan_source_behind, scan_kind, scan_kind_behind, .. } = &self.statements;
        let of = scope.tenant.zip(scope.source);
        match (of, behind) {
            (Some((tenant, source)), None) => self.rows(scan_source, (bucket, kind, tenant, source, max)).await,
            (Some((tenant, source)), Some(RowName { tenant: t, source: s, object, row })) => {
                let values = (bucket, kind, t, s, object, row, kind, tenant, source, max);
                self.rows(scan_source_behind, values).await
            }
            (None, None) => self.rows(scan_kind, (bucket, kind, max)).await,
            (None, Some(RowName { tenant, source, object, row })) => {
                self.rows(scan_kind_behind, (bucket, kind, tenant, source, object, row, kind, max)).await
            }
        }
    }

    async fn rows_of(&self, key: &ObjectKey, kind: i8, after: &str, max: usize) -> Result<Vec<Stored>, StoreError> {
        let max = i32::try_from(max).unwrap_or(i32::MAX);
        let values = (self.bucket_of(key), kind, &key.tenant, &key.source, &key.object, after, max);
        self.rows(&self.statements.read_object_behind, values).await
    }

    /// Arrivals of one event row behind the record `after`.
    async fn arrivals_of(
        &self,
        key: &ObjectKey,
        event_row: &str,
        after: &str,
        max: usize,
    ) -> Result<Vec<Arrival>, StoreError> {
        // '0' is what follows '/'. Another event's row may lie between: that of an id which itself holds a slash.
        let (mut from, to) = (format!("{event_row}/{after}"), format!("{event_row}0"));
        let mut found = Vec::new();
        loop {
            let bucket = key.bucket(self.buckets);
            let rows = self.rows_behind(bucket, kind::ARRIVAL, key, from, to.clone(), max).await?;
            let arrivals = rows.iter().map(to_arrival).collect::<Result<Vec<_>, _>>()?;
            found.extend(arrivals.into_iter().filter(|a| a.row.event_row == event_row));
            let Some(last) = rows.last().filter(|_| rows.len() == max && found.len() < max) else {
                found.truncate(max);
                return Ok(found);
            };
            from = last.row.clone();
        }
    }

    /// Object and event row of all that an event id names.
    async fn named(&self, tenant: &str, source: &str, event_id: &str) -> Result<Vec<(String, String)>, StoreError> {
        let answer = self.session.execute_unpaged(&self.statements.read_index, (tenant, source, event_id)).await;
        let answer = answer.map_err(plain_failed)?.into_rows_result().map_err(corrupt)?;
        let rows = answer.rows::<(String, String)>().map_err(corrupt)?;
        rows.collect::<Result<_, _>>().map_err(corrupt)
    }
}

#[async_trait]
impl Inspect for CqlStore {
    async fn object(&self, key: &ObjectKey) -> Result<Option<ObjectState>, StoreError> {
        let values = (self.bucket_of(key), kind::HEAD, &key.tenant, &key.source, &key.object);
        let rows = self.rows(&self.statements.read_object, values).await?;
        let Some(stored) = rows.first() else { return Ok(None) };
        let state = stored.state()?;
        Ok(stored.head()?.map(|head| ObjectState { key: stored.key(), head, state }))
    }

    async fn event(&self, key: &ObjectKey, row: &str) -> Result<Option<EventRow>, StoreError> {
        let values = (self.bucket_of(key), kind::EVENT, &key.tenant, &key.source, &key.object, row);
        self.rows(&self.statements.read_row, values).await?.first().map(Stored::event).transpose()
    }

    async fn letter(&self, head: &LetterHead) -> Result<Option<DeadLetter>, StoreError> {
        self.dead_letter(head.bucket, &head.of).await
    }

    async fn heads(
        &self,
        tenant: &str,
        source: &str,
        after: &After,
        max: usize,
    ) -> Result<Page<ObjectHead>, StoreError> {
        let scope = Scope { tenant: Some(tenant), source: Some(source) };
        let to_head = |_, stored: &Stored| Ok(stored.head()?.map(|head| ObjectHead { key: stored.key(), head }));
        self.page(kind::HEAD, scope, after, max, to_head).await
    }

    async fn letters(&self, scope: Scope<'_>, after: &After, max: usize) -> Result<Page<LetterHead>, StoreError> {
        self.page(kind::DEAD, scope, after, max, |bucket, stored| stored.letter_head(bucket).map(Some)).await
    }

    async fn waiters(&self, scope: Scope<'_>, after: &After, max: usize) -> Result<Page<WaitingSink>, StoreError> {
        self.page(kind::WAITING, scope, after, max, |_, stored| Ok(Some(stored.waiting_sink()))).await
    }

    async fn events_behind(&self, key: &ObjectKey, after: &str, max: usize) -> Result<Vec<EventRow>, StoreError> {
        self.rows_of(key, kind::EVENT, after, max).await?.iter().map(Stored::event).collect()
    }

    async fn arrivals_behind(&self, key: &ObjectKey, after: &str, max: usize) -> Result<Vec<Arrival>, StoreError> {
        let found =
            self.rows_of(key, kind::ARRIVAL, after, max).await?.iter().map(to_arrival).collect::<Result<_, _>>()?;
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
        let mut found = Vec::new();
        for (object, event_row) in self.named(tenant, source, event_id).await? {
            let begin = (&after.object, &after.event_row);
            let record = match (&object, &event_row).cmp(&begin) {
                Ordering::Less => continue,
                Ordering::Equal => after.record.as_str(),
                Ordering::Greater => "",
            };
            let key = ObjectKey::new(tenant, source, object);
            found.extend(self.arrivals_of(&key, &event_row, record, max - found.len()).await?);
            if found.len() == max {
                break;
            }
        }
        what_became(self, found).await
    }

    async fn first_waiting(&self, key: &ObjectKey, sink: &str, max: usize) -> Result<Vec<WaitingEffect>, StoreError> {
        self.waiting_effects(key.bucket(self.buckets), key, sink, 0, max).await
    }

    async fn floors(&self) -> Result<Vec<(FloorKey, i64)>, StoreError> {
        let answer = self.session.execute_unpaged(&self.statements.read_floors, ()).await.map_err(plain_failed)?;
        let answer = answer.into_rows_result().map_err(|e| StoreError::Corrupt(e.to_string()))?;
        let rows =
            answer.rows::<(String, String, String, i32, i64)>().map_err(|e| StoreError::Corrupt(e.to_string()))?;
        let floor = |row: Result<(String, String, String, i32, i64), _>| {
            let (generation, topic, topic_id, partition, next) = row?;
            Ok((FloorKey { generation, topic, topic_id, partition }, next))
        };
        let floors: Result<_, scylla::errors::DeserializationError> = rows.map(floor).collect();
        floors.map_err(|e| StoreError::Corrupt(e.to_string()))
    }
}
