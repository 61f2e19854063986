//! One process of the system, through all its lives: it is started again whenever it has ended and is still wanted, as an
//! orchestrator does.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// From SIGTERM to an end that we bring about.
const STOP_MAX: Duration = Duration::from_secs(60);
/// From the start of a process that ended by itself to the next.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Names a life to the receiver, in the header [`crate::receiver::LIFE`].
pub const LIFE_VARIABLE: &str = "SOAK_LIFE";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    All,
    Edge,
    Processor,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Edge => "ingest",
            Self::Processor => "processor",
        }
    }
}

/// Resident memory, in KiB.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    pub first: u64,
    pub most: u64,
    pub last: u64,
}

#[derive(Debug, Clone)]
pub enum End {
    Killed,
    /// By SIGTERM: how long it took, and with which status.
    Terminated(Duration, ExitStatus),
    Itself(ExitStatus),
}

/// From a start to an end.
#[derive(Debug, Clone)]
pub struct Life {
    pub name: String,
    begun: Instant,
    /// Whether its admin port ever answered.
    pub is_started: bool,
    /// When each of its halts began.
    pub halts: Vec<Instant>,
    /// No other one of its process came after it.
    pub is_last: bool,
    pub end: Option<End>,
    pub memory: Option<Memory>,
    /// As last seen.
    pub unknown_commits: u64,
    pub assigned: u64,
}

impl Life {
    fn new(name: String) -> Self {
        let (begun, halts) = (Instant::now(), Vec::new());
        let (end, memory) = (None, None);
        Self { name, begun, is_started: false, halts, is_last: true, end, memory, unknown_commits: 0, assigned: 0 }
    }

    /// One that was halted at some time.
    pub fn halted(name: &str, at: Instant) -> Self {
        Self { halts: vec![at], ..Self::new(name.to_owned()) }
    }
}

struct State {
    child: Option<Child>,
    is_wanted: bool,
    /// Somebody waits for its end.
    is_stopping: bool,
    lives: Vec<Life>,
}

pub struct Process {
    pub role: Role,
    /// Such as `processor-1`.
    pub name: String,
    pub edge: u16,
    pub admin: u16,
    command: Box<dyn Fn() -> Command + Send + Sync>,
    log: PathBuf,
    state: Mutex<State>,
}

impl Process {
    /// `command`: the binary with its configuration, to which the role is added.
    pub fn new(
        role: Role,
        number: usize,
        [edge, admin]: [u16; 2],
        folder: &Path,
        command: impl Fn() -> Command + Send + Sync + 'static,
    ) -> Self {
        let name = format!("{}-{number}", role.name());
        let log = folder.join(format!("{name}.log"));
        let state = State { child: None, is_wanted: false, is_stopping: false, lives: Vec::new() };
        Self { role, name, edge, admin, command: Box::new(command), log, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    pub fn lives(&self) -> Vec<Life> {
        self.state().lives.clone()
    }

    /// Changes what is known of the life that runs.
    pub fn note(&self, change: impl FnOnce(&mut Life)) {
        let mut state = self.state();
        if state.child.is_some() {
            state.lives.last_mut().map(change);
        }
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.state().child.as_ref().map(Child::id)
    }

    /// From now on it is there, or is started.
    pub fn want(&self) {
        self.state().is_wanted = true;
    }

    /// Notices an end, and starts what is wanted and does not run.
    pub fn tend(&self) {
        let mut state = self.state();
        if state.is_stopping {
            return;
        }
        if let Some(status) = state.child.as_mut().and_then(|child| child.try_wait().expect("waited")) {
            end(&mut state, End::Itself(status));
        } else if state.child.is_none() && state.is_wanted && !is_too_soon(&state) {
            let life = format!("{}.{}", self.name, state.lives.len() + 1);
            state.child = Some(self.spawn(&life));
            state.lives.iter_mut().for_each(|life| life.is_last = false);
            state.lives.push(Life::new(life));
        }
    }

    fn spawn(&self, life: &str) -> Child {
        let log = OpenOptions::new().create(true).append(true).open(&self.log).expect("a log file");
        let mut command = (self.command)();
        command.args(["run", "--role", self.role.name()]);
        command.env("SERIATIM_INGEST__LISTEN", format!("127.0.0.1:{}", self.edge));
        command.env("SERIATIM_ADMIN__LISTEN", format!("127.0.0.1:{}", self.admin));
        command.env(LIFE_VARIABLE, life).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().expect("the binary starts")
    }

    /// `kill -9`.
    pub fn kill(&self) {
        let mut state = self.state();
        if let Some(child) = &mut state.child {
            child.kill().expect("killed");
            child.wait().expect("waited");
            end(&mut state, End::Killed);
        }
    }

    /// SIGSTOP, and SIGCONT after a while.
    pub fn halt(&self, time: Duration) {
        let Some(pid) = self.pid() else { return };
        self.note(|life| life.halts.push(Instant::now()));
        signal(pid, "-STOP");
        std::thread::sleep(time);
        signal(pid, "-CONT");
    }

    /// SIGTERM, and waits for its end; it is not started before [`Process::want`] says so.
    pub fn terminate(&self) {
        let pid = {
            let mut state = self.state();
            state.is_wanted = false;
            state.is_stopping = state.child.is_some();
            state.child.as_ref().map(Child::id)
        };
        let Some(pid) = pid else { return };
        let begun = Instant::now();
        signal(pid, "-TERM");
        let mut status = None;
        while status.is_none() && begun.elapsed() < STOP_MAX {
            std::thread::sleep(Duration::from_millis(10));
            status = self.state().child.as_mut().and_then(|child| child.try_wait().expect("waited"));
        }
        let mut state = self.state();
        let Some(child) = &mut state.child else { return };
        let _ = child.kill();
        let status = status.unwrap_or_else(|| child.wait().expect("waited"));
        end(&mut state, End::Terminated(begun.elapsed(), status));
        state.is_stopping = false;
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn is_too_soon(state: &State) -> bool {
    let ended_itself = |life: &&Life| matches!(life.end, Some(End::Itself(_)));
    state.lives.last().filter(ended_itself).is_some_and(|life| life.begun.elapsed() < AGAIN_AFTER)
}

fn end(state: &mut State, how: End) {
    state.child = None;
    state.lives.last_mut().expect("it lived").end = Some(how);
}

fn signal(pid: u32, name: &str) {
    // It may have ended meanwhile.
    let _ = Command::new("kill").args([name, &pid.to_string()]).stderr(Stdio::null()).status();
}
