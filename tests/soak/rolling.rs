//! A new version is rolled out: one processor after the other is told to end and is started again, under load. Nobody
//! should notice, and this says how much they do.

use std::time::{Duration, Instant};

use crate::figures::{Sheet, latest_effect, longest_gap, ms, slowest_stop};
use crate::process::Role;
use crate::support::server;
use crate::traffic::Traffic;
use crate::world::{Plan, World};
use crate::{alone, rate, seed};

/// Requests a second, where nothing is said.
const RATE: u32 = 300;
/// Requests of each object in some seconds, so that a gap is one of ours.
const EACH: u32 = 6;
const CALM: Duration = Duration::from_secs(6);
/// From one restart to the next.
const BETWEEN: Duration = Duration::from_secs(3);

#[test]
fn a_rolling_restart_under_load() {
    let _alone = alone();
    let (seed, rate) = (seed(), rate(RATE));
    let objects = (rate / EACH).max(1) as usize;
    let (kafka, cql) = (server("SERIATIM_KAFKA"), server("SERIATIM_CQL"));
    let plan = Plan { servers: None, kafka, cql, edges: 1, processors: 2, has_wires: false };
    let mut world = World::distributed(plan);
    world.start();
    world.own_of(Role::Processor).into_iter().for_each(|process| world.fleet.wait_owner(process));
    let load = world.load(rate, Traffic::new(seed, objects));
    // Connections are made, and the first of each object is decided.
    std::thread::sleep(CALM / 2);
    let calm = Instant::now();
    std::thread::sleep(CALM);
    let restarts = Instant::now();
    for process in world.own_of(Role::Processor) {
        world.count(&format!("restart of {}", process.name));
        process.terminate();
        process.want();
        world.fleet.wait_owner(process);
        std::thread::sleep(BETWEEN);
    }
    let over = Instant::now();
    let sent = load.stop();
    let settled = world.settle();
    let found = world.check(&sent, objects);

    let within = |from: Instant, to: Instant| {
        let acknowledged = |at: Option<Instant>| at.is_some_and(|at| (from..to).contains(&at));
        let entries = sent.ledger.iter().filter(|(_, entry)| acknowledged(entry.acknowledged));
        let ledger = entries.map(|(id, entry)| (id.clone(), entry.clone())).collect();
        let mut receipts = world.receiver.receipts();
        let latest = latest_effect(&ledger, &receipts);
        receipts.retain(|receipt| (from..to).contains(&receipt.at));
        format!("{}, {}", ms(latest), ms(longest_gap(&receipts)))
    };
    let mut sheet = Sheet::default();
    sheet.line("seed", seed);
    sheet.add_load(&sent);
    world.add_figures(&mut sheet);
    sheet.line("slowest stop of a processor", ms(slowest_stop(&world.fleet.lives())));
    sheet.line("latest effect, longest gap of an object, calm", within(calm, restarts));
    sheet.line("latest effect, longest gap of an object, restarts", within(restarts, over));
    sheet.line("all settled after", ms(settled));
    sheet.add_found(&found);
    sheet.print("a rolling restart under load");
    world.assert_well(&sent, &found);
}
