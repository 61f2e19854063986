//! A running system with ports, folders, a topic and a keyspace of its own; stopped when dropped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

pub const BINARY: &str = env!("CARGO_BIN_EXE_seriatim");
pub const SECRET: &str = "whsec_test";
/// How long anything may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Embedded,
    Distributed,
}

/// Makes of each function a test on each engine.
macro_rules! on_each_engine {
    ($($test:ident),+ $(,)?) => {
        mod embedded {
            $(
                #[test]
                fn $test() {
                    super::$test(crate::support::Engine::Embedded);
                }
            )+
        }
        mod distributed {
            $(
                #[test]
                fn $test() {
                    super::$test(crate::support::Engine::Distributed);
                }
            )+
        }
    };
}

/// The parts of a system, each a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    All,
    Ingest,
    Processor,
}

pub struct System {
    pub engine: Engine,
    pub folder: TempDir,
    /// Port of the last edge that was started.
    pub edge: u16,
    /// Admin port of the last process that was started.
    pub admin: u16,
    /// What the environment lays over the configuration, of processes and of commands.
    variables: Vec<(String, String)>,
    children: Vec<(Role, Child)>,
}

/// A source of tenant `acme` named after its preset.
pub fn source(preset: &str, secret: &str, declare: &str) -> String {
    source_of("acme", preset, secret, declare)
}

pub fn source_of(tenant: &str, preset: &str, secret: &str, declare: &str) -> String {
    format!(
        "[[source]]\ntenant = \"{tenant}\"\nname = \"{preset}\"\npreset = \"{preset}\"\nsecrets = [{{ value = \"{secret}\" }}]\n{declare}\n"
    )
}

/// Where a server that the tests need listens.
pub fn server(variable: &str) -> String {
    let remedy = "run the tests by: infra/local/servers run -- cargo test --workspace";
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: {remedy}"))
}

/// A port below those that the system gives to outgoing connections, and below those of the servers: nobody gets it
/// meanwhile, and no connection to it meets itself.
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 10_000;
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let begin = (std::process::id() % u32::from(COUNT)) as u16;
    let next = || FIRST + (begin + TAKEN.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT;
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (0..COUNT).map(|_| next()).find(is_free).expect("a free port")
}

impl System {
    /// A system with `sources` (TOML), not started.
    pub fn new(engine: Engine, sources: &str) -> Self {
        Self::with_settings(engine, sources, "")
    }

    /// `settings`: TOML that goes before the sources, such as `[ingest]` and what is in it.
    pub fn with_settings(engine: Engine, sources: &str, settings: &str) -> Self {
        Self::with_variables(engine, sources, settings, &[])
    }

    /// `variables`: settings by their names in the environment, such as `SERIATIM_KAFKA__BROKERS`.
    pub fn with_variables(engine: Engine, sources: &str, settings: &str, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let system = Self { engine, folder, edge: free_port(), admin: free_port(), variables, children: Vec::new() };
        std::fs::write(system.config(), system.config_text(sources, settings)).expect("written");
        if engine == Engine::Distributed {
            let migrated = system.cli(&["migrate"]);
            assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
        }
        system
    }

    fn config_text(&self, sources: &str, settings: &str) -> String {
        let path = |name: &str| self.path(name).display().to_string();
        let servers = match self.engine {
            Engine::Embedded => format!("engine = \"embedded\"\ndata = \"{}\"\n", path("data")),
            Engine::Distributed => {
                let name = format!("t{}", uuid::Uuid::new_v4().simple());
                let name = &name[..24];
                format!(
                    "engine = \"distributed\"\n[kafka]\nbrokers = \"{}\"\nclass = \"{name}\"\npartitions = 4\nreplication = 1\nmin_insync_replicas = 1\n\
                     [cql]\nnodes = [\"{}\"]\nkeyspace = \"{name}\"\nbuckets = 64\nreplication = \"{{'class': 'SimpleStrategy', 'replication_factor': 1}}\"\n",
                    server("SERIATIM_KAFKA"),
                    server("SERIATIM_CQL")
                )
            }
        };
        format!(
            "{servers}{settings}\n{sources}\n[[sink]]\nname = \"effects\"\njson_lines = {{ path = \"{}\" }}\n",
            path("effects.jsonl")
        )
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn config(&self) -> PathBuf {
        self.path("seriatim.toml")
    }

    /// Starts a process and waits until it is ready.
    pub fn start(&mut self, role: Role) {
        self.spawn(role);
        if role == Role::Ingest {
            let url = format!("http://127.0.0.1:{}/", self.edge);
            wait_until("listening", || status_of(&url).is_some());
        } else {
            self.wait_ready();
        }
    }

    pub fn spawn(&mut self, role: Role) {
        if role != Role::Ingest {
            self.admin = free_port();
        }
        // A further edge has a port of its own; the one that is started again keeps the old one.
        if role == Role::Ingest && self.children.iter().any(|(r, _)| *r == role) {
            self.edge = free_port();
        }
        let admin = if role == Role::Ingest { free_port() } else { self.admin };
        let name = match role {
            Role::All => "all",
            Role::Ingest => "ingest",
            Role::Processor => "processor",
        };
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path(&format!("{name}.log")))
            .expect("a log file");
        let child = self
            .command(&["run", "--role", name])
            .env("SERIATIM_ADMIN__LISTEN", format!("127.0.0.1:{admin}"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the binary starts");
        self.children.push((role, child));
    }

    /// Process id of a running part.
    pub fn pid(&self, role: Role) -> u32 {
        self.children.iter().find(|(r, _)| *r == role).expect("it was started").1.id()
    }

    pub fn wait_ready(&self) {
        let url = format!("http://127.0.0.1:{}/readyz", self.admin);
        wait_until("ready", || status_of(&url) == Some(200));
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.arg("--config").arg(self.config()).args(arguments);
        command.env("SERIATIM_INGEST__LISTEN", format!("127.0.0.1:{}", self.edge));
        command.env("SERIATIM_ADMIN__LISTEN", format!("127.0.0.1:{}", self.admin));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    pub fn cli(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary runs")
    }

    /// The JSON that a command prints; null where it says "not found".
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.cli(&[arguments, &["--output", "json"]].concat());
        match output.status.code() {
            Some(0) => serde_json::from_slice(&output.stdout).expect("JSON"),
            Some(3) => Value::Null,
            _ => panic!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)),
        }
    }

    /// All dead letters, whole: a list leaves out what they hold.
    pub fn whole_letters(&self) -> Vec<Value> {
        let all = self.json(&["dead", "list"]);
        let text = |letter: &Value, field: &str| letter[field].as_str().expect("text").to_owned();
        let show = |letter: &Value| {
            let [tenant, source, record] = ["tenant", "source", "record"].map(|field| text(letter, field));
            self.json(&["dead", "show", &tenant, &source, &record])
        };
        all.as_array().expect("a list").iter().map(show).collect()
    }

    pub fn url(&self, tenant: &str, source: &str) -> String {
        format!("http://127.0.0.1:{}/in/{tenant}/{source}", self.edge)
    }

    /// Waits until all that is in the log is done.
    pub fn wait_processed(&self) {
        wait_until("processed", || {
            let lags = self.json(&["lag"]);
            lags.as_array().is_some_and(|all| all.iter().all(|l| l["lag"] == 0))
        });
    }

    /// Effects so far, in the order of the file.
    pub fn effects(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path("effects.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// Records in the log.
    pub fn log_count(&self) -> i64 {
        let lags = self.json(&["lag"]);
        let first = if self.engine == Engine::Embedded { 1 } else { 0 };
        lags.as_array().map_or(0, |all| all.iter().map(|l| l["next"].as_i64().unwrap_or(0) - first).sum())
    }

    /// The value of a metric without labels, or the sum over its labels.
    pub fn metric(&self, name: &str) -> f64 {
        let url = format!("http://127.0.0.1:{}/metrics", self.admin);
        let text = get_text(&url).unwrap_or_default();
        let value = |line: &str| {
            let rest = line.strip_prefix(name)?;
            rest.starts_with([' ', '{']).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
        };
        text.lines().filter_map(value).sum()
    }

    /// Ends a process at once, as a crash does.
    pub fn kill(&mut self, role: Role) {
        self.end(role, |child| child.kill().expect("it runs"));
    }

    /// Ends a process as an orchestrator does; it must end by itself, well.
    pub fn terminate(&mut self, role: Role) {
        self.end(role, |child| {
            let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
            assert!(sent.expect("kill runs").success());
            let deadline = Instant::now() + Duration::from_secs(30);
            loop {
                match child.try_wait().expect("waited") {
                    Some(status) => break assert!(status.success(), "{status}"),
                    None => assert!(Instant::now() < deadline, "SIGTERM was not followed within 30 s"),
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
    }

    fn end(&mut self, role: Role, how: impl Fn(&mut Child)) {
        let at = self.children.iter().position(|(r, _)| *r == role).expect("it was started");
        let (_, mut child) = self.children.remove(at);
        how(&mut child);
        child.wait().expect("waited");
    }
}

impl Drop for System {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for name in ["all.log", "ingest.log", "processor.log"] {
                let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
                let last: Vec<_> = text.lines().rev().take(15).collect();
                last.iter().rev().for_each(|line| println!("{name}: {line}"));
            }
        }
    }
}

pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not {what} within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Runs a future to its end.
pub fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

fn status_of(url: &str) -> Option<u16> {
    block_on(async { Some(reqwest::get(url).await.ok()?.status().as_u16()) })
}

pub fn get_text(url: &str) -> Option<String> {
    block_on(async { reqwest::get(url).await.ok()?.text().await.ok() })
}

/// Posts and returns the status; panics where there is no answer at all.
pub fn post(url: &str, headers: &[(&str, &str)], body: &[u8]) -> u16 {
    try_post(url, headers, body).expect("an answer")
}

/// Posts and returns status and body of the answer.
pub fn exchange(url: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, String) {
    block_on(async {
        let mut request = reqwest::Client::new().post(url).body(body.to_vec());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    })
}

pub fn try_post(url: &str, headers: &[(&str, &str)], body: &[u8]) -> Option<u16> {
    block_on(async {
        let mut request = reqwest::Client::new().post(url).body(body.to_vec());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Some(request.send().await.ok()?.status().as_u16())
    })
}

/// HMAC-SHA256 in hex: what preset `hmac` verifies, in header X-Signature.
pub fn sign(secret: &str, body: &[u8]) -> String {
    use hmac::{Hmac, KeyInit, Mac};
    let mut mac: Hmac<sha2::Sha256> = KeyInit::new_from_slice(secret.as_bytes()).expect("any length");
    mac.update(body);
    hex::encode(mac.finalize().into_bytes())
}

/// Posts a body to a source with preset `hmac`, signed with [`SECRET`].
pub fn send_hmac(system: &System, tenant: &str, source: &str, body: &[u8]) -> u16 {
    post(&system.url(tenant, source), &[("x-signature", &sign(SECRET, body))], body)
}

/// A file under tests/data.
pub fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
