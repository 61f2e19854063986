//! What goes wrong: each misfortune has a name, and a deck of them is dealt in an order that a seed decides.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{Rng as _, SeedableRng as _};

use crate::load::Load;
use crate::process::{Process, Role};
use crate::support::free_port;
use crate::wire::State;
use crate::world::World;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misfortune {
    /// `kill -9`.
    Kill(Role),
    /// SIGSTOP for a while. A processor loses its partitions meanwhile, and does not know.
    Halt(Role),
    /// SIGTERM, and a new start.
    Restart(Role),
    /// Another process is started on the same files.
    SecondOwner,
    FullDisk,
    /// One more processor joins, and leaves.
    Guest,
    BrokerKilled,
    StoreKilled,
    /// One processor cannot reach the store, and is told so.
    WireCut,
    /// It cannot, and is told nothing.
    WireSilent,
    WireSlow,
    /// Of its conditional batches nobody knows what became.
    AnswersLost,
    SinkAway,
}

use Misfortune::*;

/// What a lone process may meet, one after the other.
pub const OF_ONE: [Misfortune; 6] =
    [Kill(Role::All), Halt(Role::All), Restart(Role::All), SecondOwner, FullDisk, SinkAway];
/// What the processes of a fleet may meet..
pub const OF_PROCESSES: [Misfortune; 6] = [
    Kill(Role::Edge),
    Kill(Role::Processor),
    Halt(Role::Processor),
    Restart(Role::Edge),
    Restart(Role::Processor),
    Guest,
];
/// ..and what stands around them at the same time.
pub const OF_SURROUNDINGS: [Misfortune; 7] =
    [BrokerKilled, StoreKilled, WireCut, WireSilent, WireSlow, AnswersLost, SinkAway];

/// Between two of a deck.
const REST_MS: std::ops::Range<u64> = 500..2500;
/// The group's session is 10 s: a processor that is halted so long wakes as owner of nothing.
const BEYOND_SESSION_MS: std::ops::Range<u64> = 11_000..14_000;
const HALT_MS: std::ops::Range<u64> = 1000..4000;
/// How long what lasts lasts: shorter and longer than what is waited for.
const LASTS_MS: std::ops::Range<u64> = 1000..8000;
/// A guest owns something by then.
const VISIT_MS: std::ops::Range<u64> = 4000..8000;
/// A store or broker that is gone is missed for so long, beside the time of its start.
const GONE_MS: std::ops::Range<u64> = 500..4000;
/// A process that must refuse to start does so by then.
const REFUSED_WITHIN: Duration = Duration::from_secs(20);
/// What is written over in place may still fit on a full disk for so long.
const FULL_WITHIN: Duration = Duration::from_secs(20);

/// Deals a deck again and again until its time is over; each misfortune ends before the next begins.
pub fn deal(world: &World, load: &Load, deck: &[Misfortune], seed: u64, until: Instant) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut cards = Vec::new();
    while Instant::now() < until {
        rest(&mut rng, REST_MS);
        if cards.is_empty() {
            cards = deck.to_vec();
            cards.shuffle(&mut rng);
        }
        let misfortune = cards.pop().expect("it was filled");
        if misfortune == FullDisk && world.disk.is_none() {
            world.tell("the disk is not filled: this system lets us mount none");
            continue;
        }
        world.count(&format!("{misfortune:?}"));
        meet(world, load, misfortune, &mut rng);
        world.tell(&format!("{misfortune:?} is over"));
    }
}

fn rest(rng: &mut SmallRng, ms: std::ops::Range<u64>) {
    std::thread::sleep(Duration::from_millis(rng.random_range(ms)));
}

fn meet(world: &World, load: &Load, misfortune: Misfortune, rng: &mut SmallRng) {
    match misfortune {
        Kill(role) => any(world, role, rng).kill(),
        Halt(role) => {
            let ms = if role == Role::Processor { BEYOND_SESSION_MS } else { HALT_MS };
            any(world, role, rng).halt(Duration::from_millis(rng.random_range(ms)));
        }
        Restart(role) => {
            let process = any(world, role, rng);
            process.terminate();
            process.want();
        }
        SecondOwner => second_owner(world),
        FullDisk => full_disk(world, load, rng),
        Guest => {
            let guest = world.guest.as_ref().expect("the world has one");
            guest.want();
            rest(rng, VISIT_MS);
            guest.terminate();
        }
        BrokerKilled => kill_server(world, "kafka", rng),
        StoreKilled => kill_server(world, "cassandra", rng),
        WireCut => wire(world, State::Cut, rng),
        WireSilent => wire(world, State::Silent, rng),
        WireSlow => {
            let ms = rng.random_range(100..600);
            wire(world, State::Slow(Duration::from_millis(ms)), rng);
        }
        AnswersLost => wire(world, State::Forgetful, rng),
        SinkAway => {
            world.receiver.set_away(true);
            rest(rng, LASTS_MS);
            world.receiver.set_away(false);
        }
    }
}

fn any<'w>(world: &'w World, role: Role, rng: &mut SmallRng) -> &'w Arc<Process> {
    world.own_of(role).choose(rng).copied().expect("the world has one")
}

fn kill_server(world: &World, name: &str, rng: &mut SmallRng) {
    let servers = world.servers.as_ref().expect("the world has its own");
    servers.kill(name);
    rest(rng, GONE_MS);
    servers.start_again(name);
}

fn wire(world: &World, state: State, rng: &mut SmallRng) {
    let wire = world.wires.choose(rng).expect("the world has some");
    wire.set(state);
    rest(rng, LASTS_MS);
    wire.set(State::Whole);
}

/// It refuses, and says why.
fn second_owner(world: &World) {
    let first = world.own_of(Role::All)[0];
    world.fleet.wait_ready(first);
    let runner = world.disk.as_ref().map_or_else(Vec::new, |disk| disk.runner());
    let mut command = world.fleet.command(&runner)();
    command.args(["run", "--role", "all"]);
    for listen in ["SERIATIM_INGEST__LISTEN", "SERIATIM_ADMIN__LISTEN"] {
        command.env(listen, format!("127.0.0.1:{}", free_port()));
    }
    let mut second = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let begun = Instant::now();
    while second.try_wait().expect("waited").is_none() && begun.elapsed() < REFUSED_WITHIN {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = second.kill();
    let output = second.wait_with_output().expect("waited");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_refused = output.status.code().is_some_and(|code| code != 0);
    assert!(is_refused && said.contains("in use by another process"), "{}: {said}", output.status);
}

/// Requests are answered 503 while it lasts.
fn full_disk(world: &World, load: &Load, rng: &mut SmallRng) {
    let disk = world.disk.as_ref().expect("it was asked for");
    world.fleet.wait_ready(world.own_of(Role::All)[0]);
    let refused = load.refused();
    disk.fill();
    let begun = Instant::now();
    while load.refused() == refused {
        assert!(begun.elapsed() < FULL_WITHIN, "the disk is full, and nothing is refused");
        std::thread::sleep(Duration::from_millis(50));
    }
    rest(rng, HALT_MS);
    disk.free();
}
