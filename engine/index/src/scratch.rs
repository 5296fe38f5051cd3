//! Memory that a decode step works in, kept between calls.

use std::ops::Range;

use kernels::topk::{Sieve, TopK};

use crate::compact::CompactScratch;
use crate::find::Finding;
use crate::shares::Shares;
use crate::summary::{Cut, Remainder, Seen, Taken};

/// Cuts that are kept; more spans than this in one call recompute some.
const KEPT_CUTS: usize = 256;

/// An index and a visible range of its span.
type CutKey = (u64, Range<usize>);

/// Working memory of [`attend_spans`](crate::attend_spans); one per thread. Its content never matters.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    pub(crate) attention: attention::Scratch,
    /// How far each head looked into each span, and what it found: [spans, group].
    pub(crate) findings: Vec<Finding>,
    /// Finalists of each query head.
    pub(crate) tops: Vec<TopK>,
    /// Products of the queries with the means of each span's cells: [g, cells], one per span.
    pub(crate) cell_scores: Vec<Vec<f32>>,
    /// First token number of each span in the numbering over all spans.
    pub(crate) base: Vec<u32>,
    pub(crate) flat: Flat,
    /// What the search saw on the way: [spans, group].
    pub(crate) seen: Vec<Seen>,
    pub(crate) sieve: Sieve,
    /// What a search came home with.
    pub(crate) drained: Vec<(f32, u32)>,
    /// Positions among the finalists.
    pub(crate) picked: Vec<u32>,
    /// The finalists of a head.
    pub(crate) best: Vec<Finalist>,
    /// The part of the selection in one span: (span-local id, q . k).
    pub(crate) local: Vec<(u32, f32)>,
    /// The same for the estimate.
    pub(crate) taken: Vec<Taken>,
    pub(crate) remainder: Remainder,
    pub(crate) coverage: Taking,
    pub(crate) shares: Shares,
    pub(crate) compact: CompactScratch,
    /// Maximum and exact mass of each head before a span is attended to by all of them.
    pub(crate) before: Vec<(f32, f32)>,
    /// Cuts by (index, visible range), most recent last.
    cuts: Vec<(CutKey, Cut)>,
}

/// A token that a search proposes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finalist {
    /// Number over all spans.
    pub id: u32,
    /// q . k
    pub score: f32,
    /// The product by which it was found: the score, or close to it in a coded span.
    pub seen: f32,
}

impl Finalist {
    /// Higher scores first; of equal ones the lower number.
    pub(crate) fn better(a: &Finalist, b: &Finalist) -> std::cmp::Ordering {
        b.score.total_cmp(&a.score).then(a.id.cmp(&b.id))
    }
}

/// Working memory of a coverage budget: the mass of each finalist, and of each bucket of scores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taking {
    pub weights: Vec<f64>,
    pub sums: Vec<f64>,
}

/// Working memory of the flat scan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flat {
    pub scores: Vec<f32>,
    pub acc: Vec<f32>,
}

impl Scratch {
    /// Empty; grows on first use.
    pub fn new() -> Scratch {
        Scratch::default()
    }

    /// Of the last call, for each of its spans: the share of the softmax mass (spans, fresh ranges, what the partials held
    /// before, the estimate) that its exactly attended tokens got, as a mean over the query heads.
    pub fn span_shares(&self) -> &[f32] {
        self.shares.of_spans()
    }

    /// Makes the cut for `key` the last of those kept, computing it when it is not there.
    pub(crate) fn bring_cut(&mut self, key: CutKey, compute: impl FnOnce() -> Cut) {
        match self.cuts.iter().position(|(k, _)| *k == key) {
            Some(at) if at + 1 == self.cuts.len() => {}
            Some(at) => {
                let cut = self.cuts.remove(at);
                self.cuts.push(cut);
            }
            None => {
                if self.cuts.len() == KEPT_CUTS {
                    self.cuts.remove(0);
                }
                self.cuts.push((key, compute()));
            }
        }
    }

    /// The cut that was brought last.
    pub(crate) fn cut(&self) -> &Cut {
        &self.cuts[self.cuts.len() - 1].1
    }
}
