//! Rows that live as long as something waits: effects, the sinks they wait for, the backlog of a parked object.

use rusqlite::{Connection, Row, params};
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::record::{Header, headers_from_json, headers_to_json};
use seriatim_schemas::row::{BacklogRow, WaitingEffect, WaitingSink};

use super::{conversion, parsed, read_outcome, write_dead};
use crate::store::{Beside, SideKey, SideRow};

pub fn write(connection: &Connection, key: &ObjectKey, beside: &Beside) -> rusqlite::Result<()> {
    beside.delete.iter().try_for_each(|row| delete(connection, key, row))?;
    beside.put.iter().try_for_each(|row| put(connection, key, row))
}

fn put(connection: &Connection, key: &ObjectKey, row: &SideRow) -> rusqlite::Result<()> {
    let ObjectKey { tenant, source, object } = key;
    match row {
        SideRow::Waiting(w) => {
            let sql = "INSERT OR REPLACE INTO waiting (tenant, source, object, sink, since_ms, cause, parked)
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            let values = params![tenant, source, object, w.sink, w.since_ms, w.cause, w.is_parked];
            connection.prepare_cached(sql)?.execute(values)?;
        }
        SideRow::Effect(e) => {
            let sql = "INSERT OR REPLACE INTO effect (tenant, source, object, sink, rev, outcome, attempted, writer, since_ms, headers, value)
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
            connection.prepare_cached(sql)?.execute(params![
                tenant,
                source,
                object,
                e.sink,
                e.rev,
                e.outcome.as_str(),
                e.attempted,
                e.writer.to_string(),
                e.since_ms,
                headers_to_json(&e.headers),
                &e.value[..]
            ])?;
        }
        SideRow::Backlog(b) => {
            let sql = "INSERT OR REPLACE INTO backlog (tenant, source, object, number, position, headers, value)
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            let number = b.number as i64;
            let values = params![tenant, source, object, number, b.position, headers_to_json(&b.headers), &b.value[..]];
            connection.prepare_cached(sql)?.execute(values)?;
        }
        SideRow::Dead(letter) => write_dead(connection, letter)?,
    }
    Ok(())
}

fn delete(connection: &Connection, key: &ObjectKey, row: &SideKey) -> rusqlite::Result<()> {
    let ObjectKey { tenant, source, object } = key;
    let of = "tenant = ?1 AND source = ?2 AND object = ?3";
    match row {
        SideKey::Waiting { sink } => {
            let sql = format!("DELETE FROM waiting WHERE {of} AND sink = ?4");
            connection.prepare_cached(&sql)?.execute(params![tenant, source, object, sink])?;
        }
        SideKey::Effect { sink, rev } => {
            let sql = format!("DELETE FROM effect WHERE {of} AND sink = ?4 AND rev = ?5");
            connection.prepare_cached(&sql)?.execute(params![tenant, source, object, sink, rev])?;
        }
        SideKey::Backlog { number } => {
            let sql = format!("DELETE FROM backlog WHERE {of} AND number = ?4");
            connection.prepare_cached(&sql)?.execute(params![tenant, source, object, *number as i64])?;
        }
    }
    Ok(())
}

fn read_headers(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<Header>> {
    let headers: Vec<u8> = row.get(column)?;
    headers_from_json(&headers).map_err(|e| conversion(column, e.to_string()))
}

pub fn effects(
    connection: &Connection,
    key: &ObjectKey,
    sink: &str,
    after: i64,
    max: usize,
) -> rusqlite::Result<Vec<WaitingEffect>> {
    let sql = "SELECT rev, outcome, attempted, writer, since_ms, headers, value FROM effect
               WHERE tenant = ?1 AND source = ?2 AND object = ?3 AND sink = ?4 AND rev > ?5 ORDER BY rev LIMIT ?6";
    let mut statement = connection.prepare_cached(sql)?;
    let read = |row: &Row<'_>| {
        Ok(WaitingEffect {
            sink: sink.to_owned(),
            rev: row.get(0)?,
            outcome: read_outcome(row, 1)?,
            attempted: row.get(2)?,
            writer: parsed(row, 3)?,
            since_ms: row.get(4)?,
            headers: read_headers(row, 5)?,
            value: row.get::<_, Vec<u8>>(6)?.into(),
        })
    };
    statement.query_map(params![key.tenant, key.source, key.object, sink, after, max as i64], read)?.collect()
}

pub const WAITING_COLUMNS: &str = "tenant, source, object, sink, since_ms, cause, parked";

pub fn waiting(connection: &Connection) -> rusqlite::Result<Vec<WaitingSink>> {
    let mut statement = connection.prepare_cached(&format!("SELECT {WAITING_COLUMNS} FROM waiting"))?;
    statement.query_map([], read_waiting)?.collect()
}

pub fn read_waiting(row: &Row<'_>) -> rusqlite::Result<WaitingSink> {
    Ok(WaitingSink {
        key: ObjectKey::new(row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?),
        sink: row.get(3)?,
        since_ms: row.get(4)?,
        cause: row.get(5)?,
        is_parked: row.get(6)?,
    })
}

pub fn backlog(connection: &Connection, key: &ObjectKey, from: u64, max: usize) -> rusqlite::Result<Vec<BacklogRow>> {
    let sql = "SELECT number, position, headers, value FROM backlog
               WHERE tenant = ?1 AND source = ?2 AND object = ?3 AND number >= ?4 ORDER BY number LIMIT ?5";
    let mut statement = connection.prepare_cached(sql)?;
    let read = |row: &Row<'_>| {
        Ok(BacklogRow {
            number: row.get::<_, i64>(0)? as u64,
            position: row.get(1)?,
            headers: read_headers(row, 2)?,
            value: row.get::<_, Vec<u8>>(3)?.into(),
        })
    };
    statement.query_map(params![key.tenant, key.source, key.object, from as i64, max as i64], read)?.collect()
}
