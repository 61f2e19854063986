//! Each deliberate break of the protocol is found by some history that is good without it.

use std::time::Instant;

use seriatim_processor::mutant::{self, Mutant};

use super::plan::Plan;
use super::world::SINKS;
use super::{on_memory, seed};

/// Histories that are tried for one mutant.
const SEEDS_MAX: u64 = 5000;

#[test]
fn each_mutant_is_found() {
    let first = seed();
    let mut missed = Vec::new();
    let only = std::env::var("SERIATIM_MUTANT").ok();
    let is_meant = |mutant: &&Mutant| only.as_ref().is_none_or(|name| *name == format!("{mutant:?}"));
    for mutant in Mutant::ALL.iter().filter(is_meant) {
        let begin = Instant::now();
        match find(*mutant, first) {
            Some((seeds, violation)) => {
                let violation: String = violation.chars().take(100).collect();
                println!("{mutant:?}: {seeds} histories, {:.1?}: {violation}", begin.elapsed());
            }
            None => missed.push(mutant),
        }
    }
    assert!(missed.is_empty(), "SERIATIM_SEED={first}: not found within {SEEDS_MAX} seeds: {missed:?}");
}

/// How many histories it took, and what was wrong in the last of them.
fn find(mutant: Mutant, first: u64) -> Option<(u64, String)> {
    for seeds in 1..=SEEDS_MAX {
        let seed = first.wrapping_add(seeds - 1);
        let plan = Plan::of(seed, SINKS.len());
        mutant::set(Some(mutant));
        let history = on_memory(&plan);
        mutant::set(None);
        let Some(violation) = history.violation else { continue };
        if let Some(violation) = on_memory(&plan).violation {
            panic!("SERIATIM_SEED={seed}: {violation}, without any mutant");
        }
        return Some((seeds, violation));
    }
    None
}
