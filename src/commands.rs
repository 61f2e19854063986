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

use thiserror::Error;

use crate::config::Config;
use crate::output::Format;

/// What every command is told.
#[derive(Debug)]
pub struct Context {
    pub config: PathBuf,
    pub format: Format,
}

impl Context {
    pub fn load(&self) -> anyhow::Result<Config> {
        Config::load(&self.config).map_err(|error| Failure::Config(format!("{error:#}")).into())
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
    match error.downcast_ref::<Failure>() {
        None => 1,
        Some(Failure::Config(_)) => 2,
        Some(Failure::NotFound(_)) => 3,
        Some(Failure::Check(_)) => 4,
    }
}
