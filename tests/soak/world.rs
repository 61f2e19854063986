//! A system with all that stands around it: who sends, who receives, its servers, and the wires between.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::ask::{Ask, Stored};
use crate::check::{Facts, Found, check};
use crate::disk::Disk;
use crate::figures::{Sheet, most_memory, slowest_stop};
use crate::fleet::{Fleet, SOURCE, TENANT, config, fell};
use crate::load::{Entry, Load, Sent};
use crate::own_server::OwnServers;
use crate::process::{End, Process, Role};
use crate::receiver::{Receipt, Receiver};
use crate::support::PATIENCE;
use crate::traffic::Traffic;
use crate::wire::{State, Wire};

const STOPPED_WITHIN: Duration = Duration::from_secs(30);
const MEMORY_MIB_MAX: u64 = 256;
const PARTITIONS: usize = 8;

pub struct World {
    pub fleet: Fleet,
    pub receiver: Receiver,
    /// Of each processor to the store, where it has one.
    pub wires: Vec<Wire>,
    pub servers: Option<OwnServers>,
    pub disk: Option<Disk>,
    /// A processor that comes and goes.
    pub guest: Option<Arc<Process>>,
    begun: Instant,
    met: Mutex<BTreeMap<String, u32>>,
}

/// Where a distributed system finds its servers, and of what it is made.
pub struct Plan {
    pub servers: Option<OwnServers>,
    pub kafka: String,
    pub cql: String,
    pub edges: usize,
    pub processors: usize,
    /// Wires that can fail, and a processor that comes and goes.
    pub has_wires: bool,
}

impl World {
    fn new(folder: PathBuf, engine: &str) -> Self {
        let receiver = Receiver::start();
        let fleet = Fleet::new(folder, &config(engine, &receiver.url()));
        let (wires, begun, met) = (Vec::new(), Instant::now(), Mutex::default());
        Self { fleet, receiver, wires, servers: None, disk: None, guest: None, begun, met }
    }

    /// One process with its files, on a small disk if we are let have one.
    pub fn embedded(disk_mib: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder").keep();
        let data = folder.join("data");
        std::fs::create_dir(&data).expect("a folder");
        let mut world = Self::new(folder, &format!("engine = \"embedded\"\ndata = \"{}\"", data.display()));
        world.disk = Disk::mount(&data, disk_mib);
        let runner = world.disk.as_ref().map_or_else(Vec::new, Disk::runner);
        world.fleet.add(Role::All, &runner, None);
        world
    }

    pub fn distributed(plan: Plan) -> Self {
        let name = format!("t{}", uuid::Uuid::new_v4().simple());
        let name = &name[..24];
        let engine = format!(
            "engine = \"distributed\"\n\
             [kafka]\nbrokers = \"{}\"\nclass = \"{name}\"\npartitions = {PARTITIONS}\nreplication = 1\nmin_insync_replicas = 1\n\
             [cql]\nnodes = [\"{}\"]\nkeyspace = \"{name}\"\nbuckets = 64\nrequest_timeout_ms = 3000\n\
             replication = \"{{'class': 'SimpleStrategy', 'replication_factor': 1}}\"",
            plan.kafka, plan.cql
        );
        let mut world = Self::new(tempfile::tempdir().expect("a folder").keep(), &engine);
        world.fleet.migrate();
        for _ in 0..plan.edges {
            world.fleet.add(Role::Edge, &[], None);
        }
        for _ in 0..plan.processors + usize::from(plan.has_wires) {
            let wire = plan.has_wires.then(|| Wire::to(&plan.cql));
            world.fleet.add(Role::Processor, &[], wire.as_ref().map(Wire::address));
            world.wires.extend(wire);
        }
        world.guest = world.fleet.of(Role::Processor).last().filter(|_| plan.has_wires).cloned();
        world.servers = plan.servers;
        world
    }

    /// All processes but the guest.
    pub fn own(&self) -> impl Iterator<Item = &Arc<Process>> {
        let is_guest = |process: &Arc<Process>| self.guest.as_ref().is_some_and(|guest| Arc::ptr_eq(guest, process));
        self.fleet.processes.iter().filter(move |process| !is_guest(process))
    }

    pub fn own_of(&self, role: Role) -> Vec<&Arc<Process>> {
        self.own().filter(|process| process.role == role).collect()
    }

    /// The system runs and is ready.
    pub fn start(&mut self) {
        self.own().for_each(|process| process.want());
        self.fleet.keep();
        self.own().for_each(|process| self.fleet.wait_ready(process));
        self.begun = Instant::now();
    }

    pub fn load(&self, rate: u32, traffic: Traffic) -> Load {
        let takes = |process: &&Arc<Process>| process.role != Role::Processor;
        let url = |process: &Arc<Process>| format!("http://127.0.0.1:{}/in/{TENANT}/{SOURCE}", process.edge);
        Load::start(self.own().filter(takes).map(url).collect(), rate, traffic)
    }

    /// Tells what happens.
    pub fn tell(&self, what: &str) {
        println!("{:6.1} s  {what}", self.begun.elapsed().as_secs_f64());
    }

    /// Tells of a misfortune, and counts it.
    pub fn count(&self, what: &str) {
        self.tell(what);
        *self.met.lock().expect("no panic").entry(what.to_owned()).or_default() += 1;
    }

    /// Everything is well again.
    pub fn heal(&self) {
        self.wires.iter().for_each(|wire| wire.set(State::Whole));
        self.receiver.set_away(false);
        self.disk.iter().for_each(Disk::free);
        self.own().for_each(|process| process.want());
        self.own().for_each(|process| self.fleet.wait_ready(process));
    }

    /// Waits until all that is in the log is done, and nothing waits for its receiver. How long it took.
    pub fn settle(&self) -> Duration {
        let begun = Instant::now();
        let ask = self.ask();
        loop {
            let (lag, waiting) = (ask.lag(), ask.waiting());
            if lag == Some(0) && waiting.as_ref().is_some_and(Vec::is_empty) {
                return begun.elapsed();
            }
            assert!(begun.elapsed() < PATIENCE, "not settled: {lag:?} records are not done, {waiting:#?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn ask(&self) -> Ask {
        let knows = |process: &&Arc<Process>| process.role != Role::Edge;
        Ask::at(self.own().find(knows).expect("one that processes").admin)
    }

    pub fn check(&self, sent: &Sent, objects: usize) -> Found {
        let ask = self.ask();
        let is_owner = |role: Role| role == Role::Processor;
        let lives = self.fleet.lives().into_iter().filter(|(role, life)| is_owner(*role) && !life.halts.is_empty());
        let facts = Facts {
            ledger: &sent.ledger,
            receipts: &self.receiver.receipts(),
            stored: &ask.objects(objects),
            letters: &ask.dead_letters(),
            halted: &lives.map(|(_, life)| life).collect::<Vec<_>>(),
        };
        let found = check(&facts);
        if !found.is_good() {
            self.keep_evidence(&facts);
        }
        found
    }

    /// What the check has seen, beside the logs.
    fn keep_evidence(&self, facts: &Facts<'_>) {
        let seconds = |at: Instant| at.saturating_duration_since(self.begun).as_secs_f64();
        let receipt = |r: &Receipt| {
            let Receipt { key, rev, is_resent, life, is_taken, .. } = r;
            format!("{:.3} {key} rev {rev} by {life} resent {is_resent} taken {is_taken}\n", seconds(r.at))
        };
        let entry = |e: &Entry| {
            let acknowledged = e.acknowledged.map(seconds).unwrap_or_default();
            format!(
                "{:.3} sent, {acknowledged:.3} acknowledged, {} times {:?}\n",
                seconds(e.sent),
                e.acknowledgements,
                e.event
            )
        };
        let stored = |s: &Stored| format!("{}\n{}\n", s.object, Value::from(s.arrivals.clone()));
        self.fleet.keep_file("receipts", &facts.receipts.iter().map(receipt).collect::<String>());
        self.fleet.keep_file("ledger", &facts.ledger.values().map(entry).collect::<String>());
        self.fleet.keep_file("stored", &facts.stored.iter().map(stored).collect::<String>());
    }

    pub fn add_figures(&self, sheet: &mut Sheet) {
        let met = self.met.lock().expect("no panic");
        let told: Vec<_> = met.iter().map(|(what, count)| format!("{what} {count}")).collect();
        sheet.line("misfortunes", told.join(", "));
        sheet.line("partitions assigned", self.fleet.log_lines("partition assigned"));
        sheet.add_lives(&self.fleet.lives());
    }

    /// Whatever is not as it must be, but for what a figure sheet counts.
    pub fn assert_well(&self, sent: &Sent, found: &Found) {
        found.tell();
        assert!(found.is_good(), "what was processed is not what was acknowledged");
        assert!(sent.unexpected.is_empty(), "{:?}", sent.unexpected);
        let lives = self.fleet.lives();
        assert!(fell(&lives).is_empty(), "{:#?}", fell(&lives));
        // One that has not started yet does not hear of it: it has nothing to let go of.
        for (_, life) in lives.iter().filter(|(_, life)| life.is_started) {
            if let Some(End::Terminated(_, status)) = life.end {
                assert!(status.success(), "{} ended by SIGTERM with {status}", life.name);
            }
        }
        assert!(slowest_stop(&lives) <= STOPPED_WITHIN, "SIGTERM took {:?}", slowest_stop(&lives));
        assert!(most_memory(&lives) <= MEMORY_MIB_MAX, "{} MiB", most_memory(&lives));
    }
}
