//! What is brought back before it is read: rows from the archive, indexes from their files.

use crate::admission::{Charges, Kind, Short};
use crate::archive::PARALLEL;
use crate::node::Node;
use crate::session::Session;
use crate::session::span::{Indexed, Span, Want};
use crate::shard::open::on_disk;
use crate::spill::{Place, places};
use crate::store::Store;
use crate::store::archived::MoveError;
use crate::store::error::FileError;
use crate::store::index_file::{self, IndexFile};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tonic::Status;

/// Why a stored index is not used.
pub(crate) enum Unusable {
    /// The file is not what it should be.
    Damaged(FileError),
    /// It was built for another recall than is asked for now.
    Recall(f32),
}

impl Node {
    /// Whether a range of heads has spans of which something must be brought back before they are read.
    pub(crate) fn lacks(
        &self,
        session: &Session,
        layer: usize,
        heads: Range<usize>,
        (range, want): (&Range<u64>, Want),
    ) -> bool {
        // Without a store everything is in RAM.
        self.store.is_some()
            && heads
                .filter_map(|h| session.head(layer, h).ok())
                .any(|head| head.read().seen(range.start, range.end).any(|span| span.lacks(want)))
    }

    /// Brings back what a range of heads lacks, until a time. The caller holds a `Reading`, so that it stays. What is late is
    /// brought back all the same, for the next one who asks.
    pub(crate) async fn revive(
        self: &Arc<Self>,
        session: &Arc<Session>,
        (layer, heads): (usize, Range<usize>),
        (range, want): (Range<u64>, Want),
        until: Option<Instant>,
    ) -> Result<(), Status> {
        if !self.lacks(session, layer, heads.clone(), (&range, want)) {
            return Ok(());
        }
        let (node, of) = (self.clone(), session.clone());
        let asked = range.clone();
        let work = on_disk(move || {
            node.bring(&of, want, |(l, h), span| {
                l == layer && heads.contains(&h) && span.begin < asked.end && asked.start < span.end
            })
        });
        // A task of its own, which goes on when nobody waits for it any more.
        let work = tokio::spawn(work);
        let done = match until {
            None => work.await,
            Some(at) => tokio::time::timeout_at(at.into(), work).await.map_err(|_| {
                Status::unavailable(format!(
                    "tokens {}..{} of layer {layer} lie in the archive or in files and are not back within the deadline; they are on their way: ask again",
                    range.start, range.end
                ))
            })?,
        };
        done.map_err(|e| Status::internal(format!("bringing rows back ended without an answer: {e}")))??
    }

    /// Brings back what the wanted spans of a session lack, and queues the builds that waited for it.
    pub(crate) fn bring(
        &self,
        session: &Arc<Session>,
        want: Want,
        wanted: impl Fn((usize, usize), &Span) -> bool,
    ) -> Result<(), Status> {
        let Some(store) = &self.store else { return Ok(()) };
        // One after the other: the second finds what the first has brought.
        let _one = session.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let mut away = places(session, |span| span.lacks(want));
        away.retain(|place| wanted(place.at, &place.span));
        each(away, |place| self.bring_one(store, place, want)).into_iter().collect()
    }

    fn bring_one(&self, store: &Store, Place { session, at, span }: Place, want: Want) -> Result<(), Status> {
        if span.rows.archived() > 0 {
            let bytes = store.revive(&session, at, &span).map_err(|e| {
                self.metrics.archive_errors.increment(1);
                explained(at, &span, "lie in", &e)
            })?;
            self.metrics.revivals.increment(u64::from(bytes > 0));
        }
        // An index that was stored is there already.
        if span.take_unqueued() && !span.ready() {
            self.queue_index(&session, at, &span);
        }
        let current = session.head(at.0, at.1).ok().and_then(|head| head.current(span.core()));
        match current.filter(|now| now.index_is_away() && now.lacks(want)) {
            None => Ok(()),
            Some(now) => self.bring_index(store, &Place { session, at, span: now }),
        }
    }

    /// Reads the index of a span back into RAM; one that cannot be read is built again. The caller holds the session's
    /// `moving`.
    fn bring_index(&self, store: &Store, place: &Place) -> Result<(), Status> {
        let Place { session, at, span } = place;
        let Ok(head) = session.head(at.0, at.1) else { return Ok(()) };
        let indexed = self
            .stored_index(store, place)
            .map_err(|s| self.short(&format!("the index of layer {}, KV head {}", at.0, at.1), s))?;
        let rebuilt = indexed.is_none();
        if head.overlay(span, Arc::new(span.again().with_index(indexed))) && rebuilt {
            self.queue_index(session, *at, span);
        }
        Ok(())
    }

    /// The index of a span from its file. None: it must be built again, and the file is not used any more.
    pub(crate) fn stored_index(
        &self,
        store: &Store,
        Place { session, at: (layer, kv_head), span }: &Place,
    ) -> Result<Option<Indexed>, Short> {
        let id = span.index_file().unwrap_or(0);
        let path = store.directory.index(id);
        let read = IndexFile::open(&path).map_err(Unusable::Damaged);
        let at = (*layer, *kv_head);
        match read.and_then(|file| self.read_index(session, (at, span), &file, Charges::Patient)) {
            Ok(indexed) => {
                self.metrics.indexes_loaded.increment(u64::from(indexed.is_ok()));
                indexed.map(Some)
            }
            Err(Unusable::Recall(recall)) => {
                tracing::info!(
                    layer,
                    kv_head,
                    recall,
                    "a stored index is of another recall; it is built again"
                );
                span.set_index_file(None);
                Ok(None)
            }
            Err(Unusable::Damaged(why)) => {
                match &why {
                    FileError::Io(e) if e.kind() == io::ErrorKind::NotFound => {
                        tracing::warn!(layer, kv_head, "a stored index is gone; it is built again");
                    }
                    why => store.directory.put_away(&path, why),
                }
                span.set_index_file(None);
                Ok(None)
            }
        }
    }

    /// Whether an index file that was opened is the one of a span.
    pub(crate) fn check_index(
        &self,
        session: &Session,
        (at, span): ((usize, usize), &Span),
        file: &IndexFile,
    ) -> Result<(), Unusable> {
        let (o, g) = (&file.owner, &session.terms.geometry);
        if Some(o.fingerprint) != session.kept.as_ref().map(|k| k.fingerprint) {
            return Err(Unusable::Damaged(FileError::Fingerprint));
        }
        let is = |field, found: u64, want: u64| match found == want {
            true => Ok(()),
            false => Err(Unusable::Damaged(FileError::field(field, found, want))),
        };
        is("layer", o.layer.into(), at.0 as u64)?;
        is("KV head", o.kv_head.into(), at.1 as u64)?;
        is("first position", o.first, span.begin)?;
        is("tokens", o.tokens, span.len())?;
        is("key_dim", o.key_dim.into(), g.key_dim as u64)?;
        is("value_dim", o.value_dim.into(), g.value_dim as u64)?;
        match o.recall_target == self.config().index_recall {
            true => Ok(()),
            false => Err(Unusable::Recall(o.recall_target)),
        }
    }

    /// The index of a span from a file that was opened, paid for, or what there is no room for.
    pub(crate) fn read_index(
        &self,
        session: &Session,
        place: ((usize, usize), &Span),
        file: &IndexFile,
        charges: Charges,
    ) -> Result<Result<Indexed, Short>, Unusable> {
        self.check_index(session, place, file)?;
        let mut held = match session.purse.charge_as(charges, Kind::Index, file.index_bytes()) {
            Ok(held) => held,
            Err(short) => return Ok(Err(short)),
        };
        let index = file.load().map_err(Unusable::Damaged)?;
        // What it takes in RAM differs a little from what it takes in the file.
        if let Err(short) = held.resize(index.bytes() as u64, charges) {
            return Ok(Err(short));
        }
        let index_file::Owner { recall_target, build_us, .. } = file.owner;
        Ok(Ok(Indexed { index, recall_target, build_us, charge: held }))
    }
}

/// What moved not, and why; the code says whether asking again may help.
pub(crate) fn explained(at: (usize, usize), span: &Span, verb: &str, e: &MoveError) -> Status {
    let text = format!(
        "tokens {}..{} of layer {}, KV head {} {verb} the archive: {e}",
        span.begin, span.end, at.0, at.1
    );
    Status::new(e.code(), text)
}

/// Does something to each place, a few at a time; after the first error no more are begun.
pub(crate) fn each<T: Send>(
    places: Vec<Place>,
    work: impl Fn(Place) -> Result<T, Status> + Sync,
) -> Vec<Result<T, Status>> {
    let threads = PARALLEL.min(places.len());
    let (left, done) = (Mutex::new(places.into_iter()), Mutex::new(Vec::new()));
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || {
        while let Some(place) = next() {
            let result = work(place);
            let failed = result.is_err();
            done.lock().unwrap_or_else(PoisonError::into_inner).push(result);
            if failed {
                while next().is_some() {}
            }
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(run))));
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}
