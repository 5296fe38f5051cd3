//! Rows that go to the archive when an operator says so, and come back when somebody wants to read them.

use crate::archive::PARALLEL;
use crate::builder::Work;
use crate::node::Node;
use crate::session::Session;
use crate::session::span::Span;
use crate::shard::open::on_disk;
use crate::spill::{Place, places};
use crate::store::Store;
use crate::store::archived::MoveError;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tonic::Status;

/// How long background work of a session may go on before its spans are archived as they are.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes that moved to the archive: all of them, and those that were in RAM.
#[derive(Debug, Default, Clone, Copy)]
pub struct Moved {
    /// All.
    pub archived: u64,
    /// Of these in RAM.
    pub freed: u64,
}

impl Node {
    /// Archives every span of these sessions that can be: on disk, its index built, not read now, not about to be merged.
    /// An error leaves the span of the error, and those after it, as they were.
    pub(crate) async fn archive(
        self: &Arc<Self>,
        store: &Arc<Store>,
        sessions: Vec<Arc<Session>>,
    ) -> Result<Moved, Status> {
        for session in &sessions {
            session.pending.settled(Instant::now().checked_add(PATIENCE)).await;
        }
        let (node, store) = (self.clone(), store.clone());
        on_disk(move || {
            store.archive()?;
            let mut moved = Moved::default();
            for session in &sessions {
                node.persist_all(&store, session)?;
                let ready = |span: &Span| span.can_spill() && span.ready() && span.rows.archived() == 0;
                for done in each(places(session, ready), |place| node.archive_one(&store, place)) {
                    let done = done?;
                    moved.archived += done.archived;
                    moved.freed += done.freed;
                }
            }
            Ok(moved)
        })
        .await?
    }

    fn archive_one(&self, store: &Store, Place { session, at, span }: Place) -> Result<Moved, Status> {
        let (Some(kept), Ok(head)) = (&session.kept, session.head(at.0, at.1)) else {
            return Ok(Moved::default());
        };
        let told = store.upload(kept, at, &span).inspect_err(|_| self.metrics.archive_errors.increment(1));
        if !told.map_err(|e| explained(at, &span, "cannot go to", &e))? {
            return Ok(Moved::default());
        }
        let _one = session.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = span.rows.let_go(&session.purse);
        let moved = Moved { archived: rows.archived(), freed: span.rows.tiers().0 };
        if !head.archive(&span, Arc::new(span.over(rows)), || session.is_read()) {
            return Ok(Moved::default());
        }
        session.purse.shrink(moved.freed);
        // What stays behind is found at the next start, where it does no harm.
        store.drop_files(&span).map_err(|e| Status::internal(e.to_string()))?;
        self.metrics.archived.increment(1);
        tracing::debug!(
            layer = at.0,
            kv_head = at.1,
            begin = span.begin,
            bytes = moved.archived,
            "span archived"
        );
        Ok(moved)
    }

    /// Whether a range of heads has rows that must be brought back before they are read.
    pub(crate) fn is_away(
        &self,
        session: &Session,
        layer: usize,
        heads: Range<usize>,
        range: &Range<u64>,
    ) -> bool {
        // Without a store there is no archive.
        self.store.is_some()
            && heads
                .filter_map(|h| session.head(layer, h).ok())
                .any(|head| head.read().seen(range.start, range.end).any(|span| span.is_away()))
    }

    /// Brings a range of heads back, until a time. The caller holds a `Reading`, so that it stays. What is late is brought
    /// back all the same, for the next one who asks.
    pub(crate) async fn revive(
        self: &Arc<Self>,
        session: &Arc<Session>,
        (layer, heads): (usize, Range<usize>),
        range: Range<u64>,
        until: Option<Instant>,
    ) -> Result<(), Status> {
        if !self.is_away(session, layer, heads.clone(), &range) {
            return Ok(());
        }
        let (node, of) = (self.clone(), session.clone());
        let asked = range.clone();
        let work = on_disk(move || {
            node.bring_from_archive(&of, |(l, h), span| {
                l == layer && heads.contains(&h) && span.begin < asked.end && asked.start < span.end
            })
        });
        // A task of its own, which goes on when nobody waits for it any more.
        let work = tokio::spawn(work);
        let done = match until {
            None => work.await,
            Some(at) => tokio::time::timeout_at(at.into(), work).await.map_err(|_| {
                Status::unavailable(format!(
                    "tokens {}..{} of layer {layer} lie in the archive and are not back within the deadline; they are on their way: ask again",
                    range.start, range.end
                ))
            })?,
        };
        done.map_err(|e| Status::internal(format!("bringing rows back ended without an answer: {e}")))??
    }

    /// Brings back every span of a session that is wanted, and queues the builds that waited for it.
    pub(crate) fn bring_from_archive(
        &self,
        session: &Arc<Session>,
        wanted: impl Fn((usize, usize), &Span) -> bool,
    ) -> Result<(), Status> {
        let Some(store) = &self.store else { return Ok(()) };
        // One after the other: the second finds what the first has brought.
        let _one = session.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let mut away = places(session, Span::is_away);
        away.retain(|place| wanted(place.at, &place.span));
        each(away, |place| self.bring_one(store, place)).into_iter().collect()
    }

    fn bring_one(&self, store: &Store, Place { session, at, span }: Place) -> Result<(), Status> {
        let bytes = store.revive(&session, at, &span).map_err(|e| {
            self.metrics.archive_errors.increment(1);
            explained(at, &span, "lie in", &e)
        })?;
        self.metrics.revivals.increment(u64::from(bytes > 0));
        // An index that was stored is there already.
        if span.take_unqueued() && !span.ready() {
            let work = Work::Index(Arc::downgrade(&session), Arc::downgrade(span.core()));
            self.queue(&session, at, work);
        }
        Ok(())
    }
}

/// What moved not, and why; the code says whether asking again may help.
fn explained(at: (usize, usize), span: &Span, verb: &str, e: &MoveError) -> Status {
    let text = format!(
        "tokens {}..{} of layer {}, KV head {} {verb} the archive: {e}",
        span.begin, span.end, at.0, at.1
    );
    Status::new(e.code(), text)
}

/// Does something to each place, a few at a time; after the first error no more are begun.
fn each<T: Send>(
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
