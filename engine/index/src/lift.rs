//! How far the mean of the exponentials within a group lies above the exponential of their mean.
//!
//! The keys of a group that a search did not score are estimated at the logit of their mean, plus `lift` times the
//! variance of the logits within the group. A normal distribution asks for a half; without the best keys, which the search
//! found, less is right, and how much less differs from head to head. So it is fitted: with it the estimated mass of
//! held-back build queries is on average the true one, and so is the coverage that an answer reports.

use attention::Description;
use kernels::Kernels;
use rayon::prelude::*;

use crate::calibrate::{Memory, Trials};
use crate::span::SpanIndex;
use crate::summary::{Cut, Frontier, Means, Remainder, Seen};

/// Where there are no held-back queries to fit to.
pub(crate) const UNFITTED: f32 = 0.2;
/// The largest lift: that of a normal distribution.
const MOST: f32 = 0.5;
/// Halvings of the interval.
const STEPS: usize = 7;
/// One of so many held-back queries is used.
const EVERY: usize = 2;

/// The lift with which the masses of the held-back queries are right on average at the index's own width.
pub(crate) fn fit(index: &SpanIndex, trials: &Trials<'_>, d: &Description) -> f32 {
    if d.softcap.is_some() || trials.queries().is_empty() {
        return UNFITTED;
    }
    let cases: Vec<Case> = trials
        .queries()
        .par_iter()
        .step_by(EVERY)
        .map_init(Memory::default, |memory, (q, visible)| Case::new(trials, index, d, (q, *visible), memory))
        .collect();
    let excess = |lift: f32| -> f64 {
        cases
            .par_iter()
            .map_init(Remainder::default, |remainder, case| {
                case.excess(trials.kernels(), index, d, lift, remainder)
            })
            .sum()
    };
    let (mut low, mut high) = (0.0, MOST);
    if excess(high) <= 0.0 {
        return high;
    }
    for _ in 0..STEPS {
        let middle = (low + high) / 2.0;
        if excess(middle) > 0.0 {
            high = middle;
        } else {
            low = middle;
        }
    }
    (low + high) / 2.0
}

/// A held-back query, what its search saw, and the truth.
struct Case {
    frontier: Frontier,
    seen: Seen,
    cut: Cut,
    /// scale^2 |q|^2
    square: f32,
    log_mass: f64,
}

impl Case {
    fn new(
        trials: &Trials<'_>,
        index: &SpanIndex,
        d: &Description,
        (q, visible): (&[f32], usize),
        memory: &mut Memory,
    ) -> Case {
        let k = trials.kernels();
        let range = 0..visible;
        memory.search(k, (index, trials.keys()), q, &trials.reach(index, index.width, &range));
        let finding = &mut memory.finding;
        finding.walk.hide(&range);
        let frontier = std::mem::take(&mut finding.frontier);
        let mut seen = Seen::default();
        let found = (finding.walk.ids.iter().copied(), &finding.walk.scores[..]);
        seen.note((k, d), (&index.summary, &frontier), found);
        let square = q.iter().map(|x| x * x).sum::<f32>() * d.scale * d.scale;
        let log_mass = crate::flat::log_mass((k, d), (trials.keys(), &range), q, &mut memory.flat);
        Case { seen, cut: Cut::counts(&index.summary, &range), square, log_mass, frontier }
    }

    /// By how much of the true mass the estimated one is too large.
    fn excess(
        &self,
        k: &Kernels,
        index: &SpanIndex,
        d: &Description,
        lift: f32,
        remainder: &mut Remainder,
    ) -> f64 {
        let means = Means {
            summary: &index.summary,
            cut: &self.cut,
            frontier: &self.frontier,
            lift: lift * self.square,
            seen: &self.seen,
        };
        let estimated = remainder.log_mass((k, d), &means);
        if self.log_mass == f64::NEG_INFINITY { 0.0 } else { (estimated - self.log_mass).exp() - 1.0 }
    }
}
