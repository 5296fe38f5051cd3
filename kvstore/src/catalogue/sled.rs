//! The catalogue on disk: one sled tree, the table as the first byte of the key, one batch a change.
//!
//! sled checks its own log and cuts it off at the first damage, which would take the newest batches back without a word.
//! So every batch is numbered, and the number is also written to a stamp beside the tree: a tree that is older than its
//! stamp has lost something and is refused.

use super::records::{self, VersionRecord};
use super::{Catalogue, CatalogueError, Change, Entry, Table};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Key of the number of the last batch.
const BATCHES: &[u8] = b"batches";
/// How long a tree that was let go may stay locked.
const PATIENCE: Duration = Duration::from_secs(2);

/// A catalogue in a folder.
pub struct Sled {
    tree: sled::Db,
    stamp: File,
    /// The number of the last batch; held for one batch, so that numbers and batches are in the same order.
    batches: Mutex<u64>,
}

impl Sled {
    /// Opens the tree in `folder`, with a cache of so many bytes, and the stamp beside it; makes them when they are not there. Whoever calls this has the
    /// directory to itself, so a tree that is locked is about to be let go by a thread of sled.
    pub fn open(folder: &Path, cache: u64) -> Result<Self, CatalogueError> {
        let config = sled::Config::new().path(folder).cache_capacity(cache).flush_every_ms(None);
        let until = Instant::now() + PATIENCE;
        let tree = loop {
            // Damaged files can make sled panic as well as fail.
            match catch_unwind(AssertUnwindSafe(|| config.open())) {
                Ok(Ok(tree)) => break tree,
                Ok(Err(e)) if is_locked(&e) && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(Err(e)) => return Err(backend(e)),
                Err(panic) => {
                    let what = crate::pool::panic_text(panic.as_ref());
                    return Err(CatalogueError::Damaged(format!("it does not open: {}", one_line(what))));
                }
            }
        };
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let stamp = options.open(folder.with_extension("stamp")).map_err(io)?;
        let sled = Self { tree, stamp, batches: Mutex::new(0) };
        let batches = match sled.get(Table::Versions, BATCHES)? {
            None => 0,
            Some(value) => records::decode::<VersionRecord>("batches", &value)?.number,
        };
        let stamped = sled.read_stamp()?;
        if stamped > batches {
            return Err(CatalogueError::Damaged(format!(
                "it holds {batches} batches of the {stamped} that were written"
            )));
        }
        *sled.batches.lock().unwrap_or_else(PoisonError::into_inner) = batches;
        Ok(sled)
    }

    /// The number in the stamp; 0 when it was never written or its write was cut short.
    fn read_stamp(&self) -> Result<u64, CatalogueError> {
        let mut bytes = [0; 12];
        let n = self.stamp.read_at(&mut bytes, 0).map_err(io)?;
        let (number, sum) = bytes.split_at(8);
        let whole = n == bytes.len() && sum == crc32fast::hash(number).to_le_bytes();
        Ok(if whole { number.try_into().map_or(0, u64::from_le_bytes) } else { 0 })
    }

    /// Not synced: after a power cut an older stamp only notices less.
    fn write_stamp(&self, number: u64) -> Result<(), CatalogueError> {
        let number = number.to_le_bytes();
        let sum = crc32fast::hash(&number).to_le_bytes();
        self.stamp.write_all_at(&[&number[..], &sum].concat(), 0).map_err(io)
    }
}

fn io(e: io::Error) -> CatalogueError {
    CatalogueError::Backend(one_line(&e.to_string()))
}

/// Only what cannot be anything else is called damage: that puts the whole catalogue away.
fn backend(e: sled::Error) -> CatalogueError {
    use io::ErrorKind::{InvalidData, UnexpectedEof};
    let text = one_line(&e.to_string());
    match e {
        sled::Error::Corruption { .. } | sled::Error::ReportableBug(_) => CatalogueError::Damaged(text),
        sled::Error::Io(e) if matches!(e.kind(), InvalidData | UnexpectedEof) => {
            CatalogueError::Damaged(text)
        }
        _ => CatalogueError::Backend(text),
    }
}

/// sled says so in words only.
fn is_locked(e: &sled::Error) -> bool {
    matches!(e, sled::Error::Io(e) if e.to_string().contains("acquire lock"))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn key(table: Table, key: &[u8]) -> Vec<u8> {
    [&[table as u8], key].concat()
}

impl Catalogue for Sled {
    fn get(&self, table: Table, at: &[u8]) -> Result<Option<Vec<u8>>, CatalogueError> {
        Ok(self.tree.get(key(table, at)).map_err(backend)?.map(|v| v.to_vec()))
    }

    fn scan(&self, table: Table, prefix: &[u8]) -> Result<Vec<Entry>, CatalogueError> {
        let entries = self.tree.scan_prefix(key(table, prefix));
        entries.map(|e| e.map(|(k, v)| (k[1..].to_vec(), v.to_vec())).map_err(backend)).collect()
    }

    fn apply(&self, changes: &[Change]) -> Result<(), CatalogueError> {
        let mut last = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let number = *last + 1;
        let mut batch = sled::Batch::default();
        for change in changes {
            match change {
                Change::Put(table, at, value) => batch.insert(key(*table, at), value.as_slice()),
                Change::Remove(table, at) => batch.remove(key(*table, at)),
            }
        }
        batch.insert(key(Table::Versions, BATCHES), records::encode(&VersionRecord { number }));
        self.tree.apply_batch(batch).map_err(backend)?;
        // Even if the flush fails the batch may be there, so its number is taken.
        *last = number;
        self.tree.flush().map_err(backend)?;
        self.write_stamp(number)
    }
}
