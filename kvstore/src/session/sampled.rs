//! The sampled queries of a head, those of its spans and those of its fresh tokens, as one run in order of position.

use crate::session::head::State;
use crate::session::samples::Samples;
use half::f16;
use index::sketch::WatchedRow;
use std::collections::VecDeque;
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
    pub fn sample_page(&self, positions: Range<u64>, most: usize) -> Option<Sampled> {
        let mut page = Sampled::default();
        for held in self.spans.iter().filter(|h| h.span.begin < positions.end) {
            if !held.span.ready() {
                return None;
            }
            let end = positions.end.min(held.visible_end);
            if let Some(own) = &held.span.queries().own {
                page.add(own.each(), positions.start..end, most);
            }
        }
        page.add(self.samples.each(), positions, most);
        Some(page)
    }
}

impl State {
    /// The latest `most` samples at positions behind `begin`, those of builds that run apart, in order of their positions.
    pub fn latest_samples(&self, begin: u64, most: usize) -> Vec<WatchedRow> {
        let mut rows = VecDeque::new();
        let mut add = |samples: &Samples| {
            for (position, _, q) in samples.each().filter(|&(position, ..)| position > begin) {
                if rows.len() == most {
                    rows.pop_front();
                }
                let q = q.iter().map(|x| x.to_f32()).collect();
                rows.push_back(WatchedRow { q, visible: position as usize + 1 });
            }
        };
        self.spans.iter().for_each(|h| h.span.queries().own.iter().for_each(&mut add));
        add(&self.samples);
        rows.into()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Budget;
    use crate::session::geometry::Geometry;
    use crate::session::head::{Head, Rows, Sealing};
    use crate::testing::fingerprint;

    #[test]
    fn samples_are_not_told_while_a_build_may_hold_them() {
        let g = Geometry::read(&fingerprint(1, 1, 1, 1, 1)).unwrap();
        let purse = Budget::new(1 << 20).purse(0).unwrap();
        let head = Head::new(&g, &purse).unwrap();
        let rows: Vec<f16> = (0..40).map(|p| f16::from_f32(p as f32)).collect();
        let q_pos: Vec<u64> = (0..40).collect();
        let grant = head.grant(&g, &purse, 40, 40, Some(30)).unwrap();
        let rows = Rows {
            k: &rows,
            v: &rows,
            q: &rows,
            q_pos: &q_pos,
            q_window: 3,
            heads: 1,
            slot: 0,
            seal_to: Some(30),
        };
        let sealing = Sealing { index_from: Some(8), merge: true, stored: false };
        let span = head.push(&g, rows, grant, sealing).wants_index.unwrap();
        let told = |at, most| head.read().sample_page(at, most);
        assert_eq!(told(0..40, 100), None);
        // What the builder does.
        let taken = std::mem::take(&mut *span.queries());
        assert_eq!(told(0..40, 100), None);
        *span.queries() = taken;
        span.publish(None);
        assert_eq!(told(0..40, 100).unwrap().pos, q_pos);
        let page = told(25..40, 10).unwrap();
        assert_eq!((page.pos, page.next), ((25..35).collect(), Some(35)));
        assert_eq!(page.seen, (23..33).collect::<Vec<u64>>());
        assert_eq!(page.q, (25..35).map(|p| f16::from_f32(p as f32)).collect::<Vec<f16>>());
        assert_eq!(told(35..40, 5).unwrap().next, None);
    }
}
