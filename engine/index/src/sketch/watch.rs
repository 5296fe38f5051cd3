//! Rows of decode, and what they paid attention to.

use std::ops::Range;

use attention::{Description, Rows};
use kernels::Kernels;
use rayon::prelude::*;

use super::error::SketchError;
use super::watched::Watched;

/// Weights below this are not noted.
const LEAST: f64 = 1e-6;
/// Keys per product; their scores stay in the first-level cache.
const BLOCK: usize = 1024;

/// A row of all query heads of a group, which sees the keys before `visible`.
#[derive(Clone, Debug)]
pub struct WatchedRow {
    /// [group, dim]
    pub q: Vec<f32>,
    /// Position after the last key that it sees.
    pub visible: usize,
}

/// Softmax weights of one query head.
struct Paid {
    m: f64,
    l: f64,
    /// Tokens of the span, from its first, and their logits.
    logits: Vec<(u32, f32)>,
}

/// The attention that rows paid to the tokens of `span`, by the softmax over all keys that they see of `pieces`: runs of a
/// head's keys with the position of their first, ascending. `dim` elements a key.
///
/// # Errors
/// A query of the wrong length.
pub fn watch(
    (k, d): (&Kernels, &Description),
    (pieces, dim): (&[(usize, Rows<'_>)], usize),
    span: Range<usize>,
    rows: &[WatchedRow],
) -> Result<Watched, SketchError> {
    let paid: Vec<Vec<Paid>> = rows.par_iter().map(|row| paid((k, d), (pieces, dim), &span, row)).collect();
    let mut watched = Watched::new(span.len(), dim);
    for (row, paid) in rows.iter().zip(paid) {
        let visible = row.visible.saturating_sub(span.start);
        for (q, paid) in row.q.chunks(dim).zip(paid) {
            let weight = |z: f32| (f64::from(z) - paid.m).exp() / paid.l;
            let noted = paid.logits.iter().map(|&(token, z)| (token, weight(z)));
            let (ids, weights): (Vec<u32>, Vec<f32>) =
                noted.filter(|&(_, w)| w > LEAST).map(|(token, w)| (token, w as f32)).unzip();
            watched.observe(q, visible, &ids, &weights)?;
        }
    }
    Ok(watched)
}

fn paid(
    (k, d): (&Kernels, &Description),
    (pieces, dim): (&[(usize, Rows<'_>)], usize),
    span: &Range<usize>,
    row: &WatchedRow,
) -> Vec<Paid> {
    let mut heads: Vec<Paid> =
        row.q.chunks(dim).map(|_| Paid { m: f64::NEG_INFINITY, l: 0.0, logits: Vec::new() }).collect();
    if !row.q.len().is_multiple_of(dim) {
        // Refused by `Watched::observe`, by name.
        return heads;
    }
    let mut scores = Vec::new();
    for (first, keys) in pieces {
        let seen = row.visible.saturating_sub(*first).min(keys.len());
        for (at, run) in keys.runs(0..seen) {
            for (b, block) in run.chunks(BLOCK * dim).enumerate() {
                let (n, from) = (block.len() / dim, first + at + b * BLOCK);
                scores.resize(heads.len() * n, 0.0);
                k.dot_rows(&row.q, dim, block, &mut scores);
                d.logits(&mut scores);
                for (head, z) in heads.iter_mut().zip(scores.chunks_exact_mut(n)) {
                    let inside = span.start.clamp(from, from + n)..span.end.clamp(from, from + n);
                    head.logits.extend(inside.map(|t| ((t - span.start) as u32, z[t - from])));
                    head.add(k, z);
                }
            }
        }
    }
    heads
}

impl Paid {
    /// Adds the mass of logits, which are lost.
    fn add(&mut self, k: &Kernels, z: &mut [f32]) {
        let m = k.max(z);
        let l = f64::from(k.exp_sum(z, m));
        let new = self.m.max(f64::from(m));
        if new > f64::NEG_INFINITY {
            self.l = self.l * (self.m - new).exp() + l * (f64::from(m) - new).exp();
            self.m = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::f16;

    #[test]
    fn weights_are_shares_of_the_softmax_over_all_that_a_row_sees() {
        let (n, dim) = (2500, 4);
        let keys: Vec<f16> =
            (0..n * dim).map(|i| f16::from_f32(((i * 37) % 101) as f32 / 50.0 - 1.0)).collect();
        let rows = |range: Range<usize>| Rows::contiguous(&keys[range.start * dim..range.end * dim], dim);
        let q = vec![1.0, -2.0, 0.5, 3.0, 0.0, 0.0, 0.0, 0.0];
        let row = WatchedRow { q: q.clone(), visible: 2400 };
        let (k, d) = (Kernels::native(), Description::scaled(0.5));
        // In one piece, and in three.
        let cuts: [&[(usize, Rows<'_>)]; 2] =
            [&[(0, rows(0..n))], &[(0, rows(0..128)), (128, rows(128..2300)), (2300, rows(2300..n))]];
        for pieces in cuts {
            let watched = watch((&k, &d), (pieces, dim), 128..2450, std::slice::from_ref(&row)).unwrap();
            let z = |t: usize| -> f64 {
                (0..dim).map(|j| f64::from(0.5 * q[j]) * f64::from(keys[t * dim + j].to_f32())).sum()
            };
            let l: f64 = (0..2400).map(|t| z(t).exp()).sum();
            for (i, &paid) in watched.attention().iter().enumerate() {
                // The second head pays every token the same.
                let want = if i + 128 < 2400 { z(i + 128).exp() / l + 1.0 / 2400.0 } else { 0.0 };
                assert!((paid - want).abs() < 2e-6 + 1e-5 * want, "token {i}: {paid}, {want}");
            }
        }
        let short = WatchedRow { q: vec![1.0; 6], visible: 5 };
        assert!(watch((&k, &d), (&[(0, rows(0..n))], dim), 0..9, &[short]).is_err());
    }
}
