//! What became of an event, and what one arrival of it did. The words are stored.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Committed: it changed the object's state, or (delta) counts once.
    Applied,
    /// This event, or its equal, was seen before.
    Duplicate,
    /// Older than what is stored: no change.
    Stale,
    /// The object is parked; the event waits in its backlog.
    Parked,
    /// Undecidable: kept as a dead letter, nothing committed.
    Dead,
    /// Applied, but a sink that takes only the newest skipped it.
    Superseded,
}

impl Outcome {
    pub const ALL: [Self; 6] =
        [Self::Applied, Self::Duplicate, Self::Stale, Self::Parked, Self::Dead, Self::Superseded];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Duplicate => "duplicate",
            Self::Stale => "stale",
            Self::Parked => "parked",
            Self::Dead => "dead",
            Self::Superseded => "superseded",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == text)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_frozen() {
        let words: Vec<_> = Outcome::ALL.iter().map(|o| o.as_str()).collect();
        assert_eq!(words, ["applied", "duplicate", "stale", "parked", "dead", "superseded"]);
        assert!(Outcome::ALL.iter().all(|o| Outcome::parse(o.as_str()) == Some(*o)));
    }
}
