//! A sink that is a function of the program that embeds the processor.

use async_trait::async_trait;

use super::{Effect, Emitted, Fault, Sink, Stale};

/// Called for each effect, one of an object at a time, in order. It may be called again for the same effect, which
/// is then marked: what it does must be safe to do twice, or look at the idempotency key.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    async fn handle(&self, effect: &Effect) -> Result<(), Fault>;
}

/// Makes a sink of a handler. Stale events are delivered, marked.
pub struct HandlerSink<H>(pub H);

#[async_trait]
impl<H: Handler> Sink for HandlerSink<H> {
    async fn emit(&self, effects: &[Effect]) -> Emitted {
        for (taken, effect) in effects.iter().enumerate() {
            if let Err(fault) = self.0.handle(effect).await {
                return Emitted { taken, fault: Some(fault) };
            }
        }
        Emitted::all(effects.len())
    }

    fn stale(&self) -> Stale {
        Stale::DeliverMarked
    }
}
