//! Budget by coverage: as few tokens as reach a share of the mass.
//!
//! Finalists are taken from the best downwards until the exact mass is the share of all, which is the mass of what the
//! search saw and, for everything else, the summary's estimate. When the finalists run out, the search widens.

use std::cmp::Ordering;

use attention::Partial;
use kernels::topk::{BUCKETS, into_buckets};

use crate::flat;
use crate::scratch::{Finalist, Scratch, Taking};
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
            let reached = keep_enough(step, head, aim, scratch, out);
            if reached || n >= total || step.stats.deadline_hit {
                break;
            }
            n = n.saturating_mul(GROWTH).min(total);
        }
        step.attend(head, scratch, out);
    }
}

/// Leaves as many of `scratch.best`, best first, as reach the share; all of them, and false, when they do not.
fn keep_enough(step: &Step<'_, '_>, head: usize, share: f64, scratch: &mut Scratch, out: &Partial) -> bool {
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
        scratch.best.clear();
        return true;
    }
    let total: f64 = masses.iter().map(|mass| (mass - m).exp()).sum();
    let exact: f64 = masses[..2].iter().map(|mass| (mass - m).exp()).sum();
    take(scratch, share * total - exact, |score| (f64::from(d.logit(score)) - m).exp())
}

/// Leaves the best of `scratch.best` whose weights together are at least `wanted`; all, and false, when there are not
/// enough. Only those that fall into the last bucket of scores are sorted.
fn take(scratch: &mut Scratch, wanted: f64, weight: impl Fn(f32) -> f64) -> bool {
    let Scratch { best, flat, picked, coverage: Taking { weights, sums }, .. } = scratch;
    weights.clear();
    weights.extend(best.iter().map(|c| weight(c.score)));
    flat.scores.clear();
    flat.scores.extend(best.iter().map(|c| c.score));
    picked.clear();
    picked.resize(best.len(), 0);
    into_buckets(&flat.scores, picked);
    sums.clear();
    sums.resize(usize::from(BUCKETS), 0.0);
    picked.iter().zip(weights.iter()).for_each(|(&bucket, weight)| sums[bucket as usize] += weight);
    let mut before = 0.0;
    let last = sums.iter().position(|sum| {
        let reached = before + sum >= wanted;
        before += if reached { 0.0 } else { *sum };
        reached
    });
    let Some(last) = last else { return false };
    let mut kept = 0;
    let mut edge = Vec::new();
    for at in 0..best.len() {
        match (picked[at] as usize).cmp(&last) {
            Ordering::Less => {
                best[kept] = best[at];
                kept += 1;
            }
            Ordering::Equal => edge.push((best[at], weights[at])),
            Ordering::Greater => {}
        }
    }
    best.truncate(kept);
    edge.sort_unstable_by(|a, b| Finalist::better(&a.0, &b.0));
    for (finalist, weight) in edge {
        if before >= wanted {
            break;
        }
        best.push(finalist);
        before += weight;
    }
    true
}
