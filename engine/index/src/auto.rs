//! The automatic choice: the cheapest way of searching that meets the target on held-back build queries.
//!
//! Cost comes from counts, not from the clock, so that the same input gives the same choice on every machine. The unit
//! is one key of a sequential flat scan; the factors were measured on AVX2 (see docs/BENCHMARKS.md).

use attention::Rows;
use kernels::Kernels;

use crate::calibrate::{Trial, Trials};
use crate::span::{Finder, SpanIndex};

/// Cost of a key scored by the walk: random reads of its edges, its group and its row, and the pool.
const WALK: f64 = 6.0;
/// Cost of a key scored by a summary scan: a code in a run of some sixty.
const SCAN: f64 = 0.4;
/// Cost of choosing groups or entries, and of scoring the finalists of codes again, however few keys are scored.
const FIXED: f64 = 600.0;
/// No graph has met the target with fewer keys, so a cheaper summary scan needs no graph to compare with.
const FEWEST_WALKED: f64 = 700.0;

/// Makes `index` search by summary, by the graph that `graph` builds, or flat: the cheapest that meets the target.
pub(crate) fn choose(
    (k, index, keys): (&Kernels, &mut SpanIndex, &Rows<'_>),
    trials: &Trials<'_>,
    target: f32,
    graph: impl FnOnce(&SpanIndex) -> Finder,
) {
    let cost = |trial: &Trial, factor: f64| {
        if trial.recall >= target { FIXED + trial.scored * factor } else { f64::INFINITY }
    };
    index.set_finder(Finder::Summary(index.summary.code(k, keys)));
    let summary = trials.narrowest(index, target);
    let flat = Trial { width: 1, recall: 1.0, scored: index.tokens as f64 };
    let by_summary = cost(&summary, SCAN);
    let mut best = if by_summary < flat.scored { summary } else { flat };
    let least = by_summary.min(flat.scored);
    if best == flat {
        index.set_finder(Finder::Flat);
    }
    if least > FIXED + FEWEST_WALKED * WALK {
        let finder = graph(index);
        let before = std::mem::replace(&mut index.finder, finder);
        let walk = trials.narrowest(index, target);
        if cost(&walk, WALK) < least {
            best = walk;
        } else {
            index.finder = before;
        }
    }
    (index.width, index.recall) = (best.width, Some(best.recall));
}
