//! Reads secrets again while the edge runs: when a file changes (Kubernetes swaps a symlink to do so), and on
//! SIGHUP. A source whose secrets cannot be read keeps those it has.

use std::sync::Arc;
use std::time::Duration;

use seriatim_ingest::sources::Sources;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_secs(5);

/// Runs until `stop`.
pub async fn watch(sources: Arc<Sources>, stop: CancellationToken) -> std::io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut said: Vec<String> = Vec::new();
    loop {
        let asked = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = hangup.recv() => true,
            () = tokio::time::sleep(INTERVAL) => false,
        };
        let reading = sources.clone();
        let (changed, errors) =
            tokio::task::spawn_blocking(move || reading.reload()).await.expect("reading files does not panic");
        if asked || changed > 0 {
            info!(changed, "secrets read again");
        }
        // The same error is told once, not every few seconds.
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        for error in errors.iter().filter(|error| asked || !said.contains(error)) {
            warn!(error, "secrets not read again: the old ones stay");
        }
        said = errors;
    }
}
