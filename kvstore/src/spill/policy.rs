//! Which spans leave RAM first: LRU-2 over bursts of references (O'Neil, O'Neil, Weikum 1993).
//!
//! A span is as hot as its last reference but one is recent (its backward 2-distance). References that follow each other
//! closely, as the steps of one answer do, are correlated and count once. So one scan over many sessions, which refers to
//! each of them in one burst, pushes out nothing that is used again and again, however fast it is.
//!
//! Pure: times are milliseconds that the caller gives.

/// References no further apart than this are one burst.
const CORRELATED: u64 = 5_000;
/// For so long after the last reference it is remembered that there were several bursts.
const RETAINED: u64 = 3_600_000;

/// What is remembered of the references to a span.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct History {
    /// The last reference; None: there was none.
    last: Option<u64>,
    /// The end of the burst before the one of `last`.
    before: Option<u64>,
    /// Softmax mass that its tokens got, summed over steps: 1 is all of one step.
    attention: f32,
}

/// How hot a span is; the lowest leaves first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// The last reference but one, bursts counted once; spans without come first.
    before: Option<u64>,
    /// Of those: the ones whose only burst is over come before those in use.
    in_use: bool,
    /// Accumulated attention. Bits of floats that are not negative are in the order of the floats.
    attention: u32,
    last: Option<u64>,
}

impl History {
    /// A span that was made now.
    pub fn begun(now: u64) -> Self {
        Self { last: Some(now), ..Self::default() }
    }

    /// Counts a reference in which the span got this share of the attention.
    pub fn refer(&mut self, now: u64, share: f32) {
        if let Some(last) = self.last.filter(|&last| now.saturating_sub(last) > CORRELATED) {
            self.before = Some(last);
        }
        self.last = self.last.max(Some(now));
        if share > 0.0 {
            self.attention += share;
        }
    }

    /// That of a span which replaces two.
    pub fn joined(self, other: History) -> Self {
        Self {
            last: self.last.max(other.last),
            before: self.before.max(other.before),
            attention: self.attention + other.attention,
        }
    }

    /// How hot the span is now.
    pub fn rank(&self, now: u64) -> Rank {
        let since = self.last.map(|last| now.saturating_sub(last));
        Rank {
            before: self.before.filter(|_| since.is_some_and(|s| s <= RETAINED)),
            in_use: since.is_some_and(|s| s <= CORRELATED),
            attention: self.attention.to_bits(),
            last: self.last,
        }
    }
}

/// A span that could leave.
#[derive(Debug, Clone)]
pub struct Candidate<T> {
    /// How hot it is.
    pub rank: Rank,
    /// What it would give back.
    pub bytes: u64,
    /// Never chosen.
    pub pinned: bool,
    /// What it is.
    pub span: T,
}

/// The coldest that together give back `missing` bytes, coldest first; all that are not pinned when that is too little.
pub fn choose<T>(mut candidates: Vec<Candidate<T>>, missing: u64) -> Vec<Candidate<T>> {
    candidates.retain(|c| !c.pinned && c.bytes > 0);
    candidates.sort_by_key(|c| c.rank);
    let mut freed = 0u64;
    let enough = candidates.iter().take_while(|c| {
        let wanted = freed < missing;
        freed = freed.saturating_add(c.bytes);
        wanted
    });
    let n = enough.count();
    candidates.truncate(n);
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate(history: &History, now: u64, span: usize) -> Candidate<usize> {
        Candidate { rank: history.rank(now), bytes: 10, pinned: false, span }
    }

    #[test]
    fn a_scan_does_not_push_out_what_is_used_again_and_again() {
        // Slower and faster than bursts.
        for step in [10, 2 * CORRELATED] {
            let mut hot = [History::begun(0); 3];
            hot.iter_mut().for_each(|h| h.refer(2 * CORRELATED, 0.01));
            let begun = 3 * CORRELATED;
            let scanned: Vec<_> = (0..50)
                .map(|i| {
                    let mut once = History::begun(begun + i * step);
                    (0..5).for_each(|j| once.refer(begun + i * step + j, 1.0));
                    once
                })
                .collect();
            let now = begun + 50 * step;
            let all = hot.iter().chain(&scanned).enumerate().map(|(i, h)| candidate(h, now, i)).collect();
            let chosen = choose(all, 50 * 10);
            assert!(chosen.iter().all(|c| c.span >= 3) && chosen.len() == 50, "step {step}");
        }
    }

    #[test]
    fn what_is_forgotten_counts_as_used_once() {
        let mut old = History::begun(0);
        old.refer(2 * CORRELATED, 9.0);
        let now = 3 * CORRELATED + RETAINED;
        let once = History::begun(now);
        assert!(old.rank(now) < once.rank(now));
        assert!(old.rank(3 * CORRELATED) > History::begun(3 * CORRELATED).rank(3 * CORRELATED));
    }

    #[test]
    fn ties_go_by_attention_and_what_was_never_used_goes_first() {
        let mut histories = [History::default(), History::begun(0), History::begun(0), History::begun(0)];
        for (i, history) in histories.iter_mut().enumerate().skip(1) {
            history.refer(1, 0.1 * (4 - i) as f32);
        }
        let all = histories.iter().enumerate().map(|(i, h)| candidate(h, 2, i)).collect();
        let order: Vec<usize> = choose(all, u64::MAX).into_iter().map(|c| c.span).collect();
        assert_eq!(order, [0, 3, 2, 1]);
    }

    proptest! {
        #[test]
        fn a_burst_counts_once(starts in proptest::collection::vec(1u64..100_000, 1..8), more in 1u64..20) {
            let (mut once, mut often) = (History::default(), History::default());
            let mut at = 0;
            for gap in starts {
                at += gap + CORRELATED;
                once.refer(at, 0.0);
                (0..more).for_each(|i| often.refer(at + i * (CORRELATED / 20), 0.0));
                // Both bursts end at one time.
                at += more * (CORRELATED / 20);
                once.refer(at, 0.0);
                often.refer(at, 0.0);
            }
            prop_assert_eq!(once, often);
        }

        #[test]
        fn the_coldest_go_never_the_pinned_and_no_more_than_needed(
            spans in proptest::collection::vec((0u64..50_000, 0u64..50_000, 0f32..3.0, 0u64..40, any::<bool>()), 0..30),
            missing in 0u64..600,
        ) {
            let all: Vec<Candidate<usize>> = spans.iter().enumerate().map(|(span, &(a, b, share, bytes, pinned))| {
                let mut history = History::begun(a.min(b));
                history.refer(a.max(b), share);
                Candidate { rank: history.rank(60_000), bytes, pinned, span }
            }).collect();
            let chosen = choose(all.clone(), missing);
            prop_assert!(chosen.iter().all(|c| !c.pinned && c.bytes > 0));
            let freed: u64 = chosen.iter().map(|c| c.bytes).sum();
            let could: u64 = all.iter().filter(|c| !c.pinned).map(|c| c.bytes).sum();
            prop_assert!(freed >= missing.min(could));
            if let Some(last) = chosen.last() {
                prop_assert!(freed - last.bytes < missing);
                let stay = all.iter().filter(|c| !c.pinned && c.bytes > 0);
                let mut stay = stay.filter(|c| chosen.iter().all(|d| d.span != c.span));
                prop_assert!(stay.all(|c| c.rank >= last.rank));
            }
        }
    }
}
