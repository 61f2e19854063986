//! What a provider has to say: snapshots with versions and deltas of many objects, out of order and with repeats.

use std::collections::VecDeque;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

/// Of 100 requests so many repeat an event, and of 100 events so many are deltas.
const REPEATS: u32 = 20;
const DELTAS: u32 = 25;
/// What is sent is shuffled within so many requests for each object.
const SHUFFLED: usize = 3;
/// A repeat is of one of so many events before it.
const REMEMBERED: usize = 5000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub id: String,
    pub object: usize,
    /// None of a delta.
    pub version: Option<u64>,
}

impl Event {
    /// As the provider writes it; the same each time.
    pub fn body(&self) -> String {
        let Self { id, object, version } = self;
        let what = match version {
            Some(version) => format!("\"type\":\"updated\", \"version\":{version}"),
            None => "\"type\":\"counted\"".to_owned(),
        };
        format!("{{\"id\":\"{id}\",\"object\":\"o{object}\",{what},\"amount\":1.50}}\n")
    }
}

/// The object of an event has the same name everywhere.
pub fn object_name(object: usize) -> String {
    format!("o{object}")
}

pub struct Traffic {
    rng: SmallRng,
    objects: usize,
    versions: Vec<u64>,
    count: usize,
    /// To be sent next.
    window: VecDeque<Event>,
    past: VecDeque<Event>,
}

impl Traffic {
    pub fn new(seed: u64, objects: usize) -> Self {
        let (window, past) = (VecDeque::new(), VecDeque::new());
        Self { rng: SmallRng::seed_from_u64(seed), objects, versions: vec![0; objects], count: 0, window, past }
    }

    pub fn next(&mut self) -> Event {
        if self.window.is_empty() {
            self.fill();
        }
        self.window.pop_front().expect("it was filled")
    }

    fn fill(&mut self) {
        let mut window: Vec<_> = (0..self.objects * SHUFFLED).map(|_| self.make()).collect();
        window.shuffle(&mut self.rng);
        self.window = window.into();
    }

    fn make(&mut self) -> Event {
        if self.rng.random_range(0..100) < REPEATS && !self.past.is_empty() {
            return self.past[self.rng.random_range(0..self.past.len())].clone();
        }
        // Each object in its turn: of each something comes steadily.
        let object = self.count % self.objects;
        self.count += 1;
        let version = (self.rng.random_range(0..100) >= DELTAS).then(|| {
            self.versions[object] += 1;
            self.versions[object]
        });
        let event = Event { id: format!("e{}", self.count), object, version };
        self.past.push_back(event.clone());
        if self.past.len() > REMEMBERED {
            self.past.pop_front();
        }
        event
    }
}
