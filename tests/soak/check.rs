//! The oracle: whether what the receiver saw, and what the store says, is what the README promises of what was
//! acknowledged. It knows the ledger of the sender, and nothing of how the system works.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::ask::Stored;
use crate::fleet::{SOURCE, TENANT};
use crate::load::Entry;
use crate::process::Life;
use crate::receiver::Receipt;
use crate::traffic::{Event, object_name};

/// Violations of one kind that are told one by one.
const TOLD_MAX: usize = 10;

/// Everything that is compared.
pub struct Facts<'a> {
    /// By event id.
    pub ledger: &'a HashMap<String, Entry>,
    pub receipts: &'a [Receipt],
    /// By object.
    pub stored: &'a [Stored],
    pub letters: &'a [Value],
    /// Lives that may have lost what they owned while they were halted.
    pub halted: &'a [Life],
}

/// What is not as promised, and what is told beside.
#[derive(Debug, Default)]
pub struct Found {
    pub lost: Vec<String>,
    pub twice: Vec<String>,
    pub inversions: Vec<String>,
    pub states: Vec<String>,
    /// Nobody has sent it so.
    pub invented: Vec<String>,
    pub applied: usize,
    pub stale: usize,
    pub duplicates: usize,
    /// Sends of what was sent before.
    pub resends: usize,
    /// Unmarked sends behind another one, by a life that was halted too long: the one exception.
    pub late: usize,
}

impl Found {
    fn violations(&self) -> [(&'static str, &[String]); 5] {
        [
            ("lost", &self.lost),
            ("twice", &self.twice),
            ("inversion", &self.inversions),
            ("state", &self.states),
            ("invented", &self.invented),
        ]
    }

    pub fn is_good(&self) -> bool {
        self.violations().iter().all(|(_, violations)| violations.is_empty())
    }

    pub fn tell(&self) {
        for (kind, violations) in self.violations() {
            violations.iter().take(TOLD_MAX).for_each(|violation| println!("{kind}: {violation}"));
        }
    }
}

/// The sends of one effect, in the order in which they were received.
type Sends<'a> = HashMap<&'a str, Vec<&'a Receipt>>;

pub fn check(facts: &Facts<'_>) -> Found {
    let mut found = Found::default();
    let mut sends: Sends<'_> = HashMap::new();
    facts.receipts.iter().for_each(|receipt| sends.entry(&receipt.key).or_default().push(receipt));
    let newest = newest(facts.ledger);
    let mut arrivals: HashMap<&str, Vec<&Value>> = HashMap::new();
    for arrival in facts.stored.iter().flat_map(|stored| &stored.arrivals) {
        arrivals.entry(arrival["event"].as_str().expect("text")).or_default().push(arrival);
    }
    for entry in facts.ledger.values() {
        let of_event = arrivals.remove(entry.event.id.as_str()).unwrap_or_default();
        event(entry, &of_event, &sends, &newest, facts.letters, &mut found);
    }
    found.invented.extend(arrivals.keys().map(|id| format!("an arrival of {id}")));
    sends.iter().for_each(|(key, sends)| effect(key, sends, facts, &mut found));
    let counts = order(facts, &mut found);
    for (object, stored) in facts.stored.iter().enumerate() {
        let effects = counts.get(&object_key(object)).copied().unwrap_or(0);
        state(object, stored, newest.get(&object).copied(), effects, &mut found);
    }
    found
}

/// The greatest version of each object that was acknowledged.
fn newest(ledger: &HashMap<String, Entry>) -> HashMap<usize, &Event> {
    let mut newest: HashMap<usize, &Event> = HashMap::new();
    for event in ledger.values().map(|entry| &entry.event).filter(|event| event.version.is_some()) {
        let greatest = newest.entry(event.object).or_insert(event);
        if greatest.version < event.version {
            *greatest = event;
        }
    }
    newest
}

fn object_key(object: usize) -> String {
    format!("{TENANT}/{SOURCE}/{}", object_name(object))
}

/// Idempotency key of its effect.
pub fn key(event: &Event) -> String {
    format!("{}/{}", object_key(event.object), event.id)
}

/// Each acknowledgement is an arrival, and each event has one decision: applied and handed on, stale beside a newer one,
/// or a dead letter.
fn event(
    entry: &Entry,
    arrivals: &[&Value],
    sends: &Sends<'_>,
    newest: &HashMap<usize, &Event>,
    letters: &[Value],
    found: &mut Found,
) {
    let Event { id, object, version } = &entry.event;
    let outcomes: Vec<_> = arrivals.iter().map(|arrival| arrival["outcome"].as_str().unwrap_or("none")).collect();
    let count = |outcome: &str| outcomes.iter().filter(|found| **found == outcome).count();
    if arrivals.len() < entry.acknowledgements {
        found.lost.push(format!("{id} was acknowledged {} times, and came to {outcomes:?}", entry.acknowledgements));
    }
    let (applied, stale, duplicates) = (count("applied"), count("stale"), count("duplicate"));
    found.applied += applied;
    found.stale += stale;
    found.duplicates += duplicates;
    let key = key(&entry.event);
    let is_behind = version.is_some() && newest.get(object).is_some_and(|newest| *version < newest.version);
    let is_dead = count("dead") > 0 && letters.iter().any(|letter| letter["event_id"] == **id);
    let effects = sends.get(key.as_str());
    match applied {
        0 if (stale > 0 && is_behind) || is_dead => {}
        0 => found.lost.push(format!("{id} of version {version:?} came to {outcomes:?}")),
        1 if !effects.is_some_and(|sends| sends.iter().any(|send| send.is_taken)) => {
            found.lost.push(format!("{key} was applied, and its effect never taken"));
        }
        1 => {}
        _ => found.twice.push(format!("{key} was applied {applied} times")),
    }
    if applied == 0 && effects.is_some() {
        found.invented.push(format!("{key} was not applied ({outcomes:?}), and has an effect"));
    }
    let rev =
        arrivals.iter().find(|arrival| arrival["outcome"] == "applied").and_then(|arrival| arrival["rev"].as_u64());
    if let Some(sends) = effects.filter(|sends| rev.is_some_and(|rev| sends[0].rev != rev)) {
        found.twice.push(format!("{key} was applied as rev {rev:?}, and sent as {}", tell(sends)));
    }
}

/// One rev, the body that was sent, and at most one send without a mark: the first.
fn effect(key: &str, sends: &[&Receipt], facts: &Facts<'_>, found: &mut Found) {
    found.resends += sends.len() - 1;
    match facts.ledger.get(sends[0].event()) {
        Some(entry) if sends.iter().all(|send| send.body == entry.event.body()) => {}
        _ => found.invented.push(format!("{key}: {}", tell(sends))),
    }
    if sends.iter().any(|send| (send.epoch, send.rev) != (sends[0].epoch, sends[0].rev)) {
        found.twice.push(format!("{key} has two revs: {}", tell(sends)));
    }
    let unmarked: Vec<_> = sends.iter().filter(|send| !send.is_resent).collect();
    let behind: Vec<_> = sends[1..].iter().filter(|send| !send.is_resent).collect();
    let is_late = |send: &Receipt| facts.halted.iter().any(|life| life.name == send.life && was_halted(life, send));
    if unmarked.len() > 1 || behind.iter().any(|send| !is_late(send)) {
        found.twice.push(format!("{key} came again without a mark: {}", tell(sends)));
    } else {
        found.late += behind.len();
    }
}

fn was_halted(life: &Life, send: &Receipt) -> bool {
    life.halts.first().is_some_and(|halt| *halt <= send.at)
}

/// First effects of an object come in the order of its revs without a gap, and snapshots in that of their versions.
/// How many there are of each object.
fn order(facts: &Facts<'_>, found: &mut Found) -> HashMap<String, u64> {
    let (mut seen, mut counts, mut versions) = (HashSet::new(), HashMap::new(), HashMap::new());
    for receipt in facts.receipts.iter().filter(|receipt| seen.insert(&receipt.key)) {
        let count = counts.entry(receipt.object().to_owned()).or_insert(0);
        *count += 1;
        if receipt.rev != *count {
            found.inversions.push(format!("{} of rev {} came as number {count}", receipt.key, receipt.rev));
        }
        let version = facts.ledger.get(receipt.event()).and_then(|entry| entry.event.version);
        let Some(version) = version else { continue };
        if let Some(last) = versions.insert(receipt.object(), version).filter(|last| *last >= version) {
            found.inversions.push(format!("{} of version {version} came after version {last}", receipt.key));
        }
    }
    counts
}

/// The state is the event of the greatest version; the rev counts what was applied; nothing waits.
fn state(object: usize, stored: &Stored, newest: Option<&Event>, effects: u64, found: &mut Found) {
    let (name, row) = (object_name(object), &stored.object);
    if row["rev"].as_u64().unwrap_or(0) != effects {
        found.states.push(format!("{name} has rev {}, and {effects} effects", row["rev"]));
    }
    if row["waiting"].as_array().is_some_and(|waiting| !waiting.is_empty()) {
        found.states.push(format!("{name} waits: {}", row["waiting"]));
    }
    let Some(newest) = newest else { return };
    let body: Value = serde_json::from_str(&newest.body()).expect("JSON");
    if row["event"] != *newest.id || row["state"] != body {
        found.states.push(format!("{name} is at {}, {}, not {body}", row["event"], row["state"]));
    }
}

/// For a person.
fn tell(sends: &[&Receipt]) -> String {
    let begin = sends[0].at;
    let tell = |send: &&Receipt| {
        let mark = if send.is_resent { "marked" } else { "unmarked" };
        let taken = if send.is_taken { "" } else { ", refused" };
        format!("rev {} by {} after {:?} {mark}{taken}", send.rev, send.life, send.at - begin)
    };
    sends.iter().map(tell).collect::<Vec<_>>().join("; ")
}
