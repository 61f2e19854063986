//! Checked against the providers' own SDKs, both ways: what an SDK signs the edge accepts, what `send` signs an SDK
//! accepts, and neither takes a request with one byte changed. tests/sdk holds the pinned SDKs and the scripts.
//! Also the declaration of docs/custom-source.md, against the SDK of its provider.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{BINARY, Engine, Role, System, post, source};

/// A provider whose SDK is asked.
struct Peer {
    preset: &'static str,
    secret: &'static str,
    /// What its source says besides.
    declare: &'static str,
}

const PEERS: [Peer; 7] = [
    Peer { preset: "stripe", secret: "whsec_peer", declare: "" },
    Peer { preset: "github", secret: "a github secret", declare: "" },
    Peer { preset: "shopify", secret: "shpss_peer", declare: "" },
    Peer {
        preset: "standard_webhooks",
        secret: "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX",
        declare: "declare.object = 'body:/data/id'",
    },
    // By Svix.
    Peer { preset: "resend", secret: "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX", declare: "" },
    Peer { preset: "slack", secret: "8f742231b10e8888abcd99yyyzzz85a5", declare: "" },
    Peer {
        preset: "twilio",
        secret: "12345678901234567890123456789012",
        declare: "public_url = 'https://hooks.example.com/in/acme/twilio'",
    },
];

/// The presets that `send` signs for, and what the SDK says of each request as it was sent.
const SENT: [(&str, &str); 7] = [
    ("stripe", "accepted"),
    ("github", "accepted"),
    ("shopify", "accepted"),
    ("standard_webhooks", "accepted"),
    ("resend", "accepted"),
    ("slack", "accepted"),
    ("twilio", "accepted"),
];

const CUSTOM_SOURCE: &str = include_str!("../../docs/custom-source.md");
const LIVEKIT_SECRET: &str = "a secret of 32 bytes for livekit";

#[test]
fn what_an_sdk_signs_is_accepted_and_nothing_else() {
    let sdks = Sdks::install();
    let sources: String = PEERS.iter().map(|peer| source(peer.preset, peer.secret, peer.declare)).collect();
    let mut system = System::new(Engine::Embedded, &sources);
    system.start(Role::All);
    for peer in &PEERS {
        let event = event(peer.preset);
        let signed = sdks.sign(peer.preset, peer.secret, &event);
        let url = system.url("acme", peer.preset);
        assert_eq!(Request::of(&changed(&signed)).post(&url), 401, "{}: one byte changed", peer.preset);
        assert_eq!(Request::of(&signed).post(&url), 200, "{}: as the SDK signed it", peer.preset);
        system.wait_processed();
        let object = event["object"].as_str().expect("an object");
        let stored = system.json(&["object", "get", "acme", peer.preset, object]);
        assert_eq!(stored["rev"], 1, "{}: {object} is applied: {stored}", peer.preset);
        println!("{}: signed by the SDK, accepted and applied; changed, refused", peer.preset);
    }
    assert_eq!(system.log_count(), PEERS.len() as i64, "a refused request leaves no trace");
    assert_eq!(system.json(&["dead", "list"]), json!([]));
}

#[test]
fn what_send_signs_an_sdk_accepts() {
    let sdks = Sdks::install();
    let sources: String = PEERS.iter().map(|peer| source(peer.preset, peer.secret, peer.declare)).collect();
    let system = System::new(Engine::Embedded, &sources);
    for (preset, expected) in SENT {
        let peer = PEERS.iter().find(|peer| peer.preset == preset).expect("a peer");
        let mut receiver = sdks.receiver(preset, peer.secret);
        let url = format!("http://127.0.0.1:{}/in/acme/{preset}", receiver.port);
        let report = system.json(&["send", "--preset", preset, "--url", &url, "--count", "5", "--seed", "3"]);
        // Events that are made are counted, examples are listed.
        let sent = report["answered_2xx"].as_u64().or(report.as_array().map(|all| all.len() as u64));
        let sent = sent.filter(|sent| *sent > 0).expect("something is sent");
        for _ in 0..sent {
            let verdict = receiver.verdict();
            assert_eq!(verdict["as_sent"], expected, "{preset}");
            // For another reason than what it may find in the request as it was sent.
            let changed = verdict["changed"].as_str().expect("a verdict");
            assert!(changed.starts_with("refused") && changed != expected, "{preset}: one byte changed: {changed}");
        }
        println!("{preset}: the SDK says of {sent} requests that send signed: {expected}; changed, refused");
    }
}

#[test]
fn the_declaration_of_the_tutorial_fits_its_provider() {
    let sdks = Sdks::install();
    let variables = [("LIVEKIT_API_SECRET", LIVEKIT_SECRET)];
    let mut system = System::with_variables(Engine::Embedded, block("toml"), "", &variables);
    system.start(Role::All);
    let url = system.url("acme", "livekit");
    // One event of each kind that the declaration tells apart, the later of two first.
    let events = [
        ("room_finished", "RM_1", 20, json!({ "room": { "sid": "RM_1" } })),
        ("room_started", "RM_1", 20, json!({ "room": { "sid": "RM_1" } })),
        ("participant_left", "PA_1", 15, participant()),
        ("participant_joined", "PA_1", 10, participant()),
        ("participant_connection_aborted", "PA_1", 5, participant()),
        ("track_published", "TR_1", 11, json!({ "track": { "sid": "TR_1" }, "room": { "sid": "RM_1" } })),
        ("egress_ended", "EG_1", 16, json!({ "egressInfo": { "egressId": "EG_1", "roomId": "RM_1" } })),
        ("ingress_started", "IN_1", 17, json!({ "ingressInfo": { "ingressId": "IN_1" } })),
    ];
    for (name, object, at, rest) in &events {
        let mut body =
            json!({ "event": name, "id": format!("EV_{name}"), "createdAt": (1_735_689_600 + at).to_string() });
        let fields = body.as_object_mut().expect("an object");
        fields.extend(rest.as_object().expect("an object").clone());
        let event = json!({ "headers": { "content-type": "application/webhook+json" }, "body": body.to_string() });
        let signed = sdks.sign("livekit", LIVEKIT_SECRET, &event);
        assert_eq!(Request::of(&changed(&signed)).post(&url), 401, "{name}: one byte changed");
        assert_eq!(Request::of(&signed).post(&url), 200, "{name}: as the SDK signed it");
        system.wait_processed();
        assert_ne!(system.json(&["object", "get", "acme", "livekit", object]), Value::Null, "{name}");
    }
    let outcome = |name: &str| {
        let trace = system.json(&["event", "trace", "acme", "livekit", &format!("EV_{name}")]);
        trace[0]["outcome"].as_str().expect("an outcome").to_owned()
    };
    let outcomes = events.each_ref().map(|(name, ..)| outcome(name));
    assert_eq!(
        outcomes.each_ref().map(String::as_str),
        ["applied", "stale", "applied", "stale", "applied", "applied", "applied", "applied"]
    );
    assert_eq!(system.json(&["dead", "list"]), json!([]));
    assert_eq!(system.log_count(), events.len() as i64, "a refused request leaves no trace");
}

fn participant() -> Value {
    json!({ "participant": { "sid": "PA_1", "identity": "ada" }, "room": { "sid": "RM_1" } })
}

#[test]
fn the_commands_of_the_tutorial_show_what_it_sent() {
    let sdks = Sdks::install();
    let variables = [("LIVEKIT_API_SECRET", LIVEKIT_SECRET)];
    let mut system = System::with_variables(Engine::Embedded, block("toml"), "", &variables);
    system.start(Role::All);
    sdks.write("try.mjs", block("js"));
    let mut node = sdks.node(&["try.mjs", &system.url("acme", "livekit")]);
    let output = node.env("LIVEKIT_API_SECRET", LIVEKIT_SECRET).output().expect("node runs");
    assert_eq!(stdout_of(&output, "try.mjs"), "200\n");
    system.wait_processed();
    let blocks = CUSTOM_SOURCE.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let commands = blocks.flat_map(str::lines).filter_map(|line| line.strip_prefix("seriatim --config livekit.toml "));
    let mut ran = 0;
    for command in commands.filter(|command| *command != "run") {
        let arguments: Vec<_> = command.split(' ').collect();
        stdout_of(&system.cli(&arguments), command);
        ran += 1;
    }
    assert_eq!(ran, 4);
}

#[test]
fn check_says_each_mistake_of_the_tutorial() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("livekit.toml");
    let check = |text: &str| {
        std::fs::write(&path, text).expect("written");
        let mut command = Command::new(BINARY);
        command.arg("--config").arg(&path).arg("check").env("LIVEKIT_API_SECRET", LIVEKIT_SECRET);
        command.output().expect("runs")
    };
    let good = block("toml");
    assert_eq!(check(good).status.code(), Some(0));
    let rows: Vec<[&str; 3]> = CUSTOM_SOURCE.lines().filter_map(mistake).collect();
    assert_eq!(rows.len(), 6);
    for [right, wrong, said] in rows {
        assert!(good.contains(right), "{right} is not in the declaration");
        let output = check(&good.replace(right, wrong));
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && err.contains(said), "{said}\nis not in\n{err}");
    }
}

/// A line of the table of mistakes: what is right, what is written instead, what `check` says.
fn mistake(line: &'static str) -> Option<[&'static str; 3]> {
    let cells: Vec<_> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
    let [right, wrong, said] = cells.as_slice() else { return None };
    let is_code = [right, wrong, said].iter().all(|cell| cell.starts_with('`') && cell.ends_with('`'));
    is_code.then(|| [code(right), code(wrong), code(said).trim()])
}

/// The text of a code span, which stands in one backtick or, with backticks in it, in two.
fn code(cell: &str) -> &str {
    let fence = if cell.starts_with("``") { 2 } else { 1 };
    &cell[fence..cell.len() - fence]
}

/// The one block of a language in the tutorial.
fn block(language: &str) -> &'static str {
    let fence = format!("```{language}\n");
    let mut parts = CUSTOM_SOURCE.split(fence.as_str()).skip(1);
    let text = parts.next().and_then(|rest| rest.split("```").next()).expect("a block");
    assert!(parts.next().is_none(), "one {language} block only");
    text
}

/// An event as the provider sends it, unsigned, with the object that it is about.
fn event(preset: &str) -> Value {
    if preset == "standard_webhooks" {
        let body = r#"{"type":"user.updated","timestamp":"2024-05-01T12:00:00.5Z","data":{"id":"usr_1","name":"Ada"}}"#;
        return json!({ "headers": { "content-type": "application/json" }, "body": body, "object": "usr_1" });
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("schemas/examples/{preset}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let examples: Value = serde_json::from_str(&text).expect("JSON");
    let request = &examples["requests"][0];
    json!({ "headers": lower(&request["headers"]), "body": request["body"], "object": request["events"][0]["object"] })
}

/// Header names in lower case, as the scripts take them.
fn lower(headers: &Value) -> Value {
    let pairs = headers.as_object().expect("headers").iter();
    pairs.map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect::<serde_json::Map<_, _>>().into()
}

/// The request with one byte of its body changed: the last letter or digit.
fn changed(signed: &Value) -> Value {
    let mut body = signed["body"].as_str().expect("a body").as_bytes().to_vec();
    let at = body.iter().rposition(u8::is_ascii_alphanumeric).expect("a letter or a digit");
    body[at] = if body[at] == b'1' { b'2' } else { b'1' };
    let mut other = signed.clone();
    other["body"] = String::from_utf8(body).expect("text").into();
    other
}

/// What is posted.
struct Request {
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    fn of(signed: &Value) -> Self {
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let headers = signed["headers"].as_object().expect("headers").iter();
        let headers = headers.map(|(name, value)| (name.clone(), text(value))).collect();
        Self { headers, body: text(&signed["body"]).into_bytes() }
    }

    fn post(&self, url: &str) -> u16 {
        let headers: Vec<_> = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        post(url, &headers, &self.body)
    }
}

/// A folder with the scripts of tests/sdk and the installed SDKs.
struct Sdks {
    folder: TempDir,
}

impl Sdks {
    fn install() -> Self {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk");
        let output = Command::new(scripts.join("install")).output().expect("tests/sdk/install runs");
        let modules = PathBuf::from(stdout_of(&output, "tests/sdk/install").trim_end());
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["providers.mjs", "sign.mjs", "verify.mjs"] {
            std::fs::copy(scripts.join(name), folder.path().join(name)).expect("copied");
        }
        std::os::unix::fs::symlink(modules, folder.path().join("node_modules")).expect("linked");
        Self { folder }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).expect("written");
    }

    fn node(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("node");
        command.args(arguments).current_dir(self.folder.path());
        command
    }

    /// The event with the headers by which the SDK signs it.
    fn sign(&self, provider: &str, secret: &str, event: &Value) -> Value {
        let url = format!("https://hooks.example.com/in/acme/{provider}");
        let request = json!({ "secret": secret, "url": url, "headers": event["headers"], "body": event["body"] });
        let mut node = self.node(&["sign.mjs", provider]);
        let mut child = node.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("node");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(request.to_string().as_bytes()).expect("written");
        drop(stdin);
        let output = child.wait_with_output().expect("node ends");
        serde_json::from_str(&stdout_of(&output, provider)).expect("JSON")
    }

    /// A server that asks the SDK about each request that it gets.
    fn receiver(&self, provider: &str, secret: &str) -> Receiver {
        let url = format!("https://hooks.example.com/in/acme/{provider}");
        let mut node = self.node(&["verify.mjs", provider, secret, &url]);
        let mut child = node.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("node");
        let stdin = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut port = String::new();
        lines.read_line(&mut port).expect("a port");
        Receiver { port: port.trim().parse().expect("a port"), child, stdin, lines }
    }
}

struct Receiver {
    port: u16,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

impl Receiver {
    /// What the SDK said of the next request.
    fn verdict(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

/// What a program printed, which must have succeeded.
fn stdout_of(output: &Output, what: &str) -> String {
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}
