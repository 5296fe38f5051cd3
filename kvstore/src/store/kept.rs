//! What of one session is on disk, and the way from its heads to there.

use crate::admission::{Kind, Purse};
use crate::archive::Digest;
use crate::catalogue::records::{ExtentRecord, HeadRecord, SessionRecord, decode, head_key, number_key};
use crate::catalogue::{Change, Table};
use crate::session::Session;
use crate::session::span::Span;
use crate::store::log::{Log, Needs};
use crate::store::{Store, StoreError, put};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What of one session is on disk.
pub struct Kept {
    /// In the catalogue: one for each `Open`, never used again.
    pub number: u64,
    /// BLAKE3-256 of its fingerprint message.
    pub fingerprint: [u8; 32],
    /// Of a session whose appends are acknowledged once they are on disk.
    pub log: Option<Arc<Log>>,
    /// Set before the session is removed: what still writes for it stops.
    ended: AtomicBool,
    /// Held while files of the session are written and catalogued, so that the catalogue always gets the newer state last.
    written: Mutex<Written>,
}

/// What the catalogue knows of a session.
#[derive(Default)]
pub struct Written {
    /// By layer and KV head.
    pub heads: BTreeMap<(usize, usize), HeadRecord>,
    /// Files that are published, but not in the catalogue.
    pub loose: BTreeMap<u64, Loose>,
    /// Extents that the archive holds too.
    pub objects: BTreeMap<u64, Digest>,
}

/// A file that the catalogue does not know.
pub struct Loose {
    /// Of which head.
    at: (usize, usize),
    bytes: u64,
}

impl Written {
    /// What the catalogue says.
    pub fn of(heads: BTreeMap<(usize, usize), HeadRecord>, objects: BTreeMap<u64, Digest>) -> Self {
        Self { heads, loose: BTreeMap::new(), objects }
    }
}

impl Kept {
    /// A session of which the catalogue knows this much.
    pub fn new(number: u64, fingerprint: [u8; 32], log: Option<Arc<Log>>, written: Written) -> Self {
        Self { number, fingerprint, log, ended: AtomicBool::new(false), written: Mutex::new(written) }
    }

    pub(super) fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the archive holds of an extent.
    pub fn object(&self, id: u64) -> Option<Digest> {
        self.written().objects.get(&id).copied()
    }

    /// Fewest tokens of a head that the catalogue knows: without a log, what a restart brings back.
    pub fn sealed(&self, heads: impl Iterator<Item = (usize, usize)>) -> u64 {
        let written = self.written();
        heads.map(|at| written.heads.get(&at).map_or(0, HeadRecord::end)).min().unwrap_or(0)
    }

    /// Heads of which the catalogue knows tokens at or beyond a length; waits for what is being written.
    pub fn beyond(&self, length: u64) -> Vec<(usize, usize)> {
        let written = self.written();
        written.heads.iter().filter(|(_, record)| record.end() > length).map(|(&at, _)| at).collect()
    }

    /// Ends it: after this nothing more is written for it. Returns what was.
    pub fn end(&self) -> Written {
        self.ended.store(true, Ordering::Release);
        std::mem::take(&mut *self.written())
    }

    /// Whether the session has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

impl Store {
    /// Pins or unpins a session, on disk first: what is answered holds after a restart.
    pub fn pin(&self, session: &Session, pinned: bool) -> Result<(), StoreError> {
        let Some(kept) = &session.kept else { return Ok(()) };
        // Held until it is written: an end waits for it before it removes the record.
        let _written = kept.written();
        let key = number_key(kept.number);
        let value = self.catalogue.get(Table::Sessions, &key)?.filter(|_| !kept.has_ended());
        if let Some(value) = value {
            let record: SessionRecord = decode("session", &value)?;
            if record.pinned != pinned {
                self.apply(&[put(Table::Sessions, key, &SessionRecord { pinned, ..record })])?;
            }
        }
        session.pinned.store(pinned, Ordering::Release);
        Ok(())
    }

    /// Brings the spans of one head to disk: files first, then the catalogue, then the removal of what is not needed any
    /// more.
    pub fn persist(&self, session: &Session, at: (usize, usize)) -> Result<(), StoreError> {
        let Some(kept) = &session.kept else {
            return Ok(());
        };
        let Ok(head) = session.head(at.0, at.1) else {
            return Ok(());
        };
        let mut written = kept.written();
        let record = loop {
            let spans: Vec<Arc<Span>> = head.read().spans().map(|(span, _)| span.clone()).collect();
            for span in spans {
                self.write_span(kept, &mut written, at, &span)?;
                self.write_span_index((kept, &session.purse), &mut written, at, &span)?;
            }
            if kept.has_ended() {
                return Ok(());
            }
            // A span that was sealed or merged meanwhile has no files yet.
            if let Some(record) = head.read().record() {
                break record;
            }
        };
        if written.heads.get(&at) != Some(&record) {
            self.tell(kept, &mut written, at, record)?;
        }
        // Written for spans that were merged or cut off before the catalogue heard of them.
        let loose = written.loose.iter().filter(|(_, l)| l.at == at).map(|(&id, _)| id);
        for id in loose.collect::<Vec<_>>() {
            self.remove_file(id)?;
            written.loose.remove(&id);
        }
        match &kept.log {
            None => Ok(()),
            Some(log) => Ok(log.drop_segments(|needs| still_needed(needs, &written.heads))?),
        }
    }

    /// Tells the catalogue what a head has become, and removes what that leaves without use.
    fn tell(
        &self,
        kept: &Kept,
        written: &mut Written,
        at: (usize, usize),
        record: HeadRecord,
    ) -> Result<(), StoreError> {
        let old = written.heads.get(&at);
        let before: BTreeSet<u64> = old.into_iter().flat_map(HeadRecord::files).collect();
        let after: BTreeSet<u64> = record.files().collect();
        let mut changes = vec![put(Table::Spans, head_key(kept.number, at.0, at.1), &record)];
        changes.extend(after.difference(&before).map(|id| {
            let bytes = written.loose.get(id).map_or(0, |l| l.bytes);
            let record = ExtentRecord { session: kept.number, bytes, ..Default::default() };
            put(Table::Extents, number_key(*id), &record)
        }));
        let gone: Vec<u64> = before.difference(&after).copied().collect();
        changes.extend(gone.iter().map(|&id| Change::Remove(Table::Extents, number_key(id))));
        self.apply(&changes)?;
        written.loose.retain(|id, _| !after.contains(id));
        written.heads.insert(at, record);
        self.forget_objects(kept, gone.iter().copied().filter(|id| written.objects.remove(id).is_some()));
        // What stays behind here is removed by the next start.
        gone.into_iter().try_for_each(|id| Ok(self.remove_file(id)?))
    }

    fn write_span(
        &self,
        kept: &Kept,
        written: &mut Written,
        at: (usize, usize),
        span: &Span,
    ) -> Result<(), StoreError> {
        let mut first = span.begin;
        for extent in span.rows.extents() {
            if extent.file.get().is_none() {
                if kept.has_ended() {
                    return Ok(());
                }
                let (id, bytes) = self.write_extent(kept.fingerprint, at, first, &span.rows, extent)?;
                written.loose.insert(id, Loose { at, bytes });
                // Only this function sets it, under the lock of what is written.
                let _ = extent.file.set(id);
            }
            first += extent.tokens(span.rows.dims().0);
        }
        if span.queries_file().get().is_none() {
            let mut unsaved = span.unsaved();
            let id = match &*unsaved {
                None => 0,
                Some(queries) => {
                    let (id, bytes) = self.write_queries(kept.fingerprint, at, queries)?;
                    written.loose.insert(id, Loose { at, bytes });
                    id
                }
            };
            let _ = span.queries_file().set(id);
            *unsaved = None;
        }
        Ok(())
    }

    /// The index of a span, once it is built. It can be built again, so that want of memory to write it is no failure.
    fn write_span_index(
        &self,
        (kept, purse): (&Kept, &Arc<Purse>),
        written: &mut Written,
        at: (usize, usize),
        span: &Span,
    ) -> Result<(), StoreError> {
        let Some(indexed) = span.indexed().filter(|_| span.index_file().is_none()) else {
            return Ok(());
        };
        if kept.has_ended() {
            return Ok(());
        }
        // Without asking for room: who makes room waits for this very thread.
        let Ok(_copy) = purse.charge_now(Kind::Scratch, indexed.charge.bytes()) else {
            tracing::debug!(layer = at.0, kv_head = at.1, begin = span.begin, "no memory to store an index");
            return Ok(());
        };
        let id = match indexed.index.save() {
            // A restart builds it again.
            None => 0,
            Some(saved) => {
                let (id, bytes) = self.write_index(kept.fingerprint, at, (span, indexed), &saved)?;
                written.loose.insert(id, Loose { at, bytes });
                id
            }
        };
        span.set_index_file(Some(id));
        Ok(())
    }
}

/// Whether rows or truncations of a log segment are not in the catalogue yet.
fn still_needed(needs: &Needs, heads: &BTreeMap<(usize, usize), HeadRecord>) -> bool {
    let rows = needs.ends.iter().any(|(at, &end)| heads.get(at).is_none_or(|h| h.end() < end));
    // A head without a record has no spans that a truncation could have cut.
    rows || heads.values().any(|h| h.cut < needs.cut)
}
