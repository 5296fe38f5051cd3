//! The sampled queries of a head, those of its spans and those of its fresh tokens, as one run in order of position.

use crate::session::head::State;
use half::f16;
use std::ops::Range;

/// A page of them.
#[derive(Debug, Default, PartialEq)]
pub struct Sampled {
    /// Positions, strictly ascending.
    pub pos: Vec<u64>,
    /// Position after the last that each asks an index for.
    pub seen: Vec<u64>,
    /// `[m, group, key_dim]`.
    pub q: Vec<f16>,
    /// The first position that the page has no room for.
    pub next: Option<u64>,
}

impl State {
    /// The samples at `positions`, `most` of them at most. Those that a truncation hides are not among them. None while an
    /// index is being built: the build holds the samples of its span.
    pub fn sampled(&self, positions: Range<u64>, most: usize) -> Option<Sampled> {
        let mut page = Sampled::default();
        for held in self.spans.iter().filter(|h| h.span.begin < positions.end) {
            if !held.span.ready() {
                return None;
            }
            let end = positions.end.min(held.visible_end);
            if let Some(own) = &held.span.queries().own {
                page.add(own.rows(), positions.start..end, most);
            }
        }
        page.add(self.samples.rows(), positions, most);
        Some(page)
    }
}

impl Sampled {
    fn add<'a>(&mut self, rows: impl Iterator<Item = (u64, u64, &'a [f16])>, at: Range<u64>, most: usize) {
        for (pos, seen, q) in rows.filter(|(pos, ..)| at.contains(pos)) {
            if self.next.is_some() || self.pos.len() == most {
                self.next = self.next.or(Some(pos));
                return;
            }
            self.pos.push(pos);
            self.seen.push(seen);
            self.q.extend_from_slice(q);
        }
    }
}
