//! What happens to one object, as a line of text. Steps stand between `|`:
//!
//! ```text
//! e1 v1, e2 v2 deleted -> applied, applied    one group; verdicts in its order. `applied rev 1` checks the rev too,
//!                                             `any` checks nothing
//! again e1 v1 r1 -> applied                   the group once more, by the same attempt: the answer was lost
//! arrival of r1     rows expire               what else happens to the store
//! ties by log       stale is delivered        as declared, from here on
//! state e2 v2 deleted     no state            what the object is now, as far as the words say
//! rev 2     turn 1                            what its head counts
//! ```
//! An event is its id, then in any order: `v3` its version, `#x` its body (else its own), `r1` its record
//! (else a new one), `delta`, `undecidable`, or a word that is its type (else `updated`). One whose id is `reset` lets
//! the object's order begin anew.

use seriatim_schemas::id::{RecordId, Sha256Digest};

use super::world::{Declared, Event, World, attempt, record};
use crate::decide::Verdict;

/// Records that a script does not name count from here.
const UNNAMED: usize = 1000;

pub fn check(script: &str) {
    let mut run = Run { world: World::default(), declared: Declared::default(), attempts: 0, records: UNNAMED };
    for (number, step) in script.split('|').enumerate() {
        let at = format!("step {} `{}` of `{script}`", number + 1, step.trim());
        let words: Vec<_> = step.split_whitespace().collect();
        match words.as_slice() {
            ["ties", "by", "log"] => run.declared.ties_by_log = true,
            ["stale", "is", "delivered"] => run.declared.delivers_stale = true,
            ["rows", "expire"] => run.world.rows.clear(),
            ["arrival", "of", name] => drop(run.world.arrived.insert(named_record(name))),
            ["no", "state"] => assert_eq!(run.world.snapshot(), None, "{at}"),
            ["rev", rev] => assert_eq!(run.world.rev().to_string(), *rev, "{at}"),
            ["turn", turn] => assert_eq!(run.world.turn().to_string(), *turn, "{at}"),
            ["state", facts @ ..] => facts.iter().for_each(|fact| run.check_state(fact, &at)),
            _ => run.group(step, &at),
        }
    }
}

struct Run {
    world: World,
    declared: Declared,
    attempts: usize,
    records: usize,
}

impl Run {
    fn group(&mut self, step: &str, at: &str) {
        let (events, verdicts) = step.split_once("->").unwrap_or_else(|| panic!("{at}: no such step"));
        let again = events.trim().strip_prefix("again ");
        if again.is_none() {
            self.attempts += 1;
        }
        let group: Vec<_> = again.unwrap_or(events).split(',').map(|text| self.event(text)).collect();
        let candidates: Vec<_> = group.iter().map(|(event, record)| event.candidate(*record, self.declared)).collect();
        let found = self.world.settle(&candidates, attempt(self.attempts));
        let expected: Vec<_> = verdicts.split(',').map(str::trim).collect();
        assert_eq!(found.len(), expected.len(), "{at}: a verdict for each event");
        for (found, expected) in found.iter().map(words).zip(expected) {
            let is_it = expected == "any" || found == expected || found.split(' ').next() == Some(expected);
            assert!(is_it, "{at}: {found}, not {expected}");
        }
    }

    fn event(&mut self, text: &str) -> (Event, RecordId) {
        self.records += 1;
        let (event, named) = read_event(text);
        (event, named.unwrap_or_else(|| record(self.records)))
    }

    fn check_state(&self, fact: &str, at: &str) {
        let state = self.world.snapshot().unwrap_or_else(|| panic!("{at}: there is no state"));
        let holds = match fact.split_at(1) {
            ("#", body) => state.digest == Sha256Digest::of(body.as_bytes()),
            ("v", version) => state.version == version,
            ("e", _) => state.event_row == fact,
            _ => match fact {
                "deleted" => state.deleted,
                "live" => !state.deleted,
                other => panic!("{at}: no fact is called {other}"),
            },
        };
        assert!(holds, "{at}: {fact} does not hold of {state:?}");
    }
}

/// An event, and its record where that is named.
pub fn read_event(text: &str) -> (Event, Option<RecordId>) {
    let mut words = text.split_whitespace();
    let mut event = Event::new(words.next().expect("an event has an id"));
    event.is_reset = event.id == "reset";
    let mut named = None;
    for word in words {
        match (word, word.split_at(1)) {
            ("delta", _) => event.is_delta = true,
            ("undecidable", _) => event.is_undecidable = true,
            (_, ("#", body)) => event.body = body.to_owned(),
            (_, ("v", number)) if number.parse::<u64>().is_ok() => event.version = number.parse().ok(),
            (_, ("r", number)) if number.parse::<u64>().is_ok() => named = Some(named_record(word)),
            _ => event.event_type = word.to_owned(),
        }
    }
    (event, named)
}

fn named_record(name: &str) -> RecordId {
    record(name[1..].parse().expect("r and a number"))
}

fn words(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Apply { rev } => format!("applied rev {rev}"),
        Verdict::Resend { rev, .. } => format!("resent rev {rev}"),
        Verdict::Acted => "acted".to_owned(),
        Verdict::Done => "done".to_owned(),
        Verdict::Duplicate => "duplicate".to_owned(),
        Verdict::Stale => "stale".to_owned(),
        Verdict::Deliver { rev } => format!("delivered rev {rev}"),
        Verdict::Dead(_) => "dead".to_owned(),
        Verdict::Hold { .. } | Verdict::Stored { .. } | Verdict::Later => panic!("nothing is numbered here"),
    }
}
