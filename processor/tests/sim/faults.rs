//! What goes wrong, by name, where a processor asks the world for something.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    ReadUnavailable,
    ArrivedUnavailable,
    CommitUnavailable,
    /// The answer is lost, the batch is not.
    CommitUnknownApplied,
    /// Both are lost.
    CommitUnknownNotApplied,
    /// The batch is seen, and ended, by the next serial read or commit of its bucket, and by no plain read.
    CommitUnknownUnfinished,
    /// The batch comes to the store later, whatever was read and committed meanwhile.
    CommitUnknownLate,
    CommitRefusedSpuriously,
    RecordUnavailable,
    RecordUnknownWritten,
    FloorUnavailable,
    /// What waits, or is held, cannot be read.
    WaitingUnavailable,
    AppendUnavailable,
    /// The answer is lost, the record is not.
    AppendUnknownWritten,
    /// Some of the effects, from the first on, are taken.
    SinkTakesPart,
    SinkTakesAllAndFails,
    /// The first of them is taken and said to be.
    SinkTakesOne,
    /// No answer in time, though all are taken.
    SinkHangs,
}

impl Fault {
    pub const OF_STORE: [Self; 12] = [
        Self::ReadUnavailable,
        Self::ArrivedUnavailable,
        Self::CommitUnavailable,
        Self::CommitUnknownApplied,
        Self::CommitUnknownNotApplied,
        Self::CommitUnknownUnfinished,
        Self::CommitUnknownLate,
        Self::CommitRefusedSpuriously,
        Self::RecordUnavailable,
        Self::RecordUnknownWritten,
        Self::FloorUnavailable,
        Self::WaitingUnavailable,
    ];
    pub const OF_SINK: [Self; 4] =
        [Self::SinkTakesPart, Self::SinkTakesAllAndFails, Self::SinkTakesOne, Self::SinkHangs];

    pub const OF_LOG: [Self; 2] = [Self::AppendUnavailable, Self::AppendUnknownWritten];

    pub fn all() -> Vec<Self> {
        [&Self::OF_STORE[..], &Self::OF_SINK, &Self::OF_LOG].concat()
    }
}

/// Which faults strike, and how often they did.
pub struct Faults {
    enabled: Vec<Fault>,
    rate: Mutex<f64>,
    rng: Mutex<SmallRng>,
    struck: Mutex<BTreeMap<Fault, u64>>,
}

impl Faults {
    pub fn new(seed: u64, rate: f64, enabled: &[Fault]) -> Self {
        let rng = Mutex::new(SmallRng::seed_from_u64(seed));
        Self { enabled: enabled.to_vec(), rate: Mutex::new(rate), rng, struck: Mutex::default() }
    }

    /// How often each did.
    pub fn struck(&self) -> BTreeMap<Fault, u64> {
        lock(&self.struck).clone()
    }

    /// From here on all is well.
    pub fn heal(&self) {
        *lock(&self.rate) = 0.0;
    }

    /// One of the faults that may strike here, or none.
    pub fn strike(&self, here: &[Fault]) -> Option<Fault> {
        let here: Vec<_> = here.iter().filter(|fault| self.enabled.contains(fault)).copied().collect();
        let mut rng = lock(&self.rng);
        let fault = *here.choose(&mut *rng)?;
        let strikes = rng.random_bool(*lock(&self.rate));
        if strikes {
            *lock(&self.struck).entry(fault).or_default() += 1;
        }
        strikes.then_some(fault)
    }

    pub fn share(&self, of: usize) -> usize {
        lock(&self.rng).random_range(0..=of)
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while locked")
}
