//! Patterns over event types: a literal with any number of `*`, each standing for any text.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Pattern(pub String);

impl Pattern {
    pub const ANY: &str = "*";

    pub fn matches(&self, text: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().expect("split yields at least one part");
        let Some(mut rest) = text.strip_prefix(first) else { return false };
        let mut parts = parts.peekable();
        if parts.peek().is_none() {
            return rest.is_empty();
        }
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                return rest.ends_with(part);
            }
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
        true
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_text() {
        let table = [
            ("ping", "ping", true),
            ("ping", "pings", false),
            ("*", "", true),
            ("*", "anything", true),
            ("pull_request.*", "pull_request.closed", true),
            ("pull_request.*", "pull_request_review.x", false),
            ("*.deleted", "customer.subscription.deleted", true),
            ("*.deleted", "deleted", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "ac", false),
            ("ab*ba", "aba", false),
            ("", "", true),
        ];
        for (pattern, text, expected) in table {
            assert_eq!(Pattern(pattern.into()).matches(text), expected, "{pattern} over {text}");
        }
    }
}
