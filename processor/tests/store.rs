//! One suite for all stores. To add an engine: a function that opens it, and a line at the end of this file.

#[path = "store/sample.rs"]
mod sample;
#[path = "store/sqlite.rs"]
mod sqlite;
#[path = "store/suite.rs"]
mod suite;

use std::sync::Arc;

use seriatim_processor::store::memory::MemoryStore;
use seriatim_processor::store::sqlite::SqliteStore;
use tempfile::TempDir;

/// Few, so that many objects of a test share one.
const BUCKETS: u32 = 4;

/// A test of each case for `engine`. `open` returns a store, and what must live as long as it does. Stores
/// may be shared by all tests: each uses tenants and topics of its own.
macro_rules! conformance {
    ($(#[$attribute:meta])* $engine:ident, $open:path) => {
        $(#[$attribute])*
        mod $engine {
            conformance! { @cases $open;
                first_seen_object_commits
                object_never_seen_reads_as_nothing
                same_batch_again_is_refused_and_changes_nothing
                same_event_row_with_the_right_turn_is_refused
                new_row_with_a_wrong_turn_is_refused
                group_with_one_existing_row_is_refused_as_a_whole
                group_with_one_wrong_turn_is_refused_as_a_whole
                group_of_new_and_known_objects_commits
                batch_of_many_rows_commits_whole
                deltas_leave_an_object_without_state
                state_is_kept_when_a_batch_has_none
                state_is_replaced_and_tombstones_are_stored
                read_returns_exactly_the_rows_asked_for
                large_state_comes_back_whole
                every_column_comes_back_as_it_was_written
                keys_with_odd_characters_stay_apart
                event_rows_with_odd_characters_stay_apart
                concurrent_commits_have_one_winner_per_turn
                overlapping_groups_never_apply_in_part
                waiting_effects_come_back_in_order
                what_waits_is_taken_away_with_the_turn
                fold_and_backlog_are_kept_beside_the_head
                events_are_found_by_rev
                arrivals_recorded_twice_are_one
                only_recorded_arrivals_have_arrived
                events_and_arrivals_of_an_object_are_listed
                objects_of_a_source_are_listed
                trace_finds_an_event_id_across_objects
                dead_letters_are_replaced_by_row
                dead_letters_are_listed_by_tenant_and_source
                objects_come_in_pages
                letters_come_in_pages
                waiters_come_in_pages
                events_of_an_object_come_in_pages
                arrivals_come_in_pages
                floors_only_rise
                floors_are_separate
            }
        }
    };
    (@cases $open:path; $($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let (store, _guard) = $open().await;
                crate::suite::$case(store).await;
            }
        )*
    };
}

async fn memory() -> (Arc<MemoryStore>, ()) {
    (Arc::new(MemoryStore::new(BUCKETS)), ())
}

async fn sqlite() -> (Arc<SqliteStore>, TempDir) {
    let folder = tempfile::tempdir().expect("a folder for the test");
    (Arc::new(SqliteStore::open(folder.path()).expect("a new store opens")), folder)
}

/// Real servers; one keyspace for all tests of a run.
#[cfg(feature = "cql")]
async fn cql() -> (Arc<seriatim_processor::store::cql::CqlStore>, ()) {
    use seriatim_processor::store::cql::{CqlStore, migrate};
    static MIGRATED: tokio::sync::OnceCell<seriatim_processor::config::CqlConfig> = tokio::sync::OnceCell::const_new();
    let remedy = "SERIATIM_CQL is not set: run the tests by: infra/local/servers run -- cargo test --workspace";
    let config = MIGRATED.get_or_init(|| async {
        let config = seriatim_processor::config::CqlConfig {
            nodes: vec![std::env::var("SERIATIM_CQL").expect(remedy)],
            keyspace: format!("s{}", uuid::Uuid::new_v4().simple()),
            replication: "{'class': 'SimpleStrategy', 'replication_factor': 1}".to_owned(),
            buckets: BUCKETS,
            ..Default::default()
        };
        migrate(&config, "main", "g1", false).await.expect("the tables are made");
        config
    });
    let store = CqlStore::connect(config.await, "main", "g1", true).await.expect("a store that passes the probe");
    (Arc::new(store), ())
}

conformance!(on_memory, crate::memory);
conformance!(on_sqlite, crate::sqlite);
conformance!(
    #[cfg(feature = "cql")]
    on_cassandra,
    crate::cql
);
