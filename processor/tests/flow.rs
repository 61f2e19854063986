//! Lives of a processor: whatever fails, and between whichever two steps it ends, each event counts once, and
//! its effects come in order. What must come of a log is told by a naive walk over it.
//!
//! Traffic, faults and ends follow from a seed, which each test prints; `SERIATIM_SEED=..` takes it again.

#[path = "flow/faults.rs"]
mod faults;
#[path = "flow/neighbours.rs"]
mod neighbours;
#[path = "flow/traffic.rs"]
mod traffic;
#[path = "flow/world.rs"]
mod world;

use std::sync::Arc;

use faults::{End, Fault, Faults};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use seriatim_processor::inspect::Inspect;
use seriatim_processor::sink::Effect;
use seriatim_processor::store::Store;
use seriatim_processor::store::memory::MemoryStore;
use seriatim_processor::store::sqlite::SqliteStore;
use tempfile::TempDir;
use traffic::Traffic;
use world::{PARTITIONS, World};

const DELIVERIES: usize = 2000;
const OBJECTS: usize = 50;
/// Share of the calls that fail, where any do.
const FAULT_RATE: f64 = 0.2;

macro_rules! flows {
    ($engine:ident, $open:path) => {
        mod $engine {
            flows! { @flows $open;
                each_event_is_applied_once_and_in_order
                restart_sends_nothing_again
                restart_from_the_beginning_sends_nothing_again
                faults_change_nothing
                each_fault_alone_changes_nothing
                stops_in_the_middle_lose_nothing
                crashes_between_any_two_steps_lose_nothing
                crashes_and_faults_together_lose_nothing
                event_that_the_store_refuses_for_good_is_dead_and_its_object_goes_on
                two_owners_at_once_agree
            }
        }
    };
    (@flows $open:path; $($flow:ident)*) => {
        $(
            #[test]
            fn $flow() {
                let (store, _guard) = $open();
                super::$flow(store, super::seed());
            }
        )*
    };
}

flows!(on_memory, super::memory);
flows!(on_sqlite, super::sqlite);

/// A multiple of the partitions, so that a bucket lies within one.
fn memory() -> (Arc<MemoryStore>, ()) {
    (Arc::new(MemoryStore::new(2 * PARTITIONS)), ())
}

fn sqlite() -> (Arc<SqliteStore>, TempDir) {
    let folder = tempfile::tempdir().expect("a folder for the test");
    (Arc::new(SqliteStore::open(folder.path()).expect("a new store opens")), folder)
}

fn seed() -> u64 {
    let seed = match std::env::var("SERIATIM_SEED") {
        Ok(text) => text.parse().expect("SERIATIM_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("SERIATIM_SEED={seed}");
    seed
}

fn no_faults() -> Faults {
    Faults::new(0, 0.0, &[])
}

fn all_faults(seed: u64, rate: f64) -> Faults {
    Faults::new(seed, rate, &Fault::all())
}

fn each_event_is_applied_once_and_in_order<S: Store + Inspect>(store: Arc<S>, seed: u64) {
    let world = World::new(seed, Traffic::new(seed, DELIVERIES, OBJECTS), store, no_faults(), true);
    assert!(world.finish());
    world.check_effects();
    world.check_store();
    let walk = world.traffic.walk();
    assert!(walk.passes() > 0, "gaps were passed");
    assert_eq!(world.sent().len(), walk.effects(), "without faults nothing is sent twice");
    // What the log must be asked for again, since too much waited, is marked.
    let is_unmarked = |effect: &Effect| !effect.resent || walk.objects[&*effect.key].sequence.has_held;
    assert!(world.sent().iter().all(is_unmarked));
}

fn restart_sends_nothing_again<S: Store + Inspect>(store: Arc<S>, seed: u64) {
    restarts(World::new(seed, Traffic::new(seed, DELIVERIES, OBJECTS), store, no_faults(), true));
}

fn restart_from_the_beginning_sends_nothing_again<S: Store + Inspect>(store: Arc<S>, seed: u64) {
    restarts(World::new(seed, Traffic::new(seed, DELIVERIES, OBJECTS), store, no_faults(), false));
}

fn restarts<S: Store + Inspect>(world: World<S>) {
    assert!(world.finish());
    let sent = world.sent().len();
    for _ in 0..2 {
        assert!(world.finish());
        assert_eq!(world.sent().len(), sent, "all was sent before");
    }
    world.check_effects();
    world.check_store();
}

fn faults_change_nothing<S: Store + Inspect>(store: Arc<S>, seed: u64) {
    let world = World::new(seed, Traffic::new(seed, DELIVERIES, OBJECTS), store, all_faults(seed, FAULT_RATE), true);
    assert!(world.finish());
    world.check_effects();
    world.check_marks();
    world.check_store();
    // A rare fault may not strike under this seed; each has a test of its own below.
    assert!(!world.faults.struck().is_empty());
}

/// Often, so that each fault also strikes several times in a row.
fn each_fault_alone_changes_nothing<S: Store + Inspect>(store: Arc<S>, seed: u64) {
    for (fault, seed) in Fault::all().into_iter().zip(seed..) {
        println!("{fault:?}");
        let faults = Faults::new(seed, 0.6, &[fault]);
        let world = World::new(seed, Traffic::new(seed, 200, 10), store.clone(), faults, false);
        assert!(world.finish());
        world.check_effects();
        world.check_store();
        world.check_marks();
    }
}

fn stops_in_the_middle_lose_nothing<S: Store + Inspect>(store: Arc<S>, seed: u64) {
    let faults = Faults::new(seed, FAULT_RATE, &[Fault::RecordUnavailable, Fault::RecordUnknownWritten]);
    let world = World::new(seed, Traffic::new(seed, DELIVERIES, OBJECTS), store, faults, false);
    live_and_end(&world, seed, 20, End::Stop);
    world.check_marks();
}

fn crashes_between_any_two_steps_lose_nothing<S: Store + Inspect>(store: Arc<S>, seed: u64) {
    let world = World::new(seed, Traffic::new(seed, DELIVERIES, OBJECTS), store, no_faults(), false);
    live_and_end(&world, seed, 40, End::Crash);
    world.check_marks();
}

fn crashes_and_faults_together_lose_nothing<S: Store + Inspect>(store: Arc<S>, seed: u64) {
    let (traffic, faults) = (Traffic::new(seed, DELIVERIES, OBJECTS), all_faults(seed, FAULT_RATE));
    let world = World::new(seed, traffic, store, faults, seed.is_multiple_of(2));
    live_and_end(&world, seed, 40, End::Crash);
    world.check_marks();
}

/// Lives that end at any step, then one that comes to the end of the log.
fn live_and_end<S: Store + Inspect>(world: &World<S>, seed: u64, lives_max: usize, end: impl Fn(u64) -> End) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut cut_off = 0;
    // Where floors are kept, each life goes on from the one before and is at the end soon.
    let steps_max = if world.keeps_floors { 120 } else { 1200 };
    for _ in 0..lives_max {
        let steps = if rng.random_bool(0.5) { rng.random_range(0..60) } else { rng.random_range(0..steps_max) };
        cut_off += usize::from(!world.live(&[end(steps)]));
    }
    assert!(cut_off > 3, "it ended in the middle only {cut_off} times");
    assert!(world.finish());
    world.check_effects();
    world.check_store();
}

fn event_that_the_store_refuses_for_good_is_dead_and_its_object_goes_on<S: Store + Inspect>(store: Arc<S>, seed: u64) {
    let faults = Faults::new(seed, FAULT_RATE, &Fault::OF_STORE);
    let world = World::new(seed, Traffic::poisoned(seed, DELIVERIES, OBJECTS, 40), store, faults, true);
    assert!(world.finish());
    world.check_effects();
    world.check_store();
}

/// As where a partition moved and its old owner does not know yet.
fn two_owners_at_once_agree<S: Store + Inspect>(store: Arc<S>, seed: u64) {
    let (traffic, faults) = (Traffic::new(seed, DELIVERIES, OBJECTS), all_faults(seed, FAULT_RATE / 2.0));
    let world = World::new(seed, traffic, store, faults, false);
    let mut rng = SmallRng::seed_from_u64(seed);
    assert!(!world.live(&[End::Crash(rng.random_range(0..100)), End::Stop(rng.random_range(0..200))]));
    assert!(world.live(&[End::Done, End::Done]) || world.finish());
    world.check_effects();
    world.check_store();
}
