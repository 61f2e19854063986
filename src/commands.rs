//! The commands, one file each.

pub mod check;
pub mod completions;
pub mod dead;
pub mod dev;
pub mod event;
pub mod lag;
pub mod migrate;
pub mod object;
pub mod run;
pub mod send;
pub mod source;
pub mod tail;
pub mod verify;

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

use crate::api::client::Client;
use crate::api::direct::Direct;
use crate::api::operations::{OperationError, Operations};
use crate::config::Config;
use crate::output::Format;

/// What every command is told.
#[derive(Debug)]
pub struct Context {
    pub config: PathBuf,
    pub format: Format,
    pub server: Option<String>,
    pub token_file: Option<PathBuf>,
}

impl Context {
    pub fn load(&self) -> anyhow::Result<Config> {
        Config::load(&self.config).map_err(|error| Failure::Config(format!("{error:#}")).into())
    }

    /// What is asked: the server that was named, or else log and store.
    pub fn operations(&self) -> anyhow::Result<Box<dyn Operations>> {
        match &self.server {
            Some(server) => Ok(Box::new(Client::new(server, self.token_file.as_deref())?)),
            None => Ok(Box::new(Direct::new(Arc::new(self.load_or_dev()?), None))),
        }
    }

    /// The file where there is one; else what `dev` runs with.
    pub fn load_or_dev(&self) -> anyhow::Result<Config> {
        if self.config.exists() {
            self.load()
        } else {
            dev::config(std::path::Path::new(dev::DATA), dev::secret_of(std::path::Path::new(dev::DATA)).ok())
        }
    }
}

/// Failures with an exit code of their own; see `seriatim --help`.
#[derive(Debug, Error)]
pub enum Failure {
    #[error("{0}")]
    Config(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Check(String),
}

pub fn exit_code(error: &anyhow::Error) -> u8 {
    match (error.downcast_ref::<Failure>(), error.downcast_ref::<OperationError>()) {
        (Some(Failure::Config(_)), _) | (_, Some(OperationError::Invalid(_))) => 2,
        (Some(Failure::NotFound(_)), _) | (_, Some(OperationError::NotFound(_))) => 3,
        (Some(Failure::Check(_)), _) => 4,
        (None, _) => 1,
    }
}
