//! What every store promises, as cases over any of them. Stores may be shared with other tests.

mod commits;
mod contention;
mod keys;
mod ledger;
mod pages;
mod waiting;

pub use commits::*;
pub use contention::*;
pub use keys::*;
pub use ledger::*;
pub use pages::*;
pub use waiting::*;
