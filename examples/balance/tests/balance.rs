//! Balances are exact, whatever comes twice, in whatever order, and however often the processor is killed.
//! `SERIATIM_TEST_DELTAS=100000` sends so many payments; the seed is printed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tokio::sync::Semaphore;

const SECRET: &str = "a secret for a test";
const ACCOUNTS: usize = 50;
const KILLS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn balances_are_exact_embedded() {
    balances_are_exact(Bank::embedded());
}

#[test]
fn balances_are_exact_distributed() {
    balances_are_exact(Bank::distributed());
}

/// Edge and processor on folders, topics and tables of their own; ended when dropped.
struct Bank {
    folder: tempfile::TempDir,
    port: u16,
    /// What the processor is told of its engine.
    engine: Vec<String>,
    edge: Option<Child>,
    processor: Option<Child>,
}

fn seriatim() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_balance")).with_file_name("seriatim");
    assert!(path.exists(), "{} is missing: run cargo test --workspace, or cargo build first", path.display());
    path
}

fn server(variable: &str) -> String {
    let remedy = "run the tests by: infra/local/servers run -- cargo test --workspace";
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: {remedy}"))
}

impl Bank {
    fn embedded() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data").display().to_string();
        Self::new(folder, &format!("engine = \"embedded\"\ndata = \"{data}\"\n"), vec!["--data".into(), data])
    }

    fn distributed() -> Self {
        let (kafka, cql) = (server("SERIATIM_KAFKA"), server("SERIATIM_CQL"));
        let name = format!("t{}", &uuid::Uuid::new_v4().simple().to_string()[..20]);
        let settings = format!(
            "engine = \"distributed\"\n[kafka]\nbrokers = \"{kafka}\"\nclass = \"{name}\"\npartitions = 4\nreplication = 1\nmin_insync_replicas = 1\n\
             [cql]\nnodes = [\"{cql}\"]\nkeyspace = \"{name}\"\nbuckets = 64\nreplication = \"{{'class': 'SimpleStrategy', 'replication_factor': 1}}\"\n"
        );
        let engine = ["--kafka", &kafka, "--cql", &cql, "--class", &name, "--keyspace", &name, "--buckets", "64"];
        let bank = Self::new(tempfile::tempdir().expect("a folder"), &settings, engine.map(str::to_owned).to_vec());
        assert!(bank.command(&["migrate"]).status().expect("runs").success());
        bank
    }

    fn new(folder: tempfile::TempDir, settings: &str, engine: Vec<String>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let source = include_str!("../source.toml").replace("[declare]", "[source.declare]");
        let text = format!("{settings}\n[[source]]\n{source}");
        std::fs::write(folder.path().join("seriatim.toml"), text).expect("written");
        Self { folder, port, engine, edge: None, processor: None }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(seriatim());
        command.arg("--config").arg(self.folder.path().join("seriatim.toml")).args(arguments);
        command.env("SERIATIM_INGEST__LISTEN", format!("127.0.0.1:{}", self.port));
        command.env("SERIATIM_ADMIN__LISTEN", "127.0.0.1:0");
        command
    }

    fn log(&self, name: &str) -> std::fs::File {
        OpenOptions::new().create(true).append(true).open(self.folder.path().join(name)).expect("a file")
    }

    fn start_edge(&mut self) {
        let mut command = self.command(&["run", "--role", "ingest"]);
        self.edge = Some(command.stderr(self.log("edge.log")).stdout(Stdio::null()).spawn().expect("the edge starts"));
        let deadline = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < deadline, "the edge does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn start_processor(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_balance"));
        command.args(&self.engine).stdout(self.log("told")).stderr(self.log("processor.log"));
        self.processor = Some(command.spawn().expect("the processor starts"));
    }

    fn kill_processor(&mut self) {
        let mut processor = self.processor.take().expect("it was started");
        processor.kill().expect("it runs");
        processor.wait().expect("waited");
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.command(&[arguments, &["--output", "json"]].concat()).output().expect("runs");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn wait_processed(&self) {
        let deadline = Instant::now() + PATIENCE;
        let is_done = || self.json(&["lag"]).as_array().is_some_and(|all| all.iter().all(|l| l["lag"] == 0));
        while !is_done() {
            assert!(Instant::now() < deadline, "not processed within {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Bank {
    fn drop(&mut self) {
        for child in [&mut self.edge, &mut self.processor].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for name in ["edge.log", "processor.log"] {
                let text = std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
                text.lines().rev().take(10).for_each(|line| println!("{name}: {line}"));
            }
        }
    }
}

/// Payments, and what they come to.
struct Payments {
    deliveries: Vec<String>,
    expected: BTreeMap<String, (i64, u64)>,
}

impl Payments {
    /// A fifth of the deliveries are repeats.
    fn new(count: usize, rng: &mut SmallRng) -> Self {
        let mut expected: BTreeMap<String, (i64, u64)> = BTreeMap::new();
        let mut deliveries: Vec<String> = Vec::with_capacity(count);
        for number in 0..count * 4 / 5 {
            let (account, amount) =
                (format!("account-{}", rng.random_range(0..ACCOUNTS)), rng.random_range(-500..1000));
            deliveries.push(format!(r#"{{"id":"p{number}","account":"{account}","amount":{amount}}}"#));
            let (balance, payments) = expected.entry(account).or_default();
            (*balance, *payments) = (*balance + amount, *payments + 1);
        }
        while deliveries.len() < count {
            deliveries.push(deliveries.choose(rng).expect("there are some").clone());
        }
        deliveries.shuffle(rng);
        Self { deliveries, expected }
    }
}

fn sign(body: &str) -> String {
    let mut mac: Hmac<sha2::Sha256> = KeyInit::new_from_slice(SECRET.as_bytes()).expect("any length");
    mac.update(body.as_bytes());
    hex::encode(mac.finalize().into_bytes())
}

/// Sends all deliveries, each again until it is taken.
async fn send(url: String, deliveries: Vec<String>) {
    let (client, slots) = (reqwest::Client::new(), Arc::new(Semaphore::new(32)));
    let mut sending = Vec::new();
    for body in deliveries {
        let slot = slots.clone().acquire_owned().await.expect("never closed");
        let (client, url) = (client.clone(), url.clone());
        sending.push(tokio::spawn(async move {
            let taken = async || {
                let request = client.post(&url).header("x-signature", sign(&body)).body(body.clone());
                request.send().await.is_ok_and(|answer| answer.status().is_success())
            };
            while !taken().await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            drop(slot);
        }));
    }
    for task in sending {
        task.await.expect("it does not panic");
    }
}

fn balances_are_exact(mut bank: Bank) {
    let seed = std::env::var("SERIATIM_SEED").map_or_else(|_| rand::random(), |text| text.parse().expect("a number"));
    println!("SERIATIM_SEED={seed}");
    let count = std::env::var("SERIATIM_TEST_DELTAS").map_or(4000, |text| text.parse().expect("a number"));
    let payments = Payments::new(count, &mut SmallRng::seed_from_u64(seed));
    bank.start_edge();
    bank.start_processor();
    let url = format!("http://127.0.0.1:{}/in/bank/payments", bank.port);
    for deliveries in payments.deliveries.chunks(count.div_ceil(KILLS + 1)) {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(send(url.clone(), deliveries.to_vec()));
        bank.kill_processor();
        bank.start_processor();
    }
    bank.wait_processed();
    for (account, (balance, count)) in &payments.expected {
        let fold = &bank.json(&["object", "get", "bank", "payments", account])["fold"];
        assert_eq!((fold["balance"].as_i64(), fold["payments"].as_u64()), (Some(*balance), Some(*count)), "{account}");
    }
    check_told(&bank, &payments);
}

/// Each payment was told once, or marked, and the first time in the order of its account.
fn check_told(bank: &Bank, payments: &Payments) {
    let told = std::fs::read_to_string(bank.folder.path().join("told")).expect("something was told");
    let (mut seen, mut revs) = (HashSet::new(), HashMap::new());
    for line in told.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let [account, "payment", id, "rev", rev, ..] = words.as_slice() else { panic!("{line:?}") };
        if !seen.insert((*id).to_owned()) {
            assert!(line.ends_with("(perhaps again)"), "{line}: told before, and not marked");
            continue;
        }
        let rev: u64 = rev.parse().expect("a number");
        let last = revs.insert((*account).to_owned(), rev).unwrap_or(0);
        assert_eq!(rev, last + 1, "{line}: in order, and none left out");
    }
    let count: u64 = payments.expected.values().map(|(_, payments)| payments).sum();
    assert_eq!(seen.len() as u64, count, "each payment was told");
    println!("{} lines told for {count} payments", told.lines().count());
}
