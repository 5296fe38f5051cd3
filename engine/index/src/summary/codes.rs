//! Keys in the order of their groups, as 8-bit codes: what a summary scan reads.
//!
//! A key is coded as its deviation from the mean of its group, in units of each dimension's spread over the span and of
//! the key's own largest element, so that neither a wide dimension nor an outlying key costs the others their
//! precision: k = mean + spread * scale * code. Products with the codes are therefore close, not exact; they say which
//! keys are worth scoring exactly and what the others weigh together.

use attention::Rows;
use half::f16;
use kernels::{CODE_ROWS, Kernels};
use rayon::prelude::*;

use super::Summary;

/// The largest code.
const MOST: f32 = 127.0;
/// The largest element of a query in integers; sums of 512 products stay within 31 bits.
const MOST_QUERY: f32 = 16_383.0;
/// Codes at the head of the next group that are fetched ahead; the hardware follows from there.
const AHEAD: usize = 1024;

/// Codes of all keys of a span.
#[derive(Clone, Debug)]
pub(crate) struct Codes {
    /// Root mean square of the deviations, per dimension: [dim].
    spread: Vec<f32>,
    /// Per key, in group order: [tokens].
    scale: Vec<f32>,
    /// [blocks, pairs, 16, 2], see [`Kernels::dot_codes`]; 0 beyond the last key and the last dimension.
    codes: Vec<i8>,
    /// Dimensions, rounded up to pairs.
    width: usize,
}

/// A query as integers, and the sums it gives.
#[derive(Clone, Debug, Default)]
pub(crate) struct CodedQuery {
    q: Vec<i16>,
    step: f32,
    sums: Vec<i32>,
}

impl Codes {
    /// Codes every key once. Deterministic.
    pub fn new(k: &Kernels, summary: &Summary, keys: &Rows<'_>) -> Codes {
        let (dim, tokens) = (keys.dim(), keys.len());
        let spread = spread(k, summary, keys);
        let inverse: Vec<f32> = spread.iter().map(|&s| if s > 0.0 { s.recip() } else { 0.0 }).collect();
        let width = dim.next_multiple_of(2);
        let mut scale = vec![0f32; tokens];
        let mut codes = vec![0i8; tokens.div_ceil(CODE_ROWS) * CODE_ROWS * width];
        scale
            .par_chunks_mut(CODE_ROWS)
            .zip(codes.par_chunks_mut(CODE_ROWS * width))
            .enumerate()
            .for_each_init(
                || vec![0f32; dim],
                |deviation, (block, (scale, codes))| {
                    for (r, scale) in scale.iter_mut().enumerate() {
                        let id = summary.members[block * CODE_ROWS + r] as usize;
                        deviate(k, summary, keys, id, deviation);
                        deviation.iter_mut().zip(&inverse).for_each(|(x, s)| *x *= s);
                        let most = deviation.iter().fold(0f32, |m, x| m.max(x.abs()));
                        if most > 0.0 {
                            *scale = most / MOST;
                            for (d, x) in deviation.iter().enumerate() {
                                codes[(d / 2 * CODE_ROWS + r) * 2 + d % 2] = (x / *scale).round() as i8;
                            }
                        }
                    }
                },
            );
        Codes { spread, scale, codes, width }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.codes.len() + 4 * (self.scale.len() + self.spread.len())
    }

    /// Brings `q` into the form that [`Codes::scan`] takes.
    pub fn prepare(&self, q: &[f32], out: &mut CodedQuery) {
        let folded = || q.iter().zip(&self.spread).map(|(q, s)| q * s);
        let most = folded().fold(0f32, |m, x| m.max(x.abs()));
        out.step = if most > 0.0 { most / MOST_QUERY } else { 0.0 };
        let inverse = if most > 0.0 { MOST_QUERY / most } else { 0.0 };
        out.q.clear();
        out.q.extend(folded().map(|x| (x * inverse).round() as i16));
        out.q.resize(self.width, 0);
    }

    /// The members of `groups`, each with the score of its mean in `means`, and their own scores, replacing what `ids`
    /// and `scores` held; the members of a group lie together.
    pub fn scan(
        &self,
        k: &Kernels,
        summary: &Summary,
        (q, means): (&mut CodedQuery, &[f32]),
        groups: &[u32],
        (ids, scores): (&mut Vec<u32>, &mut Vec<f32>),
    ) {
        ids.clear();
        scores.clear();
        for (i, &group) in groups.iter().enumerate() {
            if let Some(&next) = groups.get(i + 1) {
                let next =
                    &self.codes[summary.first[next as usize] as usize / CODE_ROWS * CODE_ROWS * self.width..];
                k.prefetch(&next[..next.len().min(AHEAD)]);
            }
            let (from, to) =
                (summary.first[group as usize] as usize, summary.first[group as usize + 1] as usize);
            let (block, end) = (from / CODE_ROWS, to.div_ceil(CODE_ROWS));
            q.sums.resize((end - block) * CODE_ROWS, 0);
            let codes = &self.codes[block * CODE_ROWS * self.width..end * CODE_ROWS * self.width];
            k.dot_codes(&q.q, self.width, codes, &mut q.sums);
            ids.extend_from_slice(&summary.members[from..to]);
            let (mean, step) = (means[group as usize], q.step);
            let sums = &q.sums[from - block * CODE_ROWS..][..to - from];
            scores
                .extend(sums.iter().zip(&self.scale[from..to]).map(|(&sum, s)| mean + step * s * sum as f32));
        }
    }
}

/// The key of `id` less the mean of its group.
fn deviate(k: &Kernels, summary: &Summary, keys: &Rows<'_>, id: usize, out: &mut [f32]) {
    k.f16_to_f32(keys.row(id), out);
    let mean = summary.mean(summary.group_of(id));
    out.iter_mut().zip(mean).for_each(|(x, m)| *x -= m.to_f32());
}

/// Root mean square of the deviations from the groups' means, per dimension.
fn spread(k: &Kernels, summary: &Summary, keys: &Rows<'_>) -> Vec<f32> {
    let dim = keys.dim();
    let mut deviation = vec![0f32; dim];
    let mut squares = vec![0f64; dim];
    for id in 0..keys.len() {
        deviate(k, summary, keys, id, &mut deviation);
        squares.iter_mut().zip(&deviation).for_each(|(s, &x)| *s += f64::from(x * x));
    }
    let root = |s: f64| (s / keys.len() as f64).sqrt() as f32;
    // As f16 can hold it, so that nothing here overflows with finite keys.
    squares.into_iter().map(|s| root(s).min(f16::MAX.to_f32())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        let mut x = seed | 1;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    #[test]
    fn scores_are_close_whatever_the_dim_and_however_far_a_key_lies() {
        let k = Kernels::native();
        for dim in [1, 7, 64, 80] {
            let mut keys = noise(700 * dim, dim as u64);
            // A wide dimension, and a key far from all others.
            keys.iter_mut().step_by(dim).for_each(|x| *x *= 30.0);
            keys[33 * dim..34 * dim].iter_mut().for_each(|x| *x *= 500.0);
            let keys: Vec<f16> = keys.into_iter().map(f16::from_f32).collect();
            let rows = Rows::contiguous(&keys, dim);
            let summary = Summary::build(&k, &rows, &rows, 64);
            let codes = Codes::new(&k, &summary, &rows);
            let q = noise(dim, 99);
            let mut means = vec![0.0; summary.groups()];
            summary.scores(&k, &q, &mut means);
            let mut coded = CodedQuery::default();
            codes.prepare(&q, &mut coded);
            let groups: Vec<u32> = (0..summary.groups() as u32).rev().collect();
            let (mut ids, mut scores) = (vec![1], vec![1.0]);
            codes.scan(&k, &summary, (&mut coded, &means), &groups, (&mut ids, &mut scores));
            let mut seen = ids.clone();
            seen.sort_unstable();
            assert_eq!(seen, (0..700).collect::<Vec<u32>>());
            for (&id, &score) in ids.iter().zip(&scores) {
                let row = rows.row(id as usize);
                let exact = k.dot(&q, row);
                // Half a step of the code in every dimension, half a step of the query, and the rounding of f32.
                let at = summary.members.iter().position(|&m| m == id).unwrap();
                let steps: f32 = q.iter().zip(&codes.spread).map(|(q, s)| (q * s).abs()).sum();
                let bound = codes.scale[at] * (0.5 * steps + 0.5 * coded.step * MOST * dim as f32);
                let size: f32 = row.iter().zip(&q).map(|(x, q)| (x.to_f32() * q).abs()).sum();
                assert!(
                    (exact - score).abs() <= bound + 1e-4 * size.max(1.0),
                    "dim {dim}, key {id}: {score} for {exact}"
                );
            }
        }
    }

    #[test]
    fn equal_keys_score_as_their_mean_to_the_bit() {
        let k = Kernels::native();
        let keys = vec![f16::from_f32(0.37); 100 * 8];
        let rows = Rows::contiguous(&keys, 8);
        let summary = Summary::build(&k, &rows, &rows, 64);
        let codes = Codes::new(&k, &summary, &rows);
        let (q, mut coded) = (noise(8, 3), CodedQuery::default());
        let mut means = vec![0.0; summary.groups()];
        summary.scores(&k, &q, &mut means);
        codes.prepare(&q, &mut coded);
        let (mut ids, mut scores) = (Vec::new(), Vec::new());
        codes.scan(&k, &summary, (&mut coded, &means), &[0], (&mut ids, &mut scores));
        let mut exact = [0.0];
        k.dot_rows(&q, 8, rows.row(0), &mut exact);
        assert!(scores.iter().all(|&s| s == exact[0]));
    }
}
