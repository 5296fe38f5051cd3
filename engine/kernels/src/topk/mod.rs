//! Bounded selection of the best (score, id) pairs.
//!
//! A higher score is better; of equal scores the lower id is better, so the result depends on the set of pairs alone,
//! not on the order in which they come. Each pair is one u64: the score mapped to an integer that sorts the same way,
//! above the inverted id.
//!
//! [`Sieve`] picks from one run of scores, [`TopK`] from any number of runs and single pairs: the first long run goes
//! through a sieve; after it there is a buffer of about 2 k pairs and a threshold: what does not beat the threshold is
//! dropped at once; when the buffer is full, a selection keeps the best k and raises the threshold.

mod sieve;

use crate::Kernels;

pub use sieve::{BUCKETS, Sieve, into_buckets};
use sieve::{rank, unrank};

/// The best `k` of all pushed (score, id) pairs. Ids are pushed at most once; scores are not NaN.
#[derive(Clone, Debug)]
pub struct TopK {
    k: usize,
    capacity: usize,
    /// What a new pair must exceed: 0 until k pairs are held.
    threshold: u64,
    pairs: Vec<u64>,
    sieve: Sieve,
    /// Positions in a block of a run that reach the threshold.
    hits: Vec<u32>,
}

/// Scores of a run that are compared with one threshold.
const BLOCK: usize = 512;

impl TopK {
    /// A selection of the best `k` pairs; `k` = 0 keeps nothing.
    pub fn new(k: usize) -> TopK {
        let mut top = TopK {
            k: 0,
            capacity: 0,
            threshold: 0,
            pairs: Vec::new(),
            sieve: Sieve::default(),
            hits: vec![0; BLOCK],
        };
        top.reset(k);
        top
    }

    /// Forgets all pairs and selects the best `k` from now on. Keeps the memory.
    pub fn reset(&mut self, k: usize) {
        self.k = k;
        self.capacity = k.saturating_add(k.clamp(64, 4096));
        self.threshold = if k == 0 { u64::MAX } else { 0 };
        self.pairs.clear();
    }

    /// The number of pairs to keep.
    pub fn k(&self) -> usize {
        self.k
    }

    /// A score below this one cannot enter any more; -inf at first. It only rises, until the next reset or drain.
    pub fn threshold(&self) -> f32 {
        match unpack(self.threshold).0 {
            _ if self.k == 0 => f32::INFINITY,
            score if score.is_nan() => f32::NEG_INFINITY,
            score => score,
        }
    }

    /// Offers one pair.
    #[inline]
    pub fn push(&mut self, score: f32, id: u32) {
        let pair = pack(score, id);
        if pair > self.threshold {
            self.insert(pair);
        }
    }

    /// Offers `scores[i]` with id `first + i` for all i.
    pub fn push_run(&mut self, scores: &[f32], first: u32) {
        self.push_each(scores, |i| first + i as u32);
    }

    /// Offers `scores[i]` with id `base + ids[i]` for all i. Panics when the lengths differ.
    pub fn push_all(&mut self, scores: &[f32], ids: &[u32], base: u32) {
        assert!(scores.len() == ids.len(), "push_all: as many scores as ids");
        self.push_each(scores, |i| base + ids[i]);
    }

    /// Offers `scores[i]` with id `id(i)`, which is asked for with ascending i, and only where the score may enter.
    pub fn push_each(&mut self, scores: &[f32], mut id: impl FnMut(usize) -> u32) {
        if self.k > 0 && self.pairs.is_empty() && scores.len() > self.k {
            let reached = self.sieve.reached(scores, self.k);
            self.threshold = pack(reached, u32::MAX);
            let hits = self.sieve.hits().iter().map(|&i| i as usize);
            self.pairs.extend(hits.filter(|&i| scores[i] >= reached).map(|i| pack(scores[i], id(i))));
            if self.pairs.len() >= self.capacity {
                self.compact();
            }
            return;
        }
        let kernels = Kernels::native();
        let mut hits = std::mem::take(&mut self.hits);
        for (b, block) in scores.chunks(BLOCK).enumerate() {
            let n = kernels.at_least(block, self.threshold(), &mut hits);
            for &i in &hits[..n] {
                self.push(block[i as usize], id(b * BLOCK + i as usize));
            }
        }
        self.hits = hits;
    }

    /// Appends the selection to `out`, best first, and empties it (k stays).
    pub fn drain_sorted(&mut self, out: &mut Vec<(f32, u32)>) {
        self.pairs.sort_unstable_by(|a, b| b.cmp(a));
        self.pairs.truncate(self.k);
        out.extend(self.pairs.iter().map(|&pair| unpack(pair)));
        self.reset(self.k);
    }

    /// Appends the selection to `out` in no particular (but a deterministic) order, and empties it (k stays).
    pub fn drain(&mut self, out: &mut Vec<(f32, u32)>) {
        if self.pairs.len() > self.k {
            self.compact();
        }
        out.extend(self.pairs.iter().map(|&pair| unpack(pair)));
        self.reset(self.k);
    }

    fn insert(&mut self, pair: u64) {
        self.pairs.push(pair);
        if self.pairs.len() >= self.capacity {
            self.compact();
        }
    }

    fn compact(&mut self) {
        if self.k > 0 && self.pairs.len() >= self.k {
            let (_, &mut worst, _) = self.pairs.select_nth_unstable_by(self.k - 1, |a, b| b.cmp(a));
            self.threshold = worst;
            self.pairs.truncate(self.k);
        }
    }
}

/// The best `k` of `scores`, best first, as (score, index).
pub fn largest(scores: &[f32], k: usize) -> Vec<(f32, u32)> {
    let mut top = TopK::new(k);
    top.push_run(scores, 0);
    let mut out = Vec::with_capacity(k.min(scores.len()));
    top.drain_sorted(&mut out);
    out
}

/// Maps a pair to an integer: larger is better.
fn pack(score: f32, id: u32) -> u64 {
    u64::from(rank(score)) << 32 | u64::from(!id)
}

fn unpack(pair: u64) -> (f32, u32) {
    (unrank((pair >> 32) as u32), !(pair as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sorted(mut pairs: Vec<(f32, u32)>, k: usize) -> Vec<(f32, u32)> {
        pairs.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        pairs.truncate(k);
        pairs
    }

    proptest! {
        #[test]
        fn equals_a_full_sort(
            scores in proptest::collection::vec(prop_oneof![
                4 => (-3i32..3).prop_map(|x| x as f32),
                4 => -1e9f32..1e9,
                1 => Just(f32::NEG_INFINITY),
            ], 0..900),
            k in 0usize..200,
            offset in 0u32..5,
        ) {
            let pairs: Vec<_> = scores.iter().zip(offset..).map(|(&s, id)| (s + 0.0, id)).collect();
            let expected = sorted(pairs.clone(), k);
            let mut top = TopK::new(k);
            let mut out = Vec::new();
            top.push_run(&scores, offset);
            top.drain_sorted(&mut out);
            prop_assert_eq!(&out, &expected);
            // Backwards, one by one, with the same object.
            out.clear();
            for &(score, id) in pairs.iter().rev() {
                top.push(score, id);
            }
            top.drain_sorted(&mut out);
            prop_assert_eq!(&out, &expected);
            // By ids, unsorted output.
            out.clear();
            let ids: Vec<u32> = pairs.iter().map(|p| p.1).collect();
            top.push_all(&scores, &ids, 0);
            top.drain(&mut out);
            prop_assert_eq!(sorted(out, k), expected);
        }
    }

    #[test]
    fn many_equal_scores_give_distinct_lowest_ids_and_the_needle() {
        let mut scores = vec![1.5f32; 1000];
        scores.push(2.0);
        let best = largest(&scores, 100);
        assert_eq!(best[0], (2.0, 1000));
        let ids: Vec<u32> = best[1..].iter().map(|p| p.1).collect();
        assert_eq!(ids, (0..99).collect::<Vec<u32>>());
    }

    #[test]
    fn infinities_zeros_and_extreme_ids() {
        let mut top = TopK::new(3);
        top.push(f32::NEG_INFINITY, u32::MAX);
        top.push(-0.0, 7);
        top.push(0.0, 3);
        let mut out = Vec::new();
        top.drain_sorted(&mut out);
        assert_eq!(out, [(0.0, 3), (0.0, 7), (f32::NEG_INFINITY, u32::MAX)]);
    }

    #[test]
    fn a_long_run_without_any_mass() {
        let ids: Vec<u32> = largest(&vec![f32::NEG_INFINITY; 5000], 100).iter().map(|p| p.1).collect();
        assert_eq!(ids, (0..100).collect::<Vec<u32>>());
    }

    #[test]
    fn none_and_fewer_than_k() {
        assert!(largest(&[], 5).is_empty());
        assert!(largest(&[1.0], 0).is_empty());
        assert_eq!(largest(&[1.0, 2.0], 5), [(2.0, 1), (1.0, 0)]);
    }
}
