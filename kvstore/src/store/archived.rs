//! Extents in the archive: written there, read back and told to the catalogue before their files go; fetched, published and
//! checked before anybody reads them. A crash in between leaves an object or a file that nobody needs, which a start removes.

use crate::archive::{self, Archive, ArchiveError, Digest};
use crate::catalogue::records::{ExtentRecord, NameRecord, decode, number, number_key};
use crate::catalogue::{CatalogueError, Table};
use crate::session::Session;
use crate::session::extent::Extent;
use crate::session::span::Span;
use crate::store::directory::extent_name;
use crate::store::error::FileError;
use crate::store::extent_file::ExtentFile;
use crate::store::kept::Kept;
use crate::store::{Store, StoreError, fail, publish, put};
use object_store::path::Path;
use rand::TryRngCore;
use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::{Arc, PoisonError};
use tonic::Code;

/// Key of the name that this directory has in an archive.
const OWNER: &[u8] = b"archive";

/// Why rows did not move; one line.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The archive.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The data directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file that is not what it should be.
    #[error("{0}")]
    File(#[from] FileError),
}

impl MoveError {
    /// The code of a status about it: UNAVAILABLE where asking again may help.
    pub fn code(&self) -> Code {
        match self {
            MoveError::Archive(e) => e.code(),
            MoveError::Store(e) => e.code(),
            MoveError::File(_) => Code::DataLoss,
        }
    }
}

impl From<io::Error> for MoveError {
    fn from(e: io::Error) -> Self {
        MoveError::Store(e.into())
    }
}

impl Store {
    /// Opens the archive of this directory, and removes what nobody needs from it in the background.
    pub fn use_archive(self: &Arc<Self>, settings: &archive::Settings) -> Result<(), MoveError> {
        let archive = Archive::open(settings, &self.owner()?)?;
        if self.archive.set(archive).is_ok() {
            let store = Arc::downgrade(self);
            let clean = move || {
                if let Some(store) = store.upgrade() {
                    // An archive that was set above; what fails is said there.
                    let _ = store.archive();
                }
            };
            std::thread::Builder::new().name("archive-start".into()).spawn(clean)?;
        }
        Ok(())
    }

    /// What this directory is called: several may use one archive, and their ids are the same.
    fn owner(&self) -> Result<String, MoveError> {
        let failed = |e: CatalogueError| MoveError::Store(e.into());
        if let Some(value) = self.catalogue.get(Table::Versions, OWNER).map_err(failed)? {
            return Ok(decode::<NameRecord>("the name in the archive", &value).map_err(failed)?.name);
        }
        let mut bytes = [0; 16];
        rand::rngs::OsRng.try_fill_bytes(&mut bytes).map_err(io::Error::other)?;
        let name = wire::convert::hex(&bytes);
        self.apply(&[put(Table::Versions, OWNER.to_vec(), &NameRecord { name: name.clone() })])?;
        Ok(name)
    }

    /// The archive. Whoever comes first removes what a crash has left there: after that nothing is written to it that the
    /// catalogue is not about to know.
    pub fn archive(&self) -> Result<&Archive, ArchiveError> {
        let archive = self.archive.get().ok_or(ArchiveError::Unset)?;
        let mut cleaned = self.archive_cleaned.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *cleaned, true)
            && let Err(e) = self.clean_archive(archive)
        {
            self.metrics.archive_errors.increment(1);
            tracing::warn!(error = %e, "what a crash may have left in the archive stays there until the next start");
        }
        Ok(archive)
    }

    fn clean_archive(&self, archive: &Archive) -> Result<(), MoveError> {
        let mut known = HashSet::new();
        for (key, value) in self.catalogue.scan(Table::Extents, &[]).map_err(StoreError::from)? {
            let id = number(Table::Extents, &key).map_err(StoreError::from)?;
            // Of a record that cannot be read nobody can say whether its object is needed.
            let object = decode::<ExtentRecord>("extent", &value).map_or(true, |r| !r.object.is_empty());
            known.extend(object.then_some(id));
        }
        let id = |key: &Path| u64::from_str_radix(key.filename()?.strip_suffix(".kv")?, 16).ok();
        let keys = archive.keys()?;
        let unknown = keys.into_iter().filter(|key| id(key).is_some_and(|id| !known.contains(&id)));
        let unknown: Vec<Path> = unknown.collect();
        if !unknown.is_empty() {
            tracing::info!(objects = unknown.len(), "objects that nobody needs are removed from the archive");
        }
        unknown.iter().try_for_each(|key| Ok(archive.remove(key)?))
    }

    /// Brings every extent of a span to the archive and tells the catalogue. False: the span is not there any more, or not
    /// on disk yet.
    pub fn upload(&self, kept: &Kept, at: (usize, usize), span: &Span) -> Result<bool, MoveError> {
        let archive = self.archive()?;
        let mut tried = Vec::new();
        let told = self.write_objects(archive, (kept, at), span, &mut tried);
        if let Ok(false) = told {
            // These ids are never used again. After an error they may be: then the next try, or the next start, sees to it.
            archive.forget(tried);
        }
        told
    }

    fn write_objects(
        &self,
        archive: &Archive,
        (kept, at): (&Kept, (usize, usize)),
        span: &Span,
        tried: &mut Vec<Path>,
    ) -> Result<bool, MoveError> {
        let dim = span.rows.dims().0;
        let mut first = span.begin;
        let mut objects: Vec<(u64, u64, Digest)> = Vec::new();
        for extent in span.rows.extents() {
            let Some(&id) = extent.file.get() else { return Ok(false) };
            if kept.object(id).is_none() {
                // Every byte is checked before it is copied.
                drop(self.map_rows(kept.fingerprint, at, first, (extent, dim))?);
                let bytes = std::fs::read(self.directory.extent(id))?;
                let key = archive.key(&kept.fingerprint, kept.number, id);
                tried.push(key.clone());
                objects.push((id, bytes.len() as u64, archive.put(&key, bytes)?));
                fail::point("object written");
            }
            first += extent.tokens(dim);
        }
        Ok(self.tell_objects(kept, at, &objects)?)
    }

    /// Removes the files of extents that the archive holds.
    pub fn drop_files(&self, span: &Span) -> io::Result<()> {
        let ids = span.rows.extents().iter().filter_map(|e| e.file.get());
        ids.into_iter().try_for_each(|&id| self.directory.remove(&self.directory.extent(id)))
    }

    /// Puts a span over the maps of its files, fetched where they are not here, in the place of an archived one. Returns
    /// the bytes that came back; 0 when the span is not there any more. The caller holds the session's `moving`.
    pub fn revive(&self, session: &Session, at: (usize, usize), span: &Arc<Span>) -> Result<u64, MoveError> {
        let (Some(kept), Ok(head)) = (&session.kept, session.head(at.0, at.1)) else { return Ok(0) };
        let rows = span.rows.revived(&session.purse, |extent, first| {
            self.bring(kept, at, span.begin + first, (extent, span.rows.dims().0))
        })?;
        if kept.has_ended() {
            self.drop_files(span)?;
            return Ok(0);
        }
        let bytes = span.rows.archived();
        Ok(if head.overlay(span, Arc::new(span.over(rows))) { bytes } else { 0 })
    }

    /// The file of an extent of the archive. One that lies here already is as good, if it is whole.
    fn bring(
        &self,
        kept: &Kept,
        at: (usize, usize),
        first: u64,
        extent: (&Extent, usize),
    ) -> Result<ExtentFile, MoveError> {
        let id = extent.0.file.get().copied().unwrap_or(0);
        match self.map_rows(kept.fingerprint, at, first, extent) {
            Ok(file) => return Ok(file),
            Err(FileError::Io(e)) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => self.directory.put_away(&self.directory.extent(id), &e),
        }
        let archive = self.archive()?;
        let key = archive.key(&kept.fingerprint, kept.number, id);
        let digest = kept.object(id).ok_or_else(|| ArchiveError::Gone(key.to_string()))?;
        let bytes = archive.fetch(&key, &digest)?;
        self.directory.room(bytes.len() as u64).map_err(StoreError::from)?;
        publish::publish(&self.directory.extents(), &extent_name(id), |out| out.write_all(&bytes))?;
        Ok(self.map_rows(kept.fingerprint, at, first, extent)?)
    }

    /// Removes objects of a session, or, without an archive, says that they stay.
    pub(super) fn forget_objects(&self, kept: &Kept, ids: impl Iterator<Item = u64>) {
        let ids: Vec<u64> = ids.collect();
        match self.archive.get() {
            _ if ids.is_empty() => {}
            None => tracing::warn!(
                objects = ids.len(),
                "objects that nobody needs stay in the archive: {} is not set",
                archive::SETTING
            ),
            Some(archive) => {
                let key = |&id: &u64| archive.key(&kept.fingerprint, kept.number, id);
                archive.forget(ids.iter().map(key).collect());
            }
        }
    }

    /// Tells the catalogue that the archive holds extents of a head: id, bytes, digest. False: they are not all the
    /// session's, or not any more.
    fn tell_objects(
        &self,
        kept: &Kept,
        at: (usize, usize),
        objects: &[(u64, u64, Digest)],
    ) -> Result<bool, StoreError> {
        let mut written = kept.written();
        let files: HashSet<u64> = written.heads.get(&at).into_iter().flat_map(|h| h.files()).collect();
        if kept.has_ended() || objects.iter().any(|(id, ..)| !files.contains(id)) {
            return Ok(false);
        }
        let change = |&(id, bytes, digest): &(u64, u64, Digest)| {
            let record = ExtentRecord { session: kept.number, bytes, object: digest.to_vec() };
            put(Table::Extents, number_key(id), &record)
        };
        if !objects.is_empty() {
            self.apply(&objects.iter().map(change).collect::<Vec<_>>())?;
        }
        written.objects.extend(objects.iter().map(|&(id, _, digest)| (id, digest)));
        Ok(true)
    }
}
