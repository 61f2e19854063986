//! Challenges that are signed for whoever asks. Where a handshake before verification signs with the key of events,
//! its answer is a valid signature of the challenge itself: what could be such a challenge is never an event.

use std::collections::BTreeSet;

use seriatim_schemas::handshake::{Bound, Handshake};
use seriatim_schemas::selector::Place;
use seriatim_schemas::template::Part;
use seriatim_schemas::verification::{Algorithm, Recipe};

use crate::key::LiveKey;
use crate::request::Settings;
use crate::secret::SecretError;

/// What an edge signs for anyone.
#[derive(Debug, Default)]
pub struct Challenges(Vec<Challenge>);

#[derive(Debug)]
struct Challenge {
    algorithm: Algorithm,
    /// Names of the keys: any live secret may have been, or may become, the first.
    keys: Vec<String>,
    parts: Vec<Form>,
}

/// What a part of a challenge may be.
#[derive(Debug)]
enum Form {
    Text(String),
    Bounded(Bound),
    Any,
}

impl Challenges {
    pub fn new(handshakes: &[Handshake], secrets: &[String], settings: &Settings) -> Result<Self, SecretError> {
        let mut all = Vec::new();
        for handshake in handshakes.iter().filter(|handshake| handshake.before_verification) {
            let Some(token) = handshake.token.as_ref().filter(|token| token.algorithm.is_hmac()) else { continue };
            let recipe = token.recipe();
            let name = |secret: &String| LiveKey::new(0, secret, &recipe).map(|key| key.name().to_owned());
            let keys = secrets.iter().map(name).collect::<Result<_, _>>()?;
            let parts = token.signed.parts.iter().map(|part| form(part, handshake, settings)).collect();
            all.push(Challenge { algorithm: token.algorithm, keys, parts });
        }
        Ok(Self(all))
    }

    /// Whether anyone may have had this message signed by this key of a recipe.
    pub fn may_be(&self, recipe: &Recipe, key: &LiveKey, message: impl FnOnce() -> Vec<u8>) -> bool {
        // A token's own algorithm is not looked at: its key is the same secret.
        let algorithms = |own: Algorithm| own == recipe.algorithm || recipe.algorithm == Algorithm::Jwt;
        let shares = |challenge: &&Challenge| {
            algorithms(challenge.algorithm) && challenge.keys.iter().any(|name| name == key.name())
        };
        let mut shared = self.0.iter().filter(shares).peekable();
        if shared.peek().is_none() {
            return false;
        }
        let message = message();
        shared.any(|challenge| fits(&challenge.parts, &message))
    }
}

fn form(part: &Part, handshake: &Handshake, settings: &Settings) -> Form {
    match part {
        Part::Text(text) => Form::Text(text.clone()),
        Part::Value(selector) => {
            let text = match &selector.place {
                Place::Const(text) => Some(text),
                Place::Setting(name) => settings.get(name),
                _ => None,
            };
            let values = text.map(|text| selector.steps.iter().fold(vec![text.clone()], |all, step| step.apply(all)));
            match (values, handshake.bound(selector)) {
                (Some(mut values), _) => Form::Text(values.pop().unwrap_or_default()),
                (None, Some(bound)) => Form::Bounded(bound),
                (None, None) => Form::Any,
            }
        }
        _ => Form::Any,
    }
}

/// Whether `message` is these parts, one after the other. Looks at the places where each part may end, so that the
/// work is bounded.
fn fits(parts: &[Form], message: &[u8]) -> bool {
    let mut ends = BTreeSet::from([0]);
    for part in parts {
        ends = match part {
            Form::Text(text) => {
                let begins = |at: &usize| message[*at..].starts_with(text.as_bytes());
                ends.into_iter().filter(begins).map(|at| at + text.len()).collect()
            }
            Form::Bounded(bound) => {
                let of = |at: usize| bound.lengths(&message[at..]).map(move |length| at + length);
                ends.into_iter().flat_map(of).collect()
            }
            Form::Any => ends.first().map_or(BTreeSet::new(), |first| (*first..=message.len()).collect()),
        };
    }
    ends.contains(&message.len())
}

#[cfg(test)]
mod tests {
    use seriatim_schemas::handshake::Chars;

    use super::*;

    #[test]
    fn a_challenge_is_its_parts_and_nothing_more() {
        let bound = || Form::Bounded(Bound { chars: Chars::Hex, min: 2, max: 4 });
        let text = |text: &str| Form::Text(text.to_owned());
        let table: [(Vec<Form>, &str, bool); 9] = [
            (vec![bound()], "ab12", true),
            (vec![bound()], "a", false),
            (vec![bound()], "ab123", false),
            (vec![bound()], "ab1g", false),
            (vec![text("t."), bound()], "t.ab", true),
            (vec![text("t."), bound()], "ab", false),
            (vec![bound(), text("12")], "ab12", true),
            (vec![bound(), bound()], "ab12ab12", true),
            (vec![Form::Any, bound()], "{}ab", true),
        ];
        for (parts, message, expected) in table {
            assert_eq!(fits(&parts, message.as_bytes()), expected, "{parts:?} {message}");
        }
        assert!(!fits(&[bound()], b""));
    }
}
