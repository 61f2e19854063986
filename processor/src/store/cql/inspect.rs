//! What an operator asks the distributed store.

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::row::{DeadLetter, EventRow, WaitingEffect, WaitingSink};
use seriatim_schemas::tables::kind;

use super::CqlStore;
use super::row::Stored;
use super::session::plain_failed;
use crate::error::StoreError;
use crate::inspect::{Inspect, ObjectState};
use crate::store::{Arrival, FloorKey, Store};

/// Buckets asked at once where all of them are.
const BUCKETS_AT_ONCE: usize = 32;

fn to_state(stored: &Stored) -> Result<Option<ObjectState>, StoreError> {
    let state = stored.state()?;
    Ok(stored.head()?.map(|head| ObjectState { key: stored.key(), head, state }))
}

fn to_arrival(stored: &Stored) -> Result<Arrival, StoreError> {
    // What is left of the TTL is not read: it only matters when an arrival is written.
    Ok(Arrival { key: stored.key(), row: stored.arrival()?, ttl_s: 0 })
}

impl CqlStore {
    async fn rows_of(&self, key: &ObjectKey, kind: i8) -> Result<Vec<Stored>, StoreError> {
        let values = (self.bucket_of(key), kind, &key.tenant, &key.source, &key.object);
        self.rows(&self.statements.read_object, values).await
    }

    async fn source_in(&self, bucket: i32, tenant: &str, source: &str) -> Result<Vec<Stored>, StoreError> {
        self.rows(&self.statements.read_source, (bucket, tenant, source)).await
    }

    fn all_buckets(&self) -> impl Iterator<Item = i32> + use<> {
        0..self.buckets as i32
    }
}

#[async_trait]
impl Inspect for CqlStore {
    async fn object(&self, key: &ObjectKey) -> Result<Option<ObjectState>, StoreError> {
        let rows = self.rows_of(key, kind::HEAD).await?;
        rows.first().map_or(Ok(None), to_state)
    }

    async fn objects(&self, tenant: &str, source: &str) -> Result<Vec<ObjectState>, StoreError> {
        let ask = self.all_buckets().map(|bucket| self.source_in(bucket, tenant, source));
        let rows: Vec<Vec<Stored>> = futures::stream::iter(ask).buffer_unordered(BUCKETS_AT_ONCE).try_collect().await?;
        let mut states: Vec<_> =
            rows.iter().flatten().filter_map(|row| to_state(row).transpose()).collect::<Result<_, _>>()?;
        states.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(states)
    }

    async fn events(&self, key: &ObjectKey) -> Result<Vec<EventRow>, StoreError> {
        self.rows_of(key, kind::EVENT).await?.iter().map(Stored::event).collect()
    }

    async fn arrivals(&self, key: &ObjectKey) -> Result<Vec<Arrival>, StoreError> {
        self.rows_of(key, kind::ARRIVAL).await?.iter().map(to_arrival).collect()
    }

    async fn trace(&self, tenant: &str, source: &str, event_id: &str) -> Result<Vec<Arrival>, StoreError> {
        let answer = self
            .session
            .execute_unpaged(&self.statements.read_index, (tenant, source, event_id))
            .await
            .map_err(plain_failed)?;
        let answer = answer.into_rows_result().map_err(|e| StoreError::Corrupt(e.to_string()))?;
        let rows = answer.rows::<(String,)>().map_err(|e| StoreError::Corrupt(e.to_string()))?;
        let mut objects: Vec<String> = rows
            .map(|r| r.map(|(object,)| object))
            .collect::<Result<_, _>>()
            .map_err(|e| StoreError::Corrupt(e.to_string()))?;
        objects.dedup();
        let mut found = Vec::new();
        for object in objects {
            let arrivals = self.arrivals(&ObjectKey::new(tenant, source, object)).await?;
            found.extend(arrivals.into_iter().filter(|a| a.row.event_id == event_id));
        }
        found.sort_by_key(|a| (a.row.recorded_ms, a.row.record));
        Ok(found)
    }

    async fn dead(&self, tenant: Option<&str>, source: Option<&str>) -> Result<Vec<DeadLetter>, StoreError> {
        let ask = self.all_buckets().map(|bucket| self.rows(&self.statements.read_kind, (bucket, kind::DEAD)));
        let rows: Vec<Vec<Stored>> = futures::stream::iter(ask).buffer_unordered(BUCKETS_AT_ONCE).try_collect().await?;
        let wanted = |s: &&Stored| tenant.is_none_or(|t| s.tenant == t) && source.is_none_or(|n| s.source == n);
        let mut letters: Vec<_> =
            rows.iter().flatten().filter(wanted).map(Stored::dead_letter).collect::<Result<_, _>>()?;
        letters.sort_by_key(|l| l.dead_ms);
        Ok(letters)
    }

    async fn all_waiting(&self) -> Result<Vec<WaitingSink>, StoreError> {
        let ask = (0..self.buckets).map(|bucket| self.waiting(bucket));
        let found: Vec<Vec<_>> = futures::stream::iter(ask).buffer_unordered(BUCKETS_AT_ONCE).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
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
