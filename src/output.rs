//! Data on stdout, as a table or as JSON; talk on stderr.

use std::io::Write;

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Table,
    Json,
}

/// Prints rows: a table with `columns`, or one JSON document.
pub fn print_rows<T: Serialize>(
    format: Format,
    columns: &[&str],
    rows: &[T],
    cells: impl Fn(&T) -> Vec<String>,
) -> anyhow::Result<()> {
    match format {
        Format::Json => print_json(&rows),
        Format::Table => {
            let mut table = Table::new();
            table
                .load_preset(presets::UTF8_BORDERS_ONLY)
                .set_content_arrangement(ContentArrangement::Dynamic)
                .set_header(columns);
            for row in rows {
                table.add_row(cells(row));
            }
            write_out(&format!("{table}\n"))
        }
    }
}

/// Prints named values: two columns, or one JSON object.
pub fn print_fields<T: Serialize>(format: Format, value: &T) -> anyhow::Result<()> {
    if format == Format::Json {
        return print_json(value);
    }
    let json = serde_json::to_value(value)?;
    let fields = json.as_object().cloned().unwrap_or_default();
    let width = fields.keys().map(String::len).max().unwrap_or(0);
    for (name, value) in fields {
        let text = match value {
            serde_json::Value::Null => "-".to_owned(),
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        write_out(&format!("{name:width$}  {text}\n"))?;
    }
    Ok(())
}

pub fn print_json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    write_out(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

/// Writes to stdout. A reader that is gone (`| head`) ends the process quietly.
pub fn write_out(text: &str) -> anyhow::Result<()> {
    write_bytes(text.as_bytes())
}

pub fn write_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => Ok(other?),
    }
}

/// Talk: one line on stderr.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Milliseconds since 1970 as RFC 3339.
pub fn instant(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |t| t.to_string())
}

/// When that was; none where it is no instant that can be written.
pub fn at(text: &str) -> Option<jiff::Timestamp> {
    text.parse().ok()
}
