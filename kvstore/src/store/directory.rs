//! The data directory: whose it is, what lies where, what is not what it should be.
//!
//! ```text
//! FORMAT        two lines of text: what this is, and its format
//! LOCK          locked by the server that uses the directory
//! catalogue/    sled; catalogue.stamp: how many batches it has seen
//! extents/      <id>.kv: extent files, <id>.q: queries of a span, <id>.ix: its index
//! logs/         <session>-<segment>.log
//! quarantine/   what was damaged or foreign, under its old name with a number before it
//! ```

use crate::store::fail;
use crate::store::publish::{self, TEMPORARY};
use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Name of the setting, for refusals.
pub const SETTING: &str = "storage.path (--data)";
/// The newest format of a directory.
const FORMAT: u32 = 1;
const TITLE: &str = "data directory of recollectd";
/// Bytes that stay free: the catalogue must be able to forget what is deleted to make room.
const SPARE: u64 = 4 << 20;

/// Why a directory cannot be used, in one line.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Cannot be made, read or written.
    #[error("{SETTING} {path}: {why}", path = .0.display(), why = .1)]
    Io(PathBuf, io::Error),
    /// Another server has it.
    #[error("{SETTING} {path}: another process uses this directory", path = .0.display())]
    Locked(PathBuf),
    /// Not ours.
    #[error("{SETTING} {path}: it is not empty and not a {TITLE}", path = .0.display())]
    Foreign(PathBuf),
    /// Written by a newer program.
    #[error("{SETTING} {path}: format {found}, this program reads up to {FORMAT}", path = .0.display(), found = .1)]
    Version(PathBuf, u32),
}

/// No room for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{SETTING} has no room: {needed} bytes are needed beside the {SPARE} that stay free, {free} are free"
)]
pub struct Full {
    /// Bytes to write.
    pub needed: u64,
    /// Bytes that the file system has left for this user.
    pub free: u64,
}

/// A directory that this process alone uses.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    /// Held for its lock, which ends with the process.
    _lock: File,
    /// Files that were put away since the start.
    quarantined: AtomicU64,
    /// Held while a name in quarantine is chosen and taken.
    putting_away: Mutex<()>,
    /// Tests: bytes that are not there.
    #[cfg(test)]
    pub taken: AtomicU64,
}

impl Directory {
    /// Takes a directory; makes it when it is not there.
    pub fn open(root: &Path) -> Result<Self, DirectoryError> {
        let io = |e| DirectoryError::Io(root.to_owned(), e);
        std::fs::create_dir_all(root).map_err(io)?;
        let mut names = std::fs::read_dir(root).map_err(io)?;
        match std::fs::read_to_string(root.join("FORMAT")) {
            Ok(text) => check_format(root, &text)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                // A start that was cut short leaves a lock and perhaps half a FORMAT.
                let ours = |name: &OsStr| name == "LOCK" || name == "FORMAT.tmp";
                if names.any(|entry| entry.is_ok_and(|e| !ours(&e.file_name()))) {
                    return Err(DirectoryError::Foreign(root.to_owned()));
                }
            }
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                return Err(DirectoryError::Foreign(root.to_owned()));
            }
            Err(e) => return Err(io(e)),
        }
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        let lock = options.open(root.join("LOCK")).map_err(io)?;
        lock.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => DirectoryError::Locked(root.to_owned()),
            TryLockError::Error(e) => io(e),
        })?;
        let directory = Self {
            root: root.to_owned(),
            _lock: lock,
            quarantined: AtomicU64::new(0),
            putting_away: Mutex::new(()),
            #[cfg(test)]
            taken: AtomicU64::new(0),
        };
        directory.make_folders().map_err(io)?;
        Ok(directory)
    }

    fn make_folders(&self) -> io::Result<()> {
        // First, so that a start that is cut short does not leave what looks like somebody else's directory.
        if !self.root.join("FORMAT").exists() {
            let text = format!("{TITLE}\nformat {FORMAT}\n");
            publish::publish(&self.root, "FORMAT", |out| out.write_all(text.as_bytes()))?;
        }
        for folder in [self.extents(), self.logs(), self.quarantine()] {
            std::fs::create_dir_all(folder)?;
        }
        publish::sync_folder(&self.root)
    }

    /// Where extents, queries and indexes lie.
    pub fn extents(&self) -> PathBuf {
        self.root.join("extents")
    }

    /// Where logs lie.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// Where the catalogue lies.
    pub fn catalogue(&self) -> PathBuf {
        self.root.join("catalogue")
    }

    fn quarantine(&self) -> PathBuf {
        self.root.join("quarantine")
    }

    /// An extent's file.
    pub fn extent(&self, id: u64) -> PathBuf {
        self.extents().join(extent_name(id))
    }

    /// The file of a span's queries.
    pub fn queries(&self, id: u64) -> PathBuf {
        self.extents().join(queries_name(id))
    }

    /// The file of a span's index.
    pub fn index(&self, id: u64) -> PathBuf {
        self.extents().join(index_name(id))
    }

    /// Removes a file; one that is not there is removed already.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => {
                fail::point("extent deleted");
                Ok(())
            }
        }
    }

    /// Whether `bytes` more may be written.
    pub fn room(&self, bytes: u64) -> Result<(), Full> {
        let Ok(stat) = rustix::fs::statvfs(&self.root) else {
            // Then the write itself will tell.
            return Ok(());
        };
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        #[cfg(test)]
        let free = free.saturating_sub(self.taken.load(Ordering::Relaxed));
        match bytes.saturating_add(SPARE) > free {
            true => Err(Full { needed: bytes, free }),
            false => Ok(()),
        }
    }

    /// Puts a file or folder away, with a line in the log. What cannot be moved stays, and is left out all the same.
    pub fn put_away(&self, path: &Path, why: &dyn std::fmt::Display) {
        self.quarantined.fetch_add(1, Ordering::Relaxed);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let moved = {
            let _one = self.putting_away.lock();
            let free =
                (0u64..).map(|i| self.quarantine().join(format!("{i:04}-{name}"))).find(|p| !p.exists());
            free.map_or(Ok(()), |to| std::fs::rename(path, to))
        };
        match moved {
            Ok(()) => tracing::warn!(file = %path.display(), %why, "put into quarantine"),
            Err(e) => {
                tracing::error!(file = %path.display(), %why, error = %e, "cannot be put into quarantine")
            }
        }
    }

    /// Files that were put away since the start.
    pub fn quarantined(&self) -> u64 {
        self.quarantined.load(Ordering::Relaxed)
    }

    /// Puts the catalogue and all that it alone explains away: a server without it knows no session.
    pub fn put_all_away(&self, why: &dyn std::fmt::Display) -> io::Result<()> {
        for path in [self.catalogue(), self.catalogue().with_extension("stamp"), self.extents(), self.logs()]
        {
            if path.exists() {
                self.put_away(&path, why);
            }
        }
        self.make_folders()
    }
}

/// Name of an extent's file.
pub fn extent_name(id: u64) -> String {
    format!("{id:016x}.kv")
}

/// Name of a file of queries.
pub fn queries_name(id: u64) -> String {
    format!("{id:016x}.q")
}

/// Name of an index file.
pub fn index_name(id: u64) -> String {
    format!("{id:016x}.ix")
}

/// What a name in `extents/` stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// An extent.
    Extent(u64),
    /// Queries of a span.
    Queries(u64),
    /// The index of a span.
    Index(u64),
    /// Never published.
    Temporary,
    /// Not one of ours.
    Foreign,
}

impl Name {
    /// Reads a file name.
    pub fn read(name: &str) -> Self {
        let id = name.split_once('.').and_then(|(id, _)| u64::from_str_radix(id, 16).ok());
        match id {
            Some(id) if extent_name(id) == name => Name::Extent(id),
            Some(id) if queries_name(id) == name => Name::Queries(id),
            Some(id) if index_name(id) == name => Name::Index(id),
            _ if Path::new(name).extension().is_some_and(|e| e == TEMPORARY) => Name::Temporary,
            _ => Name::Foreign,
        }
    }
}

fn check_format(root: &Path, text: &str) -> Result<(), DirectoryError> {
    let mut lines = text.lines();
    let title = lines.next() == Some(TITLE);
    match lines.next().and_then(|l| l.strip_prefix("format ")).and_then(|n| n.parse().ok()) {
        Some(format) if title && format > FORMAT => Err(DirectoryError::Version(root.to_owned(), format)),
        Some(FORMAT) if title => Ok(()),
        _ => Err(DirectoryError::Foreign(root.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_taken_by_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let first = Directory::open(&path).unwrap();
        let e = Directory::open(&path).unwrap_err().to_string();
        assert!(e.contains("another process uses") && e.contains("--data"), "{e}");
        drop(first);
        Directory::open(&path).unwrap();
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |name: &str, text: &str, words: &str| {
            let path = folder.path().join(words);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join(name), text).unwrap();
            let e = Directory::open(&path).unwrap_err().to_string();
            assert!(e.contains(words) && !e.contains('\n'), "{e}");
        };
        refused("notes.txt", "mine", "it is not empty");
        refused("FORMAT", "data directory of recollectd\nformat 2\n", "format 2, this program reads up to 1");
        refused("FORMAT", "PK", "not a data directory");
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(Directory::open(&file), Err(DirectoryError::Io(..))));
    }

    #[test]
    fn names() {
        assert_eq!(Name::read("00000000000000ff.kv"), Name::Extent(255));
        assert_eq!(Name::read("0000000000000001.q"), Name::Queries(1));
        assert_eq!(Name::read("0000000000000001.ix"), Name::Index(1));
        assert_eq!(Name::read("0000000000000001.kv.tmp"), Name::Temporary);
        for foreign in ["ff.kv", "00000000000000FF.kv", "copy of 1.kv", "0000000000000001.kv~", ""] {
            assert_eq!(Name::read(foreign), Name::Foreign);
        }
    }

    #[test]
    fn quarantine_keeps_what_has_the_same_name() {
        let folder = tempfile::tempdir().unwrap();
        let d = Directory::open(folder.path()).unwrap();
        for _ in 0..2 {
            let path = d.extents().join("x");
            std::fs::write(&path, "?").unwrap();
            d.put_away(&path, &"a test");
        }
        assert_eq!((d.quarantined(), std::fs::read_dir(d.quarantine()).unwrap().count()), (2, 2));
    }
}
