//! Exact attention over a range: the flat kernel.

use std::ops::Range;

use kernels::Kernels;

use crate::description::Description;
use crate::partial::Partial;
use crate::rows::Rows;
use crate::scratch::{Scratch, sized};

/// Keys per block: their rows and values stay in the L1 and L2 caches between the steps of a block.
const BLOCK: usize = 128;
/// Keys per segment. Each segment is a partial of its own that is merged in, so that rounding grows with the number of
/// segments plus the length of one, not with the number of keys.
const SEGMENT: usize = 4096;

/// Exact attention of `g` query heads, `q` [g, key_dim], over the rows of `range`, merged into `out` [g].
///
/// Each key and value is read once for all heads: a block of keys is scored, turned into weights and multiplied with
/// its values before the next is touched. Panics when shapes do not fit or the range is not held.
#[expect(
    clippy::too_many_arguments,
    reason = "the crate-wide order: kernels, description, input, scratch, output"
)]
pub fn attend_range(
    k: &Kernels,
    d: &Description,
    q: &[f32],
    keys: &Rows<'_>,
    values: &Rows<'_>,
    range: Range<usize>,
    scratch: &mut Scratch,
    out: &mut [Partial],
) {
    assert!(keys.len() == values.len(), "{} keys and {} values", keys.len(), values.len());
    assert!(q.len() == out.len() * keys.dim(), "{} query elements for {} heads", q.len(), out.len());
    assert!(range.end <= keys.len(), "rows {range:?} of {}", keys.len());
    scratch.q.clear();
    scratch.q.extend_from_slice(q);
    k.scale(d.scale, &mut scratch.q);
    let mut start = range.start;
    while start < range.end {
        let end = range.end.min((start / SEGMENT + 1) * SEGMENT);
        segment(k, d, keys, values, start..end, scratch);
        let dim = values.dim();
        for (h, out) in out.iter_mut().enumerate() {
            merge_sums(out, scratch.m[h], scratch.l[h], &scratch.acc[h * dim..(h + 1) * dim]);
        }
        start = end;
    }
}

/// Leaves m, l and the unnormalised outputs of one segment in the scratch.
fn segment(
    k: &Kernels,
    d: &Description,
    keys: &Rows<'_>,
    values: &Rows<'_>,
    range: Range<usize>,
    scratch: &mut Scratch,
) {
    let (key_dim, value_dim) = (keys.dim(), values.dim());
    let g = scratch.q.len() / key_dim;
    scratch.m.clear();
    scratch.m.resize(g, f32::NEG_INFINITY);
    scratch.l.clear();
    scratch.l.resize(g, 0.0);
    let acc = sized(&mut scratch.acc, g * value_dim);
    acc.fill(0.0);
    let blocks = keys.pieces(range.clone(), BLOCK).zip(values.pieces(range, BLOCK));
    for ((_, key_rows), (_, value_rows)) in blocks {
        let n = key_rows.len() / key_dim;
        let scores = sized(&mut scratch.scores, g * n);
        k.dot_rows(&scratch.q, key_dim, key_rows, scores);
        for (h, z) in scores.chunks_exact_mut(n).enumerate() {
            d.cap_all(z);
            let running = (&mut scratch.m[h], &mut scratch.l[h]);
            weigh(k, z, running, &mut acc[h * value_dim..(h + 1) * value_dim]);
        }
        k.axpy_rows(scores, value_dim, value_rows, acc);
    }
}

/// Turns the logits of a block into weights relative to the running maximum, which it raises first if need be, with
/// everything summed so far.
pub(crate) fn weigh(k: &Kernels, z: &mut [f32], (m, l): (&mut f32, &mut f64), acc: &mut [f32]) {
    let block = k.max(z);
    if block > *m {
        let shrink = (*m - block).exp();
        k.scale(shrink, acc);
        *l *= f64::from(shrink);
        *m = block;
    }
    *l += f64::from(k.exp_sum(z, *m));
}

/// Merges exact sums (m, l, unnormalised output) into a partial.
pub(crate) fn merge_sums(out: &mut Partial, m: f32, l: f64, acc: &[f32]) {
    if l > 0.0 {
        let l = l as f32;
        let o = acc.iter().map(|x| x / l).collect();
        out.merge(&Partial { m, l_exact: l, l_quant: 0.0, l_est: 0.0, o });
    }
}
