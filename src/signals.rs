//! What tells a process to stop. An orchestrator may say so before all parts have started, and takes a process that ends
//! by the signal itself for one that failed.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;

pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on neither SIGTERM nor SIGINT ends the process by itself.
    pub fn catch() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// What comes of the work; none where a signal comes first, and the work is dropped.
    pub async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            signal = self.next() => {
                info!("{signal} while starting: stopped");
                None
            }
            result = work => Some(result),
        }
    }
}
