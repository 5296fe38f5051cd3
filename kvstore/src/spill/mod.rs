//! Rows that leave RAM and come back.
//!
//! A span whose extents are all on disk can be replaced by the same span over maps of these files (`session::overlay`);
//! it is searched from there, by the same index, with the same bits. A charge that finds too little memory asks for room
//! here; operators ask through the verbs of `shard::tier`. While there is room, a thread brings back what is used again and
//! again, and what is pinned.
//!
//! * this file: room is made, spans are spilled and promoted
//! * `policy`: which span goes first, and which comes back; `cool`: what becomes of spans that nobody asks for

pub mod cool;
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

/// Why rows did not come back into RAM.
#[derive(Debug)]
pub enum NotBack {
    /// There is no room.
    Memory(Short),
    /// Their files are not what they were; one line.
    Damaged(String),
}

impl From<Short> for NotBack {
    fn from(short: Short) -> Self {
        NotBack::Memory(short)
    }
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
                if chosen.into_iter().map(|c| self.let_go(store, c.span)).sum::<u64>() > 0 {
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
    /// Spans of which something could leave RAM now, and the bytes of rows that could once they are on disk.
    fn candidates(&self) -> (Vec<Candidate<Place>>, u64) {
        let (mut candidates, mut unwritten) = (Vec::new(), 0);
        let now = now();
        for session in self.sessions().into_iter().filter(|s| s.kept.is_some()) {
            let pinned = session.pinned.load(Ordering::Acquire);
            for (layer, kv_head, head) in session.owned() {
                for (span, _) in head.read().spans() {
                    let rows = span.rows.tiers().0;
                    let bytes = match rows {
                        0 => beside_rows(span, &session),
                        rows if span.can_spill() => rows,
                        rows => {
                            unwritten += if pinned || span.rows.published() { 0 } else { rows };
                            0
                        }
                    };
                    if bytes > 0 {
                        // What answers for rows in files goes after the rows of all spans that are not in use now.
                        let rank = span.history().rank(now).with_rows(rows > 0);
                        let place =
                            Place { session: session.clone(), at: (layer, kv_head), span: span.clone() };
                        candidates.push(Candidate { rank, bytes, pinned, span: place });
                    }
                }
            }
        }
        (candidates, unwritten)
    }

    /// Lets the rows of a span go, or what answers for rows in files. Returns the bytes.
    fn let_go(&self, store: &Store, place: Place) -> u64 {
        match place.span.rows.tiers().0 {
            0 => self.let_answers_go(place),
            _ => self.spill(store, place),
        }
    }

    /// Leaves of a span whose rows lie in files nothing in RAM: no compact form, no index that can be read again.
    fn let_answers_go(&self, Place { session, at, span }: Place) -> u64 {
        let Ok(head) = session.head(at.0, at.1) else { return 0 };
        let bytes = beside_rows(&span, &session);
        let new = Arc::new(span.again().with_form(None).without_index());
        let left = u64::from(new.index_is_away() && !span.index_is_away());
        // Who reads the session now has brought back what it needs.
        if bytes == 0 || !head.overlay_unread(&span, new, || session.is_read()) {
            return 0;
        }
        self.metrics.indexes_left.increment(left);
        if span.compact().is_some() {
            self.keep(&session, at);
        }
        tracing::debug!(layer = at.0, kv_head = at.1, begin = span.begin, bytes, "index or form let go");
        bytes
    }

    /// Moves the rows of a span to maps. Returns the bytes that are not in RAM any more once readers of the old span have
    /// finished; 0 when that cannot be done now.
    fn spill(&self, store: &Store, Place { session, at, span }: Place) -> u64 {
        let Some(kept) = &session.kept else { return 0 };
        let Ok(head) = session.head(at.0, at.1) else { return 0 };
        let bytes = span.rows.tiers().0;
        match span.rows.spilled(&session.purse, store.files_of(kept, at, &span)) {
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
                // The files of a span that was merged, cut off, closed or archived meanwhile are gone, and rightly so.
                if head.holds(&span) && !kept.has_ended() {
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

    /// Brings every row and index of a session that lies in files back into RAM; returns the bytes. Refused as a whole when
    /// they do not fit.
    pub(crate) fn promote_all(&self, store: &Store, session: &Arc<Session>) -> Result<u64, NotBack> {
        let places = places(session, |span| span.rows.tiers().1 > 0);
        self.budget.check(places.iter().map(|p| to_bring(store, &p.span)).sum())?;
        let mut promoted = 0;
        for place in places {
            promoted += self.promote_one(store, place)?;
        }
        Ok(promoted)
    }

    /// Brings back spans that are pinned or used again and again, while a part of the budget stays free; returns the
    /// bytes.
    pub(crate) fn bring_back(&self, now: u64) -> u64 {
        let Some(store) = self.store.as_ref().filter(|_| self.budget.usage().spilled > 0) else { return 0 };
        let mut candidates = Vec::new();
        for session in self.sessions() {
            let pinned = session.pinned.load(Ordering::Acquire);
            let used = |s: &Span| self.config().cooling.bring_back && s.history().wanted(now);
            let wanted = |s: &Span| s.can_spill() && (pinned || used(s));
            for place in places(&session, |s| s.rows.tiers().1 > 0 && wanted(s)) {
                let (rank, bytes) = (place.span.history().rank(now), to_bring(store, &place.span));
                candidates.push(Candidate { rank, bytes, pinned, span: place });
            }
        }
        let limit = self.budget.limit();
        let chosen = policy::choose_back(candidates, limit - self.budget.granted(), limit);
        // What finds no room after all stays where it is, for the next look; what is damaged for good.
        let mut promoted = 0;
        for c in chosen {
            let span = c.span.span.clone();
            match self.promote_one(store, c.span) {
                Ok(bytes) => promoted += bytes,
                Err(NotBack::Damaged(_)) => span.set_unreadable(),
                Err(NotBack::Memory(_)) => break,
            }
        }
        promoted
    }

    fn promote_one(&self, store: &Store, place: Place) -> Result<u64, NotBack> {
        let Place { session, at, span } = &place;
        let (Ok(head), Some(kept)) = (session.head(at.0, at.1), &session.kept) else { return Ok(0) };
        let bytes = span.rows.tiers().1;
        // The archive holds the rest.
        if span.rows.archived() > 0 {
            return Ok(0);
        }
        // What is copied from a file must be what was written there.
        if let Err(e) = span.rows.mapped_again(store.files_of(kept, *at, span)) {
            if !head.holds(span) || kept.has_ended() {
                return Ok(0);
            }
            self.metrics.store_errors.increment(1);
            let (layer, kv_head) = *at;
            tracing::error!(layer, kv_head, begin = span.begin, error = %e, "rows cannot be brought back");
            return Err(NotBack::Damaged(format!(
                "tokens {}..{} of layer {layer}, KV head {kv_head} cannot be brought back: {e}",
                span.begin, span.end
            )));
        }
        let charge = session.purse.promote(bytes)?;
        let mut new = span.over(span.rows.promoted(charge)).with_form(None);
        let mut rebuilt = false;
        if span.index_is_away() {
            let indexed = self.stored_index(store, &place).inspect_err(|_| session.purse.shrink(bytes))?;
            rebuilt = indexed.is_none();
            new = new.with_index(indexed);
        }
        if !head.overlay(span, Arc::new(new)) {
            // Merged, cut off or spilled meanwhile: what was promised is taken back.
            session.purse.shrink(bytes);
            return Ok(0);
        }
        if rebuilt {
            self.queue_index(session, *at, span);
        }
        if span.compact().is_some() {
            self.keep(session, *at);
        }
        self.metrics.promotions.increment(1);
        Ok(bytes)
    }
}

/// Bytes that answer for the rows of a span which lie in files, and that can be had again: a compact form, an index.
fn beside_rows(span: &Span, session: &Session) -> u64 {
    let index = if span.can_let_index_go() && !session.is_read() { span.index_bytes() } else { 0 };
    index + span.compact_bytes()
}

/// Bytes that a span takes in RAM in addition when it comes back: rows, and an index about as large as its file.
fn to_bring(store: &Store, span: &Span) -> u64 {
    let file = span.index_file().filter(|_| span.index_is_away());
    let index = file.and_then(|id| std::fs::metadata(store.directory.index(id)).ok()).map_or(0, |m| m.len());
    span.rows.tiers().1 + index
}

/// Looks once a second for what should come back, and for what has grown cold, until the node is gone.
pub fn start(node: Weak<Node>) -> std::io::Result<()> {
    std::thread::Builder::new().name("promoter".into()).spawn(move || {
        loop {
            std::thread::sleep(LOOK);
            match node.upgrade() {
                Some(node) => {
                    let now = now();
                    node.bring_back(now);
                    node.cool_down(now);
                }
                None => return,
            }
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
