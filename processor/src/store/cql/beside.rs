//! Statements of a conditional batch beside the decision: they carry no condition of their own, the head's turn
//! holds for all of the batch.

use scylla::statement::batch::Batch;
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::record::headers_to_json;
use seriatim_schemas::row::waiting_row;
use seriatim_schemas::tables::kind;

use super::statements::Statements;
use super::{Values, dead_values};
use crate::store::{ObjectBatch, SideKey, SideRow};

/// The row of a held event: its number as 20 digits, so that rows come in order.
pub fn backlog_row(number: u64) -> String {
    format!("{number:020}")
}

pub fn append(statements: &Statements, batch: &mut Batch, values: &mut Vec<Values>, bucket: i32, object: &ObjectBatch) {
    let ObjectKey { tenant, source, object: name } = object.key.clone();
    let key = (tenant, source, name);
    let (head, beside) = (&object.head, &object.beside);
    let mut add = |statement: &scylla::statement::prepared::PreparedStatement, value: Values| {
        batch.append_statement(statement.clone());
        values.push(value);
    };
    let (t, s, o) = key.clone();
    if let Some(snapshot) = head.snapshot.as_ref().filter(|_| beside.changes_order && object.state.is_none()) {
        let values = (snapshot.order_key.0.clone(), snapshot.version.clone(), bucket, t.clone(), s.clone(), o.clone());
        add(&statements.set_order, Box::new(values));
    }
    if beside.changes_waiting {
        add(&statements.set_waiting, Box::new((head.waiting.encode(), bucket, t.clone(), s.clone(), o.clone())));
    }
    if beside.changes_fold {
        let fold = head.fold.as_ref().map(|fold| fold.to_vec());
        add(&statements.set_fold, Box::new((fold, bucket, t.clone(), s.clone(), o.clone())));
    }
    if beside.changes_sequence {
        let sequence = head.sequence.as_ref().map(|s| serde_json::to_string(s).expect("plain data"));
        add(&statements.set_sequence, Box::new((sequence, bucket, t, s, o)));
    }
    for row in &beside.delete {
        let (kind, row) = match row {
            SideKey::Waiting { sink } => (kind::WAITING, sink.clone()),
            SideKey::Effect { sink, rev } => (kind::EFFECT, waiting_row(sink, *rev)),
            SideKey::Backlog { number } => (kind::BACKLOG, backlog_row(*number)),
        };
        let (t, s, o) = key.clone();
        add(&statements.delete_row, Box::new((bucket, kind, t, s, o, row)));
    }
    for row in &beside.put {
        let (statement, value) = put(statements, bucket, key.clone(), row);
        add(statement, value);
    }
}

fn put<'a>(
    statements: &'a Statements,
    bucket: i32,
    (t, s, o): (String, String, String),
    row: &SideRow,
) -> (&'a scylla::statement::prepared::PreparedStatement, Values) {
    match row {
        SideRow::Waiting(w) => {
            let values = (bucket, t, s, o, w.sink.clone(), w.since_ms, w.cause.clone(), w.is_parked);
            (&statements.put_waiting, Box::new(values))
        }
        SideRow::Effect(e) => {
            let row = waiting_row(&e.sink, e.rev);
            let (headers, value) = (headers_to_json(&e.headers), e.value.to_vec());
            let outcome = e.outcome.as_str();
            let values = (bucket, t, s, o, row, e.rev, outcome, e.attempted, e.writer, e.since_ms, headers, value);
            (&statements.put_effect, Box::new(values))
        }
        SideRow::Backlog(b) => {
            let (headers, value) = (headers_to_json(&b.headers), b.value.to_vec());
            let values = (bucket, t, s, o, backlog_row(b.number), b.position.clone(), headers, value);
            (&statements.put_backlog, Box::new(values))
        }
        SideRow::Dead(letter) => (&statements.insert_dead, dead_values(bucket, letter)),
    }
}
