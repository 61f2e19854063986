//! What happens in one history, from its seed: what is delivered, what fails, and what befalls the processes. A plan is
//! data, so that one which ends badly can be made smaller while it still does.

use std::collections::BTreeSet;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::faults::Fault;

#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub seed: u64,
    pub deliveries: usize,
    pub objects: usize,
    /// Events that the store refuses for good.
    pub poisoned: usize,
    /// Deliveries that do not happen.
    pub left_out: BTreeSet<usize>,
    pub partitions: usize,
    pub processes: usize,
    /// Milliseconds, as all times here.
    pub lasts: u64,
    /// Longest step of a process, and of one in a hundred.
    pub step: u64,
    pub slow_step: u64,
    pub faults: Vec<Fault>,
    /// Share of the calls that fail.
    pub rate: f64,
    pub incidents: Vec<(u64, Incident)>,
    /// At the end all rows expire, and every snapshot comes once more.
    pub outlives: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incident {
    /// Nothing of the process moves any more; another takes its place.
    Crash {
        process: usize,
    },
    /// It sleeps, may lose its partitions meanwhile, and wakes up without knowing.
    Freeze {
        process: usize,
        time: u64,
    },
    /// An orderly stop; another takes its place.
    Stop {
        process: usize,
    },
    /// Partitions change their owners; some are not told in time.
    Rebalance {
        first: usize,
    },
    StoreAway {
        time: u64,
    },
    LogAway {
        time: u64,
    },
    SinkAway {
        sink: usize,
        time: u64,
    },
    SinkHangs {
        sink: usize,
        time: u64,
    },
    SinkRefuses {
        sink: usize,
        object: usize,
        time: u64,
    },
    /// The clock of a process is set.
    ClockJump {
        process: usize,
        by: i64,
    },
    /// How far partitions are done is forgotten, and all begin anew.
    FloorsLost,
    /// The log gets partitions; whoever appends hears of it late.
    Grows {
        by: usize,
        late: u64,
    },
    /// An operator redrives what is parked.
    Redrive,
}

impl Incident {
    fn process(self) -> Option<usize> {
        match self {
            Self::Crash { process }
            | Self::Freeze { process, .. }
            | Self::Stop { process }
            | Self::ClockJump { process, .. } => Some(process),
            _ => None,
        }
    }
}

impl Plan {
    pub fn of(seed: u64, sinks: usize) -> Self {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let lasts = rng.random_range(200..4000);
        let (processes, objects) = (rng.random_range(1..4), rng.random_range(1..8));
        let all = Fault::all();
        let faults = all.iter().filter(|_| rng.random_bool(0.5)).copied().collect();
        let rate = *[0.0, 0.02, 0.1, 0.3].choose(rng).expect("there are some");
        // A storm: few objects, and much that befalls them.
        let is_storm = rng.random_bool(0.1);
        let objects = if is_storm { objects.min(2) } else { objects };
        let count = if is_storm { rng.random_range(8..20) } else { rng.random_range(0..8) };
        let mut incidents: Vec<_> =
            (0..count).map(|_| (rng.random_range(0..lasts), incident(rng, processes, sinks, objects))).collect();
        incidents.sort_by_key(|(at, _)| *at);
        Self {
            seed,
            deliveries: rng.random_range(10..120),
            objects,
            poisoned: if rng.random_bool(0.3) { rng.random_range(1..5) } else { 0 },
            left_out: BTreeSet::new(),
            partitions: rng.random_range(1..4),
            processes,
            lasts,
            step: rng.random_range(1..8),
            slow_step: rng.random_range(10..400),
            faults,
            rate,
            incidents,
            outlives: rng.random_bool(0.2),
        }
    }

    /// The plan with a part left out, one for each part, the larger ones first.
    pub fn smaller(&self) -> Vec<Self> {
        let mut out = Vec::new();
        let there: Vec<usize> = (0..self.deliveries).filter(|n| !self.left_out.contains(n)).collect();
        let mut size = there.len() / 2;
        while size > 0 {
            for part in there.chunks(size) {
                let mut plan = self.clone();
                plan.left_out.extend(part);
                out.push(plan);
            }
            size /= 2;
        }
        for index in 0..self.incidents.len() {
            let mut plan = self.clone();
            plan.incidents.remove(index);
            out.push(plan);
        }
        for index in 0..self.faults.len() {
            let mut plan = self.clone();
            plan.faults.remove(index);
            out.push(plan);
        }
        if self.poisoned > 0 {
            out.push(Self { poisoned: 0, ..self.clone() });
        }
        if self.outlives {
            out.push(Self { outlives: false, ..self.clone() });
        }
        if self.processes > 1 {
            let mut plan = Self { processes: self.processes - 1, ..self.clone() };
            plan.incidents.retain(|(_, incident)| incident.process().is_none_or(|process| process < plan.processes));
            out.push(plan);
        }
        out
    }
}

fn incident(rng: &mut SmallRng, processes: usize, sinks: usize, objects: usize) -> Incident {
    let (process, sink) = (rng.random_range(0..processes), rng.random_range(0..sinks));
    let time = rng.random_range(5..3000);
    match rng.random_range(0..15) {
        0 | 1 => Incident::Crash { process },
        2 | 3 => Incident::Freeze { process, time },
        4 => Incident::Stop { process },
        5 => Incident::Rebalance { first: rng.random_range(0..3) },
        6 => Incident::StoreAway { time: time / 3 },
        7 => Incident::LogAway { time: time / 3 },
        8 => Incident::SinkAway { sink, time },
        9 => Incident::SinkHangs { sink, time },
        10 => Incident::SinkRefuses { sink, object: rng.random_range(0..objects), time },
        11 => Incident::ClockJump { process, by: rng.random_range(-100_000..100_000) },
        12 => Incident::Grows { by: rng.random_range(1..4), late: time / 2 },
        13 => Incident::Redrive,
        _ => Incident::FloorsLost,
    }
}
