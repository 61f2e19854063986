//! Structured logs on stderr: JSON, or text on a terminal. `RUST_LOG` chooses what.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging at `level` where RUST_LOG does not say otherwise.
pub fn start(level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = if std::io::stderr().is_terminal() { builder.try_init() } else { builder.json().try_init() };
    if started.is_err() {
        crate::output::say("logging was started before; going on with it");
    }
}
