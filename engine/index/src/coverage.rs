//! Budget by coverage: as few tokens as reach a share of the mass.
//!
//! Finalists are taken from the best downwards until the exact mass is the share of all, which is the mass of what the
//! search saw and, for everything else, the summary's estimate. When the finalists run out, the search widens.

use attention::Partial;

use crate::flat;
use crate::scratch::{Finalist, Scratch};
use crate::select::Step;

/// Finalists of the first search.
const FIRST: usize = 128;
/// How far above the share is aimed: the estimate tends to understate what it has not seen. So much of what may be
/// missing, and never more than that. Measured on captures at 0.95: aimed at exactly, a third of the queries reach it;
/// with this, nine in ten and more.
const AIM: (f64, f64) = (0.3, 0.02);
/// Growth from one search to the next.
const GROWTH: usize = 4;

/// Attends to every head of the step with the smallest selection that reaches `share`.
pub(crate) fn attend(step: &mut Step<'_, '_>, share: f32, scratch: &mut Scratch, out: &mut [Partial]) {
    let total = step.visible();
    let share = f64::from(share);
    let aim = share + (AIM.0 * (1.0 - share)).min(AIM.1);
    step.prepare(FIRST, scratch);
    for (head, out) in out.iter_mut().enumerate() {
        let mut n = FIRST.min(total);
        loop {
            step.search(head..head + 1, n, scratch);
            step.finalists(head, n, scratch);
            scratch.best.sort_unstable_by(Finalist::better);
            let enough = enough(step, head, aim, scratch, out);
            if let Some(enough) = enough {
                scratch.best.truncate(enough);
            } else if n < total && !step.stats.deadline_hit {
                n = n.saturating_mul(GROWTH).min(total);
                continue;
            }
            break;
        }
        step.attend(head, scratch, out);
    }
}

/// How many of `scratch.best` reach the share; None when all of them do not.
fn enough(
    step: &Step<'_, '_>,
    head: usize,
    share: f64,
    scratch: &mut Scratch,
    out: &Partial,
) -> Option<usize> {
    let d = &step.ask.description;
    let numbers = (step.k, d);
    let elsewhere = step.ask.outside.map_or(f64::NEG_INFINITY, |outside| f64::from(outside[head]));
    let mut masses = vec![f64::from(out.log_sum_exp()), elsewhere];
    for (s, view) in step.spans.iter().enumerate() {
        masses.push(match view.index {
            None => flat::log_mass(numbers, (&view.keys, &view.visible), step.query(head), &mut scratch.flat),
            Some(index) => {
                let mut remainder = std::mem::take(&mut scratch.remainder);
                let mass = remainder.log_mass(numbers, &step.means((s, view, index), head, scratch));
                scratch.remainder = remainder;
                mass
            }
        });
    }
    let m = masses.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if m == f64::NEG_INFINITY {
        return Some(0);
    }
    let total: f64 = masses.iter().map(|mass| (mass - m).exp()).sum();
    let mut exact: f64 = masses[..2].iter().map(|mass| (mass - m).exp()).sum();
    for (taken, finalist) in scratch.best.iter().enumerate() {
        if exact >= share * total {
            return Some(taken);
        }
        exact += (f64::from(d.logit(finalist.score)) - m).exp();
    }
    (exact >= share * total).then_some(scratch.best.len())
}
