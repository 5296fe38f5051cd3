//! The archive: an object store (a local directory or S3) that holds extent files which need not lie on this host.
//!
//! * this file: objects are written and read back, fetched and checked, removed, listed
//! * `place`: the URL and what it opens
//!
//! An object is an extent file, byte for byte, under `<prefix>/<owner>/<fingerprint>/<session number>/<id>.kv`; the owner is
//! a data directory, since ids are unique in one directory only. Calls wait for the store and are for threads that may;
//! each ends within [`Settings::patience`].

#[cfg(all(test, feature = "s3"))]
pub mod fake;
mod place;

pub use place::Settings;

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tonic::{Code, Status};

/// Name of the setting, for refusals.
pub const SETTING: &str = "archive.url (--archive)";
/// Moves of files that run at once.
pub const PARALLEL: usize = 4;

/// BLAKE3-256 of an object.
pub type Digest = [u8; 32];

/// Why the archive did not do it; one line.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// None is configured.
    #[error("{SETTING} is not set, and rows of this session lie in an archive")]
    Unset,
    /// A setting that cannot be used.
    #[error("{SETTING}: {0}")]
    Setting(String),
    /// The store refused or failed.
    #[error("the archive cannot {verb} {key}: {why}")]
    Store {
        /// What was tried.
        verb: &'static str,
        /// Of which object.
        key: String,
        /// As the store or its client says.
        why: String,
    },
    /// No answer.
    #[error("the archive did not {verb} {key} within {} ms (archive.timeout_seconds, archive.retries)", .within.as_millis())]
    Late {
        /// What was tried.
        verb: &'static str,
        /// Of which object.
        key: String,
        /// The limit.
        within: Duration,
    },
    /// There is no such object.
    #[error("the archive does not hold {0}")]
    Gone(String),
    /// The directory that is the archive is not there.
    #[error("the archive's directory {0} is not there")]
    Away(String),
    /// Another object than was written.
    #[error("the archive holds {0} with other bytes than were written")]
    Differs(String),
}

impl ArchiveError {
    /// The code of a status about it: UNAVAILABLE where asking again may help.
    pub fn code(&self) -> Code {
        match self {
            ArchiveError::Unset | ArchiveError::Setting(_) => Code::FailedPrecondition,
            ArchiveError::Store { .. } | ArchiveError::Late { .. } | ArchiveError::Away(_) => {
                Code::Unavailable
            }
            ArchiveError::Gone(_) | ArchiveError::Differs(_) => Code::DataLoss,
        }
    }
}

impl From<ArchiveError> for Status {
    fn from(e: ArchiveError) -> Self {
        Status::new(e.code(), e.to_string())
    }
}

/// An object store in use.
pub struct Archive {
    store: Arc<dyn ObjectStore>,
    /// Of a local archive: without it no object is there, and none is lost.
    directory: Option<PathBuf>,
    root: Path,
    patience: Duration,
    /// Its own, so that threads without one can wait for the store. None only while it is dropped.
    runtime: Option<Runtime>,
}

impl Archive {
    /// Opens the store of a data directory, whose objects lie below its own name. Nothing is sent yet.
    pub fn open(settings: &Settings, owner: &str) -> Result<Self, ArchiveError> {
        let (store, prefix) = place::open(settings)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("archive")
            .enable_all()
            .build()
            .map_err(|e| ArchiveError::Setting(format!("cannot start threads: {e}")))?;
        let root = prefix.join(owner);
        let directory = place::directory(settings);
        Ok(Self { store, directory, root, patience: settings.patience(), runtime: Some(runtime) })
    }

    /// The name of an extent's object.
    pub fn key(&self, fingerprint: &[u8; 32], session: u64, id: u64) -> Path {
        let names = [wire::convert::hex(fingerprint), format!("{session:016x}"), format!("{id:016x}.kv")];
        names.into_iter().fold(self.root.clone(), |path, name| path.join(name))
    }

    /// Writes an object and reads it back: when this returns, the store gave the very bytes.
    pub fn put(&self, key: &Path, bytes: Vec<u8>) -> Result<Digest, ArchiveError> {
        let digest = *blake3::hash(&bytes).as_bytes();
        self.wait("write", key, async { self.store.put(key, bytes.into()).await.map(drop) })?;
        self.fetch(key, &digest).map(|_| digest)
    }

    /// The bytes of an object, which must be those that were written.
    pub fn fetch(&self, key: &Path, digest: &Digest) -> Result<Vec<u8>, ArchiveError> {
        let bytes = self.wait("read", key, async { self.store.get(key).await?.bytes().await })?;
        match blake3::hash(&bytes).as_bytes() == digest {
            true => Ok(bytes.into()),
            false => Err(ArchiveError::Differs(key.to_string())),
        }
    }

    fn missing(&self, key: &Path) -> ArchiveError {
        match self.directory.as_ref().filter(|d| !d.is_dir()) {
            Some(directory) => ArchiveError::Away(directory.display().to_string()),
            None => ArchiveError::Gone(key.to_string()),
        }
    }

    /// Every object of this data directory.
    pub fn keys(&self) -> Result<Vec<Path>, ArchiveError> {
        let list =
            async { self.store.list(Some(&self.root)).map_ok(|meta| meta.location).try_collect().await };
        self.wait("list", &self.root, list)
    }

    /// Removes an object; one that is not there is removed already.
    pub fn remove(&self, key: &Path) -> Result<(), ArchiveError> {
        match self.wait("remove", key, self.store.delete(key)) {
            Err(ArchiveError::Gone(_)) => Ok(()),
            done => done,
        }
    }

    /// Removes objects in the background. What fails is logged; the next start finds and removes it.
    pub fn forget(&self, keys: Vec<Path>) {
        let Some(runtime) = self.runtime.as_ref().filter(|_| !keys.is_empty()) else { return };
        let (store, patience) = (self.store.clone(), self.patience);
        runtime.spawn(async move {
            for key in keys {
                let done = tokio::time::timeout(patience, store.delete(&key)).await;
                let why = match done {
                    Ok(Ok(()) | Err(object_store::Error::NotFound { .. })) => continue,
                    Ok(Err(e)) => one_line(&e.to_string()),
                    Err(_) => "no answer".to_owned(),
                };
                tracing::warn!(key = %key, why, "an object that nobody needs stays in the archive until the next start");
            }
        });
    }

    fn wait<T>(
        &self,
        verb: &'static str,
        key: &Path,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, ArchiveError> {
        let late = || ArchiveError::Late { verb, key: key.to_string(), within: self.patience };
        let runtime = self.runtime.as_ref().ok_or_else(late)?;
        match runtime.handle().block_on(async { tokio::time::timeout(self.patience, work).await }) {
            Err(_) => Err(late()),
            Ok(Err(object_store::Error::NotFound { .. })) => Err(self.missing(key)),
            Ok(Err(e)) => {
                Err(ArchiveError::Store { verb, key: key.to_string(), why: one_line(&e.to_string()) })
            }
            Ok(Ok(done)) => Ok(done),
        }
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Whoever lets go may be a task of another runtime, which must not wait.
            runtime.shutdown_background();
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
