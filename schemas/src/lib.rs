//! What both sides of the log agree on: no I/O, no runtime, no backend.
//!
//! - [`name`]: names of tenants, sources and sinks
//! - [`key`]: object keys, their text form, buckets and partitions
//! - [`id`]: record ids, and the row that an event id gets in the store
//! - [`version`]: version kinds and the order-preserving order key
//! - [`source`], [`declaration`], [`preset`]: how a source is read, as data
//! - [`pointer`], [`selector`], [`expression`], [`pattern`], [`template`]: what declarations are written in
//! - [`verification`], [`handshake`], [`batch`]: how requests are verified, answered and split, as data
//! - [`fetch`]: where the documents of thin events are, as data
//! - [`decode`], [`form`], [`xml`]: from the signed bytes to the JSON document
//! - [`problem`], [`document`]: every mistake of a configuration file at once, each with its line
//! - [`record`]: one entry of the log and its CloudEvents headers
//! - [`sequence`]: deltas that a provider numbers without gaps
//! - [`control`]: acts of an operator, which are records too
//! - [`row`], [`outcome`], [`tables`]: what the store holds
//! - [`kafka`]: the settings that both sides of a topic share
//!
//! Formats that are stored or sent are frozen: each has a test that holds its bytes.

pub mod batch;
pub mod control;
pub mod declaration;
pub mod decode;
pub mod document;
pub mod expression;
pub mod fetch;
pub mod form;
pub mod handshake;
pub mod id;
pub mod kafka;
pub mod key;
pub mod name;
pub mod outcome;
pub mod pattern;
pub mod pointer;
pub mod preset;
pub mod problem;
pub mod record;
pub mod row;
pub mod selector;
pub mod sequence;
pub mod source;
pub mod tables;
pub mod template;
pub mod verification;
pub mod version;
pub mod xml;
