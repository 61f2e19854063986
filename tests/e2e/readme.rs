//! Every command of the README runs, and does what stands beside it.

use std::process::Command;

use crate::support::{BINARY, free_port, wait_until};

const README: &str = include_str!("../../README.md");
const CI: &str = include_str!("../../.ci/run");

/// The commands in fenced blocks of shell, in their order.
fn commands() -> Vec<&'static str> {
    let blocks = README.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.flat_map(str::lines).map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn every_command_of_the_readme_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let repository = env!("CARGO_MANIFEST_DIR");
    std::fs::create_dir_all(folder.path().join("examples")).expect("made");
    std::fs::copy(format!("{repository}/examples/distributed.toml"), folder.path().join("examples/distributed.toml"))
        .expect("copied");
    let (edge, admin) = (free_port(), free_port());
    let command = |arguments: &str| {
        let mut command = Command::new(BINARY);
        command.args(arguments.split(' ')).current_dir(folder.path());
        command.env("SERIATIM_INGEST__LISTEN", format!("127.0.0.1:{edge}"));
        command.env("SERIATIM_ADMIN__LISTEN", format!("127.0.0.1:{admin}"));
        command
    };
    let mut dev = None;
    let mut ran = 0;
    for line in commands() {
        if let Some(arguments) = line.strip_prefix("cargo run --release --no-default-features -- ") {
            // This very binary, of whatever profile and features; it goes on serving, as the README says.
            let log = std::fs::File::create(folder.path().join("dev.log")).expect("a file");
            dev =
                Some(Stop(command(arguments).stderr(log).stdout(std::process::Stdio::null()).spawn().expect("starts")));
            wait_until("demonstrated", || {
                std::fs::read_to_string(folder.path().join("dev.log")).is_ok_and(|t| t.contains("Ctrl-C"))
            });
        } else if let Some(arguments) = line.strip_prefix("seriatim ") {
            let output = command(arguments).output().expect("runs");
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        } else {
            // The command that runs this very test.
            assert!(
                line == "infra/local/servers run -- cargo test --workspace" && CI.contains(line),
                "{line} is not run by any test"
            );
        }
        ran += 1;
    }
    assert!(dev.is_some() && ran >= 10, "{ran}");
}

#[test]
fn the_example_configuration_is_good() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/distributed.toml");
    let output = Command::new(BINARY).args(["--config", example, "check", "--without-secrets"]).output().expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Ends a process when dropped.
struct Stop(std::process::Child);

impl Drop for Stop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
