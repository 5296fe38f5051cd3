//! A sealed run of tokens of one head: immutable rows and a slot that goes from empty to an index once.

use crate::admission::Charge;
use crate::session::fresh::{Extents, Fresh};
use half::f16;
use index::{SpanIndex, SpanView};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rows `[begin, end)` of one head.
pub struct Span {
    /// First position.
    pub begin: u64,
    /// Position after the last.
    pub end: u64,
    /// Of this lineage step; a replacement of a span gets the next number.
    pub version: u64,
    /// Keys.
    pub keys: Extents,
    /// Values.
    pub values: Extents,
    /// Set once by the builder. Until then the span is scanned exactly, so a reader never waits.
    index: OnceLock<Indexed>,
    /// A build is queued or running.
    pending: AtomicBool,
    /// Bytes of the rows; returned when the last reader lets go.
    _charge: Charge,
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
    pub fn seal(rows: Fresh, pending: bool) -> Self {
        Self {
            begin: rows.begin,
            end: rows.end(),
            version: 1,
            keys: rows.keys,
            values: rows.values,
            index: OnceLock::new(),
            pending: AtomicBool::new(pending),
            _charge: rows.charge,
        }
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

    /// The part of `[begin, end)` that lies in this span below `visible_end`, or None.
    pub fn view(&self, begin: u64, end: u64, visible_end: u64) -> Option<SpanView<'_>> {
        let first = begin.max(self.begin);
        let last = end.min(visible_end);
        (first < last).then(|| SpanView {
            keys: self.keys.rows(),
            values: self.values.rows(),
            index: self.index.get().map(|i| &i.index),
            visible: (first - self.begin) as usize..(last - self.begin) as usize,
        })
    }

    /// Copies the rows of `[begin, end)` that lie in this span below `visible_end`.
    pub fn copy(&self, begin: u64, end: u64, visible_end: u64, k: &mut Vec<f16>, v: &mut Vec<f16>) {
        let first = begin.max(self.begin);
        let last = end.min(visible_end);
        if first < last {
            let (first, last) = ((first - self.begin) as usize, (last - self.begin) as usize);
            self.keys.copy(first, last, k);
            self.values.copy(first, last, v);
        }
    }
}
