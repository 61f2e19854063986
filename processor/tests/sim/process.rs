//! One life of a processor, as the world sees it: it runs; it is frozen, as by SIGSTOP or a long pause of its machine;
//! or it is dead, and nothing of it moves any more. Whatever it does to the world takes a step, before and after: so it
//! ends, or sleeps, between any two of them, and answers reach it late and in another order.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use seriatim_processor::outside::Outside;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// 2026-01-01.
pub const BEGIN_MS: i64 = 1_767_225_600_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Frozen,
    Dead,
}

/// How long a step takes.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub max: Duration,
    /// Share of the steps that take up to `slow`.
    pub slow_share: f64,
    pub slow: Duration,
}

pub struct Process {
    /// No other has it, in one history.
    pub number: usize,
    /// An orderly stop.
    pub stop: CancellationToken,
    state: Mutex<State>,
    woken: Notify,
    begin: Instant,
    clock_off_ms: AtomicI64,
    rng: Mutex<SmallRng>,
    pace: Pace,
    /// Steps of all processes, and what they were, as one number.
    trace: Arc<Trace>,
}

/// What happened, in its order.
#[derive(Debug, Default)]
pub struct Trace {
    sum: AtomicU64,
    steps: AtomicU64,
}

impl Trace {
    /// Figures stand for what happened.
    pub fn note(&self, figures: &[u64]) {
        let mix = |sum: u64, figure: &u64| (sum.rotate_left(5) ^ figure).wrapping_mul(0x517c_c1b7_2722_0a95);
        let sum = figures.iter().fold(self.sum.load(Ordering::Relaxed), mix);
        self.sum.store(sum, Ordering::Relaxed);
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    pub fn sum(&self) -> u64 {
        self.sum.load(Ordering::Relaxed)
    }

    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
}

impl Process {
    pub fn new(number: usize, seed: u64, begin: Instant, pace: Pace, trace: Arc<Trace>) -> Self {
        Self {
            number,
            stop: CancellationToken::new(),
            state: Mutex::new(State::Running),
            woken: Notify::new(),
            begin,
            clock_off_ms: AtomicI64::new(0),
            rng: Mutex::new(SmallRng::seed_from_u64(seed.wrapping_add(number as u64))),
            pace,
            trace,
        }
    }

    fn rng(&self) -> MutexGuard<'_, SmallRng> {
        self.rng.lock().expect("no panic while locked")
    }

    fn state(&self) -> State {
        *self.state.lock().expect("no panic while locked")
    }

    pub fn is_running(&self) -> bool {
        self.state() == State::Running
    }

    fn set(&self, state: State) {
        *self.state.lock().expect("no panic while locked") = state;
    }

    /// Nothing of it reaches the world from here on.
    pub fn kill(&self) {
        self.set(State::Dead);
        // Its loops end, so that they take no time of the simulation.
        self.stop.cancel();
    }

    pub fn is_dead(&self) -> bool {
        self.state() == State::Dead
    }

    pub fn freeze(&self) {
        self.set(State::Frozen);
    }

    pub fn thaw(&self) {
        if self.state() == State::Frozen {
            self.set(State::Running);
            self.woken.notify_waiters();
        }
    }

    pub fn jump(&self, by_ms: i64) {
        self.clock_off_ms.fetch_add(by_ms, Ordering::Relaxed);
    }

    /// `what` stands for it in the trace.
    pub async fn step(&self, what: u64) {
        let time = {
            let mut rng = self.rng();
            let max = if rng.random_bool(self.pace.slow_share) { self.pace.slow } else { self.pace.max };
            max.mul_f64(rng.random())
        };
        tokio::time::sleep(time).await;
        loop {
            let woken = self.woken.notified();
            match self.state() {
                State::Running => break,
                State::Frozen => woken.await,
                State::Dead => std::future::pending().await,
            }
        }
        self.trace.note(&[what, self.number as u64, self.begin.elapsed().as_millis() as u64]);
    }

    pub fn random(&self, range: std::ops::Range<usize>) -> usize {
        self.rng().random_range(range)
    }
}

impl Outside for Process {
    fn now(&self) -> Timestamp {
        let ms = BEGIN_MS + self.begin.elapsed().as_millis() as i64 + self.clock_off_ms.load(Ordering::Relaxed);
        Timestamp::from_millisecond(ms).expect("a time of this century")
    }

    fn id(&self) -> Uuid {
        Uuid::from_u128(self.rng().random())
    }

    fn chance(&self) -> f64 {
        self.rng().random()
    }
}
