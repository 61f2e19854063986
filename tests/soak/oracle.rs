//! The oracle itself: what is as promised passes, and each kind of violation is found.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::ask::Stored;
use crate::check::{Facts, Found, check, key};
use crate::load::Entry;
use crate::process::Life;
use crate::receiver::Receipt;
use crate::traffic::Event;

/// One object with versions 1 and 3, of which 2 came too late, and a delta that was sent twice.
struct History {
    begin: Instant,
    ledger: HashMap<String, Entry>,
    receipts: Vec<Receipt>,
    stored: Stored,
    halted: Vec<Life>,
}

impl History {
    fn good() -> Self {
        let begin = Instant::now();
        let mut history = Self {
            begin,
            ledger: HashMap::new(),
            receipts: Vec::new(),
            stored: Stored { object: Value::Null, arrivals: Vec::new() },
            halted: Vec::new(),
        };
        history.arrives("e1", Some(1), "applied", 1);
        history.arrives("e3", Some(3), "applied", 2);
        history.arrives("e2", Some(2), "stale", 0);
        history.arrives("d1", None, "applied", 3);
        history.arrives("d1", None, "duplicate", 0);
        let state: Value = serde_json::from_str(&history.ledger["e3"].event.body()).expect("JSON");
        history.stored.object = json!({ "rev": 3, "event": "e3", "state": state, "waiting": [] });
        history
    }

    /// One record of an event, what it did, and its effect.
    fn arrives(&mut self, id: &str, version: Option<u64>, outcome: &str, rev: u64) {
        let event = Event { id: id.to_owned(), object: 0, version };
        let entry =
            Entry { event: event.clone(), sent: self.begin, acknowledged: Some(self.begin), acknowledgements: 0 };
        self.ledger.entry(id.to_owned()).or_insert(entry).acknowledgements += 1;
        let rev_or_null = if rev > 0 { json!(rev) } else { Value::Null };
        self.stored.arrivals.push(json!({ "event": id, "outcome": outcome, "rev": rev_or_null }));
        if rev > 0 {
            self.send(&event, rev, false);
        }
    }

    fn send(&mut self, event: &Event, rev: u64, is_resent: bool) {
        let at = self.begin + Duration::from_millis(self.receipts.len() as u64);
        let (life, body) = ("processor-1.1".to_owned(), event.body().into());
        self.receipts.push(Receipt { at, key: key(event), epoch: 1, rev, is_resent, life, body, is_taken: true });
    }

    fn check(&self) -> Found {
        check(&Facts {
            ledger: &self.ledger,
            receipts: &self.receipts,
            stored: std::slice::from_ref(&self.stored),
            letters: &[],
            halted: &self.halted,
        })
    }

    /// Counts of what is lost, twice, an inversion, a wrong state, invented.
    fn counts(&self) -> [usize; 5] {
        let found = self.check();
        [&found.lost, &found.twice, &found.inversions, &found.states, &found.invented].map(Vec::len)
    }
}

fn after(change: impl FnOnce(&mut History)) -> [usize; 5] {
    let mut history = History::good();
    change(&mut history);
    history.counts()
}

#[test]
fn what_is_as_promised_passes() {
    let found = History::good().check();
    assert!(found.is_good());
    assert_eq!((found.applied, found.stale, found.duplicates, found.resends), (3, 1, 1, 0));
    assert_eq!(after(|history| history.send(&history.ledger["e3"].event.clone(), 2, true)), [0; 5], "a marked resend");
}

#[test]
fn what_is_lost_is_found() {
    assert_eq!(after(|history| drop(history.stored.arrivals.remove(4))), [1, 0, 0, 0, 0], "an arrival");
    assert_eq!(after(|history| history.stored.arrivals[3]["outcome"] = json!("duplicate"))[0], 1, "a delta");
    assert_eq!(after(|history| history.receipts[2].is_taken = false)[0], 1, "an effect that was never taken");
    assert_eq!(after(|history| drop(history.receipts.pop())), [1, 0, 0, 1, 0], "an effect");
    assert_eq!(
        after(|history| history.stored.arrivals[1]["outcome"] = json!("stale"))[0],
        1,
        "stale beside nothing newer"
    );
}

#[test]
fn what_came_twice_is_found() {
    assert_eq!(after(|history| history.send(&history.ledger["e3"].event.clone(), 2, false))[1], 1, "without a mark");
    assert_eq!(after(|history| history.send(&history.ledger["e3"].event.clone(), 4, true))[1], 1, "under another rev");
    assert_eq!(
        after(|history| history.stored.arrivals[4]["outcome"] = json!("applied"))[1],
        1,
        "a delta, counted twice"
    );
}

#[test]
fn what_is_out_of_order_is_found() {
    assert_eq!(after(|history| history.receipts.swap(0, 1))[2], 3, "two revs, and their versions");
    assert_eq!(after(|history| drop(history.receipts.remove(0)))[2], 2, "a gap");
}

#[test]
fn a_wrong_state_is_found() {
    assert_eq!(after(|history| history.stored.object["event"] = json!("e1")), [0, 0, 0, 1, 0]);
    assert_eq!(after(|history| history.stored.object["state"]["version"] = json!(2)), [0, 0, 0, 1, 0]);
    assert_eq!(after(|history| history.stored.object["rev"] = json!(4)), [0, 0, 0, 1, 0]);
    assert_eq!(after(|history| history.stored.object["waiting"] = json!([{}])), [0, 0, 0, 1, 0]);
}

#[test]
fn what_nobody_sent_is_found() {
    assert_eq!(after(|history| history.receipts[0].body = "{}".into()), [0, 0, 0, 0, 1]);
    assert_eq!(after(|history| history.stored.arrivals.push(json!({ "event": "x", "outcome": "stale" })))[4], 1);
}

/// A halted process may finish what it had begun, behind the one who took over: if that one marked it.
#[test]
fn only_a_halted_process_may_be_late() {
    let late = |is_halted: bool, is_first_marked: bool| {
        after(|history| {
            history.receipts[2].is_resent = is_first_marked;
            history.send(&history.ledger["d1"].event.clone(), 3, false);
            if is_halted {
                history.halted.push(Life::halted("processor-1.1", history.begin));
            }
        })[1]
    };
    assert_eq!(late(true, true), 0);
    assert_eq!(late(false, true), 1);
    assert_eq!(late(true, false), 1, "two without a mark");
}
