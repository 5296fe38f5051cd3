//! A sealed run of tokens of one head: immutable rows and a slot that goes from empty to an index once.

use crate::admission::Charge;
use crate::session::extent::SealedRows;
use crate::session::fresh::Fresh;
use crate::session::samples::{Later, Samples, Stored};
use half::f16;
use index::{SpanIndex, SpanView};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Rows `[begin, end)` of one head.
pub struct Span {
    /// First position.
    pub begin: u64,
    /// Position after the last.
    pub end: u64,
    /// 1 as sealed; the span that replaces others has the next number of its head.
    pub version: u64,
    /// Keys and values.
    pub rows: SealedRows,
    /// Set once by the builder. Until then the span is scanned exactly, so a reader never waits.
    index: OnceLock<Indexed>,
    /// A build is queued or running.
    pending: AtomicBool,
    /// Queries with positions in the span, and until its build those that came later; taken and put back by the one
    /// builder thread, which also copies them for a merge. Never held across work.
    queries: Mutex<Queries>,
    /// Copies of the queries for the disk, until they are written; None where nothing is stored.
    unsaved: Mutex<Option<Stored>>,
    /// Id of the file of the queries; 0: there are none.
    queries_file: OnceLock<u64>,
}

/// Samples of a span.
#[derive(Default)]
pub struct Queries {
    /// With positions in the span; None when they were dropped.
    pub own: Option<Samples>,
    /// Beyond it.
    pub later: Later,
}

impl Queries {
    /// Copies for the disk.
    pub fn stored(&self) -> Option<Stored> {
        self.own.as_ref().map(|own| Stored::of(own, &self.later))
    }
}

/// An index that is ready to serve.
pub struct Indexed {
    /// The index itself.
    pub index: SpanIndex,
    /// The recall that the build was asked for.
    pub recall_target: f32,
    /// How long the build took, in microseconds.
    pub build_us: u64,
    /// Bytes of the index.
    pub charge: Charge,
}

impl Span {
    /// Seals rows. `pending` says that an index will be built.
    pub fn seal(rows: Fresh, queries: Queries, pending: bool) -> Self {
        Self {
            begin: rows.begin,
            end: rows.end(),
            version: 1,
            rows: SealedRows::seal(rows),
            index: OnceLock::new(),
            pending: AtomicBool::new(pending),
            queries: Mutex::new(queries),
            unsaved: Mutex::default(),
            queries_file: OnceLock::new(),
        }
    }

    /// A span that was read back; its index, if it is to get one, is still to be built.
    pub fn restored(
        (begin, version): (u64, u64),
        rows: SealedRows,
        queries: Queries,
        queries_file: u64,
        pending: bool,
    ) -> Self {
        Self {
            begin,
            end: begin + rows.keys().len() as u64,
            version,
            rows,
            index: OnceLock::new(),
            pending: AtomicBool::new(pending),
            queries: Mutex::new(queries),
            unsaved: Mutex::default(),
            queries_file: OnceLock::from(queries_file),
        }
    }

    /// The replacement of several spans, from `begin` on, with its index.
    pub fn merged(
        begin: u64,
        version: u64,
        rows: SealedRows,
        queries: Option<Samples>,
        indexed: Indexed,
    ) -> Self {
        Self {
            begin,
            end: begin + rows.keys().len() as u64,
            version,
            rows,
            index: OnceLock::from(indexed),
            pending: AtomicBool::new(false),
            queries: Mutex::new(Queries { own: queries, later: Later::default() }),
            unsaved: Mutex::default(),
            queries_file: OnceLock::new(),
        }
    }

    /// Tokens, hidden ones included.
    pub fn len(&self) -> u64 {
        self.end - self.begin
    }

    /// The index, when it is there.
    pub fn indexed(&self) -> Option<&Indexed> {
        self.index.get()
    }

    /// Whether nothing more is coming: the index is there, or none will be built.
    pub fn ready(&self) -> bool {
        !self.pending.load(Ordering::Acquire)
    }

    /// Ends the build, with an index or without.
    pub fn publish(&self, indexed: Option<Indexed>) {
        if let Some(indexed) = indexed {
            // Only the one build job of this span calls this.
            let _ = self.index.set(indexed);
        }
        self.pending.store(false, Ordering::Release);
    }

    /// The sampled queries.
    pub fn queries(&self) -> MutexGuard<'_, Queries> {
        self.queries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a copy of the queries that the index is built with, until it is on disk. Called before the build takes them.
    pub fn save_queries(&self, queries: Option<Stored>) {
        *self.unsaved.lock().unwrap_or_else(PoisonError::into_inner) = queries;
    }

    /// The copy; None when there is nothing to write.
    pub fn unsaved(&self) -> MutexGuard<'_, Option<Stored>> {
        self.unsaved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Id of the file of the queries, 0 for none; unset until it is written.
    pub fn queries_file(&self) -> &OnceLock<u64> {
        &self.queries_file
    }

    /// The part of `[begin, end)` that lies in this span below `visible_end`, or None.
    pub fn view(&self, begin: u64, end: u64, visible_end: u64) -> Option<SpanView<'_>> {
        let first = begin.max(self.begin);
        let last = end.min(visible_end);
        (first < last).then(|| SpanView {
            keys: self.rows.keys(),
            values: self.rows.values(),
            index: self.index.get().map(|i| &i.index),
            visible: (first - self.begin) as usize..(last - self.begin) as usize,
        })
    }

    /// Copies the rows of `[begin, end)` that lie in this span below `visible_end`.
    pub fn copy(&self, begin: u64, end: u64, visible_end: u64, k: &mut Vec<f16>, v: &mut Vec<f16>) {
        let first = begin.max(self.begin);
        let last = end.min(visible_end);
        if first < last {
            self.rows.copy((first - self.begin) as usize, (last - self.begin) as usize, k, v);
        }
    }
}
