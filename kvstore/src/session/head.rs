//! What one (layer, KV head) holds: sealed spans, one after the other from position 0, then the fresh tail.

use crate::admission::{Charge, Kind, Purse, Short};
use crate::session::fresh::{Extents, Fresh, capacity};
use crate::session::geometry::Geometry;
use crate::session::samples::{self, Samples};
use crate::session::span::{Queries, Span, Want};
use half::f16;
use index::SpanView;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tonic::Status;

/// One (layer, KV head).
pub struct Head {
    /// Tokens held; changed only under the write lock, read without it for the watermark.
    pub(super) len: AtomicU64,
    /// Readers hold it for one attend or copy; writers for the copy of a chunk, a seal, a truncation or the swap of a
    /// merge. Index builds never hold it: they work on an `Arc<Span>` and publish into the span's own slot. Writers of
    /// one layer are ordered by `Session::ingest`, but for the swap; the lock ends with the session.
    state: RwLock<State>,
}

/// Spans and tail of a head.
pub struct State {
    /// In order of position, without gaps.
    pub(super) spans: Vec<Held>,
    /// The last given to a span of this head.
    pub(super) version: u64,
    pub(super) fresh: Fresh,
    pub(super) samples: Samples,
    /// Number, in the session's log, of the last truncation; 0: none, or no log.
    pub(super) cut: u64,
}

/// A span as this session sees it.
pub(super) struct Held {
    pub(super) span: Arc<Span>,
    /// Below `span.end` after a truncation inside the span.
    pub(super) visible_end: u64,
    /// The version of the span that will replace this one and its neighbours of the same plan.
    pub(super) plan: Option<u64>,
}

impl Held {
    /// Visible tokens.
    pub(super) fn len(&self) -> u64 {
        self.visible_end - self.span.begin
    }
}

/// How a session's spans are served.
#[derive(Debug, Clone, Copy)]
pub struct Sealing {
    /// Fewest tokens of a span with an index; None: no span gets one.
    pub index_from: Option<u64>,
    /// Whether small spans merge.
    pub merge: bool,
    /// Whether they go to disk.
    pub stored: bool,
}

impl Sealing {
    /// Whether a span of this many tokens gets an index.
    pub fn wants_index(&self, tokens: u64) -> bool {
        self.index_from.is_some_and(|least| tokens >= least)
    }
}

/// What an append asks of one head; positions are checked before.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// `[tokens, heads, key_dim]` of all heads of the chunk.
    pub k: &'a [f16],
    /// `[tokens, heads, value_dim]`.
    pub v: &'a [f16],
    /// `[m, heads * group, key_dim]`.
    pub q: &'a [f16],
    /// `[m]`.
    pub q_pos: &'a [u64],
    /// Tokens up to a query's own that no index need serve.
    pub q_window: u64,
    /// Heads in the chunk, and this one among them.
    pub heads: usize,
    /// Index of this head in the chunk.
    pub slot: usize,
    /// Seal everything below this position.
    pub seal_to: Option<u64>,
}

/// Memory for one append to one head, granted before anything is stored.
pub struct Grant {
    kv: Charge,
    samples: Charge,
}

/// What came of a push.
pub struct Pushed {
    /// A span was sealed.
    pub sealed: bool,
    /// It wants an index.
    pub wants_index: Option<Arc<Span>>,
    /// Spans are to become one of this version.
    pub wants_merge: Option<u64>,
}

impl Head {
    /// An empty head.
    pub fn new(g: &Geometry, purse: &Arc<Purse>) -> Result<Self, Short> {
        Ok(Self {
            len: AtomicU64::new(0),
            state: RwLock::new(State {
                spans: Vec::new(),
                version: 1,
                fresh: Fresh {
                    begin: 0,
                    keys: Extents::new(g.key_dim),
                    values: Extents::new(g.value_dim),
                    charge: purse.charge(Kind::Kv, 0)?,
                },
                samples: Samples::new(g.group * g.key_dim, purse.charge(Kind::Scratch, 0)?),
                cut: 0,
            }),
        })
    }

    /// Tokens held.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Shared access for the length of one attend, copy or report.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the memory that [`Head::push`] of these rows will need.
    pub fn grant(
        &self,
        g: &Geometry,
        purse: &Arc<Purse>,
        tokens: u64,
        samples: usize,
        seal_to: Option<u64>,
    ) -> Result<Grant, Short> {
        // The lock is let go before anything is charged: a charge may spill spans of this very head.
        let (begin, len) = {
            let state = self.read();
            (state.fresh.begin, state.fresh.len())
        };
        let sealed = seal_to.map_or(0, |to| to.saturating_sub(begin));
        let after = capacity(len + tokens).max(sealed + capacity(len + tokens - sealed));
        let kv = (after - capacity(len)) * g.row_bytes();
        Ok(Grant {
            kv: purse.charge(Kind::Kv, kv)?,
            samples: purse.charge(Kind::Scratch, samples::bytes(samples, g.group * g.key_dim))?,
        })
    }

    /// Stores rows and seals.
    pub fn push(&self, g: &Geometry, rows: Rows<'_>, grant: Grant, sealing: Sealing) -> Pushed {
        let mut guard = self.write();
        let state = &mut *guard;
        let (kd, vd) = (g.key_dim, g.value_dim);
        state.fresh.charge.absorb(grant.kv);
        state.samples.charge.absorb(grant.samples);
        let fresh = &mut state.fresh;
        fresh.keys.extend_strided(rows.k, rows.slot * kd, rows.heads * kd);
        fresh.values.extend_strided(rows.v, rows.slot * vd, rows.heads * vd);
        let width = g.group * kd;
        let at = (rows.slot * width, rows.heads * width);
        state.samples.extend_strided(rows.q_pos, rows.q_window, rows.q, at.0, at.1);
        let mut pushed = Pushed { sealed: false, wants_index: None, wants_merge: None };
        if let Some(to) = rows.seal_to.filter(|&to| to > state.fresh.begin) {
            pushed.sealed = true;
            pushed.wants_index = state.seal(to, g, sealing);
            if sealing.merge {
                pushed.wants_merge = state.plan(|tokens| sealing.wants_index(tokens));
            }
        }
        self.len.store(state.end(), Ordering::Release);
        pushed
    }

    /// Drops every token at or beyond `length`, by truncation `cut` of the session's log. Returns whether a span was cut.
    pub fn truncate(&self, length: u64, g: &Geometry, cut: u64) -> bool {
        let mut guard = self.write();
        let state = &mut *guard;
        state.cut = cut;
        if length >= state.end() {
            return false;
        }
        let spans = length < state.fresh.begin;
        if length > state.fresh.begin {
            state.fresh.truncate(length - state.fresh.begin, g.row_bytes());
        } else {
            state.fresh.truncate(0, g.row_bytes());
            state.fresh.begin = length;
            state.spans.retain(|h| h.span.begin < length);
            if let Some(last) = state.spans.last_mut() {
                last.visible_end = last.visible_end.min(length);
            }
        }
        state.samples.truncate(length);
        self.len.store(state.end(), Ordering::Release);
        spans
    }
}

impl State {
    /// Tokens held.
    pub fn end(&self) -> u64 {
        self.fresh.end()
    }

    /// Position of the first fresh token.
    pub fn fresh_begin(&self) -> u64 {
        self.fresh.begin
    }

    /// Position of the last stored sample.
    pub fn last_sample(&self) -> Option<u64> {
        self.samples.last()
    }

    /// Sealed spans in order, with their visible ends.
    pub fn spans(&self) -> impl Iterator<Item = (&Arc<Span>, u64)> {
        self.spans.iter().map(|h| (&h.span, h.visible_end))
    }

    fn seal(&mut self, to: u64, g: &Geometry, sealing: Sealing) -> Option<Arc<Span>> {
        let begin = self.fresh.begin;
        let indexed = sealing.wants_index(to - begin);
        let rows = self.fresh.split_front(to - begin, g.row_bytes());
        let own = self.samples.split_before(to);
        let queries = if indexed {
            Queries { own: Some(own), later: self.samples.copied() }
        } else if sealing.index_from.is_some() && begin > 0 {
            // Nothing is built of it now, but perhaps of a span it merges into.
            Queries { own: Some(own), ..Queries::default() }
        } else {
            Queries::default()
        };
        // Copied here, since the build takes them.
        let unsaved = if sealing.stored { queries.stored() } else { None };
        let span = Span::seal(rows, queries, indexed);
        span.save_queries(unsaved);
        let span = Arc::new(span);
        self.spans.push(Held { span: span.clone(), visible_end: to, plan: None });
        indexed.then_some(span)
    }

    /// Refuses a range of which something is to be brought back first.
    pub fn at_hand(&self, begin: u64, end: u64, want: Want) -> Result<(), Status> {
        match self.seen(begin, end).find(|span| span.lacks(want)) {
            None => Ok(()),
            Some(span) => Err(Status::unavailable(format!(
                "tokens {}..{} lie in the archive or in files: ask again",
                span.begin, span.end
            ))),
        }
    }

    /// Views of `[begin, end)`, which is at hand: sealed spans, and the fresh tail.
    pub fn views(&self, begin: u64, end: u64) -> (Vec<SpanView<'_>>, Option<SpanView<'_>>) {
        let spans = self.spans.iter().filter_map(|h| h.span.view(begin, end, h.visible_end)).collect();
        let first = begin.max(self.fresh.begin);
        let last = end.min(self.fresh.end());
        let fresh = (first < last).then(|| SpanView {
            keys: self.fresh.keys.rows(),
            values: self.fresh.values.rows(),
            index: None,
            compact: None,
            visible: (first - self.fresh.begin) as usize..(last - self.fresh.begin) as usize,
        });
        (spans, fresh)
    }

    /// The spans of which [`State::views`] gives views, in order.
    pub fn seen(&self, begin: u64, end: u64) -> impl Iterator<Item = &Arc<Span>> {
        let seen = move |h: &&Held| begin.max(h.span.begin) < end.min(h.visible_end);
        self.spans.iter().filter(seen).map(|h| &h.span)
    }

    /// Copies of the rows of `[begin, end)`, which must be held.
    pub fn copy(&self, begin: u64, end: u64) -> (Vec<f16>, Vec<f16>) {
        let (mut k, mut v) = (Vec::new(), Vec::new());
        for h in &self.spans {
            h.span.copy(begin, end, h.visible_end, &mut k, &mut v);
        }
        let first = begin.max(self.fresh.begin);
        if first < end {
            let (first, last) = (first - self.fresh.begin, end - self.fresh.begin);
            self.fresh.keys.copy(first as usize, last as usize, &mut k);
            self.fresh.values.copy(first as usize, last as usize, &mut v);
        }
        (k, v)
    }
}
