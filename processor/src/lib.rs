//! The processor: consume, decide, commit, emit, record, advance.
//!
//! - [`run`]: one task per assigned partition; starts and drains them
//! - [`partition`]: the loop of a partition: gather per bucket, settle, emit, record, advance
//! - [`candidate`]: what a record means under its source's declaration
//! - [`decide`]: the decision, pure: no I/O, no clock
//! - [`settle`]: read, decide, commit, until the store has said yes; lost answers resolved here
//! - [`sink`]: where effects go; [`store`], [`log`]: how to apply, how to read and commit
//! - [`inspect`]: what an operator asks the store
//! - [`watermark`], [`budget`], [`config`], [`error`], [`metrics`]

pub mod budget;
pub mod candidate;
pub mod config;
pub mod decide;
pub mod error;
pub mod inspect;
pub mod log;
pub mod metrics;
pub mod partition;
pub mod run;
pub mod settle;
pub mod sink;
pub mod store;
pub mod watermark;
