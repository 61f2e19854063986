//! The HTTP edge: verify each request over its raw bytes, derive ids, publish, and only then answer 200.
//!
//! - [`webhook`]: the way of one request, step by step
//! - [`request`], [`body`]: what is read of it, under which bounds
//! - [`verify`], [`signed`], [`key`], [`jwt`], [`secret`]: signatures over raw bytes with every live secret
//! - [`extract`], [`identify`]: event id, object, version and type, without a full parse
//! - [`log`]: how to append, and only that; the other half of a log is the processor's
//! - [`server`], [`listener`]: routes, connections, shutdown that loses nothing
//! - [`sources`], [`config`], [`error`], [`metrics`]

pub mod body;
pub mod config;
pub mod error;
pub mod extract;
pub mod identify;
pub mod jwt;
pub mod key;
pub mod listener;
pub mod log;
pub mod metrics;
pub mod request;
pub mod secret;
pub mod server;
pub mod signed;
pub mod sources;
pub mod verify;
pub mod webhook;
