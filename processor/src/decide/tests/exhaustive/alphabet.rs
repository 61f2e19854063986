//! The letters that histories are made of, as [`script`](super::super::script) writes events. A letter that comes again
//! is a redelivery; each reset is an act of its own.

use super::super::script::read_event;
use super::super::world::{Declared, Event, record};
use crate::candidate::Candidate;

/// Something of everything, in few versions.
pub const WIDE: [&str; 11] = [
    "e1 v1 #x",
    "e2 v1 #y",
    // Equal to e1, and e2 stands between them.
    "e3 v1 #x",
    // Two deletes that are one.
    "e0 v2 deleted #z",
    "e4 v2 deleted #z",
    // Of the deletes' version, and of lower rank.
    "e5 v2 created #x",
    "e6 v3 #x",
    // The id of another event, whatever else differs.
    "e1 v4 created #w",
    "d1 delta",
    "u1 v9 undecidable",
    "reset",
];

/// What is equal, stands between, and goes past; and a beginning anew.
pub const NARROW: [&str; 5] = ["e1 v1 #x", "e2 v1 #y", "e3 v1 #x", "e0 v2 deleted #z", "reset"];

/// One record of a history.
pub struct Entry {
    pub event: Event,
    pub candidate: Candidate,
}

/// Each letter, as it stands at each place of a history of up to `length`.
pub fn entries(letters: &[&str], declared: Declared, length: usize) -> Vec<Vec<Entry>> {
    let entry = |letter: &str, at: usize| {
        let (mut event, _) = read_event(letter);
        if event.is_reset {
            event.id = format!("reset {at}");
        }
        Entry { candidate: event.candidate(record(at), declared), event }
    };
    letters.iter().map(|letter| (0..length).map(|at| entry(letter, at)).collect()).collect()
}
