//! The byte budget of a process: how much of the log is in memory, whatever the backlog.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Debug, Clone)]
pub struct Budget {
    used: Arc<AtomicUsize>,
    max: usize,
}

/// The bytes of one record; given back when dropped.
#[derive(Debug)]
pub struct Share {
    used: Arc<AtomicUsize>,
    bytes: usize,
}

impl Budget {
    pub fn new(max: usize) -> Self {
        Self { used: Arc::default(), max }
    }

    /// Counts a record that was read. The reader looks at [`Budget::is_spent`] before it reads on, so the
    /// bound is passed by one fetch at most.
    pub fn take(&self, bytes: usize) -> Share {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Share { used: self.used.clone(), bytes }
    }

    pub fn is_spent(&self) -> bool {
        self.used() >= self.max
    }

    /// Low enough to read on: half, so that a reader does not stop and start for each record.
    pub fn has_room(&self) -> bool {
        self.used() <= self.max / 2
    }

    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
