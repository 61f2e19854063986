//! The figure sheet: what a round has shown, as lines that can be compared with those of another.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::check::{Found, key};
use crate::load::{Answered, Entry, Sent};
use crate::process::{End, Life, Role};
use crate::receiver::Receipt;

#[derive(Default)]
pub struct Sheet {
    lines: Vec<(String, String)>,
}

impl Sheet {
    pub fn line(&mut self, name: &str, value: impl Display) {
        self.lines.push((name.to_owned(), value.to_string()));
    }

    pub fn print(&self, title: &str) {
        let width = self.lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        println!("{title}");
        self.lines.iter().for_each(|(name, value)| println!("  {name:width$}  {value}"));
    }

    pub fn add_load(&mut self, sent: &Sent) {
        let seconds = sent.time.as_secs_f64();
        self.line("seconds", format!("{seconds:.0}"));
        self.line("events acknowledged", sent.ledger.values().filter(|entry| entry.acknowledged.is_some()).count());
        self.line("requests acknowledged", sent.answered.len());
        self.line("acknowledged a second", format!("{:.0}", sent.answered.len() as f64 / seconds));
        self.line("answered with 503, not at all", format!("{}, {}", sent.refused, sent.failed));
        self.line("acknowledgement p50, p99, max", spread(sent.answered.iter().map(|(_, took)| *took).collect()));
    }

    /// What became of the processes. `rss`: of each role.
    pub fn add_lives(&mut self, lives: &[(Role, Life)]) {
        let count = |is_it: &dyn Fn(&End) -> bool| {
            lives.iter().filter(|(_, life)| life.end.as_ref().is_some_and(is_it)).count()
        };
        let halts: usize = lives.iter().map(|(_, life)| life.halts.len()).sum();
        self.line("kills", count(&|end| matches!(end, End::Killed)));
        self.line("halts", halts);
        self.line("stops by SIGTERM", count(&|end| matches!(end, End::Terminated(..))));
        self.line("slowest stop", ms(slowest_stop(lives)));
        self.line("starts that ended by themselves", count(&|end| matches!(end, End::Itself(_))));
        self.line("unknown commits", lives.iter().map(|(_, life)| life.unknown_commits).sum::<u64>());
        let mut roles: BTreeMap<Role, Vec<&Life>> = BTreeMap::new();
        lives.iter().for_each(|(role, life)| roles.entry(*role).or_default().push(life));
        for (role, lives) in roles {
            let of = |kib: &dyn Fn(&Life) -> Option<u64>| {
                lives.iter().filter_map(|life| kib(life)).max().unwrap_or(0) / 1024
            };
            let first = of(&|life| life.memory.map(|memory| memory.first));
            let most = of(&|life| life.memory.map(|memory| memory.most));
            let last = of(&|life| life.memory.filter(|_| life.is_last).map(|memory| memory.last));
            let name = format!("memory of {role:?} at start, max, end");
            self.line(&name, format!("{first}, {most}, {last} MiB"));
        }
    }

    pub fn add_found(&mut self, found: &Found) {
        self.line("applied, stale, duplicate", format!("{}, {}, {}", found.applied, found.stale, found.duplicates));
        self.line("resends", found.resends);
        self.line("late sends of halted processes", found.late);
        self.line("lost", found.lost.len());
        self.line("twice", found.twice.len());
        self.line("inversions", found.inversions.len());
        self.line("states that differ", found.states.len());
    }
}

pub fn slowest_stop(lives: &[(Role, Life)]) -> Duration {
    let stop = |(_, life): &(Role, Life)| match life.end {
        Some(End::Terminated(time, _)) => Some(time),
        _ => None,
    };
    lives.iter().filter_map(stop).max().unwrap_or_default()
}

/// Greatest resident memory of any process, in MiB.
pub fn most_memory(lives: &[(Role, Life)]) -> u64 {
    lives.iter().filter_map(|(_, life)| Some(life.memory?.most / 1024)).max().unwrap_or(0)
}

pub fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

/// The time that `share` of 100 stay within.
pub fn percentile(times: &mut [Duration], share: usize) -> Duration {
    times.sort();
    times.get(times.len().saturating_sub(1) * share / 100).copied().unwrap_or_default()
}

fn spread(mut times: Vec<Duration>) -> String {
    [50, 99, 100].map(|share| ms(percentile(&mut times, share))).join(", ")
}

/// Of the requests that were sent first within a time.
pub fn p99_within(answered: &[Answered], from: Instant, to: Instant) -> Duration {
    let mut times: Vec<_> = answered.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, took)| *took).collect();
    percentile(&mut times, 99)
}

/// When each effect came first.
pub fn firsts(receipts: &[Receipt]) -> HashMap<&str, Instant> {
    let mut first = HashMap::new();
    receipts.iter().for_each(|receipt| {
        first.entry(receipt.key.as_str()).or_insert(receipt.at);
    });
    first
}

/// The longest time from an acknowledgement to the first effect.
pub fn latest_effect(ledger: &HashMap<String, Entry>, receipts: &[Receipt]) -> Duration {
    let first = firsts(receipts);
    let late =
        |entry: &Entry| Some(first.get(key(&entry.event).as_str())?.saturating_duration_since(entry.acknowledged?));
    ledger.values().filter_map(late).max().unwrap_or_default()
}

/// The longest time without an effect of an object, over all objects.
pub fn longest_gap(receipts: &[Receipt]) -> Duration {
    let (mut last, mut longest) = (HashMap::new(), Duration::ZERO);
    for receipt in receipts {
        if let Some(before) = last.insert(receipt.object(), receipt.at) {
            longest = longest.max(receipt.at - before);
        }
    }
    longest
}
