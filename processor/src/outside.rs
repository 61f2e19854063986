//! What a processor takes from outside that is never twice the same: the time of day, ids, and chance. They are handed
//! in, so that a simulation can say what they are.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

pub trait Outside: Send + Sync + 'static {
    fn now(&self) -> Timestamp;

    /// One that nobody else has.
    fn id(&self) -> Uuid;

    /// From 0 to 1.
    fn chance(&self) -> f64;
}

/// The clock of the machine, and its random numbers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Machine;

impl Outside for Machine {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn id(&self) -> Uuid {
        Uuid::new_v4()
    }

    fn chance(&self) -> f64 {
        f64::from(Uuid::new_v4().as_u128() as u32) / f64::from(u32::MAX)
    }
}

/// Between all and one and a half of `wait`, so that many do not come back at once.
pub fn jittered(wait: Duration, chance: f64) -> Duration {
    wait.mul_f64(1.0 + chance / 2.0)
}
