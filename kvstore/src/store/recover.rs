//! A start on a directory that was used before: every file is checked, what is damaged goes into quarantine, sessions
//! that are held in full are served, the others refused by name.

use crate::archive::Digest;
use crate::catalogue::records::{
    ExtentRecord, HeadRecord, LeaseRecord, SessionRecord, decode, number, number_key,
};
use crate::catalogue::{CatalogueError, Table};
use crate::node::Node;
use crate::session::samples::Stored;
use crate::session::{Id, lease::Lease};
use crate::store::directory::Name;
use crate::store::error::FileError;
use crate::store::extent_file::ExtentFile;
use crate::store::index_file::IndexFile;
use crate::store::kept::Kept;
use crate::store::queries_file::{self, Owner};
use crate::store::{Store, log};
use rayon::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Status;

mod indexes;
mod session;

/// A session that is on disk but cannot be served.
pub struct Refused {
    /// What is told to whoever asks for it.
    pub reason: Status,
    /// What is left of it, to be removed when it ends.
    pub kept: Arc<Kept>,
    /// Ends it like any other.
    pub lease: Lease,
}

/// A session as the catalogue tells it.
struct Told {
    number: u64,
    record: SessionRecord,
    lease: Duration,
    heads: BTreeMap<(usize, usize), HeadRecord>,
    /// Segments of its log, in order.
    segments: Vec<u64>,
    /// Its extents that the archive holds.
    objects: BTreeMap<u64, Digest>,
}

/// Files that are what they should be.
#[derive(Default)]
struct Files {
    extents: HashMap<u64, ExtentFile>,
    queries: HashMap<u64, (Owner, Stored)>,
    indexes: HashMap<u64, IndexFile>,
    /// What the archive holds, by the number of the session.
    objects: HashMap<u64, BTreeMap<u64, Digest>>,
}

enum File {
    Extent(Box<ExtentFile>),
    Queries(Owner, Stored),
    Index(IndexFile),
}

impl Node {
    /// Brings back what the directory holds.
    pub(crate) fn recover(self: &Arc<Self>, store: &Arc<Store>) -> Result<(), CatalogueError> {
        let started = Instant::now();
        let mut files = self.pool.install(|| store.check_files())?;
        let checked_ms = started.elapsed().as_millis();
        let mut sessions: HashMap<Id, Told> = HashMap::new();
        for mut told in store.told_sessions()? {
            let Ok(id) = wire::convert::id(&told.record.session, "session") else {
                store.unreadable(&format!("session {} has no id", told.number));
                continue;
            };
            told.objects = files.objects.remove(&told.number).unwrap_or_default();
            // The older of two with one id had ended: its removal was cut short.
            if let Some(older) = sessions.insert(id, told) {
                store.forget(&older.kept(store));
            }
        }
        let (mut served, mut refused) = (0, 0);
        let mut told: Vec<(Id, Told)> = sessions.into_iter().collect();
        told.sort_by_key(|(_, told)| told.number);
        for (id, told) in told {
            match self.restore(store, &told, &mut files) {
                Ok(session) => {
                    // Ids are distinct here.
                    served += usize::from(self.insert(session).is_ok());
                }
                Err(reason) => {
                    refused += 1;
                    let session = wire::convert::hex(&id);
                    tracing::error!(session, reason = reason.message(), "a stored session cannot be served");
                    let reason =
                        Status::new(reason.code(), format!("session {session}: {}", reason.message()));
                    let kept = Arc::new(told.kept(store));
                    self.refused().insert(id, Refused { reason, kept, lease: Lease::new(told.lease) });
                }
            }
        }
        let quarantined = store.directory.quarantined();
        if served + refused == 0 && quarantined == 0 {
            return Ok(());
        }
        tracing::info!(
            sessions = served,
            refused,
            quarantined,
            checked_ms,
            took_ms = started.elapsed().as_millis(),
            "recovered"
        );
        Ok(())
    }
}

impl Told {
    /// What is on disk of a session that is not served.
    fn kept(&self, store: &Store) -> Kept {
        store.kept(self, 0, self.segments.iter().map(|&s| (s, log::Needs::default())).collect())
    }
}

impl Store {
    /// What is on disk of a session, with its log if it has one.
    fn kept(&self, told: &Told, last: u64, closed: std::collections::VecDeque<(u64, log::Needs)>) -> Kept {
        let fingerprint = told.record.fingerprint.clone().unwrap_or_default();
        let hash = super::fingerprint_hash(&fingerprint);
        let log = told.record.durable || !closed.is_empty();
        let log =
            log.then(|| Arc::new(log::Log::new(&self.directory.logs(), (told.number, hash), last, closed)));
        Kept::new(told.number, hash, log, super::Written::of(told.heads.clone(), told.objects.clone()))
    }

    /// Something in the catalogue that cannot be read.
    fn unreadable(&self, what: &str) {
        self.metrics.store_errors.increment(1);
        tracing::error!(what, "an entry of the catalogue is left out");
    }

    /// Sessions with their spans, leases and logs; entries that cannot be read are left out with a line in the log.
    fn told_sessions(&self) -> Result<Vec<Told>, CatalogueError> {
        let mut logs: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (name, path) in self.names(self.directory.logs()) {
            match log::parse_name(&name) {
                Some((session, segment)) => logs.entry(session).or_default().push(segment),
                None if Name::read(&name) == Name::Temporary => self.clean(&path),
                None => self.directory.put_away(&path, &"not a name of a log"),
            }
        }
        let mut sessions = Vec::new();
        for (key, value) in self.catalogue.scan(Table::Sessions, &[])? {
            let number = number(Table::Sessions, &key)?;
            let mut segments = logs.remove(&number).unwrap_or_default();
            segments.sort_unstable();
            match self.told(number, &value, segments) {
                Ok(told) => sessions.push(told),
                Err(e) => self.unreadable(&format!("session {number}: {e}")),
            }
        }
        // Their sessions had ended.
        for (session, segments) in logs {
            for segment in segments {
                self.clean(&self.directory.logs().join(log::file_name(session, segment)));
            }
        }
        Ok(sessions)
    }

    fn told(&self, session: u64, value: &[u8], segments: Vec<u64>) -> Result<Told, CatalogueError> {
        let record: SessionRecord = decode("session", value)?;
        let lease = match self.catalogue.get(Table::Leases, &number_key(session))? {
            None => Duration::ZERO,
            Some(value) => Duration::from_millis(decode::<LeaseRecord>("lease", &value)?.ms),
        };
        let mut heads = BTreeMap::new();
        for (key, value) in self.catalogue.scan(Table::Spans, &number_key(session))? {
            let at = |from: usize| {
                let bytes = key.get(from..from + 4).and_then(|b| b.try_into().ok());
                bytes.map(|b| u32::from_be_bytes(b) as usize)
            };
            let at = at(8).zip(at(12)).ok_or_else(|| CatalogueError::Value {
                what: "a key of Spans".into(),
                why: format!("{} bytes, must be 16", key.len()),
            })?;
            heads.insert(at, decode("the spans of a head", &value)?);
        }
        Ok(Told { number: session, record, lease, heads, segments, objects: BTreeMap::new() })
    }

    /// Names and paths in a folder.
    fn names(&self, folder: PathBuf) -> Vec<(String, PathBuf)> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|e| (e.file_name().to_string_lossy().into_owned(), e.path())).collect()
    }

    /// Removes what nobody needs.
    fn clean(&self, path: &std::path::Path) {
        if let Err(e) = self.directory.remove(path) {
            tracing::warn!(file = %path.display(), error = %e, "cannot be removed");
        }
    }

    /// Reads every file of the directory. What is not in the catalogue was left by a crash and is removed, if it is whole;
    /// all that is not what its name says goes into quarantine.
    fn check_files(&self) -> Result<Files, CatalogueError> {
        let mut known = HashMap::new();
        for (key, value) in self.catalogue.scan(Table::Extents, &[])? {
            known.insert(number(Table::Extents, &key)?, decode::<ExtentRecord>("extent", &value));
        }
        let read = self.names(self.directory.extents()).into_par_iter().filter_map(|(name, path)| {
            let name = Name::read(&name);
            let (id, read) = match name {
                Name::Temporary => {
                    self.clean(&path);
                    return None;
                }
                Name::Foreign => {
                    self.directory.put_away(&path, &"not a name of an extent");
                    return None;
                }
                Name::Extent(id) => (id, ExtentFile::open(&path).map(|f| File::Extent(Box::new(f)))),
                Name::Queries(id) => (id, read_queries(&path)),
                Name::Index(id) => (id, IndexFile::open(&path).map(File::Index)),
            };
            let read = read.and_then(|file| match file.id() {
                own if own == id => Ok(file),
                own => Err(FileError::field("id", own, format_args!("{id}, the file's name"))),
            });
            match read {
                Err(e) => self.directory.put_away(&path, &e),
                Ok(_) if !known.contains_key(&id) => self.clean(&path),
                Ok(file) => return Some((id, file)),
            }
            None
        });
        let read: Vec<_> = read.collect();
        let mut files = Files::default();
        for (&id, record) in known.iter().filter_map(|(id, r)| Some((id, r.as_ref().ok()?))) {
            if let Ok(digest) = record.object.as_slice().try_into() {
                files.objects.entry(record.session).or_default().insert(id, digest);
            }
        }
        for (id, file) in read {
            match file {
                File::Extent(file) => drop(files.extents.insert(id, *file)),
                File::Queries(owner, queries) => drop(files.queries.insert(id, (owner, queries))),
                File::Index(file) => drop(files.indexes.insert(id, file)),
            }
        }
        Ok(files)
    }
}

impl File {
    fn id(&self) -> u64 {
        match self {
            File::Extent(file) => file.extent.id,
            File::Queries(owner, _) => owner.id,
            File::Index(file) => file.owner.id,
        }
    }
}

fn read_queries(path: &std::path::Path) -> Result<File, FileError> {
    let (owner, queries) = queries_file::decode(&std::fs::read(path)?)?;
    Ok(File::Queries(owner, queries))
}
