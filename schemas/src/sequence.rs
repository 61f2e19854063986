//! Deltas that a provider numbers without gaps: how the number is declared, and what an object's head remembers of
//! its sequence. Numbers are whole, from 0 on, and never pass through a float.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::expression::Expression;

/// How long a gap is held where nothing else is declared.
pub const HOLD_S: u64 = 60;
/// Greatest number: one less than what the store's columns take, so that there is always a next one.
pub const NUMBER_MAX: u64 = i64::MAX as u64 - 1;
/// Passed ranges that a head keeps apart; past it the two lowest become one.
const PASSED_MAX: usize = 100;

/// Name, among the sinks that an object waits for, of a gap in its sequence. No sink can have it.
pub const GAP: &str = "~sequence";

/// The number of a delta. All deltas of an object that have one share one sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SequenceRule {
    pub from: Expression,
    /// The first number of every object. Without it the first that is seen is held, as behind a gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u64>,
    #[serde(default)]
    pub gap: GapRule,
    /// How long a gap is held before it is passed. Seconds.
    #[serde(default = "hold_s")]
    pub hold_s: u64,
}

fn hold_s() -> u64 {
    HOLD_S
}

/// What becomes of a number that does not come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GapRule {
    /// After `hold_s` it is passed, and what is held behind it goes on.
    #[default]
    Pass,
    /// Only an operator passes it.
    Park,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("number {text:?} is not a whole number from 0 to {NUMBER_MAX}")]
pub struct NumberError {
    pub text: String,
}

pub fn parse_number(text: &str) -> Result<u64, NumberError> {
    let is_decimal = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = if is_decimal { text.parse().ok() } else { None };
    number.filter(|n| *n <= NUMBER_MAX).ok_or_else(|| NumberError { text: text.to_owned() })
}

/// Where an object stands in its sequence. Stored as JSON beside its head.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sequence {
    /// The number that is applied next; none while the first one is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// Numbers whose events lie in the backlog.
    #[serde(default, skip_serializing_if = "Ranges::is_empty")]
    pub held: Ranges,
    /// Since when the number before the held ones is missing. Milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<i64>,
    /// Numbers that were passed without an event.
    #[serde(default, skip_serializing_if = "Ranges::is_empty")]
    pub passed: Ranges,
}

/// Where a number stands in its object's sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It is its turn.
    Next,
    /// Others come before it, or the first is not known.
    Ahead,
    /// Its turn was; it had an event.
    Behind,
    /// Its turn was passed without an event.
    Passed,
}

impl Sequence {
    pub fn starting_at(start: Option<u64>) -> Self {
        Self { next: start, ..Self::default() }
    }

    pub fn place(&self, number: u64) -> Place {
        match self.next {
            Some(next) if number == next => Place::Next,
            Some(next) if number < next && self.passed.has(number) => Place::Passed,
            Some(next) if number < next => Place::Behind,
            Some(_) | None => Place::Ahead,
        }
    }

    /// The number whose turn it is, if its event is held already.
    pub fn ready(&self) -> Option<u64> {
        self.next.filter(|next| self.held.has(*next))
    }

    /// The lowest held number, where one before it is missing.
    pub fn behind_gap(&self) -> Option<u64> {
        self.held.first().filter(|first| self.next != Some(*first))
    }

    /// The event of the next number is done with.
    pub fn advance(&mut self) {
        if let Some(next) = self.next {
            self.held.remove(next);
            self.next = Some(next + 1);
        }
    }

    /// `number` is next, and what is missing before it does not come any more.
    pub fn pass_to(&mut self, number: u64) {
        let from = self.next.unwrap_or(0);
        if from < number {
            self.passed.insert(from, number - 1);
            self.passed.merge_down_to(PASSED_MAX);
        }
        self.next = Some(number.max(from));
    }

    /// One line for a person.
    pub fn describe_gap(&self) -> String {
        let (held, first) = (self.held.count(), self.held.first().unwrap_or_default());
        match self.next {
            Some(next) => format!("number {next} is missing, {held} held from {first} on"),
            None => format!("the first number is not known, {held} held from {first} on"),
        }
    }
}

/// Numbers as ranges, first and last of each, in order and apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, number: u64) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&number))
    }

    pub fn first(&self) -> Option<u64> {
        self.0.first().map(|(first, _)| *first)
    }

    pub fn count(&self) -> u64 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    pub fn insert(&mut self, first: u64, last: u64) {
        self.0.push((first, last));
        self.0.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(self.0.len());
        for (first, last) in self.0.drain(..) {
            match merged.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        self.0 = merged;
    }

    pub fn remove(&mut self, number: u64) {
        let Some(at) = self.0.iter().position(|(first, last)| (*first..=*last).contains(&number)) else { return };
        let (first, last) = self.0.remove(at);
        if number < last {
            self.0.insert(at, (number + 1, last));
        }
        if first < number {
            self.0.insert(at, (first, number - 1));
        }
    }

    /// Joins the lowest ranges, what lies between them included, until so many are left: a number too many in them
    /// is a dead letter, which is seen; one too few would be lost.
    fn merge_down_to(&mut self, max: usize) {
        while self.0.len() > max {
            let (first, _) = self.0.remove(0);
            self.0[0].0 = first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_frozen() {
        let mut sequence = Sequence::starting_at(Some(1));
        sequence.pass_to(3);
        sequence.held.insert(5, 5);
        sequence.held.insert(7, 8);
        sequence.since_ms = Some(9);
        let text = r#"{"next":3,"held":[[5,5],[7,8]],"since_ms":9,"passed":[[1,2]]}"#;
        assert_eq!(serde_json::to_string(&sequence).expect("plain data"), text);
        assert_eq!(serde_json::from_str::<Sequence>(text).expect("it is read"), sequence);
        assert_eq!(serde_json::to_string(&Sequence::default()).expect("plain data"), "{}");
    }

    #[test]
    fn numbers_are_whole_and_not_negative() {
        assert_eq!(parse_number("0"), Ok(0));
        assert_eq!(parse_number("007"), Ok(7));
        assert_eq!(parse_number("9223372036854775806"), Ok(NUMBER_MAX));
        for text in ["", "-1", "+1", "1.0", "1e3", " 1", "9223372036854775807", "99999999999999999999", "x"] {
            assert!(parse_number(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn ranges_join_and_split() {
        let mut ranges = Ranges::default();
        [5, 7, 6, 1, 9].into_iter().for_each(|n| ranges.insert(n, n));
        assert_eq!(ranges, Ranges(vec![(1, 1), (5, 7), (9, 9)]));
        assert_eq!((ranges.first(), ranges.count()), (Some(1), 5));
        [6, 1, 3].into_iter().for_each(|n| ranges.remove(n));
        assert_eq!(ranges, Ranges(vec![(5, 5), (7, 7), (9, 9)]));
        ranges.insert(4, 8);
        assert_eq!(ranges, Ranges(vec![(4, 9)]));
        assert!(ranges.has(4) && ranges.has(9) && !ranges.has(3) && !ranges.has(10));
    }

    #[test]
    fn a_number_that_was_passed_is_never_taken_for_one_that_was_applied() {
        let mut sequence = Sequence::starting_at(Some(0));
        let gaps = 10 * PASSED_MAX as u64;
        for gap in 0..gaps {
            sequence.pass_to(2 * gap + 1);
            sequence.advance();
        }
        assert_eq!(sequence.passed.0.len(), PASSED_MAX);
        assert!((0..gaps).all(|gap| sequence.place(2 * gap) == Place::Passed));
        assert_eq!(sequence.place(2 * gaps - 1), Place::Behind);
    }
}
