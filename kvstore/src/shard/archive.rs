//! Rows that go to the archive when an operator says so; `bring` fetches them again.

use crate::node::Node;
use crate::session::Session;
use crate::session::span::Span;
use crate::shard::bring::{each, explained};
use crate::shard::open::on_disk;
use crate::spill::{Place, places};
use crate::store::Store;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tonic::Status;

/// How long background work of a session may go on before its spans are archived or compacted as they are.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes that moved to the archive: all of them, and those that were in RAM.
#[derive(Debug, Default, Clone, Copy)]
pub struct Moved {
    /// All.
    pub archived: u64,
    /// That left RAM: of these, and of their indexes.
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
        on_disk(move || node.archive_now(&store, &sessions)).await?
    }

    /// The same without waiting for background work; blocks.
    pub(crate) fn archive_now(&self, store: &Store, sessions: &[Arc<Session>]) -> Result<Moved, Status> {
        store.archive()?;
        let mut moved = Moved::default();
        for session in sessions {
            self.persist_all(store, session)?;
            let ready = |span: &Span| span.can_spill() && span.ready() && span.rows.archived() == 0;
            for done in each(places(session, ready), |place| self.archive_one(store, place)) {
                let done = done?;
                moved.archived += done.archived;
                moved.freed += done.freed;
            }
        }
        Ok(moved)
    }

    fn archive_one(&self, store: &Store, Place { session, at, span }: Place) -> Result<Moved, Status> {
        let (Some(kept), Ok(head)) = (&session.kept, session.head(at.0, at.1)) else {
            return Ok(Moved::default());
        };
        match store.upload(kept, at, &span) {
            Ok(true) => {}
            Ok(false) => return Ok(Moved::default()),
            // Who was there first has moved the rows.
            Err(_) if !head.holds(&span) => return Ok(Moved::default()),
            Err(e) => {
                self.metrics.archive_errors.increment(1);
                return Err(explained(at, &span, "cannot go to", &e));
            }
        }
        let _one = session.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = span.rows.let_go(&session.purse);
        let in_ram = span.rows.tiers().0;
        let archived = Arc::new(span.over(rows).without_index());
        let index = span.index_bytes() - archived.index_bytes();
        let moved = Moved { archived: archived.rows.archived(), freed: in_ram + index };
        if !head.archive(&span, archived, || session.is_read()) {
            return Ok(Moved::default());
        }
        session.purse.shrink(in_ram);
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
}
