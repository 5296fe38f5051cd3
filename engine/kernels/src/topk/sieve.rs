//! The best of one run of scores.
//!
//! A histogram tells in which bucket the k-th best lies, so that only the few scores of this bucket are compared with each
//! other.

use crate::Kernels;

/// Picks the best of one run of scores. Keeps its memory; its content never matters.
#[derive(Clone, Debug, Default)]
pub struct Sieve {
    /// The bucket of each score.
    buckets: Vec<u32>,
    /// How many fell into each, in two counts that are added to in turn: one would wait for itself where neighbours
    /// share a bucket.
    histogram: Vec<[u32; 2]>,
    /// Positions of the best, and of some below them: the first `reaching`. It is never shortened, so that nothing is
    /// cleared for the next run.
    hits: Vec<u32>,
    reaching: usize,
    /// The ranks of the scores among which the k-th best is.
    ranks: Vec<u32>,
}

/// Buckets of [`into_buckets`].
pub const BUCKETS: u16 = 512;
/// Part of the width of a bucket by which its edge is lowered against rounding.
const EDGE: f32 = 1e-3;

impl Sieve {
    /// The positions of the best `k` of `scores`, ascending, into `out`; of equal ones the first. All when there are
    /// fewer. No score is NaN.
    pub fn best(&mut self, scores: &[f32], k: usize, out: &mut Vec<u32>) {
        out.clear();
        if k == 0 || scores.len() <= k {
            out.extend(0..scores.len().min(k) as u32);
            return;
        }
        let reached = self.reached(scores, k);
        out.extend(self.hits().iter().filter(|&&i| scores[i as usize] >= reached));
        let mut beyond = out.len() - k;
        let mut at = out.len();
        while beyond > 0 {
            at -= 1;
            if scores[out[at] as usize] == reached {
                out.remove(at);
                beyond -= 1;
            }
        }
    }

    /// The positions that the last [`Sieve::reached`] left.
    pub(super) fn hits(&self) -> &[u32] {
        &self.hits[..self.reaching]
    }

    /// The `k`-th largest of more than `k` scores, `k` > 0. `hits` then holds the positions of all that reach it, and
    /// perhaps of others.
    pub(super) fn reached(&mut self, scores: &[f32], k: usize) -> f32 {
        let (mut above, mut bucket, mut limit) = (0, 0, f32::NEG_INFINITY);
        let n = scores.len();
        if self.hits.len() < n {
            self.hits.resize(n, 0);
            self.buckets.resize(n, 0);
        }
        let buckets = &mut self.buckets[..n];
        if let Some((high, scale)) = into_buckets(scores, buckets) {
            self.histogram.clear();
            self.histogram.resize(usize::from(BUCKETS), [0; 2]);
            let (pairs, rest) = buckets.as_chunks::<2>();
            for pair in pairs {
                self.histogram[pair[0] as usize][0] += 1;
                self.histogram[pair[1] as usize][1] += 1;
            }
            rest.iter().for_each(|&bucket| self.histogram[bucket as usize][0] += 1);
            let count = |bucket: usize| self.histogram[bucket].iter().sum::<u32>() as usize;
            while above + count(bucket) < k {
                above += count(bucket);
                bucket += 1;
            }
            if bucket + 1 < usize::from(BUCKETS) {
                limit = high - (bucket as f32 + 1.0 + EDGE) / scale;
            }
        }
        self.reaching = Kernels::native().at_least(scores, limit, &mut self.hits);
        self.ranks.clear();
        let inside =
            self.hits[..self.reaching].iter().filter(|&&i| self.buckets[i as usize] as usize == bucket);
        self.ranks.extend(inside.map(|&i| rank(scores[i as usize])));
        unrank(*self.ranks.select_nth_unstable_by(k - above - 1, |a, b| b.cmp(a)).1)
    }
}

/// Writes the bucket of every score, the best in bucket 0, of [`BUCKETS`] that are equally wide; returns the largest score
/// and the buckets per unit. None, and all in bucket 0, where nothing spreads, or over more than the numbers can say.
/// Panics when the lengths differ. No score is NaN.
pub fn into_buckets(scores: &[f32], buckets: &mut [u32]) -> Option<(f32, f32)> {
    let kernels = Kernels::native();
    let high = kernels.max(scores);
    let scale = match high.is_finite() {
        true => f32::from(BUCKETS) / kernels.depth(scores, high),
        false => 0.0,
    };
    if !scale.is_normal() {
        buckets.fill(0);
        return None;
    }
    kernels.buckets(scores, high, scale, BUCKETS, buckets);
    Some((high, scale))
}

/// Maps a score to an integer that sorts the same way.
pub(super) fn rank(score: f32) -> u32 {
    // -0 + 0 = +0: the two zeros are one score.
    let bits = (score + 0.0).to_bits();
    bits ^ (((bits as i32 >> 31) as u32) | 0x8000_0000)
}

/// The score of a rank.
pub(super) fn unrank(rank: u32) -> f32 {
    let flip = if rank >> 31 == 1 { 0x8000_0000 } else { u32::MAX };
    f32::from_bits(rank ^ flip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topk::largest;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_sieve_keeps_what_a_full_sort_keeps_in_order_of_position(
            scores in proptest::collection::vec(prop_oneof![
                4 => (-3i32..3).prop_map(|x| x as f32),
                4 => -1e9f32..1e9,
                1 => Just(f32::NEG_INFINITY),
                1 => Just(f32::MAX),
                1 => Just(f32::MIN),
            ], 0..900),
            k in 0usize..200,
        ) {
            let mut expected: Vec<u32> = largest(&scores, k).iter().map(|p| p.1).collect();
            expected.sort_unstable();
            let (mut sieve, mut out) = (Sieve::default(), vec![7]);
            sieve.best(&scores, k, &mut out);
            prop_assert_eq!(out, expected);
        }
    }
}
