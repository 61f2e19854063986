//! What stands before a sink: how many sends run at once, how many a second, and a breaker, so that a sink that
//! is away costs one probe at a time and holds nobody up.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::SinkPolicy;
use crate::outside::jittered;

/// Longest wait that a sink may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub struct Gate {
    failures_max: u32,
    retry_min: Duration,
    retry_max: Duration,
    pace: Pace,
    slots: Arc<Semaphore>,
    concurrency: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    breaker: Breaker,
}

/// So many a second, evenly.
#[derive(Debug)]
pub struct Pace {
    interval: Option<Duration>,
    /// When the next may begin.
    next: Mutex<Instant>,
}

impl Pace {
    /// 0: no limit.
    pub fn new(per_s: u32) -> Self {
        let interval = (per_s > 0).then(|| Duration::from_secs(1) / per_s);
        Self { interval, next: Mutex::new(Instant::now()) }
    }

    /// Waits until `count` more keep the rate.
    pub async fn wait(&self, count: usize) {
        let Some(interval) = self.interval else { return };
        let at = {
            let mut next = self.next.lock().expect("nothing panics while it holds this lock");
            let at = next.max(Instant::now());
            *next = at + interval * u32::try_from(count).unwrap_or(u32::MAX);
            at
        };
        tokio::time::sleep_until(at).await;
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Breaker {
    Closed {
        failures: u32,
    },
    /// Nothing is sent before `until`; `wait` doubles with each probe that fails.
    Open {
        until: Instant,
        wait: Duration,
    },
    /// One probe is under way.
    HalfOpen {
        wait: Duration,
    },
}

/// Leave to send. Dropped without a word it says nothing about the sink, and a probe may be tried again.
#[derive(Debug)]
pub struct Pass {
    _slot: OwnedSemaphorePermit,
    /// Where to say so, if this is the probe.
    probe: Option<Arc<Mutex<State>>>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Some(state) = self.probe.take() else { return };
        let mut state = lock(&state);
        if let Breaker::HalfOpen { wait } = state.breaker {
            state.breaker = Breaker::Open { until: Instant::now(), wait };
        }
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().expect("nothing panics while it holds this lock")
}

impl Gate {
    pub fn new(policy: &SinkPolicy) -> Self {
        let state = State { breaker: Breaker::Closed { failures: 0 } };
        Self {
            failures_max: policy.failures_max,
            retry_min: Duration::from_millis(policy.retry_min_ms),
            retry_max: Duration::from_millis(policy.retry_max_ms),
            pace: Pace::new(policy.rate_per_s),
            slots: Arc::new(Semaphore::new(policy.concurrency)),
            concurrency: policy.concurrency,
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Whether first sends go out: the sink is not known to be away.
    pub fn is_closed(&self) -> bool {
        matches!(self.state().breaker, Breaker::Closed { .. })
    }

    /// Sends that are under way.
    pub fn under_way(&self) -> usize {
        self.concurrency.saturating_sub(self.slots.available_permits())
    }

    /// When what waits may be tried: now, or once the breaker lets a probe through.
    pub fn opens_at(&self) -> Option<Instant> {
        match self.state().breaker {
            Breaker::Closed { .. } => Some(Instant::now()),
            Breaker::Open { until, .. } => Some(until),
            // Whoever probes will say.
            Breaker::HalfOpen { .. } => None,
        }
    }

    /// Leave for what waits in memory; none if the sink is away. Waits for a slot, and for the rate.
    pub async fn pass(&self, count: usize) -> Option<Pass> {
        let slot = self.slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        if !self.is_closed() {
            return None;
        }
        self.pace.wait(count).await;
        Some(Pass { _slot: slot, probe: None })
    }

    /// Leave for what waits in the store: as above, but where the breaker is due it is the probe.
    pub async fn pass_or_probe(&self, count: usize) -> Option<Pass> {
        let slot = self.slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        let is_probe = {
            let mut state = self.state();
            match state.breaker {
                Breaker::Closed { .. } => false,
                Breaker::Open { until, wait } if Instant::now() >= until => {
                    state.breaker = Breaker::HalfOpen { wait };
                    true
                }
                Breaker::Open { .. } | Breaker::HalfOpen { .. } => return None,
            }
        };
        let pass = Pass { _slot: slot, probe: is_probe.then(|| self.state.clone()) };
        self.pace.wait(count).await;
        Some(pass)
    }

    pub fn succeeded(&self, mut pass: Pass) {
        pass.probe = None;
        self.state().breaker = Breaker::Closed { failures: 0 };
    }

    /// The sink did not take an effect, by its own fault.
    pub fn failed(&self, mut pass: Pass, retry_after: Option<Duration>, chance: f64) {
        let is_probe = pass.probe.take().is_some();
        let mut state = self.state();
        state.breaker = match state.breaker {
            Breaker::Closed { failures } if failures + 1 < self.failures_max && retry_after.is_none() => {
                Breaker::Closed { failures: failures + 1 }
            }
            Breaker::Closed { .. } => self.open(self.retry_min, retry_after, chance),
            Breaker::HalfOpen { wait } if is_probe => self.open((wait * 2).min(self.retry_max), retry_after, chance),
            // A send from before it was opened.
            other => other,
        };
    }

    fn open(&self, wait: Duration, retry_after: Option<Duration>, chance: f64) -> Breaker {
        let longest = retry_after.map_or(wait, |after| after.clamp(wait, RETRY_AFTER_MAX.max(wait)));
        Breaker::Open { until: Instant::now() + jittered(longest, chance), wait }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(failures_max: u32, rate_per_s: u32) -> Gate {
        let policy =
            SinkPolicy { failures_max, rate_per_s, retry_min_ms: 100, retry_max_ms: 400, ..Default::default() };
        Gate::new(&policy)
    }

    #[tokio::test(start_paused = true)]
    async fn opens_after_failures_in_a_row_and_closes_with_a_probe() {
        let gate = gate(2, 0);
        for closed in [true, true, false] {
            assert_eq!(gate.is_closed(), closed);
            if let Some(pass) = gate.pass(1).await {
                gate.failed(pass, None, 0.5);
            }
        }
        assert!(gate.pass_or_probe(1).await.is_none(), "not before its time");
        for wait_ms in [150, 300, 600, 600] {
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            let probe = gate.pass_or_probe(1).await.expect("a probe is due");
            assert!(gate.pass_or_probe(1).await.is_none(), "one probe at a time");
            assert!(gate.pass(1).await.is_none(), "first sends never probe");
            gate.failed(probe, None, 0.5);
        }
        tokio::time::sleep(Duration::from_millis(600)).await;
        let probe = gate.pass_or_probe(1).await.expect("a probe is due");
        gate.succeeded(probe);
        assert!(gate.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_between_failures_keeps_it_closed() {
        let gate = gate(2, 0);
        for _ in 0..10 {
            let pass = gate.pass(1).await.expect("closed");
            gate.failed(pass, None, 0.5);
            let pass = gate.pass(1).await.expect("closed");
            gate.succeeded(pass);
        }
        assert!(gate.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn retry_after_is_honoured() {
        let gate = gate(5, 0);
        let pass = gate.pass(1).await.expect("closed");
        gate.failed(pass, Some(Duration::from_millis(300)), 0.5);
        let opens = gate.opens_at().expect("open").duration_since(Instant::now());
        assert!((300..=450).contains(&opens.as_millis()), "{opens:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_ends_without_a_word_is_tried_again() {
        let gate = gate(1, 0);
        let pass = gate.pass(1).await.expect("closed");
        gate.failed(pass, None, 0.5);
        tokio::time::sleep(Duration::from_secs(1)).await;
        for _ in 0..2 {
            drop(gate.pass_or_probe(1).await.expect("a probe is due"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_is_kept() {
        let gate = gate(5, 100);
        let begin = Instant::now();
        for _ in 0..50 {
            let pass = gate.pass(2).await.expect("closed");
            gate.succeeded(pass);
        }
        assert!((980..=1000).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
    }
}
