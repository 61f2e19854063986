//! From a decision to the sinks: an effect goes into its lane, or waits; what a lane cannot get rid of goes to the
//! store. Acts on what waits are part of the work of a bucket, one thing at a time.

use std::time::Duration;

use seriatim_schemas::row::Waiting;
use tracing::warn;

use super::{Done, Partition};
use crate::act::{Act, Standing, Waits, What};
use crate::drain::{Waiter, refused_letter};
use crate::lane::{self, Pending, Sent, Ticket};
use crate::mutant::{self, Mutant};
use crate::sink::{Effect, Fault, NamedSink};

impl Partition {
    /// An effect never passes one of its object that waits: neither in memory, nor in the store.
    pub(super) fn dispatch(&mut self, index: usize, pending: Pending, waiting: &Waiting) {
        let sink = self.shared.sinks()[index].clone();
        sink.add_pending(pending.effect.value().len());
        let waiter: Waiter = (pending.effect.key.clone(), index);
        let must_wait =
            (waiting.has(&sink.name) && !mutant::is(Mutant::HeadsWaitingIgnored)) || self.waiters.has(&waiter);
        let must_wait = must_wait && !mutant::is(Mutant::WaitingPassed);
        if let Some(lane) = self.lanes.get_mut(&waiter) {
            lane.push(pending);
            return;
        }
        let is_full = sink.pending() > self.shared.settler.config.budget_bytes / 4;
        let reason = match (must_wait, sink.gate.is_closed(), is_full) {
            (true, ..) => Some("earlier effects of the object wait"),
            (_, false, _) => Some("the sink is away"),
            (_, _, true) => Some("the sink is behind"),
            _ => None,
        };
        self.lanes.insert(waiter.clone(), vec![pending]);
        match reason {
            Some(reason) => self.defer_lane(waiter, 0, reason.to_owned(), false),
            None => self.send_lane(waiter),
        }
    }

    pub(super) fn send_lane(&mut self, waiter: Waiter) {
        let sink = self.shared.sinks()[waiter.1].clone();
        let lane = self.lanes.get_mut(&waiter).expect("a lane is sent while it is there");
        let effects = std::mem::take(lane);
        let (hasten, chance) = (self.hasten.clone(), self.shared.settler.outside.chance());
        self.work.push(Box::pin(async move { Done::Lane(lane::send(sink, waiter, effects, hasten, chance).await) }));
    }

    pub(super) fn on_sent(&mut self, sent: Sent) {
        let Sent { waiter, mut effects, taken, fault, attempted } = sent;
        let sink = self.shared.sinks()[waiter.1].clone();
        let left = effects.split_off(taken);
        self.shared.settler.metrics.count_pending(&sink.name, &effects);
        effects.into_iter().for_each(|pending| self.got_out(&sink, pending));
        match fault {
            None => self.go_on(waiter, left),
            Some(Fault::Unavailable { reason, .. } | Fault::NotYet { reason }) => {
                warn!(sink = sink.name, object = %waiter.0, reason, effects = left.len(), "effects wait");
                self.shared.settler.metrics.sink_errors.inc();
                self.keep(waiter, left, attempted, reason, false);
            }
            Some(Fault::Refused { reason }) if sink.policy.refused.parks(left[0].effect.mode) => {
                warn!(sink = sink.name, object = %waiter.0, reason, "refused: the object is parked for this sink");
                self.keep(waiter, left, 1, reason, true);
            }
            Some(Fault::Refused { reason }) => {
                let mut left = left.into_iter();
                let refused = left.next().expect("a refused effect is left");
                self.bury(&sink, refused, reason);
                self.go_on(waiter, left.collect());
            }
        }
    }

    /// A lane sends on, or is over.
    pub(super) fn go_on(&mut self, waiter: Waiter, left: Vec<Pending>) {
        let lane = self.lanes.get_mut(&waiter).expect("a lane that was sent is there");
        let at = if mutant::is(Mutant::RestBeforeFirst) { lane.len() } else { 0 };
        lane.splice(at..at, left);
        if lane.is_empty() {
            self.lanes.remove(&waiter);
            self.on_lane_over(&waiter.0);
        } else if self.waiters.has(&waiter) {
            // Another owner has put effects into the store that come before these.
            self.defer_lane(waiter, 0, "earlier effects of the object wait".to_owned(), false);
        } else {
            self.send_lane(waiter);
        }
    }

    /// A dead effect: committed, and refused by its sink.
    pub(super) fn bury(&mut self, sink: &NamedSink, refused: Pending, reason: String) {
        let Effect { key, record, .. } = &refused.effect;
        warn!(sink = sink.name, idempotency_key = refused.effect.idempotency_key(), reason, "dead effect");
        self.shared.settler.metrics.dead_effects.inc();
        let letter = refused_letter(record, key, &sink.name, reason, self.shared.settler.outside.now());
        if let Some(open) = self.open.get_mut(&refused.ticket).filter(|_| !mutant::is(Mutant::RefusedIsTaken)) {
            open.letters.push(letter);
        }
        self.got_out(sink, refused);
    }

    /// What a lane has left goes to the store, and all that comes meanwhile behind it.
    pub(super) fn keep(&mut self, waiter: Waiter, left: Vec<Pending>, attempted: usize, cause: String, parks: bool) {
        let lane = self.lanes.get_mut(&waiter).expect("a lane that was sent is there");
        let at = if mutant::is(Mutant::RestBeforeFirst) { lane.len() } else { 0 };
        lane.splice(at..at, left);
        self.defer_lane(waiter, attempted, cause, parks);
    }

    /// `attempted`: so many, from the first on, may have been sent.
    pub(super) fn defer_lane(&mut self, waiter: Waiter, attempted: usize, cause: String, parks: bool) {
        let waits = |(i, p): (usize, &Pending)| Waits {
            effect: p.effect.clone(),
            attempted: i < attempted && !mutant::is(Mutant::AttemptedUnmarked),
        };
        let effects = self.lanes[&waiter].iter().enumerate().map(waits).collect();
        let (key, sink) = waiter;
        self.act(Act { key, sink, what: What::Defer { effects, cause, parks } });
    }

    pub(super) fn act(&mut self, act: Act) {
        self.act_for(act, None);
    }

    /// `ticket`: the operator's record that asks for it.
    pub(super) fn act_for(&mut self, act: Act, ticket: Option<Ticket>) {
        let bucket = self.shared.bucket(&act.key);
        self.buckets.entry(bucket).or_default().acts.push_back((act, ticket));
        self.wake(bucket);
    }

    pub(super) fn on_act(&mut self, act: Act, ticket: Option<Ticket>, standing: Standing) {
        if let Some(ticket) = ticket {
            self.on_asked(act, standing);
            return self.settle_ticket(ticket);
        }
        let waiter: Waiter = (act.key, act.sink);
        let sink = self.shared.sinks()[waiter.1].clone();
        match act.what {
            What::Defer { effects, .. } => {
                let delay = Duration::from_millis(sink.policy.retry_min_ms);
                match standing {
                    Standing::Parked => self.waiters.park(waiter.clone()),
                    _ => self.waiters.add(waiter.clone(), false, delay),
                }
                let lane = self.lanes.get_mut(&waiter).expect("a lane is there while it defers");
                let kept: Vec<_> = lane.drain(..effects.len()).collect();
                kept.into_iter().for_each(|pending| self.got_out(&sink, pending));
                if self.lanes[&waiter].is_empty() {
                    self.lanes.remove(&waiter);
                    self.on_lane_over(&waiter.0);
                } else {
                    self.defer_lane(waiter, 0, "earlier effects of the object wait".to_owned(), false);
                }
            }
            What::Drained { cause, .. } => match standing {
                Standing::Clear => self.waiters.remove(&waiter),
                Standing::Parked => self.waiters.park(waiter),
                Standing::Waits => {
                    self.waiters.again(waiter, cause.is_some(), &sink, self.shared.settler.outside.chance());
                    self.start_drains();
                }
            },
            What::Redrive { .. } | What::Release { .. } => {}
        }
    }

    /// An operator's act is done.
    pub(super) fn on_asked(&mut self, act: Act, standing: Standing) {
        let waiter: Waiter = (act.key, act.sink);
        // A drain that is under way says itself how it leaves the object.
        if self.waiters.is_draining(&waiter) {
            return;
        }
        match (standing, act.what) {
            (Standing::Clear, _) => self.waiters.remove(&waiter),
            (Standing::Parked, _) => self.waiters.park(waiter),
            (Standing::Waits, What::Release { .. }) => self.waiters.release(waiter),
            (Standing::Waits, _) => self.waiters.add(waiter, false, Duration::ZERO),
        }
    }

    /// A sink has the effect, or the store keeps it for one.
    pub(super) fn got_out(&mut self, sink: &NamedSink, pending: Pending) {
        sink.sub_pending(pending.effect.value().len());
        self.settle_ticket(pending.ticket);
    }

    /// One thing less that a record waits for.
    pub(super) fn settle_ticket(&mut self, ticket: Ticket) {
        let Some(open) = self.open.get_mut(&ticket) else { return };
        open.left -= 1;
        if open.left == 0 {
            let open = self.open.remove(&ticket).expect("it was just seen");
            let bucket = open.bucket;
            self.buckets.entry(bucket).or_default().out.push(open);
            self.record(bucket);
        }
    }
}
