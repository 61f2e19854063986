//! The answer to a conditional batch. The two databases shape it differently: ScyllaDB sends one row per
//! statement, Cassandra a lone `[applied]` on success and other columns on refusal. So `[applied]` is looked
//! up by name in the first row, and nothing else is relied on. The driver says Ok for both.

use scylla::response::query_result::QueryResult;
use scylla::value::{CqlValue, Row};

use crate::error::StoreError;
use crate::store::Committed;

pub fn read_answer(result: QueryResult) -> Result<Committed, StoreError> {
    let unreadable = |what: String| StoreError::Unknown(format!("answer to a conditional batch: {what}"));
    let rows = result.into_rows_result().map_err(|e| unreadable(e.to_string()))?;
    let names: Vec<String> = rows.column_specs().iter().map(|c| c.name().to_owned()).collect();
    let first: Row = rows.first_row().map_err(|e| unreadable(e.to_string()))?;
    applied(&names, &first.columns).ok_or_else(|| unreadable(format!("no [applied] among {names:?}")))
}

fn applied(names: &[String], first: &[Option<CqlValue>]) -> Option<Committed> {
    let at = names.iter().position(|name| name == "[applied]")?;
    match first.get(at)? {
        Some(CqlValue::Boolean(true)) => Some(Committed::Applied),
        Some(CqlValue::Boolean(false)) => Some(Committed::Refused),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(names: &[&str], first: Vec<Option<CqlValue>>) -> Option<Committed> {
        applied(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>(), &first)
    }

    fn text(t: &str) -> Option<CqlValue> {
        Some(CqlValue::Text(t.to_owned()))
    }

    /// As Cassandra 5.0 sends them; the store's suite meets the same shapes for real.
    #[test]
    fn cassandra_shapes() {
        let (yes, no) = (Some(CqlValue::Boolean(true)), Some(CqlValue::Boolean(false)));
        assert_eq!(answer(&["[applied]"], vec![yes]), Some(Committed::Applied));
        // A refused batch on an object never seen: the condition's columns are not there.
        assert_eq!(answer(&["[applied]"], vec![no.clone()]), Some(Committed::Refused));
        let names = ["[applied]", "bucket", "kind", "tenant", "source", "object", "row", "turn"];
        let row = vec![
            no,
            Some(CqlValue::Int(1)),
            Some(CqlValue::TinyInt(0)),
            text("t"),
            text("s"),
            text("o"),
            text(""),
            Some(CqlValue::BigInt(4)),
        ];
        assert_eq!(answer(&names, row), Some(Committed::Refused));
    }

    /// As ScyllaDB documents them (one row per statement, previous values beside `[applied]`). Not run
    /// against ScyllaDB.
    #[test]
    fn scylla_shapes_as_documented() {
        let names = ["[applied]", "bucket", "kind", "tenant", "source", "object", "row", "turn", "state"];
        let nulls = |applied: bool| {
            let mut row = vec![Some(CqlValue::Boolean(applied))];
            row.resize(names.len(), None);
            row
        };
        assert_eq!(answer(&names, nulls(true)), Some(Committed::Applied));
        assert_eq!(answer(&names, nulls(false)), Some(Committed::Refused));
        // Columns in another order, [applied] last.
        let reversed: Vec<_> = names.iter().rev().copied().collect();
        let mut row = nulls(true);
        row.reverse();
        assert_eq!(answer(&reversed, row), Some(Committed::Applied));
    }

    #[test]
    fn anything_else_is_an_unknown_outcome() {
        assert_eq!(answer(&["applied"], vec![Some(CqlValue::Boolean(true))]), None);
        assert_eq!(answer(&["[applied]"], vec![None]), None);
        assert_eq!(answer(&["[applied]"], vec![]), None);
    }
}
