//! What one misfortune costs, calm before and after it: how long until effects of all objects flow again, and what
//! senders feel of it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::check::key;
use crate::figures::{Sheet, firsts, ms, p99_within};
use crate::load::Load;
use crate::own_server::OwnServers;
use crate::process::Role;
use crate::receiver::Receiver;
use crate::support::{server, wait_until};
use crate::traffic::Traffic;
use crate::world::{Plan, World};
use crate::{alone, rate, seed};

const RATE: u32 = 200;
/// Few, so that of each some event is always on its way.
const OBJECTS: usize = 50;
const CALM: Duration = Duration::from_secs(5);
/// A broker that is killed is missed for so long, beside the time of its start.
const GONE: Duration = Duration::from_secs(1);
/// Far above what is expected: the machine is not ours alone.
const RECOVERED_WITHIN: Duration = Duration::from_secs(60);

/// A misfortune, and what it cost.
struct Cost {
    name: &'static str,
    calm: Instant,
    begun: Instant,
    recovered: Instant,
}

#[test]
fn what_a_kill_costs() {
    let _alone = alone();
    let seed = seed();
    let servers = OwnServers::start(&["kafka"]);
    let (kafka, cql) = (servers.kafka(), server("SERIATIM_CQL"));
    let plan = Plan { servers: Some(servers), kafka, cql, edges: 1, processors: 2, has_wires: false };
    let mut world = World::distributed(plan);
    world.start();
    world.own_of(Role::Processor).into_iter().for_each(|process| world.fleet.wait_owner(process));
    let load = world.load(rate(RATE), Traffic::new(seed, OBJECTS));
    wait_until("all objects flow", || flows_since(&load, &world.receiver, load.begun, 0));
    let costs = costs(&world, &load);
    std::thread::sleep(CALM);
    let sent = load.stop();
    let settled = world.settle();
    let found = world.check(&sent, OBJECTS);

    let mut sheet = Sheet::default();
    sheet.line("seed", seed);
    sheet.add_load(&sent);
    world.add_figures(&mut sheet);
    let receipts = world.receiver.receipts();
    let first = firsts(&receipts);
    for Cost { name, calm, begun, recovered } in &costs {
        let came = |key: &str| first.get(key).copied();
        let missed = sent.ledger.values().filter_map(|entry| {
            let at = entry.acknowledged.filter(|at| (*begun..*recovered).contains(at))?;
            Some(came(&key(&entry.event))?.saturating_duration_since(at))
        });
        sheet.line(&format!("{name}: all objects flow after"), ms(*recovered - *begun));
        sheet.line(&format!("{name}: latest effect"), ms(missed.max().unwrap_or_default()));
        let [before, during] = [(*calm, *begun), (*begun, *recovered)].map(|(f, t)| p99_within(&sent.answered, f, t));
        sheet.line(&format!("{name}: acknowledgement p99, calm before"), format!("{}, {}", ms(during), ms(before)));
    }
    sheet.line("all settled after", ms(settled));
    sheet.add_found(&found);
    sheet.print("what a kill costs");
    world.assert_well(&sent, &found);
    for cost in &costs {
        assert!(cost.recovered - cost.begun <= RECOVERED_WITHIN, "{}", cost.name);
    }
}

fn costs(world: &World, load: &Load) -> Vec<Cost> {
    let processors = world.own_of(Role::Processor);
    let (one, other) = (processors[0], processors[1]);
    let one_of_two = cost(world, load, "one of two processors", || one.kill());
    world.fleet.wait_owner(one);
    other.terminate();
    let only = cost(world, load, "the only processor", || one.kill());
    other.want();
    world.fleet.wait_owner(other);
    let broker = cost(world, load, "the broker", || {
        let servers = world.servers.as_ref().expect("the broker is its own");
        servers.kill("kafka");
        std::thread::sleep(GONE);
        servers.start_again("kafka");
    });
    vec![one_of_two, only, broker]
}

fn cost(world: &World, load: &Load, name: &'static str, misfortune: impl FnOnce()) -> Cost {
    // What came before is over.
    let settled = Instant::now();
    let from = world.receiver.count();
    wait_until("all objects flow", || flows_since(load, &world.receiver, settled, from));
    let calm = Instant::now();
    std::thread::sleep(CALM);
    world.count(name);
    let (begun, from) = (Instant::now(), world.receiver.count());
    misfortune();
    wait_until("all objects flow again", || flows_since(load, &world.receiver, begun, from));
    let recovered = since(load, &world.receiver, begun, from).values().max().copied().expect("they flow");
    Cost { name, calm, begun, recovered }
}

fn flows_since(load: &Load, receiver: &Receiver, begun: Instant, from: usize) -> bool {
    since(load, receiver, begun, from).len() == OBJECTS
}

/// Of each object the first effect of an event that was sent after `begun`. Receipts before number `from` are older.
fn since(load: &Load, receiver: &Receiver, begun: Instant, from: usize) -> HashMap<usize, Instant> {
    let first = receiver.first_since(from);
    let mut objects: HashMap<usize, Instant> = HashMap::new();
    for entry in load.acknowledged_since(begun) {
        if let Some(at) = first.get(&key(&entry.event)) {
            let earliest = objects.entry(entry.event.object).or_insert(*at);
            *earliest = (*earliest).min(*at);
        }
    }
    objects
}
