//! The processor in a simulation: the same lanes, commits, effects and watermarks on a simulated log, store, receivers,
//! clock and ids. One seed is one history; whatever fails in it, and whoever dies, sleeps or is told late, what was
//! promised holds at its end.
//!
//! `SERIATIM_SEED=..` takes one history again; `SERIATIM_TEST_SEEDS=..` says how many new ones there are. With the
//! feature `mutants` the protocol is broken in every way that [`seriatim_processor::mutant`] knows, and each is found.

#[path = "sim/broker.rs"]
mod broker;
#[path = "sim/check.rs"]
mod check;
#[path = "sim/faults.rs"]
mod faults;
#[path = "sim/moved.rs"]
mod moved;
#[cfg(feature = "mutants")]
#[path = "sim/mutants.rs"]
mod mutants;
#[path = "sim/neighbours.rs"]
mod neighbours;
#[path = "sim/plan.rs"]
mod plan;
#[path = "sim/process.rs"]
mod process;
#[path = "sim/receiver.rs"]
mod receiver;
#[path = "sim/store.rs"]
mod store;
#[path = "sim/traffic.rs"]
mod traffic;
#[path = "sim/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use plan::Plan;
use seriatim_processor::store::memory::MemoryStore;
use seriatim_processor::store::sqlite::SqliteStore;
use world::{History, SINKS};

/// Histories of each run of the tests, and those of a store that takes its own time.
const SEEDS: u64 = 2000;
const SEEDS_ON_SQLITE: u64 = 20;
/// Tries to make a history smaller.
const SMALLER_MAX: usize = 400;

fn seed() -> u64 {
    let seed = match std::env::var("SERIATIM_SEED") {
        Ok(text) => text.parse().expect("SERIATIM_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("SERIATIM_SEED={seed}");
    seed
}

fn seeds() -> u64 {
    let told = std::env::var("SERIATIM_TEST_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    told.unwrap_or(if std::env::var("SERIATIM_SEED").is_ok() { 1 } else { SEEDS })
}

fn on_memory(plan: &Plan) -> History {
    // A multiple of the partitions, so that a bucket lies within one.
    world::run(plan, Arc::new(MemoryStore::new(2 * plan.partitions as u32)))
}

#[test]
fn what_was_promised_holds_in_every_history() {
    let (first, begin) = (seed(), Instant::now());
    let (mut steps, mut events, mut struck, mut incidents) = (0, 0, BTreeMap::new(), BTreeMap::new());
    for seed in (0..seeds()).map(|n| first.wrapping_add(n)) {
        let plan = Plan::of(seed, SINKS.len());
        let history = on_memory(&plan);
        if let Some(violation) = &history.violation {
            let (plan, smallest) = smallest(plan, &history);
            let told = [smallest.log, smallest.violation].map(Option::unwrap_or_default).join("\n");
            panic!("SERIATIM_SEED={seed}: {violation}\n{plan:#?}\n{told}");
        }
        (steps, events) = (steps + history.steps, events + history.events);
        history.struck.into_iter().for_each(|(fault, count)| *struck.entry(fault).or_insert(0) += count);
        for (_, incident) in plan.incidents {
            let name = format!("{incident:?}");
            *incidents.entry(name.split(' ').next().unwrap_or_default().to_owned()).or_insert(0) += 1;
        }
    }
    let per_minute = seeds() as f64 * 60.0 / begin.elapsed().as_secs_f64();
    println!("{} histories, {per_minute:.0} a minute; {events} events, {steps} steps", seeds());
    println!("faults {struck:?}\nincidents {incidents:?}");
}

/// The smallest plan that still ends badly.
fn smallest(mut plan: Plan, history: &History) -> (Plan, History) {
    let (mut tries, mut found) = (0, history.clone());
    'again: loop {
        for smaller in plan.smaller() {
            tries += 1;
            if tries > SMALLER_MAX {
                return (plan, found);
            }
            let history = on_memory(&smaller);
            if history.violation.is_some() {
                (plan, found) = (smaller, history);
                continue 'again;
            }
        }
        return (plan, found);
    }
}

#[test]
fn one_seed_is_one_history() {
    let first = seed();
    for seed in (0..20).map(|n| first.wrapping_add(n)) {
        let plan = Plan::of(seed, SINKS.len());
        assert_eq!(on_memory(&plan), on_memory(&plan), "SERIATIM_SEED={seed}");
    }
}

/// The store takes its own time, so a history is not repeated exactly.
#[test]
fn what_was_promised_holds_on_sqlite() {
    let first = seed();
    for seed in (0..SEEDS_ON_SQLITE).map(|n| first.wrapping_add(n)) {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let plan = Plan::of(seed, SINKS.len());
        let history = world::run(&plan, Arc::new(SqliteStore::open(folder.path()).expect("a new store opens")));
        assert_eq!(history.violation, None, "SERIATIM_SEED={seed}");
    }
}
