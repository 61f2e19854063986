//! What a person types: help, checks, exit codes.

use std::process::{Command, Stdio};

use crate::support::{BINARY, Engine, Role, System, free_port, send_hmac, source, wait_until};

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(BINARY).args(arguments).current_dir(std::env::temp_dir()).output().expect("runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn help_teaches() {
    let (code, out, _) = run(&["--help"]);
    assert_eq!(code, Some(0));
    for word in ["dev", "send", "event trace", "Exit codes"] {
        assert!(out.contains(word), "{word} is not in\n{out}");
    }
    let commands =
        ["dev", "run", "check", "migrate", "send", "source", "object", "event", "dead", "lag", "tail", "completions"];
    for command in commands {
        let (code, out, _) = run(&[command, "--help"]);
        assert!(code == Some(0) && out.len() > 100, "{command}: {out}");
    }
}

#[test]
fn a_bad_configuration_is_told_whole_with_exit_code_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("bad.toml");
    let text = "[ingest]\nlisten = \"nowhere\"\nbody_byte_max = 1\n[[source]]\ntenant = \"a\"\nname = \"b\"\npreset = \"stripe\"\nsecrets = []\n";
    std::fs::write(&path, text).expect("written");
    let (code, out, err) = run(&["--config", &path.display().to_string(), "check"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    for mistake in
        ["bad.toml:2:10: ingest.listen", "bad.toml:3:1: ingest.body_byte_max", "bad.toml:8:11: source.0.secrets"]
    {
        assert!(err.contains(mistake), "{mistake} is not in\n{err}");
    }
    assert!(!err.contains("panicked"), "{err}");
}

#[test]
fn an_empty_secret_stops_the_start() {
    let system = System::new(
        Engine::Embedded,
        &source("stripe", "x", "").replace("{ value = \"x\" }", "{ env = \"SERIATIM_TEST_EMPTY\" }"),
    );
    for value in [None, Some("")] {
        let mut command = system.command(&["run"]);
        match value {
            Some(value) => command.env("SERIATIM_TEST_EMPTY", value),
            None => command.env_remove("SERIATIM_TEST_EMPTY"),
        };
        let output = command.output().expect("runs");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && err.contains("SERIATIM_TEST_EMPTY"), "{err}");
    }
}

#[test]
fn what_is_missing_has_exit_code_3() {
    let mut system = System::new(Engine::Embedded, &source("hmac", "whsec_test", "declare.object = 'body:/o'"));
    system.start(Role::All);
    for arguments in [
        vec!["object", "get", "acme", "hmac", "x"],
        vec!["event", "trace", "acme", "hmac", "x"],
        vec!["dead", "show", "acme", "hmac", "x"],
    ] {
        assert_eq!(system.cli(&arguments).status.code(), Some(3), "{arguments:?}");
    }
}

#[test]
fn a_second_process_on_the_same_files_refuses() {
    let mut system = System::new(Engine::Embedded, &source("stripe", "x", ""));
    system.start(Role::All);
    let output = system
        .command(&["run"])
        .env("SERIATIM_INGEST__LISTEN", format!("127.0.0.1:{}", free_port()))
        .output()
        .expect("runs");
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && err.contains("in use by another process"), "{err}");
}

#[test]
fn an_event_can_be_followed_from_its_bytes_to_its_effect_embedded() {
    follow(Engine::Embedded);
}

#[test]
fn an_event_can_be_followed_from_its_bytes_to_its_effect_distributed() {
    follow(Engine::Distributed);
}

fn follow(engine: Engine) {
    let declare = "declare = { object = 'body:/o', version = { from = 'body:/v', kind = 'integer' } }";
    let mut system = System::new(engine, &source("hmac", "whsec_test", declare));
    system.start(Role::All);
    let body = br#"{ "id": "e1", "o": "x", "v": 1 }"#;
    for _ in 0..3 {
        assert_eq!(send_hmac(&system, "acme", "hmac", body), 200);
    }
    assert_eq!(send_hmac(&system, "acme", "hmac", br#"{"id":"e2","o":"x","v":"no number"}"#), 200);
    system.wait_processed();
    let trace = system.json(&["event", "trace", "acme", "hmac", "e1"]);
    let outcomes: Vec<_> =
        trace.as_array().expect("arrivals").iter().map(|a| a["outcome"].as_str().expect("text")).collect();
    assert_eq!(outcomes, ["applied", "duplicate", "duplicate"]);
    assert_eq!(trace[0]["rev"], 1);
    assert!(trace[1]["rev"].is_null());
    assert_eq!(system.effects().len(), 1);
    let raw = system.cli(&["event", "raw", "acme", "hmac", "e1"]);
    assert_eq!(raw.stdout, body);
    assert_eq!(system.json(&["object", "get", "acme", "hmac", "x"])["state"]["v"], 1);
    assert_eq!(system.json(&["object", "history", "acme", "hmac", "x"])[0]["event"], "e1");
    let dead = system.json(&["dead", "list"]);
    assert_eq!((&dead[0]["event_id"], &dead[0]["cause"]), (&"e2".into(), &"version".into()));
    let raw = system.cli(&["dead", "show", "acme", "hmac", "e2", "--raw"]);
    assert_eq!(raw.stdout, br#"{"id":"e2","o":"x","v":"no number"}"#);
    let tail = system.cli(&["tail", "--from-start", "--count", "4"]);
    assert_eq!(String::from_utf8_lossy(&tail.stdout).lines().count(), 4);
}

#[test]
fn dev_needs_nothing_and_shows_what_it_did() {
    let folder = tempfile::tempdir().expect("a folder");
    let (edge, admin) = (free_port(), free_port());
    let mut command = Command::new(BINARY);
    command.args(["dev", "--demo", "--exit", "--output", "json"]).current_dir(folder.path());
    command
        .env("SERIATIM_INGEST__LISTEN", format!("127.0.0.1:{edge}"))
        .env("SERIATIM_ADMIN__LISTEN", format!("127.0.0.1:{admin}"));
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().expect("runs");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(output.status.success(), "{out}{err}");
    assert!(err.contains(&format!("http://127.0.0.1:{edge}/in/dev/stripe")) && err.contains("whsec_"), "{err}");
    assert!(out.contains("\"states_differ\": 0"), "{out}");
    // What it left can be looked into without it.
    let look = Command::new(BINARY)
        .args(["object", "get", "dev", "stripe", "obj_1_0"])
        .current_dir(folder.path())
        .output()
        .expect("runs");
    assert!(look.status.success(), "{}", String::from_utf8_lossy(&look.stderr));
}

#[test]
fn probes_and_metrics_are_there_from_the_start() {
    let mut system = System::new(Engine::Embedded, &source("hmac", "whsec_test", "declare.object = 'body:/o'"));
    system.start(Role::All);
    assert_eq!(send_hmac(&system, "acme", "hmac", br#"{"id":"1","o":"a"}"#), 200);
    wait_until("counted", || system.metric("seriatim_processor_arrivals_total") == 1.0);
    assert_eq!(system.metric("seriatim_ingest_accepted_total"), 1.0);
    assert_eq!(system.metric("seriatim_ingest_acknowledgement_seconds_count"), 1.0);
}
