//! The front filter: of an event that came minutes ago, only the arrival is written to the log, not the body again.
//! Optional; it saves bytes where a provider repeats much. Nothing rests on it: an id is remembered only after the
//! log has the event, and whenever the filter does not answer, the event is published whole.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use prometheus_client::metrics::counter::Counter;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use seriatim_schemas::problem::Problem;
use seriatim_schemas::record::{Record, RecordKind};
use sha2::{Digest, Sha256};
use tracing::warn;

use crate::log::Append;

/// A filter that takes longer does not count.
const WITHIN: Duration = Duration::from_millis(50);
/// How long Redis is left alone after a failure.
const LEFT_ALONE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FilterConfig {
    /// How long an event is remembered, in seconds.
    pub window_s: u64,
    /// Events remembered at once, without Redis.
    pub entries_max: usize,
    /// Shared by all edges: redis://HOST:PORT/DB, with user and password where needed. Left out: in process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redis: Option<String>,
}

impl Default for FilterConfig {
    fn default() -> Self {
        Self { window_s: 600, entries_max: 1_000_000, redis: None }
    }
}

impl FilterConfig {
    pub fn problems(&self) -> Vec<Problem> {
        let mut out = Vec::new();
        if self.window_s == 0 {
            out.push(Problem::at("window_s", "is 0: nothing would be remembered"));
        }
        if self.entries_max == 0 {
            out.push(Problem::at("entries_max", "is 0: nothing would be remembered"));
        }
        if self.redis.as_deref().is_some_and(|url| redis::Client::open(url).is_err()) {
            // The address may hold a password: it is not repeated.
            out.push(Problem::at("redis", "is no address such as redis://127.0.0.1:6379/0"));
        }
        out
    }
}

/// Names an event and its body, in one log.
type Key = [u8; 16];

pub struct Filter {
    memory: Memory,
    window_s: u64,
    /// Which log this is: events of another have other keys. Until it is known, events go through whole.
    log: Arc<OnceLock<String>>,
    hits: Counter,
}

enum Memory {
    Process(Mutex<Recent>),
    Redis { connection: ConnectionManager, failed: Mutex<Option<Instant>> },
}

/// The keys of this window and of the one before.
struct Recent {
    now: HashSet<Key>,
    before: HashSet<Key>,
    began: Instant,
    entries_max: usize,
}

impl Filter {
    /// `log` is asked for its own id, the same for all edges that share it: a path or an address may come to name
    /// another log, which has none of the events.
    pub async fn open(config: &FilterConfig, log: Arc<dyn Append>, hits: Counter) -> Result<Self, redis::RedisError> {
        let memory = match &config.redis {
            None => Memory::Process(Mutex::new(Recent {
                now: HashSet::new(),
                before: HashSet::new(),
                began: Instant::now(),
                entries_max: config.entries_max,
            })),
            Some(url) => {
                let limits = ConnectionManagerConfig::new()
                    .set_connection_timeout(Some(WITHIN * 4))
                    .set_response_timeout(Some(WITHIN))
                    .set_number_of_retries(0);
                let client = redis::Client::open(url.as_str())?;
                let connection = ConnectionManager::new_lazy_with_config(client, limits)?;
                Memory::Redis { connection, failed: Mutex::new(None) }
            }
        };
        Ok(Self { memory, window_s: config.window_s, log: identity(log).await, hits })
    }

    /// Makes repeats of the events that were seen. What to remember once all is durable is returned.
    pub async fn apply(&self, records: &mut Vec<Record>) -> Vec<Key> {
        let Some(log) = self.log.get() else { return Vec::new() };
        let keys: Vec<_> = records.iter().map(|r| (r.kind == RecordKind::Event).then(|| key(log, r))).collect();
        let wanted: Vec<Key> = keys.iter().flatten().copied().collect();
        if wanted.is_empty() {
            return Vec::new();
        }
        let seen = self.seen(&wanted).await;
        for (record, key) in records.iter_mut().zip(&keys) {
            if key.is_some_and(|key| seen.contains(&key)) {
                record.kind = RecordKind::Repeat;
                record.value = Bytes::new();
                self.hits.inc();
            }
        }
        // A request whose events are all known needs no evidence of its own.
        if !records.iter().any(|record| record.kind == RecordKind::Event) {
            records.retain(|record| record.kind != RecordKind::Evidence);
        }
        wanted.into_iter().filter(|key| !seen.contains(key)).collect()
    }

    async fn seen(&self, keys: &[Key]) -> HashSet<Key> {
        match &self.memory {
            Memory::Process(recent) => {
                let mut recent = recent.lock().expect("nothing panics while it holds this lock");
                recent.turn(Duration::from_secs(self.window_s));
                keys.iter().filter(|key| recent.now.contains(*key) || recent.before.contains(*key)).copied().collect()
            }
            Memory::Redis { connection, .. } if self.is_up() => {
                let names: Vec<Vec<u8>> = keys.iter().map(name).collect();
                let ask = async {
                    redis::cmd("MGET").arg(&names).query_async::<Vec<Option<u8>>>(&mut connection.clone()).await
                };
                let found = self.answered(tokio::time::timeout(WITHIN, ask).await).unwrap_or_default();
                keys.iter().zip(found).filter(|(_, found)| found.is_some()).map(|(key, _)| *key).collect()
            }
            Memory::Redis { .. } => HashSet::new(),
        }
    }

    /// To be called once the events of these keys are durable.
    pub async fn remember(&self, keys: Vec<Key>) {
        match &self.memory {
            _ if keys.is_empty() => {}
            Memory::Process(recent) => {
                let mut recent = recent.lock().expect("nothing panics while it holds this lock");
                recent.now.extend(keys);
            }
            Memory::Redis { connection, .. } if self.is_up() => {
                let mut pipe = redis::pipe();
                for key in &keys {
                    pipe.cmd("SET").arg(name(key)).arg(1).arg("EX").arg(self.window_s).ignore();
                }
                let tell = async { pipe.query_async::<()>(&mut connection.clone()).await };
                self.answered(tokio::time::timeout(WITHIN, tell).await);
            }
            Memory::Redis { .. } => {}
        }
    }

    fn is_up(&self) -> bool {
        let Memory::Redis { failed, .. } = &self.memory else { return true };
        failed.lock().expect("nothing panics while it holds this lock").is_none_or(|at| at.elapsed() >= LEFT_ALONE)
    }

    /// The answer; after a failure Redis is left alone for a while, and events go through whole.
    fn answered<T>(&self, result: Result<redis::RedisResult<T>, tokio::time::error::Elapsed>) -> Option<T> {
        let reason = match result {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {WITHIN:?}"),
        };
        warn!(reason, "front filter: Redis does not answer, events are published whole");
        if let Memory::Redis { failed, .. } = &self.memory {
            *failed.lock().expect("nothing panics while it holds this lock") = Some(Instant::now());
        }
        None
    }
}

fn key(log: &str, record: &Record) -> Key {
    let mut hash = Sha256::new();
    for part in [log, &record.key.to_string(), &record.event_row(), &record.declaration] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.update(record.digest.0);
    let digest: [u8; 32] = hash.finalize().into();
    digest[..16].try_into().expect("16 of 32 bytes")
}

/// The log's id, at once where it has it; else as soon as it is there.
async fn identity(log: Arc<dyn Append>) -> Arc<OnceLock<String>> {
    let known = Arc::new(OnceLock::new());
    match log.identity().await {
        Ok(id) => _ = known.set(id),
        Err(error) => {
            warn!(%error, "front filter: the log does not say which it is, events are published whole until it does");
            let later = known.clone();
            tokio::spawn(async move {
                while later.get().is_none() {
                    tokio::time::sleep(LEFT_ALONE).await;
                    if let Ok(id) = log.identity().await {
                        let _ = later.set(id);
                    }
                }
            });
        }
    }
    known
}

fn name(key: &Key) -> Vec<u8> {
    [b"seriatim:", key.as_slice()].concat()
}

impl Recent {
    /// Forgets the window before, when this one is over or full.
    fn turn(&mut self, window: Duration) {
        if self.began.elapsed() >= window || self.now.len() >= self.entries_max / 2 {
            self.before = std::mem::take(&mut self.now);
            self.began = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_remembers_a_bounded_number() {
        let mut recent = Recent { now: HashSet::new(), before: HashSet::new(), began: Instant::now(), entries_max: 10 };
        for n in 0..100_u8 {
            recent.turn(Duration::from_secs(600));
            recent.now.insert([n; 16]);
            assert!(recent.now.len() + recent.before.len() <= 10, "{n}");
            assert!(n == 0 || recent.now.contains(&[n - 1; 16]) || recent.before.contains(&[n - 1; 16]));
        }
        recent.turn(Duration::ZERO);
        recent.turn(Duration::ZERO);
        assert!(recent.now.is_empty() && recent.before.is_empty());
    }

    #[test]
    fn settings_are_checked_and_no_password_is_told() {
        let config = FilterConfig { window_s: 0, entries_max: 0, redis: Some("redes://:pass@host".into()) };
        let found = format!("{:?}", config.problems());
        assert!(found.contains("window_s") && found.contains("entries_max") && found.contains("redis"), "{found}");
        assert!(!found.contains("pass"), "{found}");
    }
}
