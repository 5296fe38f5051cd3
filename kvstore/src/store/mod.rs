//! What survives the process: extent files, logs, and the catalogue that says what they are.
//!
//! * [`Store`]: a data directory in use; `directory`: what lies where in it
//! * `archived`: extents in the archive
//! * `kept`: what of a session is on disk; `keeper`: the thread that brings sealed spans there
//! * `recover`: sessions as a start finds them; `replay`: their fresh tokens, from the log
//! * `extent_file`: the rows of an extent, mapped as they are; `queries_file`: what an index is built with;
//!   `index_file`: the index itself
//! * `log`: what a durable session was given since its last span
//! * `inspect`: an extent file for operators
//! * `publish`: files that appear whole or not at all; `map`: read-only maps, a place with `unsafe`
//! * `header`: what files begin with; `bytes`: little-endian fields; `error`: what can be wrong with a file; `fail`: places where tests pull the plug

pub mod archived;
pub mod bytes;
pub mod directory;
pub mod error;
pub mod extent_file;
pub mod fail;
pub mod header;
pub mod index_file;
pub mod inspect;
pub mod keeper;
pub mod kept;
pub mod log;
pub mod map;
pub mod publish;
pub mod queries_file;
pub mod recover;
pub mod replay;

use crate::archive::Archive;
use crate::catalogue::records::{HeadRecord, LeaseRecord, SessionRecord, encode, head_key, number_key};
use crate::catalogue::sled::Sled;
use crate::catalogue::{Catalogue, CatalogueError, Change, Table};
use crate::session::extent::{Extent, SealedRows};
use crate::session::samples::Stored;
use crate::session::span::{Indexed, Span};
use crate::telemetry::Metrics;
use directory::{Directory, DirectoryError, Full, Name, SETTING, extent_name, index_name, queries_name};
use error::FileError;
use extent_file::ExtentFile;
use keeper::Keeper;
use kept::{Kept, Written};
use log::{Log, LogError};
use prost::Message;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tonic::{Code, Status};
use wire::v1;

/// Bytes that a batch of the catalogue may take, a segment of sled's file included.
const BATCH: u64 = 1 << 20;

/// Why something is not on disk; one line.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No room.
    #[error(transparent)]
    Full(#[from] Full),
    /// The file system failed.
    #[error("{SETTING} cannot be written: {0}")]
    Io(#[from] io::Error),
    /// The catalogue failed.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// The session's log failed.
    #[error(transparent)]
    Log(#[from] LogError),
}

impl StoreError {
    /// The code of a status about it.
    pub fn code(&self) -> Code {
        let io = match self {
            StoreError::Full(_) => return Code::ResourceExhausted,
            StoreError::Log(LogError::Broken(_)) => return Code::DataLoss,
            StoreError::Catalogue(_) => return Code::Internal,
            StoreError::Io(e) | StoreError::Log(LogError::Write(e)) => e.kind(),
        };
        match io {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::ResourceExhausted,
            _ => Code::Internal,
        }
    }
}

impl From<StoreError> for Status {
    fn from(e: StoreError) -> Self {
        let text = e.to_string();
        match (&e, e.code()) {
            (StoreError::Full(_), code) => Status::new(code, text),
            (_, code @ Code::ResourceExhausted) => Status::new(code, format!("{SETTING} is full: {text}")),
            (_, code) => Status::new(code, text),
        }
    }
}

/// A data directory in use.
pub struct Store {
    /// Let go before the directory's lock.
    catalogue: Box<dyn Catalogue>,
    /// Its files.
    pub directory: Directory,
    /// The next number of a session or file.
    next: AtomicU64,
    keeper: Keeper,
    /// Set once, before any session is there.
    archive: OnceLock<Archive>,
    /// Whether what a crash left in the archive is removed; held while that is done.
    archive_cleaned: Mutex<bool>,
    metrics: Arc<Metrics>,
}

impl Store {
    /// Takes a directory and opens its catalogue, which may cache so many bytes. A damaged catalogue is put into quarantine with all that it explains.
    pub fn open(path: &Path, cache: u64, metrics: Arc<Metrics>) -> Result<Arc<Self>, DirectoryError> {
        let directory = Directory::open(path)?;
        let io = |e| DirectoryError::Io(path.to_owned(), e);
        let known = |c: &Sled| highest_id(c).map(|highest| highest.max(highest_name(&directory)));
        let opened =
            Sled::open(&directory.catalogue(), cache).and_then(|c| known(&c).map(|highest| (c, highest)));
        let (catalogue, highest) = match opened {
            Ok(opened) => opened,
            Err(e @ CatalogueError::Backend(_)) => return Err(io(io::Error::other(e.to_string()))),
            Err(e) => {
                tracing::error!(error = %e, "the catalogue is damaged; the server starts without any session");
                directory.put_all_away(&e).map_err(io)?;
                let fresh = Sled::open(&directory.catalogue(), cache);
                (fresh.map_err(|e| io(io::Error::other(e.to_string())))?, 0)
            }
        };
        let (keeper, jobs) = Keeper::new();
        let next = AtomicU64::new(highest + 1);
        let store = Arc::new(Self {
            directory,
            catalogue: Box::new(catalogue),
            next,
            keeper,
            archive: OnceLock::new(),
            archive_cleaned: Mutex::default(),
            metrics,
        });
        Keeper::start(Arc::downgrade(&store), jobs).map_err(io)?;
        Ok(store)
    }

    /// The queue of the keeper.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Applies a batch, if there is room.
    fn apply(&self, changes: &[Change]) -> Result<(), StoreError> {
        self.directory.room(BATCH)?;
        self.catalogue.apply(changes)?;
        fail::point("catalogue written");
        Ok(())
    }

    /// Enters a new session into the catalogue.
    pub fn begin(&self, request: &v1::OpenRequest, lease: Duration) -> Result<Kept, StoreError> {
        let number = self.next();
        let fingerprint = request.fingerprint.clone().unwrap_or_default();
        let hash = fingerprint_hash(&fingerprint);
        let record = SessionRecord {
            session: request.session.clone(),
            fingerprint: Some(fingerprint),
            owned: request.owned.clone(),
            index: request.index,
            seed: request.seed,
            deterministic: request.deterministic,
            durable: request.durable,
            reserve_tokens: request.reserve_tokens,
            pinned: false,
        };
        self.apply(&[
            put(Table::Sessions, number_key(number), &record),
            put(Table::Leases, number_key(number), &LeaseRecord { ms: millis(lease) }),
        ])?;
        let log = request
            .durable
            .then(|| Arc::new(Log::new(&self.directory.logs(), (number, hash), 0, VecDeque::new())));
        Ok(Kept::new(number, hash, log, Written::default()))
    }

    /// Notes another length of a lease.
    pub fn lease(&self, kept: &Kept, lease: Duration) -> Result<(), StoreError> {
        self.apply(&[put(Table::Leases, number_key(kept.number), &LeaseRecord { ms: millis(lease) })])
    }

    /// Removes a session that has ended. What fails is logged; the next start finishes it, or, where the catalogue could
    /// not be told, brings the session back until its lease runs out again.
    pub fn forget(&self, kept: &Kept) {
        if let Err(e) = self.try_forget(kept) {
            self.metrics.store_errors.increment(1);
            tracing::error!(error = %e, "an ended session is still on disk");
        }
    }

    fn try_forget(&self, kept: &Kept) -> Result<(), StoreError> {
        let Written { heads, loose, objects } = kept.end();
        let files: Vec<u64> = heads.values().flat_map(HeadRecord::files).collect();
        let key = number_key(kept.number);
        let mut changes =
            vec![Change::Remove(Table::Sessions, key.clone()), Change::Remove(Table::Leases, key)];
        let spans = heads.keys().map(|at| Change::Remove(Table::Spans, head_key(kept.number, at.0, at.1)));
        changes.extend(spans);
        changes.extend(files.iter().map(|&id| Change::Remove(Table::Extents, number_key(id))));
        // Without a look at the room left: this makes room.
        self.catalogue.apply(&changes)?;
        fail::point("catalogue written");
        if let Some(log) = &kept.log {
            log.remove()?;
        }
        self.forget_objects(kept, objects.into_keys());
        for id in files.into_iter().chain(loose.into_keys()) {
            self.remove_file(id)?;
        }
        Ok(())
    }

    /// Removes an extent, a file of queries or an index: ids are given to one of them.
    fn remove_file(&self, id: u64) -> io::Result<()> {
        self.directory.remove(&self.directory.extent(id))?;
        self.directory.remove(&self.directory.queries(id))?;
        self.directory.remove(&self.directory.index(id))
    }

    fn write_extent(
        &self,
        fingerprint: [u8; 32],
        (layer, kv_head): (usize, usize),
        first: u64,
        rows: &SealedRows,
        extent: &Extent,
    ) -> Result<(u64, u64), StoreError> {
        let (key_dim, value_dim) = rows.dims();
        let (keys, values) = (extent.keys(), extent.values());
        let header = extent_file::Extent {
            fingerprint,
            id: self.next(),
            layer: layer as u32,
            kv_head: kv_head as u32,
            first,
            tokens: extent.tokens(key_dim) as u32,
            key_dim: key_dim as u32,
            value_dim: value_dim as u32,
        };
        let bytes = header.file_bytes();
        self.directory.room(bytes)?;
        let name = extent_name(header.id);
        publish::publish(&self.directory.extents(), &name, |out| header.write(out, keys, values))?;
        self.metrics.stored_extents.increment(bytes);
        Ok((header.id, bytes))
    }

    /// Maps the file of an extent that begins at a position, checks every byte of it and that it is this one's.
    pub fn map_rows(
        &self,
        fingerprint: [u8; 32],
        (layer, kv_head): (usize, usize),
        first: u64,
        (extent, key_dim): (&Extent, usize),
    ) -> Result<ExtentFile, FileError> {
        let id = extent.file.get().copied().unwrap_or(0);
        let file = ExtentFile::open(&self.directory.extent(id))?;
        let e = &file.extent;
        if e.fingerprint != fingerprint {
            return Err(FileError::Fingerprint);
        }
        let is = |field, found: u64, want: u64| match found == want {
            true => Ok(()),
            false => Err(FileError::field(field, found, want)),
        };
        is("id", e.id, id)?;
        is("layer", e.layer.into(), layer as u64)?;
        is("KV head", e.kv_head.into(), kv_head as u64)?;
        is("first position", e.first, first)?;
        is("tokens", e.tokens.into(), extent.tokens(key_dim))?;
        is("key_dim", e.key_dim.into(), key_dim as u64)?;
        let bytes = 2 * (file.keys().len() + file.values().len()) as u64;
        is("bytes of the rows", bytes, extent.bytes() + extent.archived_bytes())?;
        Ok(file)
    }

    /// Opens files of a span for [`SealedRows`]: of an extent that begins so many rows from its first.
    pub fn files_of<'s>(
        &'s self,
        kept: &'s Kept,
        at: (usize, usize),
        span: &'s Span,
    ) -> impl Fn(&Extent, u64) -> Result<ExtentFile, FileError> + 's {
        let dim = span.rows.dims().0;
        move |extent, first| self.map_rows(kept.fingerprint, at, span.begin + first, (extent, dim))
    }

    fn write_queries(
        &self,
        fingerprint: [u8; 32],
        (layer, kv_head): (usize, usize),
        queries: &Stored,
    ) -> Result<(u64, u64), StoreError> {
        let id = self.next();
        let owner = queries_file::Owner { fingerprint, id, layer: layer as u32, kv_head: kv_head as u32 };
        let file = queries_file::encode(&owner, queries);
        self.directory.room(file.len() as u64)?;
        publish::publish(&self.directory.extents(), &queries_name(id), |out| out.write_all(&file))?;
        self.metrics.stored_queries.increment(file.len() as u64);
        Ok((id, file.len() as u64))
    }

    /// Writes an index that was saved as bytes.
    fn write_index(
        &self,
        fingerprint: [u8; 32],
        (layer, kv_head): (usize, usize),
        (span, indexed): (&Span, &Indexed),
        saved: &[u8],
    ) -> Result<(u64, u64), StoreError> {
        let (key_dim, value_dim) = span.rows.dims();
        let owner = index_file::Owner {
            fingerprint,
            id: self.next(),
            layer: layer as u32,
            kv_head: kv_head as u32,
            first: span.begin,
            tokens: span.len(),
            key_dim: key_dim as u32,
            value_dim: value_dim as u32,
            recall_target: indexed.recall_target,
            build_us: indexed.build_us,
        };
        let bytes = index_file::Owner::file_bytes(saved);
        self.directory.room(bytes)?;
        let name = index_name(owner.id);
        publish::publish(&self.directory.extents(), &name, |out| owner.write(out, saved))?;
        self.metrics.stored_indexes.increment(bytes);
        Ok((owner.id, bytes))
    }

    /// Appends to a session's log, if there is room; returns the record's number.
    pub fn append(&self, log: &Log, record: &log::record::Record<'_>) -> Result<u64, StoreError> {
        let bytes = record.bytes();
        self.directory.room(bytes)?;
        let number = log.append(record)?;
        self.metrics.stored_log.increment(bytes);
        Ok(number)
    }
}

/// The change that sets a value.
fn put(table: Table, key: Vec<u8>, record: &impl Message) -> Change {
    Change::Put(table, key, encode(record))
}

/// What files say whose rows they hold: a hash of the message in its canonical bytes (fields in order of their numbers).
pub fn fingerprint_hash(fingerprint: &v1::Fingerprint) -> [u8; 32] {
    *blake3::hash(&fingerprint.encode_to_vec()).as_bytes()
}

/// For what counts in milliseconds.
pub(crate) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// The highest number that the catalogue gives to anything.
fn highest_id(catalogue: &dyn Catalogue) -> Result<u64, CatalogueError> {
    let mut highest = 0;
    for table in [Table::Sessions, Table::Extents, Table::Leases, Table::Spans] {
        for (key, _) in catalogue.scan(table, &[])? {
            let number = key.get(..8).unwrap_or(&key);
            highest = highest.max(crate::catalogue::records::number(table, number)?);
        }
    }
    Ok(highest)
}

/// The highest number in the name of a file.
fn highest_name(directory: &Directory) -> u64 {
    let names = |folder| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|e| e.file_name().into_string().ok())
    };
    let files = names(directory.extents()).filter_map(|name| match Name::read(&name) {
        Name::Extent(id) | Name::Queries(id) | Name::Index(id) => Some(id),
        Name::Temporary | Name::Foreign => None,
    });
    let logs = names(directory.logs()).filter_map(|name| Some(log::parse_name(&name)?.0));
    // A name beyond any number that was ever given is not one of ours, whatever it looks like.
    files.chain(logs).filter(|&number| number < 1 << 48).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
