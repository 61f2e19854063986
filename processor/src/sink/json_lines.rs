//! A file of JSON lines, one per effect: for a look, for counting, for a pipe. Synced before it acknowledges;
//! what comes while a sync runs goes into the next one together.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use super::{Effect, Emitted, Sink, envelope};

/// Most bytes of one sync.
const GROUP_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Groups of lines that wait for the file.
const WAITING_MAX: usize = 1024;

struct Lines {
    bytes: Vec<u8>,
    done: oneshot::Sender<Result<(), String>>,
}

#[derive(Debug)]
pub struct JsonLines {
    lines: mpsc::Sender<Lines>,
}

impl JsonLines {
    /// Opens or makes the file. Half a line at its end, left by a crash, is cut off: it is sent again.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        cut_half_line(&mut file)?;
        let (lines, queue) = mpsc::channel(WAITING_MAX);
        std::thread::Builder::new().name("json-lines".into()).spawn(move || write_groups(file, queue))?;
        Ok(Self { lines })
    }
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

fn write_groups(mut file: File, mut queue: mpsc::Receiver<Lines>) {
    while let Some(Lines { mut bytes, done }) = queue.blocking_recv() {
        let mut waiting = vec![done];
        while bytes.len() < GROUP_BYTES_MAX {
            let Ok(next) = queue.try_recv() else { break };
            bytes.extend_from_slice(&next.bytes);
            waiting.push(next.done);
        }
        let result = write_group(&mut file, &bytes).map_err(|e| e.to_string());
        for done in waiting {
            // Who has given up waiting sends it again.
            let _ = done.send(result.clone());
        }
    }
}

fn write_group(file: &mut File, bytes: &[u8]) -> std::io::Result<()> {
    let length = file.metadata()?.len();
    let written = file.write_all(bytes).and_then(|()| file.sync_data());
    // Half of a group, as on a full disk, would run into the next line.
    written.or_else(|error| file.set_len(length).and(Err(error)))
}

#[async_trait]
impl Sink for JsonLines {
    async fn emit(&self, effects: &[Effect]) -> Emitted {
        let mut bytes = Vec::with_capacity(effects.len() * 1024);
        for effect in effects {
            envelope::write(&mut bytes, effect);
            bytes.push(b'\n');
        }
        let (done, result) = oneshot::channel();
        let gone = || Emitted::unavailable(0, "the file's thread has ended");
        if self.lines.send(Lines { bytes, done }).await.is_err() {
            return gone();
        }
        match result.await {
            Ok(Ok(())) => Emitted::all(effects.len()),
            Ok(Err(reason)) => Emitted::unavailable(0, reason),
            Err(_) => gone(),
        }
    }

    fn batch_max(&self) -> usize {
        1000
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
            JsonLines::open(&path).expect("opens");
            assert_eq!(std::fs::read_to_string(&path).expect("read"), after);
        }
    }
}
