//! Bounded selection of the best (score, id) pairs.
//!
//! A higher score is better; of equal scores the lower id is better, so the result depends on the set of pairs alone,
//! not on the order in which they come. Each pair is one u64: the score mapped to an integer that sorts the same way,
//! above the inverted id. Instead of a heap there is a buffer of about 2 k pairs and a threshold: what does not beat
//! the threshold is dropped at once; when the buffer is full, a selection keeps the best k and raises the threshold.
//!
//! A long run of scores first raises the threshold by itself: split into at least 2 k pieces, the k-th largest of the
//! pieces' maxima is at most the k-th largest score, and for random scores few more than k reach it.

/// The best `k` of all pushed (score, id) pairs. Ids are pushed at most once; scores are not NaN.
#[derive(Clone, Debug)]
pub struct TopK {
    k: usize,
    capacity: usize,
    /// What a new pair must exceed: 0 until k pairs are held.
    threshold: u64,
    pairs: Vec<u64>,
    /// Ranks of the maxima of the pieces of a run.
    maxima: Vec<u32>,
}

/// Scores looked at together before any of them is looked at alone.
const LANES: usize = 16;

impl TopK {
    /// A selection of the best `k` pairs; `k` = 0 keeps nothing.
    pub fn new(k: usize) -> TopK {
        let mut top = TopK { k: 0, capacity: 0, threshold: 0, pairs: Vec::new(), maxima: Vec::new() };
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

    /// A score below this one cannot enter any more; -inf while fewer than k pairs were compacted. It only rises.
    pub fn threshold(&self) -> f32 {
        match self.threshold {
            0 => f32::NEG_INFINITY,
            u64::MAX => f32::INFINITY,
            pair => unpack(pair).0,
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
        self.raise(scores);
        let mut id = first;
        for block in scores.chunks(LANES) {
            let threshold = self.threshold();
            if block.iter().fold(false, |any, &s| any | (s >= threshold)) {
                for (i, &score) in block.iter().enumerate() {
                    self.push(score, id + i as u32);
                }
            }
            id = id.wrapping_add(block.len() as u32);
        }
    }

    /// Offers `scores[i]` with `ids[i]` for all i. Panics when the lengths differ.
    pub fn push_all(&mut self, scores: &[f32], ids: &[u32]) {
        assert!(scores.len() == ids.len(), "push_all: as many scores as ids");
        self.raise(scores);
        for (scores, ids) in scores.chunks(LANES).zip(ids.chunks(LANES)) {
            let threshold = self.threshold();
            if scores.iter().fold(false, |any, &s| any | (s >= threshold)) {
                for (&score, &id) in scores.iter().zip(ids) {
                    self.push(score, id);
                }
            }
        }
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

    /// Raises the threshold to just below what k of `scores` reach, when the run is long enough for that to pay.
    fn raise(&mut self, scores: &[f32]) {
        let pieces = scores.len() / LANES;
        if self.k == 0 || pieces < 2 * self.k {
            return;
        }
        // Whole blocks per piece, so that there are 2 k to 4 k pieces.
        let size = pieces / (2 * self.k) * LANES;
        self.maxima.clear();
        self.maxima.extend(scores.chunks(size).map(|piece| rank(maximum(piece))));
        let (_, &mut reached, _) = self.maxima.select_nth_unstable_by(self.k - 1, |a, b| b.cmp(a));
        // Every pair with that score beats this, whatever its id.
        self.threshold = self.threshold.max((u64::from(reached) << 32).saturating_sub(1));
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

/// The largest of `scores`, many at a time.
fn maximum(scores: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for block in scores.chunks(LANES) {
        for (lane, &score) in lanes.iter_mut().zip(block) {
            *lane = if score > *lane { score } else { *lane };
        }
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
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
            scores in proptest::collection::vec(prop_oneof![(-3i32..3).prop_map(|x| x as f32), -1e9f32..1e9], 0..900),
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
            top.push_all(&scores, &ids);
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
    fn none_and_fewer_than_k() {
        assert!(largest(&[], 5).is_empty());
        assert!(largest(&[1.0], 0).is_empty());
        assert_eq!(largest(&[1.0, 2.0], 5), [(2.0, 1), (1.0, 0)]);
    }
}
