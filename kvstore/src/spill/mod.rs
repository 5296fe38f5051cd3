//! Rows that leave RAM and come back.
//!
//! A span whose extents are all on disk can be replaced by the same span over maps of these files (`session::overlay`);
//! it is searched from there, by the same index, with the same bits. A charge that finds too little memory asks for room
//! here; operators ask through the verbs of `shard::tier`. While there is room, a thread brings back what is used again and
//! again, and what is pinned.
//!
//! * this file: room is made, spans are spilled and promoted
//! * `policy`: which span goes first, and which comes back

pub mod policy;

use crate::admission::{Reclaim, Short};
use crate::node::Node;
use crate::session::Session;
use crate::session::span::Span;
use crate::store::Store;
use policy::Candidate;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};

/// At least this part of the budget is freed at once, so that a session that grows does not ask for every few rows.
const STEP_PART: u64 = 64;

/// Between two looks for what should come back.
const LOOK: Duration = Duration::from_secs(1);

/// Milliseconds since the first look at the clock.
pub fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// A span and where it stands.
pub struct Place {
    /// Whose.
    pub session: Arc<Session>,
    /// Layer and KV head.
    pub at: (usize, usize),
    /// As it was when somebody looked.
    pub span: Arc<Span>,
}

impl Reclaim for Node {
    fn reclaim(&self, missing: u64, until: Instant) -> bool {
        let Some(store) = &self.store else { return false };
        loop {
            let (candidates, unwritten) = self.candidates();
            let unpinned = candidates.iter().filter(|c| !c.pinned);
            let ready = unpinned.fold(0u64, |sum, c| sum.saturating_add(c.bytes));
            if ready.saturating_add(unwritten) < missing {
                // Spilling would help nobody.
                return false;
            }
            if ready >= missing {
                let chosen = policy::choose(candidates, missing.max(self.budget.limit() / STEP_PART));
                if chosen.into_iter().map(|c| self.spill(store, c.span)).sum::<u64>() > 0 {
                    return true;
                }
                // They were merged away or cannot be read back: others may do.
                if Instant::now() >= until {
                    return false;
                }
                continue;
            }
            drop(candidates);
            if !store.keeper().progress(until) {
                return false;
            }
        }
    }
}

impl Node {
    /// Spans that could leave RAM now, and the bytes of those that could once they are on disk.
    fn candidates(&self) -> (Vec<Candidate<Place>>, u64) {
        let (mut candidates, mut unwritten) = (Vec::new(), 0);
        let now = now();
        for session in self.sessions().into_iter().filter(|s| s.kept.is_some()) {
            let pinned = session.pinned.load(Ordering::Acquire);
            for (layer, kv_head, head) in session.owned() {
                for (span, _) in head.read().spans() {
                    let bytes = span.rows.tiers().0;
                    if bytes == 0 {
                        continue;
                    }
                    if span.can_spill() {
                        let rank = span.history().rank(now);
                        let place =
                            Place { session: session.clone(), at: (layer, kv_head), span: span.clone() };
                        candidates.push(Candidate { rank, bytes, pinned, span: place });
                    } else if !pinned && !span.rows.published() {
                        unwritten += bytes;
                    }
                }
            }
        }
        (candidates, unwritten)
    }

    /// Moves the rows of a span to maps. Returns the bytes that are not in RAM any more once readers of the old span have
    /// finished; 0 when that cannot be done now.
    fn spill(&self, store: &Store, Place { session, at, span }: Place) -> u64 {
        let Some(kept) = &session.kept else { return 0 };
        let Ok(head) = session.head(at.0, at.1) else { return 0 };
        let bytes = span.rows.tiers().0;
        let dim = span.rows.dims().0;
        let rows = span.rows.spilled(&session.purse, |extent, first| {
            store.map_rows(kept.fingerprint, at, span.begin + first, (extent, dim))
        });
        match rows {
            Ok(rows) => {
                if !head.overlay(&span, Arc::new(span.over(rows))) {
                    return 0;
                }
                session.purse.shrink(bytes);
                span.history().leave(now());
                self.metrics.spills.increment(1);
                tracing::debug!(layer = at.0, kv_head = at.1, begin = span.begin, bytes, "span spilled");
                bytes
            }
            Err(e) => {
                // The files of a span that was merged, cut off or closed meanwhile are gone, and rightly so.
                if head.current(span.core()).is_some() && !kept.has_ended() {
                    span.set_unreadable();
                    self.metrics.store_errors.increment(1);
                    let (layer, kv_head) = at;
                    tracing::error!(layer, kv_head, begin = span.begin, error = %e, "cannot be spilled; it stays in RAM");
                }
                0
            }
        }
    }

    /// Spills every span of a session that is on disk; returns the bytes.
    pub(crate) fn spill_all(&self, store: &Store, session: &Arc<Session>) -> u64 {
        let places = places(session, |span| span.can_spill() && span.rows.tiers().0 > 0);
        places.into_iter().map(|place| self.spill(store, place)).sum()
    }

    /// Copies every spilled row of a session back into RAM; returns the bytes. Refused as a whole when they do not fit.
    pub(crate) fn promote_all(&self, session: &Arc<Session>) -> Result<u64, Short> {
        let places = places(session, |span| span.rows.tiers().1 > 0);
        self.budget.check(places.iter().map(|p| p.span.rows.tiers().1).sum())?;
        let mut promoted = 0;
        for place in places {
            promoted += self.promote_one(place)?;
        }
        Ok(promoted)
    }

    /// Brings back spilled spans that are pinned or used again and again, while a part of the budget stays free; returns
    /// the bytes.
    pub(crate) fn bring_back(&self, now: u64) -> u64 {
        if self.budget.usage().spilled == 0 {
            return 0;
        }
        let mut candidates = Vec::new();
        for session in self.sessions() {
            let pinned = session.pinned.load(Ordering::Acquire);
            for place in places(&session, |s| s.rows.tiers().1 > 0 && (pinned || s.history().wanted(now))) {
                let (rank, bytes) = (place.span.history().rank(now), place.span.rows.tiers().1);
                candidates.push(Candidate { rank, bytes, pinned, span: place });
            }
        }
        let limit = self.budget.limit();
        let chosen = policy::choose_back(candidates, limit - self.budget.granted(), limit);
        // What finds no room after all stays where it is, for the next look.
        chosen.into_iter().map_while(|c| self.promote_one(c.span).ok()).sum()
    }

    fn promote_one(&self, Place { session, at, span }: Place) -> Result<u64, Short> {
        let Ok(head) = session.head(at.0, at.1) else { return Ok(0) };
        let bytes = span.rows.tiers().1;
        let charge = session.purse.promote(bytes)?;
        let rows = span.rows.promoted(charge);
        if !head.overlay(&span, Arc::new(span.over(rows))) {
            // Merged, cut off or spilled meanwhile: what was promised is taken back.
            session.purse.shrink(bytes);
            return Ok(0);
        }
        self.metrics.promotions.increment(1);
        Ok(bytes)
    }
}

/// Looks once a second for what should come back, until the node is gone.
pub fn start(node: Weak<Node>) -> std::io::Result<()> {
    std::thread::Builder::new().name("promoter".into()).spawn(move || {
        loop {
            std::thread::sleep(LOOK);
            match node.upgrade() {
                Some(node) => node.bring_back(now()),
                None => return,
            };
        }
    })?;
    Ok(())
}

/// The spans of a session that are wanted, in order.
pub fn places(session: &Arc<Session>, wanted: impl Fn(&Span) -> bool) -> Vec<Place> {
    let mut places = Vec::new();
    for (layer, kv_head, head) in session.owned() {
        let state = head.read();
        let spans = state.spans().filter(|(span, _)| wanted(span));
        places.extend(spans.map(|(span, _)| Place {
            session: session.clone(),
            at: (layer, kv_head),
            span: span.clone(),
        }));
    }
    places
}
