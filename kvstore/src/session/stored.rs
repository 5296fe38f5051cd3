//! What of a head goes to disk, and back.

use crate::admission::{Purse, Short};
use crate::catalogue::records::{HeadRecord, SpanRecord};
use crate::session::geometry::Geometry;
use crate::session::head::{Head, Held, State};
use crate::session::span::Span;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl State {
    /// The spans as the catalogue tells them; None while a file of theirs is not published.
    pub fn record(&self) -> Option<HeadRecord> {
        let span = |held: &Held| {
            let extents = held.span.rows.extents().iter().map(|e| e.file.get().copied());
            Some(SpanRecord {
                begin: held.span.begin,
                end: held.span.end,
                visible_end: held.visible_end,
                version: held.span.version,
                plan: held.plan.unwrap_or(0),
                extents: extents.collect::<Option<_>>()?,
                queries: *held.span.queries_file().get()?,
                // Comes later than the rows; without one a restart builds it.
                index: held.span.index_file().unwrap_or(0),
            })
        };
        let spans = self.spans.iter().map(span).collect::<Option<_>>()?;
        Some(HeadRecord { spans, version: self.version, cut: self.cut })
    }
}

impl Head {
    /// A head with the spans of a record, which are in order and without gaps.
    pub fn restored(
        g: &Geometry,
        purse: &Arc<Purse>,
        spans: Vec<Arc<Span>>,
        record: &HeadRecord,
    ) -> Result<Self, Short> {
        let head = Head::new(g, purse)?;
        {
            let mut state = head.write();
            let held = spans.into_iter().zip(&record.spans).map(|(span, r)| Held {
                span,
                visible_end: r.visible_end,
                plan: (r.plan != 0).then_some(r.plan),
            });
            state.spans = held.collect();
            state.version = record.version.max(1);
            state.cut = record.cut;
            state.fresh.begin = record.end();
            head.len.store(state.end(), Ordering::Release);
        }
        Ok(head)
    }

    /// The versions that spans are planned to merge into, in order.
    pub fn plans(&self) -> Vec<u64> {
        let state = self.read();
        let mut plans: Vec<u64> = state.spans.iter().filter_map(|h| h.plan).collect();
        plans.dedup();
        plans
    }
}
