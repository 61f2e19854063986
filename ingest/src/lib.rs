//! The HTTP edge: verify each request over its raw bytes, derive ids, publish, and only then answer 200.
//!
//! - [`webhook`]: the way of one request, step by step
//! - [`request`], [`body`]: what is read of it, under which bounds
//! - [`handshake`], [`challenge`]: requests that are answered and never published; what they make signed
//! - [`batch`]: one request, many events
//! - [`verify`], [`signed`], [`key`], [`jwt`], [`secret`]: signatures over raw bytes with every live secret
//! - [`extract`], [`identify`], [`records`]: event id, object, version and type, without a full parse
//! - [`fetch`]: certificates and confirmations, from declared hosts only
//! - [`filter`]: repeats are written without their bodies
//! - [`log`]: how to append, and only that; the other half of a log is the processor's
//! - [`server`], [`listener`], [`connection`]: routes, connections, shutdown that loses nothing
//! - [`refused`]: the last refusals, for whoever asks why
//! - [`sources`], [`config`], [`error`], [`metrics`]

pub mod batch;
pub mod body;
pub mod challenge;
pub mod config;
pub mod connection;
pub mod error;
pub mod extract;
pub mod fetch;
pub mod filter;
pub mod handshake;
pub mod identify;
pub mod jwt;
pub mod key;
pub mod listener;
pub mod log;
pub mod metrics;
pub mod records;
pub mod rederive;
pub mod refused;
pub mod request;
pub mod secret;
pub mod server;
pub mod signed;
pub mod sources;
pub mod verify;
pub mod webhook;
