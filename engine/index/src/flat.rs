//! The flat scan: every visible key is scored. The door for short ranges and for spans whose index is not ready, and
//! the plain twin of every other way of searching.

use std::ops::Range;

use attention::{Description, Partial, Rows};
use kernels::{Kernels, topk::TopK};

use crate::scratch::Flat;

/// Keys per step; their scores stay in the first-level cache.
const BLOCK: usize = 1024;

/// Offers every visible key to the selection of each query row, numbered from `base` on, and shows each run of scores:
/// `look(row, first id, scores)`.
pub(crate) fn scan(
    k: &Kernels,
    (keys, visible): (&Rows<'_>, Range<usize>),
    q: &[f32],
    base: u32,
    flat: &mut Flat,
    tops: &mut [TopK],
    mut look: impl FnMut(usize, u32, &[f32]),
) {
    let dim = keys.dim();
    for (first, run) in keys.runs(visible) {
        for (b, rows) in run.chunks(BLOCK * dim).enumerate() {
            let n = rows.len() / dim;
            let first = (first + b * BLOCK) as u32;
            flat.scores.resize(tops.len() * n, 0.0);
            k.dot_rows(q, dim, rows, &mut flat.scores);
            for (row, (top, scores)) in tops.iter_mut().zip(flat.scores.chunks(n)).enumerate() {
                top.push_run(scores, base + first);
                look(row, first, scores);
            }
        }
    }
}

/// One head over all visible tokens that are not in `selected` (span-local, ascending): exact numbers, reported as
/// estimated mass, since these tokens are beyond the budget. Used where there is no summary to estimate from.
pub(crate) fn remainder(
    (k, d): (&Kernels, &Description),
    (keys, values): (&Rows<'_>, &Rows<'_>),
    visible: &Range<usize>,
    q: &[f32],
    selected: &[(u32, f32)],
    flat: &mut Flat,
) -> Partial {
    let mut total = Partial::neutral(values.dim());
    let mut selected = selected.iter().map(|s| s.0 as usize).peekable();
    blocks(visible.clone(), |block| {
        logits(k, d, keys, block.clone(), q, &mut flat.scores);
        while let Some(id) = selected.next_if(|&id| id < block.end) {
            flat.scores[id - block.start] = f32::NEG_INFINITY;
        }
        let m = k.max(&flat.scores);
        if m == f32::NEG_INFINITY {
            return;
        }
        let l = k.exp_sum(&mut flat.scores, m);
        flat.acc.clear();
        flat.acc.resize(values.dim(), 0.0);
        for (first, rows) in values.runs(block.clone()) {
            let n = rows.len() / values.dim();
            let weights = &flat.scores[first - block.start..][..n];
            k.axpy_rows(weights, values.dim(), rows, &mut flat.acc);
        }
        let o = flat.acc.iter().map(|a| a / l).collect();
        total.merge(&Partial { m, l_exact: 0.0, l_quant: 0.0, l_est: l, o });
    });
    total
}

/// Log of the mass of all visible tokens for one head, -inf over none.
pub(crate) fn log_mass(
    (k, d): (&Kernels, &Description),
    (keys, visible): (&Rows<'_>, &Range<usize>),
    q: &[f32],
    flat: &mut Flat,
) -> f64 {
    let (mut top, mut mass) = (f64::NEG_INFINITY, 0f64);
    blocks(visible.clone(), |block| {
        logits(k, d, keys, block, q, &mut flat.scores);
        let m = k.max(&flat.scores);
        if m > f32::NEG_INFINITY {
            let l = f64::from(k.exp_sum(&mut flat.scores, m));
            let (m, new) = (f64::from(m), top.max(f64::from(m)));
            mass = mass * (top - new).exp() + l * (m - new).exp();
            top = new;
        }
    });
    if mass > 0.0 { top + mass.ln() } else { f64::NEG_INFINITY }
}

fn blocks(range: Range<usize>, mut each: impl FnMut(Range<usize>)) {
    for start in range.clone().step_by(BLOCK) {
        each(start..(start + BLOCK).min(range.end));
    }
}

fn logits(k: &Kernels, d: &Description, keys: &Rows<'_>, block: Range<usize>, q: &[f32], out: &mut Vec<f32>) {
    out.resize(block.len(), 0.0);
    for (first, rows) in keys.runs(block.clone()) {
        let n = rows.len() / keys.dim();
        k.dot_rows(q, keys.dim(), rows, &mut out[first - block.start..][..n]);
    }
    out.iter_mut().for_each(|z| *z = d.logit(*z));
}
