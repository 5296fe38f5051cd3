//! Bounded selection of the best (score, id) pairs.
//!
//! A higher score is better; of equal scores the lower id is better, so the result depends on the set of pairs alone,
//! not on the order in which they come. Each pair is one u64: the score mapped to an integer that sorts the same way,
//! above the inverted id. Instead of a heap there is a buffer of about 2 k pairs and a threshold: what does not beat
//! the threshold is dropped at once; when the buffer is full, a selection keeps the best k and raises the threshold.
//!
//! A run of scores first raises the threshold by itself. A long one is dealt out to about 2.5 k lanes: the k-th largest
//! of the lanes' maxima is at most the k-th largest score, and for scores in random order about 1.3 k of them reach it.
//! A shorter one is counted into a histogram between its least and its largest score.

use crate::Kernels;

/// The best `k` of all pushed (score, id) pairs. Ids are pushed at most once; scores are not NaN.
#[derive(Clone, Debug)]
pub struct TopK {
    k: usize,
    capacity: usize,
    /// What a new pair must exceed: 0 until k pairs are held.
    threshold: u64,
    pairs: Vec<u64>,
    /// Maxima of the lanes of a run.
    lanes: Vec<f32>,
    /// Ranks of the same.
    ranks: Vec<u32>,
    /// The bucket of each score of a run, and how many fell into each.
    buckets: Vec<u32>,
    histogram: Vec<u32>,
    /// Positions in a block of a run that reach the threshold.
    hits: Vec<u32>,
}

/// Scores of a run that are compared with one threshold.
const BLOCK: usize = 512;
/// Buckets of the histogram.
const BUCKETS: usize = 512;
/// Part of the width of a bucket by which its edge is lowered against rounding.
const EDGE: f32 = 1e-3;

impl TopK {
    /// A selection of the best `k` pairs; `k` = 0 keeps nothing.
    pub fn new(k: usize) -> TopK {
        let mut top = TopK {
            k: 0,
            capacity: 0,
            threshold: 0,
            pairs: Vec::new(),
            lanes: Vec::new(),
            ranks: Vec::new(),
            buckets: Vec::new(),
            histogram: Vec::new(),
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

    fn push_each(&mut self, scores: &[f32], id: impl Fn(usize) -> u32) {
        let kernels = Kernels::native();
        self.raise(scores);
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
        self.compact();
        self.pairs.sort_unstable_by(|a, b| b.cmp(a));
        out.extend(self.pairs.iter().map(|&pair| unpack(pair)));
        self.reset(self.k);
    }

    /// Appends the selection to `out` in no particular (but a deterministic) order, and empties it (k stays).
    pub fn drain(&mut self, out: &mut Vec<(f32, u32)>) {
        self.compact();
        out.extend(self.pairs.iter().map(|&pair| unpack(pair)));
        self.reset(self.k);
    }

    /// Raises the threshold to just below what k of `scores` reach, where that pays.
    fn raise(&mut self, scores: &[f32]) {
        let width = (self.k * 5 / 2).next_multiple_of(32);
        let reached = match scores.len() {
            _ if self.k == 0 => None,
            n if n >= 4 * width => Some(self.raise_by_lanes(scores, width)),
            n if n > self.k + self.k / 4 && self.threshold == 0 => self.raise_by_histogram(scores),
            _ => None,
        };
        if let Some(reached) = reached {
            // Every pair with that score beats this, whatever its id.
            self.threshold = self.threshold.max((u64::from(reached) << 32) - 1);
        }
    }

    /// The rank of a score that at least k of `scores` reach.
    fn raise_by_lanes(&mut self, scores: &[f32], width: usize) -> u32 {
        self.lanes.clear();
        self.lanes.resize(width, f32::NEG_INFINITY);
        for block in scores.chunks(width) {
            for (lane, &score) in self.lanes.iter_mut().zip(block) {
                *lane = if score > *lane { score } else { *lane };
            }
        }
        self.ranks.clear();
        self.ranks.extend(self.lanes.iter().map(|&score| rank(score)));
        *self.ranks.select_nth_unstable_by(self.k - 1, |a, b| b.cmp(a)).1
    }

    /// The same; None where scores do not spread, or too few of them are finite.
    fn raise_by_histogram(&mut self, scores: &[f32]) -> Option<u32> {
        let high = Kernels::native().max(scores);
        let finite = |&s: &f32| if s == f32::NEG_INFINITY { high } else { s };
        let low = scores.iter().map(finite).fold(high, |low, s| if s < low { s } else { low });
        let scale = BUCKETS as f32 / (high - low);
        if !scale.is_finite() || !(high - low).is_finite() {
            return None;
        }
        let last = (BUCKETS - 1) as f32;
        self.buckets.clear();
        self.buckets.extend(scores.iter().map(|s| ((high - s) * scale).min(last) as i32 as u32));
        self.histogram.clear();
        self.histogram.resize(BUCKETS, 0);
        for &bucket in &self.buckets {
            self.histogram[bucket as usize] += 1;
        }
        let mut reached = 0;
        let bucket = self.histogram.iter().position(|&count| {
            reached += count as usize;
            reached >= self.k
        })?;
        // The last bucket holds what has no mass too.
        let limit = high - (bucket as f32 + 1.0 + EDGE) / scale;
        (bucket + 1 < BUCKETS && limit.is_finite()).then(|| rank(limit))
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

/// Maps a score to an integer that sorts the same way.
fn rank(score: f32) -> u32 {
    // -0 + 0 = +0: the two zeros are one score.
    let bits = (score + 0.0).to_bits();
    bits ^ (((bits as i32 >> 31) as u32) | 0x8000_0000)
}

/// Maps a pair to an integer: larger is better.
fn pack(score: f32, id: u32) -> u64 {
    u64::from(rank(score)) << 32 | u64::from(!id)
}

fn unpack(pair: u64) -> (f32, u32) {
    let bits = (pair >> 32) as u32;
    let flip = if bits >> 31 == 1 { 0x8000_0000 } else { u32::MAX };
    (f32::from_bits(bits ^ flip), !(pair as u32))
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
