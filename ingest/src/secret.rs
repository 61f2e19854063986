//! From where a secret stands to its text. An empty secret is refused when the source is set up: a source
//! is never open.

use std::path::PathBuf;

use seriatim_schemas::declaration::SecretRef;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum SecretError {
    #[error("environment variable {name} is not set")]
    EnvMissing { name: String },
    #[error("secret file {path}: {error}")]
    File { path: PathBuf, error: std::io::Error },
    #[error("{place} is empty: a source without a secret would be open")]
    Empty { place: String },
    #[error("{place} is not {encoding}: the key is declared to be")]
    Encoding { place: String, encoding: &'static str },
}

/// The text of a secret. Of a file, white space at the end does not count.
pub fn read_secret(secret: &SecretRef) -> Result<String, SecretError> {
    let (place, text) = match secret {
        SecretRef::Value(text) => ("the secret's value".to_owned(), text.clone()),
        SecretRef::Env(name) => {
            let text = std::env::var(name).map_err(|_| SecretError::EnvMissing { name: name.clone() })?;
            (format!("environment variable {name}"), text)
        }
        SecretRef::File(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| SecretError::File { path: path.into(), error })?;
            (format!("secret file {path}"), text.trim_end().to_owned())
        }
    };
    if text.trim().is_empty() { Err(SecretError::Empty { place }) } else { Ok(text) }
}
