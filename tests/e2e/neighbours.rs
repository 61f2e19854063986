//! Ten tenants, each with a source and a sink of its own, under a steady load. One sink is away, one refuses an
//! object, one hangs, and the processor is killed meanwhile: the seven others must not feel their neighbours, and
//! when all are well again every effect of every tenant is where it belongs.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::receiver::{Answer, Receiver};
use crate::support::{Engine, Role, SECRET, System, sign, source_of, wait_until};

const TENANTS: usize = 10;
/// Connections to its sink are refused.
const AWAY: usize = 0;
/// Its sink answers 400 to one object.
const REFUSING: usize = 1;
/// Its sink answers nothing.
const HANGING: usize = 2;

const PATH: &str = "/app";
const OBJECTS: usize = 20;
/// Of each tenant an event is sent so often.
const EVERY: Duration = Duration::from_millis(50);
/// What is made once, such as a first connection, is no part of what is measured.
const WARM_UP: Duration = Duration::from_secs(5);
const CALM: Duration = Duration::from_secs(10);
/// Seconds of [`CALM`]'s counterpart, the processor's absence left out; SERIATIM_TEST_OUTAGE_S says otherwise.
const OUTAGE_S: u64 = 15;
/// An event that was sent so long before a kill, and is not there yet, is late for another reason.
const BEFORE_KILL: Duration = Duration::from_secs(1);
/// A backlog is done with when nothing is missing that is older.
const CAUGHT_UP: Duration = Duration::from_secs(1);
/// How soon all must be where it belongs, once all sinks are well.
const RECOVERED_WITHIN: Duration = Duration::from_secs(60);
/// What a machine that is not ours alone may cost at any time.
const NOISE: Duration = Duration::from_millis(250);

const DECLARE: &str = "declare = { object = 'body:/object', version = { from = 'body:/version', kind = 'integer' } }";
const POLICY: &str = "[sink.policy]\nretry_min_ms = 50\nretry_max_ms = 1000\nwait_after_ms = 2000\nfailures_max = 3\n";

#[test]
fn neighbours_that_are_away_refuse_or_hang_are_not_felt_embedded() {
    neighbours(Engine::Embedded);
}

#[test]
fn neighbours_that_are_away_refuse_or_hang_are_not_felt_distributed() {
    neighbours(Engine::Distributed);
}

fn neighbours(engine: Engine) {
    let half = outage() / 2;
    assert!(half > BEFORE_KILL, "SERIATIM_TEST_OUTAGE_S is too short to measure anything before the kill");
    let mut receivers: Vec<_> = (0..TENANTS).map(|_| Receiver::start()).collect();
    let mut system = System::new(engine, &tenants(&receivers));
    let role = if engine == Engine::Embedded { Role::All } else { Role::Processor };
    system.start(role);
    if role == Role::Processor {
        system.start(Role::Ingest);
    }
    let load = Load::start(&system);
    load.wait_caught_up(&receivers);
    std::thread::sleep(WARM_UP);
    let calm = vec![pass(CALM)];
    // What was sent calmly arrives calmly.
    std::thread::sleep(CAUGHT_UP);

    receivers[AWAY].down();
    receivers[REFUSING].answer(|push| Answer::Status(if is_refused(push.key()) { 400 } else { 200 }));
    receivers[HANGING].answer(|_| Answer::Hang);
    let before_kill = pass(half);
    let killed = Instant::now();
    system.kill(role);
    system.start(role);
    load.wait_caught_up(&receivers);
    let felt = killed.elapsed();
    let disturbed = vec![(before_kill.0, killed - BEFORE_KILL), pass(half)];

    let sent = load.stop();
    let recovering = Instant::now();
    receivers[AWAY].up();
    receivers.iter().for_each(|receiver| receiver.answer(|_| Answer::Status(200)));
    wait_until("all received and done with", || is_all_received(&system, &receivers, &sent));
    let recovered = recovering.elapsed();

    println!("{engine:?}: the kill was felt for {felt:?}, all was where it belongs {recovered:?} after the end");
    let figures: Vec<_> = (0..TENANTS).map(|t| Figures::of(t, &receivers[t], &sent[t], &calm, &disturbed)).collect();
    println!("tenant  events  resends    p99 calm  p99 disturbed");
    figures.iter().for_each(Figures::print);

    assert!(recovered <= RECOVERED_WITHIN, "{recovered:?}");
    check_letters(&system, &receivers, &sent);
    for receiver in &receivers {
        receiver.check_order();
        receiver.check_marks();
    }
    for well in figures.iter().filter(|figures| figures.tenant != AWAY && figures.tenant != HANGING) {
        let limit = (well.calm * 2).max(well.calm + NOISE);
        assert!(well.disturbed <= limit, "t{}: {:?}, was {:?}", well.tenant, well.disturbed, well.calm);
    }
}

/// How long sinks are not well, the processor's absence left out.
fn outage() -> Duration {
    let told = std::env::var("SERIATIM_TEST_OUTAGE_S").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(told.unwrap_or(OUTAGE_S))
}

/// Waits; from when to when.
fn pass(time: Duration) -> (Instant, Instant) {
    let started = Instant::now();
    std::thread::sleep(time);
    (started, Instant::now())
}

/// Each tenant has a source, and a sink that pushes to its own receiver.
fn tenants(receivers: &[Receiver]) -> String {
    let tenant = |(t, receiver): (usize, &Receiver)| {
        let source = source_of(&format!("t{t}"), "hmac", SECRET, &format!("sinks = [\"s{t}\"]\n{DECLARE}"));
        let url = receiver.url(PATH);
        let push = format!("[sink.push]\nurl = \"{url}\"\ntimeout_ms = 1000\nallow_networks = [\"127.0.0.0/8\"]\n");
        format!("{source}[[sink]]\nname = \"s{t}\"\n{POLICY}{push}")
    };
    receivers.iter().enumerate().map(tenant).collect()
}

/// Whether an effect is of the object that is refused.
fn is_refused(key: &str) -> bool {
    key.starts_with(&format!("t{REFUSING}/hmac/o0/"))
}

/// An event that was acknowledged.
#[derive(Debug, Clone)]
struct Sent {
    /// Idempotency key of its effect.
    key: String,
    /// When its first try began.
    at: Instant,
}

type Lane = Arc<Mutex<Vec<Sent>>>;

/// A steady sender for each tenant, each event after the answer to the one before: of no object two are on their way.
struct Load {
    runtime: Runtime,
    stop: Arc<AtomicBool>,
    lanes: Vec<Lane>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(system: &System) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let stop = Arc::new(AtomicBool::new(false));
        let client = reqwest::Client::new();
        let lanes: Vec<Lane> = (0..TENANTS).map(|_| Lane::default()).collect();
        let task = |(t, lane): (usize, &Lane)| {
            let url = system.url(&format!("t{t}"), "hmac");
            runtime.spawn(send_steadily(client.clone(), url, t, lane.clone(), stop.clone()))
        };
        let tasks = lanes.iter().enumerate().map(task).collect();
        Self { runtime, stop, lanes, tasks }
    }

    /// Waits until something that was sent after this has arrived, and all that was sent before is done with.
    fn wait_caught_up(&self, receivers: &[Receiver]) {
        let since = Instant::now();
        wait_until("caught up", || {
            std::thread::sleep(Duration::from_millis(200));
            (0..TENANTS).filter(|t| ![AWAY, HANGING].contains(t)).all(|t| self.has_caught_up(t, &receivers[t], since))
        });
    }

    fn has_caught_up(&self, tenant: usize, receiver: &Receiver, since: Instant) -> bool {
        let Some(before) = Instant::now().checked_sub(CAUGHT_UP) else { return false };
        let received = receiver.keys(PATH);
        let lane = self.lanes[tenant].lock().expect("no panic");
        let has_come = |sent: &Sent| received.contains(&sent.key);
        let (old, new) = (|sent: &&Sent| sent.at < before, |sent: &&Sent| sent.at > since);
        lane.iter().filter(old).all(has_come) && lane.iter().filter(new).any(has_come)
    }

    /// Lets each event that is on its way be acknowledged. All that were, by tenant.
    fn stop(self) -> Vec<Vec<Sent>> {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            self.runtime.block_on(task).expect("no sender was refused");
        }
        self.lanes.iter().map(|lane| lane.lock().expect("no panic").clone()).collect()
    }
}

async fn send_steadily(client: reqwest::Client, url: String, tenant: usize, lane: Lane, stop: Arc<AtomicBool>) {
    // Not all at the same time.
    let first = tokio::time::Instant::now() + EVERY / TENANTS as u32 * tenant as u32;
    let mut tick = tokio::time::interval_at(first, EVERY);
    // No burst after a stall: the load stays what it is.
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for n in 0.. {
        tick.tick().await;
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let (object, version) = (n % OBJECTS, n / OBJECTS + 1);
        let id = format!("o{object}-{version}");
        let body = format!(r#"{{"id":"{id}","object":"o{object}","version":{version}}}"#);
        let at = Instant::now();
        send_until_taken(&client, &url, body).await;
        let key = format!("t{tenant}/hmac/o{object}/{id}");
        lane.lock().expect("no panic").push(Sent { key, at });
    }
}

/// As a provider does: the same event, until it is acknowledged.
async fn send_until_taken(client: &reqwest::Client, url: &str, body: String) {
    let signature = sign(SECRET, body.as_bytes());
    loop {
        let request = client.post(url).header("x-signature", &signature).body(body.clone());
        match request.timeout(Duration::from_secs(10)).send().await.map(|answer| answer.status().as_u16()) {
            Ok(200) => return,
            // The edge is killed too, or cannot write: it says so, or nothing.
            Ok(503) | Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            Ok(status) => panic!("{body}: {status}"),
        }
    }
}

/// Whether each effect was received, and taken where it may not be refused; nothing else was, and nothing waits.
fn is_all_received(system: &System, receivers: &[Receiver], sent: &[Vec<Sent>]) -> bool {
    let is_whole = |(receiver, sent): (&Receiver, &Vec<Sent>)| {
        let keys: BTreeSet<_> = sent.iter().map(|sent| sent.key.clone()).collect();
        receiver.keys(PATH) == keys && keys.difference(&receiver.taken(PATH)).all(|key| is_refused(key))
    };
    let is_none_waiting = || system.json(&["object", "parked", "--waiting"]).as_array().is_none_or(Vec::is_empty);
    receivers.iter().zip(sent).all(is_whole) && is_none_waiting()
}

/// What was received and never taken is a dead letter, and nothing else is.
fn check_letters(system: &System, receivers: &[Receiver], sent: &[Vec<Sent>]) {
    system.wait_processed();
    let letters = system.json(&["dead", "list"]);
    let key = |letter: &Value| {
        assert_eq!(letter["cause"], "refused", "{letter}");
        ["tenant", "source", "object", "event_id"].map(|field| letter[field].as_str().expect("text")).join("/")
    };
    let dead: BTreeSet<_> = letters.as_array().expect("a list").iter().map(key).collect();
    let not_taken = |(receiver, sent): (&Receiver, &Vec<Sent>)| -> Vec<String> {
        let taken = receiver.taken(PATH);
        sent.iter().map(|sent| sent.key.clone()).filter(|key| !taken.contains(key)).collect()
    };
    let not_taken: BTreeSet<_> = receivers.iter().zip(sent).flat_map(not_taken).collect();
    assert_eq!(dead, not_taken);
    assert!(!dead.is_empty() && dead.iter().all(|key| is_refused(key)), "{dead:?}");
}

/// What is told of a tenant.
struct Figures {
    tenant: usize,
    events: usize,
    resends: usize,
    calm: Duration,
    disturbed: Duration,
}

impl Figures {
    /// `calm` and `disturbed`: when what was sent counts.
    fn of(
        tenant: usize,
        receiver: &Receiver,
        sent: &[Sent],
        calm: &[(Instant, Instant)],
        disturbed: &[(Instant, Instant)],
    ) -> Self {
        let pushes = receiver.pushes(PATH);
        let resends = pushes.iter().filter(|push| push.earlier > 0).count();
        let first = pushes.iter().filter(|push| push.earlier == 0).map(|push| (push.key(), push.at));
        let arrived: HashMap<&str, Instant> = first.collect();
        // Of the tenant with an object that is refused the others count.
        let counts = |sent: &&Sent| !is_refused(&sent.key);
        let p99 = |phases: &[(Instant, Instant)]| {
            let is_in = |sent: &&Sent| phases.iter().any(|(from, to)| (*from..*to).contains(&sent.at));
            let within = |sent: &Sent| arrived[sent.key.as_str()].saturating_duration_since(sent.at);
            let mut all: Vec<_> = sent.iter().filter(is_in).filter(counts).map(within).collect();
            all.sort();
            assert!(!all.is_empty(), "nothing of t{tenant} was sent");
            all[all.len() * 99 / 100]
        };
        Self { tenant, events: sent.len(), resends, calm: p99(calm), disturbed: p99(disturbed) }
    }

    fn print(&self) {
        let note = match self.tenant {
            AWAY => "away",
            REFUSING => "refuses an object: the others",
            HANGING => "hangs",
            _ => "",
        };
        let [calm, disturbed] = [self.calm, self.disturbed].map(|time| time.as_secs_f64() * 1000.0);
        let Self { tenant, events, resends, .. } = self;
        println!("t{tenant:<5} {events:>7} {resends:>8} {calm:>8.1} ms {disturbed:>11.1} ms  {note}");
    }
}
