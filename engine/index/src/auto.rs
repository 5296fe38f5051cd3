//! The automatic choice: the cheapest way of searching that meets the target on held-back build queries.
//!
//! Cost comes from counts, not from the clock, so that the same input gives the same choice on every machine. The unit
//! is one key of a sequential flat scan; the factors were measured on AVX2 (see docs/BENCHMARKS.md).

use crate::calibrate::{Trial, Trials};
use crate::span::{Finder, SpanIndex};

/// Cost of a key scored by the walk: a random read, its edges, the pool.
const WALK: f64 = 6.0;
/// Cost of a key scored by a summary scan: a random read.
const SCAN: f64 = 2.5;

/// Replaces the graph of `index` by a summary or flat scan where that is cheaper, or where the graph misses the target.
pub(crate) fn choose(index: &mut SpanIndex, trials: &Trials<'_>, target: f32) {
    let graph = trials.narrowest(index, target);
    let finder = std::mem::replace(&mut index.finder, Finder::Summary);
    let summary = trials.narrowest(index, target);
    let flat = Trial { width: 1, recall: 1.0, scored: index.tokens as f64 };
    let cost = |trial: &Trial, factor: f64| {
        if trial.recall >= target { trial.scored * factor } else { f64::INFINITY }
    };
    let (by_graph, by_summary) = (cost(&graph, WALK), cost(&summary, SCAN));
    let trial = if by_graph <= by_summary && by_graph < flat.scored {
        index.finder = finder;
        graph
    } else if by_summary < flat.scored {
        summary
    } else {
        index.finder = Finder::Flat;
        flat
    };
    (index.width, index.recall) = (trial.width, Some(trial.recall));
}
