//! Exact attention over chosen rows.

use kernels::Kernels;

use crate::description::Description;
use crate::partial::Partial;
use crate::range::{merge_sums, weigh};
use crate::rows::Rows;
use crate::scratch::{Scratch, sized};

/// Rows per step: as the segments of `attend_range`, this bounds the growth of rounding.
const SEGMENT: usize = 4096;

/// Exact attention of one head over the rows that a search chose, merged into `out`. `keys_scores` holds each chosen
/// row once, with its raw product q . k. Only values are read here. Panics when a row does not exist or the value dims
/// differ.
pub fn attend_ids(
    k: &Kernels,
    d: &Description,
    keys_scores: &[(u32, f32)],
    values: &Rows<'_>,
    scratch: &mut Scratch,
    out: &mut Partial,
) {
    let dim = values.dim();
    for chosen in keys_scores.chunks(SEGMENT) {
        let z = sized(&mut scratch.scores, chosen.len());
        for (z, &(_, qk)) in z.iter_mut().zip(chosen) {
            *z = d.logit(qk);
        }
        let acc = sized(&mut scratch.acc, dim);
        acc.fill(0.0);
        let (mut m, mut l) = (f32::NEG_INFINITY, 0.0);
        weigh(k, z, (&mut m, &mut l), acc);
        k.axpy_gather(z, dim, chosen.iter().map(|&(id, _)| values.row(id as usize)), acc);
        merge_sums(out, m, l, acc);
    }
}
