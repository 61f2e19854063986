//! The low watermark of a partition: all offsets below it are done. Only the contiguous part counts, so a
//! record that is not done is read again after a crash, whatever was done behind it.

use std::collections::BTreeSet;

use crate::mutant::{self, Mutant};

#[derive(Debug)]
pub struct Watermark {
    pending: BTreeSet<i64>,
    /// One past the last offset that was read.
    next: i64,
}

impl Watermark {
    /// `start`: the offset of the first record that will be read.
    pub fn new(start: i64) -> Self {
        Self { pending: BTreeSet::new(), next: start }
    }

    pub fn read(&mut self, offset: i64) {
        self.pending.insert(offset);
        self.next = self.next.max(offset + 1);
    }

    pub fn done(&mut self, offset: i64) {
        self.pending.remove(&offset);
    }

    /// Where a new owner must start.
    pub fn low(&self) -> i64 {
        let first = if mutant::is(Mutant::WatermarkPastHole) { self.pending.last() } else { self.pending.first() };
        first.copied().filter(|_| !mutant::is(Mutant::FloorAhead)).unwrap_or(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_holds_the_watermark() {
        let mut mark = Watermark::new(10);
        assert_eq!(mark.low(), 10);
        for offset in [10, 11, 15] {
            mark.read(offset);
        }
        mark.done(11);
        mark.done(15);
        assert_eq!(mark.low(), 10);
        mark.done(10);
        assert_eq!(mark.low(), 16);
    }
}
