//! The sender: at a steady rate, each event until it is answered with success, as a provider does. Its ledger of those
//! answers is what everything else is compared with.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::support::{SECRET, sign};
use crate::traffic::{Event, Traffic};

/// Requests under way at once; past it nothing new is sent.
const UNDER_WAY_MAX: usize = 1000;
/// How long one try may take.
const TRY_MAX: Duration = Duration::from_secs(15);
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// What was not sent in time by so much is not made up for: the rate stays what it is.
const LATE_MAX: Duration = Duration::from_millis(200);
/// From the end of the load to the last answer.
const LAST_ANSWER: Duration = Duration::from_secs(90);

/// An event that was sent, and its answers with success.
#[derive(Debug, Clone)]
pub struct Entry {
    pub event: Event,
    /// When its first try began.
    pub sent: Instant,
    pub acknowledged: Option<Instant>,
    pub acknowledgements: usize,
}

/// One request: when its first try began, and how long it took to success.
pub type Answered = (Instant, Duration);

#[derive(Default)]
struct Shared {
    ledger: Mutex<HashMap<String, Entry>>,
    answered: Mutex<Vec<Answered>>,
    is_stopped: AtomicBool,
    /// Answered with 503.
    refused: AtomicU64,
    /// Without any answer.
    failed: AtomicU64,
    unexpected: Mutex<Vec<String>>,
}

/// What is known at the end.
pub struct Sent {
    /// By event id.
    pub ledger: HashMap<String, Entry>,
    pub answered: Vec<Answered>,
    pub refused: u64,
    pub failed: u64,
    /// Answers that nothing explains.
    pub unexpected: Vec<String>,
    pub time: Duration,
}

pub struct Load {
    runtime: Runtime,
    shared: Arc<Shared>,
    permits: Arc<Semaphore>,
    task: JoinHandle<()>,
    pub begun: Instant,
}

impl Load {
    /// `urls` take turns, and a try that failed goes to the next one.
    pub fn start(urls: Vec<String>, rate: u32, traffic: Traffic) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (shared, permits) = (Arc::new(Shared::default()), Arc::new(Semaphore::new(UNDER_WAY_MAX)));
        let task = runtime.spawn(send(shared.clone(), permits.clone(), urls.into(), rate, traffic));
        Self { runtime, shared, permits, task, begun: Instant::now() }
    }

    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::SeqCst)
    }

    /// Events that were first sent after `since` and have been acknowledged.
    pub fn acknowledged_since(&self, since: Instant) -> Vec<Entry> {
        let ledger = self.shared.ledger.lock().expect("no panic");
        ledger.values().filter(|entry| entry.sent > since && entry.acknowledged.is_some()).cloned().collect()
    }

    /// Sends nothing new, and waits for the answers to what is under way: when this returns, all that was sent is
    /// acknowledged.
    pub fn stop(self) -> Sent {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        let time = self.begun.elapsed();
        self.runtime.block_on(async {
            self.task.await.expect("the sender does not panic");
            let all = self.permits.acquire_many(UNDER_WAY_MAX as u32);
            let answered = tokio::time::timeout(LAST_ANSWER, all).await;
            let _ = answered.expect("all is answered in time").expect("never closed");
        });
        let take = |n: &AtomicU64| n.load(Ordering::SeqCst);
        Sent {
            ledger: std::mem::take(&mut self.shared.ledger.lock().expect("no panic")),
            answered: std::mem::take(&mut self.shared.answered.lock().expect("no panic")),
            refused: take(&self.shared.refused),
            failed: take(&self.shared.failed),
            unexpected: std::mem::take(&mut self.shared.unexpected.lock().expect("no panic")),
            time,
        }
    }
}

async fn send(shared: Arc<Shared>, permits: Arc<Semaphore>, urls: Arc<[String]>, rate: u32, mut traffic: Traffic) {
    let client = reqwest::Client::builder().timeout(TRY_MAX).pool_max_idle_per_host(UNDER_WAY_MAX);
    let client = client.build().expect("a client");
    let every = Duration::from_secs(1) / rate;
    let mut due = Instant::now();
    for n in 0.. {
        let permit = permits.clone().acquire_owned().await.expect("never closed");
        if shared.is_stopped.load(Ordering::SeqCst) {
            return;
        }
        due = (due + every).max(Instant::now().checked_sub(LATE_MAX).unwrap_or(due));
        tokio::time::sleep_until(due.into()).await;
        let (shared, client, urls, event) = (shared.clone(), client.clone(), urls.clone(), traffic.next());
        tokio::spawn(async move {
            deliver(&shared, &client, &urls, n, event).await;
            drop(permit);
        });
    }
}

/// Tries until the answer is success.
async fn deliver(shared: &Shared, client: &reqwest::Client, urls: &[String], n: usize, event: Event) {
    let (id, body) = (event.id.clone(), event.body());
    let signature = sign(SECRET, body.as_bytes());
    let sent = Instant::now();
    let entry = Entry { event, sent, acknowledged: None, acknowledgements: 0 };
    shared.ledger.lock().expect("no panic").entry(id.clone()).or_insert(entry);
    let mut wait = RETRY_MIN;
    for turn in 0.. {
        let request = client.post(&urls[(n + turn) % urls.len()]).header("x-signature", &signature);
        match request.header("content-type", "application/json").body(body.clone()).send().await {
            Ok(answer) if answer.status() == 200 => break,
            Ok(answer) if answer.status() == 503 => shared.refused.fetch_add(1, Ordering::SeqCst),
            Ok(answer) => {
                shared.unexpected.lock().expect("no panic").push(format!("{id}: {}", answer.status()));
                return;
            }
            Err(_) => shared.failed.fetch_add(1, Ordering::SeqCst),
        };
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY_MAX);
    }
    let now = Instant::now();
    shared.answered.lock().expect("no panic").push((sent, now - sent));
    let mut ledger = shared.ledger.lock().expect("no panic");
    let entry = ledger.get_mut(&id).expect("it was noted");
    entry.acknowledged.get_or_insert(now);
    entry.acknowledgements += 1;
}
