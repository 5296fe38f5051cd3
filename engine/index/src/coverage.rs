//! Budget by coverage: as few tokens as reach a share of the mass.
//!
//! Finalists are taken from the best downwards until the exact mass is the share of all: of what is taken, of the other
//! finalists, and of everything else, which the summary estimates. When the finalists run out, the search widens.

use attention::Partial;

use crate::flat;
use crate::scratch::Scratch;
use crate::select::Step;
use crate::summary::Cut;

/// Finalists of the first search.
const FIRST: usize = 128;
/// Growth from one search to the next.
const GROWTH: usize = 4;

/// Attends to every head of the step with the smallest selection that reaches `share`.
pub(crate) fn attend(step: &mut Step<'_, '_>, share: f32, scratch: &mut Scratch, out: &mut [Partial]) {
    let total: usize = step.spans.iter().map(|s| s.visible.len()).sum();
    step.prepare(FIRST, scratch);
    score_all_means(step, scratch);
    for (head, out) in out.iter_mut().enumerate() {
        let mut n = FIRST.min(total);
        loop {
            step.search(head..head + 1, n, scratch);
            step.finalists(head, n, scratch);
            let enough = enough(step, head, f64::from(share), scratch, out);
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

/// The means of spans that a small search would only scan: coverage needs their estimate all the same.
fn score_all_means(step: &mut Step<'_, '_>, scratch: &mut Scratch) {
    for (view, scores) in step.spans.iter().zip(&mut scratch.group_scores) {
        let Some(index) = view.index else { continue };
        let wanted = step.ask.group * index.summary.groups();
        let scored = step.ask.estimate || !crate::select::is_scanned(view, FIRST);
        if !scored {
            scores.resize(wanted, 0.0);
            index.summary.scores(step.k, step.ask.q, scores);
            step.stats.summary_scored += wanted as f64;
        }
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
    let mut left = Vec::with_capacity(step.spans.len());
    for (s, view) in step.spans.iter().enumerate() {
        let Some(index) = view.index else {
            left.push(flat::log_mass(
                numbers,
                (&view.keys, &view.visible),
                step.query(head),
                &mut scratch.flat,
            ));
            continue;
        };
        let summary = &index.summary;
        let groups = summary.groups();
        scratch
            .bring_cut((index.uid, view.visible.clone()), || Cut::new(summary, &view.values, &view.visible));
        let scores = std::mem::take(&mut scratch.group_scores[s]);
        if let Some((cut, remainder)) = scratch.cut() {
            let scores = &scores[head * groups..(head + 1) * groups];
            left.push(remainder.log_mass(numbers, (summary, cut), scores));
        }
        scratch.group_scores[s] = scores;
    }
    let before = f64::from(out.log_sum_exp());
    let best = scratch.best.first().map_or(f64::NEG_INFINITY, |b| f64::from(d.logit(b.0)));
    let m = left.iter().copied().fold(before.max(best), f64::max);
    // What finalists beyond the selection weigh is known exactly; the means speak for the others only. They would
    // understate it: the best keys of a group are far above its mean.
    let mut others: f64 = left.iter().map(|l| (l - m).exp()).sum();
    let mut beyond = 0.0;
    for &(score, id) in &scratch.best {
        let z = f64::from(d.logit(score));
        let s = scratch.base.partition_point(|&b| b <= id) - 1;
        let counted = match step.spans[s].index {
            None => z,
            Some(index) => {
                let group = index.summary.group_of((id - scratch.base[s]) as usize);
                f64::from(d.logit(scratch.group_scores[s][head * index.summary.groups() + group]))
            }
        };
        others -= (counted - m).exp();
        beyond += (z - m).exp();
    }
    let others = others.max(0.0);
    let mut exact = (before - m).exp();
    for (taken, &(score, _)) in scratch.best.iter().enumerate() {
        if exact >= share * (exact + beyond + others) {
            return Some(taken);
        }
        let mass = (f64::from(d.logit(score)) - m).exp();
        exact += mass;
        beyond = (beyond - mass).max(0.0);
    }
    (exact >= share * (exact + others)).then_some(scratch.best.len())
}
