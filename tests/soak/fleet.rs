//! All processes of a system under one configuration, kept running and watched.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use reqwest::Client;

use crate::process::{End, LIFE_VARIABLE, Life, Memory, Process, Role};
use crate::receiver::LIFE;
use crate::support::{BINARY, SECRET, free_port, source_of, wait_until};

/// How often what has ended is noticed.
const TEND: Duration = Duration::from_millis(100);
/// How often memory and metrics are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// Of a log, where a test fails.
const LINES_TOLD: usize = 8;
pub const TOKEN: &str = "a-token-that-the-soak-reads-with";
pub const TENANT: &str = "acme";
pub const SOURCE: &str = "hmac";

/// Snapshots, and one type that counts.
const DECLARE: &str = "declare = { object = 'body:/object', version = { from = 'body:/version', kind = 'integer' }, \
    events = [{ type = 'counted', mode = 'delta' }] }";

/// The configuration: `engine` is the part that says where log and store are.
pub fn config(engine: &str, receiver: &str) -> String {
    let source = source_of(TENANT, SOURCE, SECRET, DECLARE);
    format!(
        "{engine}\n\
         [[admin.tokens]]\nname = \"soak\"\nrole = \"read\"\ntoken = {{ value = \"{TOKEN}\" }}\n\
         [processor]\nlook_interval_ms = 5000\n\
         {source}\n\
         [[sink]]\nname = \"app\"\n\
         [sink.policy]\nretry_min_ms = 100\nretry_max_ms = 1000\nwait_after_ms = 5000\nfailures_max = 3\n\
         [sink.push]\nurl = \"{receiver}\"\nheaders = {{ {LIFE} = {{ env = \"{LIFE_VARIABLE}\" }} }}\n\
         timeout_ms = 2000\nallow_networks = [\"127.0.0.0/8\"]\n"
    )
}

pub struct Fleet {
    folder: PathBuf,
    pub processes: Vec<Arc<Process>>,
    stop: Arc<AtomicBool>,
    keeper: Option<JoinHandle<()>>,
}

impl Fleet {
    /// Nothing runs yet. The folder, with its logs, stays where a test fails.
    pub fn new(folder: PathBuf, config: &str) -> Self {
        std::fs::write(folder.join("seriatim.toml"), config).expect("written");
        Self { folder, processes: Vec::new(), stop: Arc::default(), keeper: None }
    }

    /// The binary, run by `runner` where there is one, with the configuration.
    pub fn command(&self, runner: &[String]) -> impl Fn() -> Command + Send + Sync + 'static {
        let words: Vec<String> = runner.iter().cloned().chain([BINARY.to_owned()]).collect();
        let config = self.folder.join("seriatim.toml");
        move || {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).arg("--config").arg(&config).env(LIFE_VARIABLE, "none");
            // Ours, and no setting.
            command.env_remove("SERIATIM_SEED");
            command
        }
    }

    pub fn migrate(&self) {
        let mut command = self.command(&[])();
        // What changes the schema may take its time on a busy machine.
        command.arg("migrate").env("SERIATIM_CQL__REQUEST_TIMEOUT_MS", "60000");
        let migrated = command.output().expect("the binary runs");
        assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    }

    /// A further process, not started. `nodes`: where it finds the store, where that is a place of its own.
    pub fn add(&mut self, role: Role, runner: &[String], nodes: Option<String>) -> Arc<Process> {
        let command = self.command(runner);
        let command = move || {
            let mut command = command();
            command.envs(nodes.iter().map(|nodes| ("SERIATIM_CQL__NODES", format!("[\"{nodes}\"]"))));
            command
        };
        let number = self.of(role).count() + 1;
        let process = Arc::new(Process::new(role, number, [free_port(), free_port()], &self.folder, command));
        self.processes.push(process.clone());
        process
    }

    pub fn of(&self, role: Role) -> impl Iterator<Item = &Arc<Process>> {
        self.processes.iter().filter(move |process| process.role == role)
    }

    /// From now on what is wanted is kept running.
    pub fn keep(&mut self) {
        let (processes, stop) = (self.processes.clone(), self.stop.clone());
        self.keeper = Some(std::thread::spawn(move || keep(&processes, &stop)));
    }

    pub fn wait_ready(&self, process: &Process) {
        wait_until(&format!("{} is ready", process.name), || is_ready(process));
    }

    /// Ready, and owner of something.
    pub fn wait_owner(&self, process: &Process) {
        self.wait_ready(process);
        let owns = || process.lives().last().is_some_and(|life| life.assigned > 0);
        wait_until(&format!("{} owns partitions", process.name), owns);
    }

    pub fn lives(&self) -> Vec<(Role, Life)> {
        let of = |process: &Arc<Process>| {
            let role = process.role;
            process.lives().into_iter().map(move |life| (role, life))
        };
        self.processes.iter().flat_map(of).collect()
    }

    pub fn log_lines(&self, text: &str) -> usize {
        self.processes.iter().map(|process| process.log().matches(text).count()).sum()
    }

    /// A file beside the logs.
    pub fn keep_file(&self, name: &str, text: &str) {
        std::fs::write(self.folder.join(name), text).expect("written");
    }

    /// Stops all, as an operator does: edges first.
    pub fn end(&self) {
        for role in [Role::All, Role::Edge, Role::Processor] {
            self.of(role).for_each(|process| process.terminate());
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
        self.processes.iter().for_each(|process| process.kill());
        if std::thread::panicking() {
            self.processes.iter().for_each(|process| tell_end(process));
        } else if std::env::var_os("SERIATIM_TEST_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.folder);
            return;
        }
        println!("configuration and logs stay in {}", self.folder.display());
    }
}

fn tell_end(process: &Process) {
    let log = process.log();
    let lines: Vec<_> = log.lines().rev().take(LINES_TOLD).collect();
    lines.iter().rev().for_each(|line| println!("{}: {line}", process.name));
}

fn is_ready(process: &Process) -> bool {
    let url = format!("http://127.0.0.1:{}/readyz", process.admin);
    crate::support::block_on(async { reqwest::get(url).await.is_ok_and(|answer| answer.status() == 200) })
}

fn keep(processes: &[Arc<Process>], stop: &AtomicBool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = Client::builder().timeout(LOOK).build().expect("a client");
    let mut looked = Instant::now();
    while !stop.load(Ordering::SeqCst) {
        processes.iter().for_each(|process| process.tend());
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            processes.iter().for_each(|process| weigh(process));
            runtime.block_on(futures::future::join_all(processes.iter().map(|process| look(&client, process))));
        }
        std::thread::sleep(TEND);
    }
}

fn weigh(process: &Process) {
    let Some(pid) = process.pid() else { return };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let Some(kib) = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()) else { return };
    process.note(|life| {
        // Until it has started it is not itself yet.
        if life.is_started {
            let Memory { first, most, .. } = life.memory.unwrap_or(Memory { first: kib, most: kib, last: kib });
            life.memory = Some(Memory { first, most: most.max(kib), last: kib });
        }
    });
}

async fn look(client: &Client, process: &Process) {
    if process.pid().is_none() {
        return;
    }
    let url = format!("http://127.0.0.1:{}/metrics", process.admin);
    let Ok(answer) = client.get(url).send().await else { return };
    let Ok(text) = answer.text().await else { return };
    let value = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or(0)
    };
    let (unknown, assigned) =
        (value("seriatim_processor_unknown_commits_total"), value("seriatim_processor_assigned_partitions"));
    process.note(|life| {
        life.is_started = true;
        life.unknown_commits = unknown.max(life.unknown_commits);
        life.assigned = assigned;
    });
}

/// Lives that ended by themselves after they had started.
pub fn fell(lives: &[(Role, Life)]) -> Vec<String> {
    let fell = |(_, life): &(Role, Life)| match life.end {
        Some(End::Itself(status)) if life.is_started => Some(format!("{} ended by itself with {status}", life.name)),
        _ => None,
    };
    lives.iter().filter_map(fell).collect()
}
