//! Makes the keyspace and the tables, and fixes what must never change under them: their version, and the
//! count of buckets of each class and generation.

use scylla::client::session::Session;
use seriatim_schemas::tables::{TABLES_VERSION, cql_statements};

use super::session;
use super::session::plain_failed;
use crate::config::CqlConfig;
use crate::error::StoreError;

/// What was done, or, with `dry_run`, would be; one line each.
pub async fn migrate(
    config: &CqlConfig,
    class: &str,
    generation: &str,
    dry_run: bool,
) -> Result<Vec<String>, StoreError> {
    let (keyspace, replication) = (&config.keyspace, &config.replication);
    let mut statements = vec![format!("CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {replication}")];
    statements.extend(cql_statements(keyspace, class, generation));
    if dry_run {
        return Ok(statements.into_iter().map(|s| format!("would run: {s}")).collect());
    }
    let session = session::connect(config).await?;
    for statement in statements {
        session.query_unpaged(statement, ()).await.map_err(plain_failed)?;
    }
    session.await_schema_agreement().await.map_err(plain_failed)?;
    for (name, value) in fixed(config, class, generation) {
        let insert = format!("INSERT INTO {keyspace}.fixed (name, value) VALUES (?, ?) IF NOT EXISTS");
        session.query_unpaged(insert, (name, value)).await.map_err(plain_failed)?;
    }
    check_fixed(&session, config, class, generation).await?;
    Ok(vec![format!("keyspace {keyspace}, tables of class {class}, generation {generation}: good")])
}

fn fixed(config: &CqlConfig, class: &str, generation: &str) -> [(String, String); 2] {
    [
        ("tables".to_owned(), TABLES_VERSION.to_string()),
        (format!("buckets.{class}.{generation}"), config.buckets.to_string()),
    ]
}

/// Refuses a store that was made for other settings.
pub async fn check_fixed(
    session: &Session,
    config: &CqlConfig,
    class: &str,
    generation: &str,
) -> Result<(), StoreError> {
    let select = format!("SELECT value FROM {}.fixed WHERE name = ?", config.keyspace);
    for (name, expected) in fixed(config, class, generation) {
        let missing =
            |e: String| StoreError::Unavailable(format!("keyspace {}: {e}; run `seriatim migrate`", config.keyspace));
        let answer = session.query_unpaged(select.as_str(), (&name,)).await.map_err(|e| missing(e.to_string()))?;
        let rows = answer.into_rows_result().map_err(|e| missing(e.to_string()))?;
        let found = rows.maybe_first_row::<(String,)>().map_err(|e| missing(e.to_string()))?;
        let Some((found,)) = found else { return Err(missing(format!("{name} is not fixed"))) };
        if found != expected {
            let remedy = "set it back; another count of buckets needs a new generation";
            return Err(StoreError::Corrupt(format!(
                "{name} is {found} in keyspace {}, but {expected} is configured: {remedy}",
                config.keyspace
            )));
        }
    }
    Ok(())
}
