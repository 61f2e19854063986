//! The lock of the embedded files: of each role one process at a time writes them, a second one refuses.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Held as long as it lives.
#[derive(Debug)]
pub struct DataLock(#[allow(dead_code)] File);

#[derive(Debug, Error)]
pub enum LockError {
    #[error("{} is in use by another process: stop it, or take another folder", folder.display())]
    InUse { folder: PathBuf },
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
}

/// Makes the folder, and takes the lock of a role: `ingest` or `processor`.
pub fn lock(folder: &Path, role: &str) -> Result<DataLock, LockError> {
    let failed = |path: &Path, error| LockError::Io { path: path.to_owned(), error };
    std::fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
    let path = folder.join(format!("lock.{role}"));
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(|e| failed(&path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(DataLock(file)),
        Err(TryLockError::WouldBlock) => Err(LockError::InUse { folder: folder.to_owned() }),
        Err(TryLockError::Error(error)) => Err(failed(&path, error)),
    }
}
