//! Folds deltas into a column beside the head, inside the decision: a delta that is applied once is folded once,
//! whatever comes twice or is decided again after a lost answer.

use bytes::Bytes;
use seriatim_schemas::record::Record;

use crate::candidate::Cause;

/// Largest fold, in bytes. It is read with each decision on its object.
pub const FOLD_BYTES_MAX: usize = 64 * 1024;

/// A pure function of the fold so far and one delta: the same input gives the same fold, in a test, after a crash,
/// in a replay. No clock, no chance, no I/O.
pub trait Reducer: Send + Sync + 'static {
    /// The fold with `event` in it; `current` is none before the first. An error makes the event a dead letter, and
    /// leaves the fold as it is.
    fn fold(&self, current: Option<&[u8]>, event: &Record) -> Result<Vec<u8>, String>;
}

/// Which delta is folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delta {
    /// By its place among the candidates.
    Candidate(usize),
    /// By its number in the sequence.
    Held(u64),
}

/// What `decide` asks of one delta: the fold with it, or none where nothing folds.
pub type Reduce<'a> = &'a dyn Fn(Delta, Option<&Bytes>) -> Result<Option<Bytes>, Cause>;

/// For objects whose deltas nobody folds.
pub fn no_reducer(_: Delta, _: Option<&Bytes>) -> Result<Option<Bytes>, Cause> {
    Ok(None)
}

/// Folds `event`, within the bound.
pub fn reduce(reducer: &dyn Reducer, current: Option<&Bytes>, event: &Record) -> Result<Option<Bytes>, Cause> {
    let folded = reducer.fold(current.map(|c| &c[..]), event);
    match folded {
        Err(detail) => Err(Cause { cause: "reducer", detail }),
        Ok(folded) if folded.len() > FOLD_BYTES_MAX => {
            let detail = format!("the fold would be {} bytes, more than {FOLD_BYTES_MAX}", folded.len());
            Err(Cause { cause: "reducer", detail })
        }
        Ok(folded) => Ok(Some(folded.into())),
    }
}
