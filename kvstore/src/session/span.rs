//! A sealed run of tokens of one head: immutable rows, a slot that goes from empty to an index once, and perhaps a compact
//! form that answers in their place.
//!
//! What stays when the rows move to another tier is the core: two spans with one core are the same span.

use crate::admission::Charge;
use crate::session::compact::Compacted;
use crate::session::extent::SealedRows;
use crate::session::fresh::Fresh;
use crate::session::samples::{Later, Samples, Stored};
use crate::spill;
use crate::spill::policy::History;
use half::f16;
use index::{Budget, SpanIndex, SpanView};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

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
    /// Set once by the builder. Until then the span is scanned exactly, so a reader never waits. None: the index is in its
    /// file only.
    slot: Option<Arc<OnceLock<Indexed>>>,
    compact: Option<Arc<Compacted>>,
    core: Arc<Core>,
}

/// What a reader wants of a span.
#[derive(Debug, Clone, Copy)]
pub enum Want {
    /// The rows as they came.
    Rows,
    /// An answer.
    Answer {
        /// Of each query head.
        budget: Budget,
        /// Whether an estimate is welcome.
        estimate: bool,
    },
}

/// What a span is apart from where its rows lie.
pub struct Core {
    /// What is told of the index, also while it is in its file.
    about: OnceLock<About>,
    /// A build is queued or running.
    pending: AtomicBool,
    /// Queries with positions in the span, and until its build those that came later; taken and put back by the one
    /// builder thread, which also copies them for a merge. Never held across work.
    queries: Mutex<Queries>,
    /// Copies of the queries for the disk, until they are written; None where nothing is stored.
    unsaved: Mutex<Option<Stored>>,
    /// Id of the file of the queries; 0: there are none.
    queries_file: OnceLock<u64>,
    /// Id of the file of the index; 0: it cannot be stored. None until it is built and written. Held for a few instructions.
    index_file: Mutex<Option<u64>>,
    /// How it is used; held for a few instructions.
    history: Mutex<History>,
    /// Its files could not be read back, so that its rows must stay in RAM.
    unreadable: AtomicBool,
    /// Its rows cannot be brought into a compact form.
    shapeless: AtomicBool,
    /// It waits for an index whose build is queued when its rows are at hand.
    unqueued: AtomicBool,
}

impl Core {
    fn new(queries: Queries, pending: bool) -> Self {
        Self {
            about: OnceLock::new(),
            pending: AtomicBool::new(pending),
            queries: Mutex::new(queries),
            unsaved: Mutex::default(),
            queries_file: OnceLock::new(),
            index_file: Mutex::default(),
            history: Mutex::default(),
            unreadable: AtomicBool::new(false),
            shapeless: AtomicBool::new(false),
            unqueued: AtomicBool::new(false),
        }
    }
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

/// What is told of an index.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// How it searches.
    pub kind: index::Kind,
    /// On held-back build queries.
    pub recall: Option<f32>,
    /// Calibrated.
    pub width: usize,
    /// The recall that the build was asked for.
    pub recall_target: f32,
    /// How long the build took, in microseconds.
    pub build_us: u64,
}

impl Indexed {
    fn about(&self) -> About {
        About {
            kind: self.index.kind(),
            recall: self.index.recall_estimate(),
            width: self.index.width(),
            recall_target: self.recall_target,
            build_us: self.build_us,
        }
    }
}

impl Span {
    /// Seals rows. `pending` says that an index will be built.
    pub fn seal(rows: Fresh, queries: Queries, pending: bool) -> Self {
        let core = Core { history: Mutex::new(History::begun(spill::now())), ..Core::new(queries, pending) };
        Self::new((rows.begin, 1), SealedRows::seal(rows), core)
    }

    fn new((begin, version): (u64, u64), rows: SealedRows, core: Core) -> Self {
        let slot = Some(Arc::default());
        Self { begin, end: begin + rows.tokens(), version, rows, slot, compact: None, core: Arc::new(core) }
    }

    /// A span that was read back, from a first position and of a version; its index, if it is to get one, is still to be
    /// read or built.
    pub fn restored(
        place: (u64, u64),
        rows: SealedRows,
        queries: Queries,
        queries_file: u64,
        pending: bool,
    ) -> Self {
        let unqueued = AtomicBool::new(pending && rows.archived() > 0);
        let queries_file = OnceLock::from(queries_file);
        Self::new(place, rows, Core { queries_file, unqueued, ..Core::new(queries, pending) })
    }

    /// The replacement of several spans, from `begin` on, with its index.
    pub fn merged(
        begin: u64,
        version: u64,
        rows: SealedRows,
        queries: Option<Samples>,
        indexed: Indexed,
    ) -> Self {
        let queries = Queries { own: queries, later: Later::default() };
        let span = Self::new((begin, version), rows, Core::new(queries, false));
        span.publish(Some(indexed));
        span
    }

    /// The same span over the same rows in another tier.
    pub fn over(&self, rows: SealedRows) -> Self {
        Self {
            begin: self.begin,
            end: self.end,
            version: self.version,
            rows,
            slot: self.slot.clone(),
            compact: self.compact.clone(),
            core: self.core.clone(),
        }
    }

    /// The same span over the rows where they are.
    pub fn again(&self) -> Self {
        self.over(self.rows.with_extents(self.rows.extents().to_vec()))
    }

    /// With the index in its file only, if it can be: [`Span::can_let_index_go`].
    pub fn without_index(mut self) -> Self {
        if self.can_let_index_go() {
            self.slot = None;
        }
        self
    }

    /// With an index that was read back; None: one that is to be built again.
    pub fn with_index(mut self, indexed: Option<Indexed>) -> Self {
        match &indexed {
            None => self.core.pending.store(true, Ordering::Release),
            // The same as before, if anything was told before.
            Some(indexed) => drop(self.core.about.set(indexed.about())),
        }
        self.slot = Some(Arc::new(indexed.map_or_else(OnceLock::new, OnceLock::from)));
        self
    }

    /// With an index that is in its file only, where it was found: nothing is to be built.
    pub fn with_index_in_file(mut self, about: About) -> Self {
        // A span is restored once.
        let _ = self.core.about.set(about);
        self.core.pending.store(false, Ordering::Release);
        self.core.unqueued.store(false, Ordering::Release);
        self.slot = None;
        self
    }

    /// With a form that answers in the place of the rows, or with none.
    pub fn with_form(mut self, compact: Option<Arc<Compacted>>) -> Self {
        self.compact = compact;
        self
    }

    /// The form that answers in the place of the rows.
    pub fn compact(&self) -> Option<&Arc<Compacted>> {
        self.compact.as_ref()
    }

    /// Whether its index is in RAM and in a file, from which it can be read again.
    pub fn can_let_index_go(&self) -> bool {
        self.ready() && self.indexed().is_some() && self.index_file().is_some_and(|id| id != 0)
    }

    /// Whether its index is in its file only.
    pub fn index_is_away(&self) -> bool {
        self.slot.is_none()
    }

    /// What stays when its rows move.
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Whether this is the span of a core.
    pub fn has(&self, core: &Arc<Core>) -> bool {
        Arc::ptr_eq(&self.core, core)
    }

    /// How it is used.
    pub fn history(&self) -> MutexGuard<'_, History> {
        self.core.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that its files cannot be read back.
    pub fn set_unreadable(&self) {
        self.core.unreadable.store(true, Ordering::Relaxed);
    }

    /// Whether something must be brought back, or the build of its index be queued, before it is read.
    pub fn lacks(&self, want: Want) -> bool {
        let rows = self.rows.archived() > 0 || self.core.unqueued.load(Ordering::Acquire);
        match (want, &self.compact) {
            (Want::Answer { budget, estimate }, Some(c)) if c.form.answers(budget, estimate) => false,
            // Where a form may not answer the rows are scanned.
            (Want::Rows, _) | (_, Some(_)) | (Want::Answer { budget: Budget::All, .. }, _) => rows,
            (Want::Answer { .. }, None) => rows || self.index_is_away(),
        }
    }

    /// Takes on the build of an index that waited for the rows. True once.
    pub fn take_unqueued(&self) -> bool {
        self.core.unqueued.swap(false, Ordering::AcqRel)
    }

    /// Notes that its rows cannot be brought into a compact form.
    pub fn set_shapeless(&self) {
        self.core.shapeless.store(true, Ordering::Relaxed);
    }

    /// Whether a policy may try to bring them into one.
    pub fn may_be_compacted(&self) -> bool {
        !self.core.shapeless.load(Ordering::Relaxed)
    }

    /// Whether its rows can be read back from files.
    pub fn can_spill(&self) -> bool {
        self.rows.published() && !self.core.unreadable.load(Ordering::Relaxed)
    }

    /// Tokens, hidden ones included.
    pub fn len(&self) -> u64 {
        self.end - self.begin
    }

    /// The index, when it is there.
    pub fn indexed(&self) -> Option<&Indexed> {
        self.slot.as_ref()?.get()
    }

    /// Bytes of the index in RAM.
    pub fn index_bytes(&self) -> u64 {
        self.indexed().map_or(0, |i| i.charge.bytes())
    }

    /// Bytes of the form that answers in the place of the rows.
    pub fn compact_bytes(&self) -> u64 {
        self.compact.as_ref().map_or(0, |c| c.charge.bytes())
    }

    /// What is told of its index, once there is one.
    pub fn about(&self) -> Option<&About> {
        self.core.about.get()
    }

    /// Whether nothing more is coming: the index is there, or none will be built.
    pub fn ready(&self) -> bool {
        !self.core.pending.load(Ordering::Acquire)
    }

    /// Ends the build, with an index or without.
    pub fn publish(&self, indexed: Option<Indexed>) {
        if let (Some(indexed), Some(slot)) = (indexed, &self.slot) {
            // The same of an index that is built again.
            let _ = self.core.about.set(indexed.about());
            // Only the one build job of this span calls this.
            let _ = slot.set(indexed);
        }
        self.core.pending.store(false, Ordering::Release);
    }

    /// The sampled queries.
    pub fn queries(&self) -> MutexGuard<'_, Queries> {
        self.core.queries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a copy of the queries that the index is built with, until it is on disk. Called before the build takes them.
    pub fn save_queries(&self, queries: Option<Stored>) {
        *self.core.unsaved.lock().unwrap_or_else(PoisonError::into_inner) = queries;
    }

    /// The copy; None when there is nothing to write.
    pub fn unsaved(&self) -> MutexGuard<'_, Option<Stored>> {
        self.core.unsaved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Id of the file of the queries, 0 for none; unset until it is written.
    pub fn queries_file(&self) -> &OnceLock<u64> {
        &self.core.queries_file
    }

    /// Id of the file of the index, 0 where it cannot be stored; None until it is built and written.
    pub fn index_file(&self) -> Option<u64> {
        *self.core.index_file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the file of the index; None: it is to be written.
    pub fn set_index_file(&self, id: Option<u64>) {
        *self.core.index_file.lock().unwrap_or_else(PoisonError::into_inner) = id;
    }

    /// The part of `[begin, end)` that lies in this span below `visible_end`, or None.
    pub fn view(&self, begin: u64, end: u64, visible_end: u64) -> Option<SpanView<'_>> {
        let first = begin.max(self.begin);
        let last = end.min(visible_end);
        (first < last).then(|| SpanView {
            keys: self.rows.keys(),
            values: self.rows.values(),
            index: self.indexed().map(|i| &i.index),
            compact: self.compact.as_ref().map(|c| &c.form),
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
