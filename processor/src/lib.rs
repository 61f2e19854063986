//! The processor: consume, decide, commit, emit, record, advance.
//!
//! - [`run`]: one task per assigned partition; starts and drains them
//! - [`partition`]: the loop of a partition: gather per bucket, settle, emit, record, advance
//! - [`group`]: one group of a bucket, from its records to what each of them did
//! - [`lane`]: effects on their way to a sink; [`act`], [`drain`]: effects that wait in the store
//! - [`candidate`]: what a record means under its source's declaration
//! - [`decide`]: the decision, pure: no I/O, no clock
//! - [`reduce`]: deltas folded inside the decision, by the program that embeds this crate
//! - [`settle`]: read, decide, commit, until the store has said yes; lost answers resolved here
//! - [`sequence`]: numbered deltas: what is held behind a gap, and how it is released
//! - [`sink`]: where effects go; [`store`], [`log`]: how to apply, how to read and commit
//! - [`inspect`]: what an operator asks the store
//! - [`outbound`]: where requests of ours may go
//! - [`outside`]: the clock, ids and chance, as they are handed in
//! - [`lock`]: one process at a time on the embedded files
//! - [`watermark`], [`budget`], [`config`], [`error`], [`metrics`]
//! - `mutant`: deliberate breaks of all this, which the simulation must find

pub mod act;
pub mod budget;
pub mod candidate;
pub mod config;
pub mod decide;
pub mod drain;
pub mod error;
pub mod group;
pub mod inspect;
pub mod lane;
pub mod lock;
pub mod log;
pub mod metrics;
#[cfg(feature = "mutants")]
pub mod mutant;
#[cfg(not(feature = "mutants"))]
mod mutant;
pub mod outbound;
pub mod outside;
pub mod partition;
pub mod reduce;
pub mod run;
pub mod sequence;
pub mod settle;
pub mod sink;
pub mod store;
pub mod watermark;
