//! Memory that a decode step works in, kept between calls.

use std::ops::Range;

use kernels::topk::TopK;

use crate::find::Finding;
use crate::summary::{Cut, Remainder};

/// Cuts that are kept; more spans than this in one call recompute some.
const KEPT_CUTS: usize = 64;

/// An index and a visible range of its span.
type CutKey = (u64, Range<usize>);

/// Working memory of [`attend_spans`](crate::attend_spans); one per thread. Its content never matters.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    pub(crate) attention: attention::Scratch,
    pub(crate) finding: Finding,
    /// Finalists of each query head.
    pub(crate) tops: Vec<TopK>,
    /// Products of the queries with each span's means: [g, groups], one per span.
    pub(crate) group_scores: Vec<Vec<f32>>,
    /// First token number of each span in the numbering over all spans.
    pub(crate) base: Vec<u32>,
    pub(crate) flat: Flat,
    /// The finalists of a head, best first.
    pub(crate) best: Vec<(f32, u32)>,
    /// The selection of a head: (token number, q . k), by token number.
    pub(crate) chosen: Vec<(u32, f32)>,
    /// The part of the selection in one span, span-local.
    pub(crate) local: Vec<(u32, f32)>,
    pub(crate) remainder: Remainder,
    /// Cuts by (index, visible range), most recent last.
    cuts: Vec<(CutKey, Cut)>,
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

    /// The cut that was brought last, and the memory to estimate with.
    pub(crate) fn cut(&mut self) -> Option<(&Cut, &mut Remainder)> {
        self.cuts.last().map(|(_, cut)| (cut, &mut self.remainder))
    }
}
