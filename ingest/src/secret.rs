//! From where a secret stands to the key of a MAC. An empty secret is refused when the source is set up:
//! a source is never open.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use seriatim_schemas::declaration::{KeyEncoding, SecretRef, Verify};
use sha2::Sha256;
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

/// One live secret, ready to sign. Nothing prints it.
#[derive(Clone)]
pub struct LiveKey {
    mac: Hmac<Sha256>,
    /// `INDEX:` and 8 hex digits that name the key without telling it.
    pub label: String,
}

impl std::fmt::Debug for LiveKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LiveKey({})", self.label)
    }
}

impl LiveKey {
    pub fn new(index: usize, key: &[u8]) -> Self {
        let mac: Hmac<Sha256> = KeyInit::new_from_slice(key).expect("HMAC takes a key of any length");
        let mut named = mac.clone();
        named.update(b"seriatim key label");
        let label = format!("{index}:{}", hex::encode(&named.finalize().into_bytes()[..4]));
        Self { mac, label }
    }

    pub fn mac(&self) -> Hmac<Sha256> {
        self.mac.clone()
    }
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

/// The bytes of the key in a secret's text: prefix stripped, then decoded as declared.
pub fn key_bytes(text: &str, rule: &Verify) -> Result<Vec<u8>, SecretError> {
    let place = || "the secret".to_owned();
    let text = rule.key_prefix.as_deref().and_then(|prefix| text.strip_prefix(prefix)).unwrap_or(text);
    let key = match rule.key {
        KeyEncoding::Utf8 => text.as_bytes().to_vec(),
        KeyEncoding::Hex => hex::decode(text).map_err(|_| SecretError::Encoding { place: place(), encoding: "hex" })?,
        KeyEncoding::Base64 => {
            STANDARD.decode(text).map_err(|_| SecretError::Encoding { place: place(), encoding: "base64" })?
        }
    };
    if key.is_empty() { Err(SecretError::Empty { place: place() }) } else { Ok(key) }
}

/// All live keys of a source, in the order of its secrets.
pub fn live_keys(secrets: &[SecretRef], rule: &Verify) -> Result<Vec<LiveKey>, SecretError> {
    let key = |(index, secret): (usize, &SecretRef)| Ok(LiveKey::new(index, &key_bytes(&read_secret(secret)?, rule)?));
    secrets.iter().enumerate().map(key).collect()
}
