//! Servers of a test alone: they may be stopped, killed and started again, and keep their data and ports. They end with
//! the test, however it ends.

// Two test binaries share it, and each uses a part.
#![allow(dead_code)]

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Waits for the end of its input, which is that of the test's process; then nothing is left.
const KEEPER: &str = r#"read -r _; "$0" stop "$1" 2>/dev/null; rm -rf "$1""#;

pub struct OwnServers {
    folder: PathBuf,
    keeper: Child,
}

impl OwnServers {
    /// `names`: `kafka`, `cassandra`, or both.
    pub fn start(names: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder").keep();
        let servers = Self { keeper: keep(&folder), folder };
        servers.run("start", names);
        servers
    }

    /// Starts one again, and waits until it answers.
    pub fn start_again(&self, name: &str) {
        self.run("start", &[name]);
    }

    /// Ends one as an operator does.
    pub fn stop(&self, name: &str) {
        self.run("stop", &[name]);
    }

    /// `kill -9`.
    pub fn kill(&self, name: &str) {
        let pid = std::fs::read_to_string(self.folder.join(format!("{name}.pid"))).expect("it was started");
        let sent = Command::new("kill").args(["-KILL", pid.trim()]).status();
        assert!(sent.expect("kill runs").success(), "{name} does not run");
        // It is no child of ours: nobody tells of its end.
        while is_running(pid.trim()) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// HOST:PORT of the broker.
    pub fn kafka(&self) -> String {
        self.address("SERIATIM_KAFKA")
    }

    /// HOST:PORT of the store.
    pub fn cql(&self) -> String {
        self.address("SERIATIM_CQL")
    }

    fn address(&self, variable: &str) -> String {
        let text = std::fs::read_to_string(self.folder.join("env")).expect("it was started");
        let prefix = format!("{variable}=");
        text.lines().find_map(|line| line.strip_prefix(&prefix)).expect("an address").to_owned()
    }

    fn run(&self, verb: &str, names: &[&str]) {
        // The server lives on after the command: it must not hold the pipes of this test.
        let path = self.folder.join("servers.log");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&path).expect("a log");
        let mut command = Command::new(script());
        // One node alone: what it has acknowledged must survive its kill, as it does where there are three.
        command.arg(verb).arg(&self.folder).args(names).env("SERIATIM_TEST_DURABLE", "1");
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).status();
        let text = std::fs::read_to_string(path).unwrap_or_default();
        assert!(status.expect("the script runs").success(), "servers {verb}: {text}");
    }
}

impl Drop for OwnServers {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("infra/local/servers")
}

/// In a group of its own: whoever ends the group of the tests does not end it.
fn keep(folder: &Path) -> Child {
    let mut command = Command::new("bash");
    command.args(["-c", KEEPER]).arg(script()).arg(folder);
    command
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("bash runs")
}

/// Not where it is gone, or dead and nobody has looked yet.
fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}
