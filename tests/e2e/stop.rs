//! SIGTERM: an orchestrator waits 30 s, and takes an end by the signal itself for a failure.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Engine, System, source};

/// An orchestrator may change its mind before a process has found its log: one that ends by the signal itself counts as
/// failed.
#[test]
fn a_process_that_is_told_to_stop_while_it_starts_ends_well() {
    let system = System::new(Engine::Distributed, &source("stripe", "whsec_test", ""));
    // It takes connections, and answers nothing.
    let broker = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = broker.local_addr().expect("an address").to_string();
    for role in ["processor", "ingest", "all"] {
        let mut command = system.command(&["run", "--role", role]);
        let mut child = command.env("SERIATIM_KAFKA__BROKERS", &address).spawn().expect("the binary starts");
        let _asked = broker.accept().expect("it asks the broker");
        let told = Instant::now();
        let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        let status = child.wait().expect("waited");
        assert!(status.success() && told.elapsed() < Duration::from_secs(10), "{role}: {status}, {:?}", told.elapsed());
    }
}
