//! End to end, against the real binary: HTTP in, state, effects and ledger out, on every engine.
//!
//! The distributed engine needs Kafka and Cassandra: `infra/local/servers run -- cargo test --workspace`
//! starts them and sets SERIATIM_KAFKA and SERIATIM_CQL.

#[macro_use]
mod support;

mod api;
mod bugbank;
mod clean_topic;
mod cli;
mod filter;
mod kill;
mod neighbours;
mod operate;
mod own_server;
mod probes;
mod provider;
mod push;
mod readme;
mod receiver;
mod samples;
mod sdk;
mod secrets;
mod send;
mod sequence;
mod stop;
mod thin;
