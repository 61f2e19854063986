//! From where a secret stands to its text. An empty secret is refused when the source is set up: a source
//! is never open.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use seriatim_schemas::source::SecretRef;
use thiserror::Error;
use uuid::Uuid;

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
    #[error("the secret is a public key or a certificate: anyone could sign with it")]
    Public,
    #[error("the secret does not say which kind of key it is: it must start with {prefixes}")]
    Prefix { prefixes: String },
}

/// The text of a secret. Of a file, white space at the end does not count.
pub fn read_secret(secret: &SecretRef) -> Result<String, SecretError> {
    let (place, text) = match secret {
        SecretRef::Value(text) => ("the secret's value".to_owned(), text.clone()),
        SecretRef::Env(name) => {
            let text = std::env::var(name).map_err(|_| SecretError::EnvMissing { name: name.clone() })?;
            (format!("environment variable {name}"), text)
        }
        SecretRef::File(path) | SecretRef::Handshake(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| SecretError::File { path: path.into(), error })?;
            (format!("secret file {path}"), text.trim_end().to_owned())
        }
    };
    if text.trim().is_empty() { Err(SecretError::Empty { place }) } else { Ok(text) }
}

/// The texts of all secrets. One that a handshake has yet to bring is left out: that is one whose file is not there,
/// not one whose folder cannot be looked into, or the next request could bring another secret.
pub fn read_secrets(secrets: &[SecretRef]) -> Result<Vec<String>, SecretError> {
    let mut texts = Vec::new();
    for secret in secrets {
        if !is_awaited(secret)? {
            texts.push(read_secret(secret)?);
        }
    }
    Ok(texts)
}

fn is_awaited(secret: &SecretRef) -> Result<bool, SecretError> {
    let SecretRef::Handshake(path) = secret else { return Ok(false) };
    let there = Path::new(path).try_exists();
    there.map(|there| !there).map_err(|error| SecretError::File { path: path.into(), error })
}

/// Keeps the secret that a handshake brought, once: an existing file is an error of kind `AlreadyExists`.
pub fn store_secret(path: &Path, text: &str) -> std::io::Result<()> {
    // Linked into place: whoever sees the file sees all of it, and only the first of two gets there.
    let draft = path.with_extension(format!("draft-{}", Uuid::new_v4().simple()));
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let written = options.open(&draft).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let linked = written.and_then(|()| std::fs::hard_link(&draft, path));
    let _ = std::fs::remove_file(&draft);
    // Acknowledged is what a crash does not take: the name stands in the folder, not in the file.
    linked.and_then(|()| {
        sync_folder(path).inspect_err(|_| {
            let _ = std::fs::remove_file(path);
        })
    })
}

fn sync_folder(of: &Path) -> std::io::Result<()> {
    let folder = of.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_looked_for_is_no_missing_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "x").expect("written");
        // Below a plain file nothing can be looked for, whoever asks.
        let secret = |path: std::path::PathBuf| [SecretRef::Handshake(path.display().to_string())];
        assert!(read_secrets(&secret(plain.join("secret"))).is_err());
        assert!(read_secrets(&secret(folder.path().join("secret"))).expect("awaited").is_empty());
        assert!(store_secret(&plain.join("secret"), "s").is_err());
    }

    #[test]
    fn the_first_handshake_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        let secrets = [SecretRef::Handshake(path.display().to_string())];
        assert!(read_secrets(&secrets).expect("awaited").is_empty());
        store_secret(&path, "first").expect("kept");
        let error = store_secret(&path, "second").expect_err("taken");
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
        assert_eq!(read_secrets(&secrets).expect("there"), ["first"]);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }
}
