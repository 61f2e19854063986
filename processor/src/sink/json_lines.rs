//! A file of JSON lines, one per effect: for a look, for counting, for a pipe. Synced before it acknowledges.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Effect, Sink};
use crate::error::SinkError;

/// One line. `data` is the body where it is JSON, else `data_hex`.
#[derive(Serialize)]
struct Line<'a> {
    idempotency_key: String,
    tenant: &'a str,
    source: &'a str,
    object: &'a str,
    event_id: &'a str,
    #[serde(rename = "type")]
    event_type: &'a str,
    version: Option<&'a str>,
    outcome: &'a str,
    epoch: u64,
    rev: i64,
    resent: bool,
    recorded: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_hex: Option<String>,
}

#[derive(Debug)]
pub struct JsonLines {
    name: String,
    file: Arc<Mutex<File>>,
}

impl JsonLines {
    /// Opens or makes the file. Half a line at its end, left by a crash, is cut off: it is sent again.
    pub fn open(name: &str, path: &Path) -> Result<Self, SinkError> {
        let open = || {
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
            cut_half_line(&mut file)?;
            Ok(file)
        };
        let file = open().map_err(|e: std::io::Error| failed(name, format!("{}: {e}", path.display())))?;
        Ok(Self { name: name.to_owned(), file: Arc::new(Mutex::new(file)) })
    }
}

fn failed(sink: &str, message: String) -> SinkError {
    SinkError { sink: sink.to_owned(), message }
}

fn cut_half_line(file: &mut File) -> std::io::Result<()> {
    const BLOCK: u64 = 64 * 1024;
    let mut end = file.metadata()?.len();
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        let mut block = vec![0; (end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut block)?;
        if let Some(at) = block.iter().rposition(|b| *b == b'\n') {
            return file.set_len(start + at as u64 + 1);
        }
        end = start;
    }
    file.set_len(0)
}

fn write_line(out: &mut Vec<u8>, effect: &Effect) {
    let data = serde_json::from_slice::<&RawValue>(&effect.value).ok().filter(|raw| !raw.get().contains('\n'));
    let line = Line {
        idempotency_key: effect.idempotency_key(),
        tenant: &effect.key.tenant,
        source: &effect.key.source,
        object: &effect.key.object,
        event_id: &effect.event_id,
        event_type: &effect.event_type,
        version: effect.version.as_deref(),
        outcome: effect.outcome.as_str(),
        epoch: effect.epoch,
        rev: effect.rev,
        resent: effect.resent,
        recorded: effect.recorded.to_string(),
        data,
        data_hex: data.is_none().then(|| hex::encode(&effect.value)),
    };
    serde_json::to_writer(&mut *out, &line).expect("a line is plain data, written to memory");
    out.push(b'\n');
}

#[async_trait]
impl Sink for JsonLines {
    fn name(&self) -> &str {
        &self.name
    }

    async fn emit(&self, effects: &[Effect]) -> Result<(), SinkError> {
        let mut lines = Vec::with_capacity(effects.len() * 1024);
        effects.iter().for_each(|effect| write_line(&mut lines, effect));
        let file = self.file.clone();
        let write = move || {
            let mut file = file.lock().expect("no panic while locked");
            let length = file.metadata()?.len();
            let written = file.write_all(&lines).and_then(|()| file.sync_data());
            // Half of a group, as on a full disk, would run into the next line.
            written.or_else(|error| file.set_len(length).and(Err(error)))
        };
        let written = tokio::task::spawn_blocking(write).await.map_err(|e| failed(&self.name, e.to_string()))?;
        written.map_err(|e| failed(&self.name, e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_line_is_cut_off() {
        let folder = tempfile::tempdir().expect("a folder");
        for (before, after) in [("a\nb\nc", "a\nb\n"), ("a\n", "a\n"), ("abc", ""), ("", "")] {
            let path = folder.path().join("x");
            std::fs::write(&path, before).expect("written");
            JsonLines::open("x", &path).expect("opens");
            assert_eq!(std::fs::read_to_string(&path).expect("read"), after);
        }
    }
}
