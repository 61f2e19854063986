//! What effects are sent to. It writes down what it was sent, whatever it answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use seriatim_processor::sink::{Effect, Emitted, Sink};
use tokio::time::Instant;

use super::broker::Broker;
use super::faults::{Fault, Faults, lock};
use super::process::Process;

/// How a receiver is for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mood {
    Away,
    Hangs,
    /// It does not want what is of this object.
    Refuses(String),
}

#[derive(Default)]
pub struct Receiver {
    received: Mutex<Vec<Received>>,
    mood: Mutex<Option<(Mood, Instant)>>,
}

#[derive(Clone)]
pub struct Received {
    pub effect: Effect,
    /// It was not wanted.
    pub is_refused: bool,
    /// Who sent it does not own its partition any more.
    pub is_late: bool,
    pub process: usize,
    pub at: Instant,
}

impl Receiver {
    pub fn set(&self, mood: Mood, until: Instant) {
        *lock(&self.mood) = Some((mood, until));
    }

    fn mood(&self) -> Option<Mood> {
        lock(&self.mood).clone().filter(|(_, until)| Instant::now() < *until).map(|(mood, _)| mood)
    }

    pub fn received(&self) -> Vec<Received> {
        lock(&self.received).clone()
    }
}

/// A receiver as one process sees it.
pub struct SimulatedSink {
    pub receiver: Arc<Receiver>,
    pub faults: Arc<Faults>,
    pub process: Arc<Process>,
    pub broker: Arc<Broker>,
    pub batch_max: usize,
}

#[async_trait]
impl Sink for SimulatedSink {
    async fn emit(&self, effects: &[Effect]) -> Emitted {
        self.process.step(20).await;
        let emitted = match self.receiver.mood() {
            Some(Mood::Away) => Emitted::unavailable(0, "away"),
            Some(Mood::Hangs) => {
                self.note(effects, false);
                tokio::time::sleep(Duration::from_secs(3600)).await;
                Emitted::unavailable(0, "hangs")
            }
            Some(Mood::Refuses(object)) if effects[0].key.object == object => {
                // Its effects come one by one where they may be refused.
                self.note(&effects[..1], true);
                Emitted::refused(0, "not wanted")
            }
            Some(Mood::Refuses(_)) | None => self.take(effects),
        };
        let hangs = matches!(&emitted.fault, Some(fault) if fault.to_string() == "SinkHangs");
        self.process.step(21).await;
        if hangs { std::future::pending().await } else { emitted }
    }

    fn batch_max(&self) -> usize {
        self.batch_max
    }
}

impl SimulatedSink {
    fn note(&self, effects: &[Effect], is_refused: bool) {
        let is_late = |effect: &Effect| !self.broker.owns(self.process.number, &effect.key);
        let received = |effect: &Effect| Received {
            effect: effect.clone(),
            is_refused,
            is_late: is_late(effect),
            process: self.process.number,
            at: Instant::now(),
        };
        lock(&self.receiver.received).extend(effects.iter().map(received));
    }

    fn take(&self, effects: &[Effect]) -> Emitted {
        let fault = self.faults.strike(&Fault::OF_SINK);
        let taken = match fault {
            Some(Fault::SinkTakesPart) => self.faults.share(effects.len()),
            Some(Fault::SinkTakesOne) => 1,
            _ => effects.len(),
        };
        self.note(&effects[..taken], false);
        match fault {
            None => Emitted::all(effects.len()),
            Some(Fault::SinkTakesOne) if effects.len() == 1 => Emitted::all(1),
            Some(fault @ Fault::SinkTakesOne) => Emitted::unavailable(1, format!("{fault:?}")),
            Some(fault) => Emitted::unavailable(0, format!("{fault:?}")),
        }
    }
}
