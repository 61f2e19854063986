//! Effects on their way from a decision to a sink: one lane per object and sink, so that one object's effects
//! stay in order while others pass them. Nothing here is durable: until a lane's effects are taken, or wait in
//! the store, their records count as pending.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::drain::Waiter;
use crate::sink::{Effect, Emitted, Fault, NamedSink};

/// Names a record that waits for sinks.
pub type Ticket = u64;

/// An effect, and the record that is done once it is out.
#[derive(Debug, Clone)]
pub struct Pending {
    pub ticket: Ticket,
    pub effect: Effect,
}

/// By object and sink, what came while a send, or an act, was under way.
pub type Lanes = HashMap<Waiter, Vec<Pending>>;

/// What one send of a lane came to.
pub struct Sent {
    pub waiter: Waiter,
    pub effects: Vec<Pending>,
    pub taken: usize,
    pub fault: Option<Fault>,
    /// So many of those that were not taken, from the first on, may have been sent.
    pub attempted: usize,
}

/// Sends a lane's effects in order, up to the first that is not taken, or that takes too long.
pub async fn send(
    sink: Arc<NamedSink>,
    waiter: Waiter,
    effects: Vec<Pending>,
    hasten: CancellationToken,
    chance: f64,
) -> Sent {
    let within = Duration::from_millis(sink.policy.wait_after_ms);
    let pass = tokio::select! {
        biased;
        pass = tokio::time::timeout(within, sink.gate.pass(effects.len())) => pass.ok().flatten(),
        () = hasten.cancelled() => None,
    };
    let Some(pass) = pass else {
        let fault = Fault::Unavailable { reason: "the sink is away, or busy".to_owned(), retry_after: None };
        return Sent { waiter, effects, taken: 0, fault: Some(fault), attempted: 0 };
    };
    let (mut taken, mut fault) = (0, None);
    while taken < effects.len() && fault.is_none() {
        let last = effects.len().min(taken + sink.sink.batch_max());
        let chunk: Vec<Effect> = effects[taken..last].iter().map(|p| p.effect.clone()).collect();
        let emitted = tokio::select! {
            biased;
            emitted = sink.emit(&chunk) => emitted,
            () = hasten.cancelled() => Emitted::unavailable(0, "this process stops"),
        };
        taken += emitted.taken;
        fault = emitted.fault;
    }
    match &fault {
        Some(Fault::Unavailable { .. }) if hasten.is_cancelled() => drop(pass),
        Some(Fault::Unavailable { retry_after, .. }) => sink.gate.failed(pass, *retry_after, chance),
        Some(Fault::Refused { .. } | Fault::NotYet { .. }) | None => sink.gate.succeeded(pass),
    }
    let attempted = sink.sink.batch_max();
    Sent { waiter, effects, taken, fault, attempted }
}
