//! The tables: CQL for ScyllaDB and Cassandra, SQL for SQLite. One set per class of tenants and generation.

/// Name of the first generation, the one that live traffic builds.
pub const FIRST_GENERATION: &str = "g1";

/// Activation epoch of the first generation: +1 at each cut-over.
pub const FIRST_EPOCH: u64 = 1;

/// Version of the tables, kept beside them; `migrate` goes forward only.
pub const TABLES_VERSION: u32 = 1;

/// Buckets of a class and generation where none are configured.
pub const BUCKETS: u32 = 1024;

/// `kind` of a row in the objects table.
pub mod kind {
    pub const HEAD: i8 = 0;
    pub const EVENT: i8 = 1;
    pub const ARRIVAL: i8 = 2;
    pub const WAITING: i8 = 3;
    pub const BACKLOG: i8 = 4;
    pub const DEAD: i8 = 5;
    pub const EFFECT: i8 = 6;
}

pub const SQL_LOG: &str = include_str!("../sql/log.sql");
pub const SQL_STATE: &str = include_str!("../sql/state.sql");

const CQL: &str = include_str!("../cql/tables.cql");

/// Name of the objects table of a class and generation, without its keyspace.
pub fn objects_table(class: &str, generation: &str) -> String {
    format!("objects_{class}_{generation}")
}

/// Name of the index from event ids to objects.
pub fn event_index_table(class: &str, generation: &str) -> String {
    format!("event_index_{class}_{generation}")
}

/// The statements that make the tables of a class and generation, each by itself, safe to run again.
pub fn cql_statements(keyspace: &str, class: &str, generation: &str) -> Vec<String> {
    let text: String = CQL.lines().filter(|line| !line.trim_start().starts_with("--")).collect::<Vec<_>>().join("\n");
    let named = text
        .replace("{keyspace}", keyspace)
        .replace("{objects}", &objects_table(class, generation))
        .replace("{event_index}", &event_index_table(class, generation));
    named.split(';').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_whole() {
        let all = cql_statements("ks", "main", FIRST_GENERATION);
        assert_eq!(all.len(), 4);
        assert!(
            all.iter().all(|s| s.starts_with("CREATE TABLE IF NOT EXISTS ks.") && !s.contains(['{', '}'])),
            "{all:?}"
        );
        assert!(all[0].contains("ks.objects_main_g1"));
    }
}
