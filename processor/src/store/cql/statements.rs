//! Every statement of the store, prepared once.

use scylla::client::session::Session;
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;
use seriatim_schemas::tables::{event_index_table, objects_table};

use crate::config::CqlConfig;
use crate::error::StoreError;

pub struct Statements {
    pub read: PreparedStatement,
    pub read_serial: PreparedStatement,
    pub insert_event: PreparedStatement,
    pub update_state: PreparedStatement,
    pub update_turn: PreparedStatement,
    pub set_order: PreparedStatement,
    pub set_waiting: PreparedStatement,
    pub set_fold: PreparedStatement,
    pub set_sequence: PreparedStatement,
    pub put_waiting: PreparedStatement,
    pub put_effect: PreparedStatement,
    pub put_backlog: PreparedStatement,
    pub delete_row: PreparedStatement,
    pub read_behind: PreparedStatement,
    pub read_row: PreparedStatement,
    pub insert_arrival: PreparedStatement,
    pub insert_dead: PreparedStatement,
    pub insert_index: PreparedStatement,
    pub read_index: PreparedStatement,
    pub read_object: PreparedStatement,
    pub read_object_behind: PreparedStatement,
    pub scan_source: PreparedStatement,
    pub scan_source_behind: PreparedStatement,
    pub scan_kind: PreparedStatement,
    pub scan_kind_behind: PreparedStatement,
    pub read_kind: PreparedStatement,
    pub set_floor: PreparedStatement,
    pub read_floor: PreparedStatement,
    pub read_floors: PreparedStatement,
}

/// All columns but `state`, `headers` and `value`, which are large and seldom wanted.
const COLUMNS: &str = "kind, tenant, source, object, row, turn, order_key, event, deleted, rev, type, version, digest, \
                       attempt, outcome, record, position, event_id, detail, recorded_ms, done_ms, \
                       waiting, fold, sequence, run, attempted";

impl Statements {
    pub async fn prepare(
        session: &Session,
        config: &CqlConfig,
        class: &str,
        generation: &str,
    ) -> Result<Self, StoreError> {
        let objects = format!("{}.{}", config.keyspace, objects_table(class, generation));
        let index = format!("{}.{}", config.keyspace, event_index_table(class, generation));
        let floor = format!("{}.floor", config.keyspace);
        let prepare = async |text: String| {
            let prepared = session.prepare(text).await;
            prepared.map_err(|e| {
                StoreError::Unavailable(format!("{e}; were the tables made? `seriatim migrate` makes them"))
            })
        };
        let key = "bucket = ? AND kind = 0 AND tenant = ? AND source = ? AND object = ? AND row = ''";
        let read = prepare(format!(
            "SELECT {COLUMNS} FROM {objects} WHERE bucket = ? AND (kind, tenant, source, object, row) IN ?"
        ))
        .await?;
        let mut read_serial = read.clone();
        read_serial.set_consistency(Consistency::LocalSerial);
        let one_object = "bucket = ? AND kind = ? AND tenant = ? AND source = ? AND object = ?";
        Ok(Self {
            read,
            read_serial,
            insert_event: prepare(format!(
                "INSERT INTO {objects} (bucket, kind, tenant, source, object, row, outcome, rev, type, version, digest, record, attempt, position, done_ms) \
                 VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS USING TTL ?"
            ))
            .await?,
            update_state: prepare(format!(
                "UPDATE {objects} SET rev = ?, turn = ?, run = ?, order_key = ?, version = ?, type = ?, event = ?, record = ?, digest = ?, deleted = ?, state = ? \
                 WHERE {key} IF turn = ?"
            ))
            .await?,
            update_turn: prepare(format!(
                "UPDATE {objects} SET rev = ?, turn = ?, run = ? WHERE {key} IF turn = ?"
            ))
            .await?,
            // What follows stands in a batch with one of the above, whose condition holds for all of it.
            set_order: prepare(format!("UPDATE {objects} SET order_key = ?, version = ? WHERE {key}")).await?,
            set_waiting: prepare(format!("UPDATE {objects} SET waiting = ? WHERE {key}")).await?,
            set_fold: prepare(format!("UPDATE {objects} SET fold = ? WHERE {key}")).await?,
            set_sequence: prepare(format!("UPDATE {objects} SET sequence = ? WHERE {key}")).await?,
            put_waiting: prepare(format!(
                "INSERT INTO {objects} (bucket, kind, tenant, source, object, row, done_ms, detail, attempted) VALUES (?, 3, ?, ?, ?, ?, ?, ?, ?)"
            ))
            .await?,
            put_effect: prepare(format!(
                "INSERT INTO {objects} (bucket, kind, tenant, source, object, row, rev, outcome, attempted, attempt, done_ms, headers, value) \
                 VALUES (?, 6, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            ))
            .await?,
            put_backlog: prepare(format!(
                "INSERT INTO {objects} (bucket, kind, tenant, source, object, row, position, headers, value) VALUES (?, 4, ?, ?, ?, ?, ?, ?, ?)"
            ))
            .await?,
            delete_row: prepare(format!(
                "DELETE FROM {objects} WHERE bucket = ? AND kind = ? AND tenant = ? AND source = ? AND object = ? AND row = ?"
            ))
            .await?,
            read_behind: prepare(format!(
                "SELECT {COLUMNS}, headers, value FROM {objects} WHERE {one_object} AND row > ? AND row <= ? LIMIT ?"
            ))
            .await?,
            read_row: prepare(format!("SELECT {COLUMNS}, headers, value FROM {objects} WHERE {one_object} AND row = ?")).await?,
            insert_arrival: prepare(format!(
                "INSERT INTO {objects} (bucket, kind, tenant, source, object, row, event_id, outcome, detail, record, position, recorded_ms, done_ms) \
                 VALUES (?, 2, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TTL ?"
            ))
            .await?,
            insert_dead: prepare(format!(
                "INSERT INTO {objects} (bucket, kind, tenant, source, object, row, event_id, type, record, outcome, detail, position, recorded_ms, done_ms, headers, value) \
                 VALUES (?, 5, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            ))
            .await?,
            insert_index: prepare(format!("INSERT INTO {index} (tenant, source, event_id, object, row) VALUES (?, ?, ?, ?, ?) USING TTL ?")).await?,
            read_index: prepare(format!("SELECT object, row FROM {index} WHERE tenant = ? AND source = ? AND event_id = ?")).await?,
            read_object: prepare(format!("SELECT {COLUMNS}, state FROM {objects} WHERE {one_object}")).await?,
            read_object_behind: prepare(format!("SELECT {COLUMNS} FROM {objects} WHERE {one_object} AND row > ? LIMIT ?")).await?,
            // Pages over many objects. Bounds of several columns are compared as one, which both servers take only where
            // all of them begin with the same column.
            scan_source: prepare(format!(
                "SELECT {COLUMNS} FROM {objects} WHERE bucket = ? AND kind = ? AND tenant = ? AND source = ? LIMIT ?"
            ))
            .await?,
            scan_source_behind: prepare(format!(
                "SELECT {COLUMNS} FROM {objects} WHERE bucket = ? AND (kind, tenant, source, object, row) > (?, ?, ?, ?, ?) \
                 AND (kind, tenant, source) <= (?, ?, ?) LIMIT ?"
            ))
            .await?,
            scan_kind: prepare(format!("SELECT {COLUMNS} FROM {objects} WHERE bucket = ? AND kind = ? LIMIT ?")).await?,
            scan_kind_behind: prepare(format!(
                "SELECT {COLUMNS} FROM {objects} WHERE bucket = ? AND (kind, tenant, source, object, row) > (?, ?, ?, ?, ?) \
                 AND (kind) <= (?) LIMIT ?"
            ))
            .await?,
            read_kind: prepare(format!("SELECT {COLUMNS}, headers, value FROM {objects} WHERE bucket = ? AND kind = ?")).await?,
            // The offset is its own timestamp: the greater one wins, whoever writes last.
            set_floor: prepare(format!(
                "INSERT INTO {floor} (generation, topic, topic_id, partition, next_offset) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?"
            ))
            .await?,
            read_floor: prepare(format!("SELECT next_offset FROM {floor} WHERE generation = ? AND topic = ? AND topic_id = ? AND partition = ?")).await?,
            read_floors: prepare(format!("SELECT generation, topic, topic_id, partition, next_offset FROM {floor}")).await?,
        })
    }
}
