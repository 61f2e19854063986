//! Real processes under real load, with misfortunes out of a seed. A sender keeps a ledger of what was acknowledged, a
//! receiver notes every effect; at the end, when all is well again, both are compared with what the store says: nothing
//! lost, nothing twice, nothing out of order, every object at its newest event. Each test prints a sheet of figures.
//!
//! ```text
//! infra/local/servers run -- cargo test --test soak -- --nocapture
//! SERIATIM_TEST_SOAK_S=3600 cargo test --release --test soak -- --nocapture of_processes its_files
//! SERIATIM_TEST_RATE=2000 infra/local/servers run -- cargo test --release --test soak -- --nocapture rolling
//! ```
//!
//! - `one_process_and_its_files`, `a_fleet_of_processes`: SERIATIM_TEST_SOAK_S seconds (40) of misfortunes, which a seed
//!   decides. The fleet has a Kafka and a Cassandra of its own, since they are killed too.
//! - `a_rolling_restart_under_load`: what it costs to restart one processor after the other.
//! - `what_a_kill_costs`: how long until effects flow again after one misfortune, calm before and after it.
//!
//! SERIATIM_SEED takes the traffic and the order of misfortunes of an earlier round again (not their timing: that is the
//! machine's); SERIATIM_TEST_RATE says how many requests a second are sent. Where a test fails, or where
//! SERIATIM_TEST_KEEP is set, the logs of all processes stay in a folder that it names.

mod ask;
mod check;
mod disk;
mod figures;
mod fleet;
mod load;
mod misfortune;
mod oracle;
#[path = "../e2e/own_server.rs"]
mod own_server;
mod process;
mod receiver;
mod recovery;
mod rolling;
// What the tests end to end share; a soak needs a part.
#[allow(dead_code, unused_macros)]
#[path = "../e2e/support.rs"]
mod support;
mod traffic;
mod wire;
mod world;

use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use figures::{Sheet, latest_effect, ms};
use misfortune::{Misfortune, OF_ONE, OF_PROCESSES, OF_SURROUNDINGS, deal};
use own_server::OwnServers;
use traffic::Traffic;
use world::{Plan, World};

/// Seconds of a round, and requests a second, where nothing is said.
const SOAK_S: u64 = 40;
const RATE: u32 = 200;
const OBJECTS: usize = 300;
/// Before the first misfortune, and after the last one is over.
const CALM: Duration = Duration::from_secs(2);

fn told<T: FromStr>(variable: &str) -> Option<T> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

fn seed() -> u64 {
    let seed = told("SERIATIM_SEED").unwrap_or_else(|| rand::random_range(0..1_000_000));
    println!("SERIATIM_SEED={seed}");
    seed
}

fn rate(default: u32) -> u32 {
    told("SERIATIM_TEST_RATE").unwrap_or(default)
}

fn soak_s() -> u64 {
    told("SERIATIM_TEST_SOAK_S").unwrap_or(SOAK_S)
}

/// One test at a time: what they measure is the machine's time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn one_process_and_its_files() {
    let _alone = alone();
    // Some 3 KiB for each event, and room for what is not yet merged.
    let mib = 128 + soak_s() * u64::from(rate(RATE)) / 300;
    soak("one process and its files", World::embedded(mib), &[&OF_ONE]);
}

#[test]
fn a_fleet_of_processes() {
    let _alone = alone();
    let servers = OwnServers::start(&["kafka", "cassandra"]);
    let (kafka, cql) = (servers.kafka(), servers.cql());
    let plan = Plan { servers: Some(servers), kafka, cql, edges: 2, processors: 2, has_wires: true };
    soak("a fleet of processes", World::distributed(plan), &[&OF_PROCESSES, &OF_SURROUNDINGS]);
}

/// Each deck is dealt by a hand of its own, at the same time as the others.
fn soak(title: &str, mut world: World, decks: &[&[Misfortune]]) {
    let seed = seed();
    world.start();
    let load = world.load(rate(RATE), Traffic::new(seed, OBJECTS));
    std::thread::sleep(CALM);
    let until = Instant::now() + Duration::from_secs(soak_s());
    std::thread::scope(|scope| {
        for (hand, deck) in (0..).zip(decks) {
            let (world, load) = (&world, &load);
            scope.spawn(move || deal(world, load, deck, seed + hand, until));
        }
    });
    world.heal();
    std::thread::sleep(CALM);
    let sent = load.stop();
    let settled = world.settle();
    let found = world.check(&sent, OBJECTS);
    world.fleet.end();

    let mut sheet = Sheet::default();
    sheet.line("seed", seed);
    sheet.add_load(&sent);
    world.add_figures(&mut sheet);
    sheet.line("all settled after", ms(settled));
    sheet.line("latest effect", ms(latest_effect(&sent.ledger, &world.receiver.receipts())));
    sheet.add_found(&found);
    sheet.print(title);
    world.assert_well(&sent, &found);
}
