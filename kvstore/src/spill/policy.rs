//! Which spans leave RAM first, and which come back: LRU-2 over bursts of references (O'Neil, O'Neil, Weikum 1993).
//!
//! A span is as hot as its last reference but one is recent (its backward 2-distance). References that follow each other
//! closely, as the steps of one answer do, are correlated and count once. So one scan over many sessions, which refers to
//! each of them in one burst, pushes out nothing that is used again and again, however fast it is.
//!
//! What left comes back when it has been used in two bursts since, or in one that lasts, and is still in use: by the same
//! rule that made it leave, one scan brings nothing back. A part of the budget stays free after that. What leaves for want
//! of room frees less than this part, so it does not make the room in which it could return.
//!
//! Pure: times are milliseconds that the caller gives.

/// References no further apart than this are one burst.
const CORRELATED: u64 = 5_000;
/// For so long after the last reference it is remembered that there were several bursts.
const RETAINED: u64 = 3_600_000;

/// A burst that lasts so long counts as two.
const SUSTAINED: u64 = 30_000;
/// So long after its last reference a span is in use as far as its return is concerned.
const RECENT: u64 = 60_000;
/// This part of the budget stays free when spans come back.
pub const FREE_PART: u64 = 8;

/// What is remembered of the references to a span.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct History {
    /// The last reference; None: there was none.
    last: Option<u64>,
    /// The end of the burst before the one of `last`.
    before: Option<u64>,
    /// The first of the burst of `last`.
    first: u64,
    /// When the rows last left RAM; 0: they have lain in files since the start.
    left: u64,
    /// Softmax mass that its tokens got, summed over steps: 1 is all of one step.
    attention: f32,
}

/// How hot a span is; the lowest leaves first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Rows in files whose index or form is all that is left in RAM, of a span in use: last of all.
    answers: bool,
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
        Self { last: Some(now), first: now, ..Self::default() }
    }

    /// Counts a reference in which the span got this share of the attention.
    pub fn refer(&mut self, now: u64, share: f32) {
        match self.last {
            Some(last) if now.saturating_sub(last) > CORRELATED => {
                (self.before, self.first) = (Some(last), now)
            }
            None => self.first = now,
            Some(_) => {}
        }
        self.last = self.last.max(Some(now));
        if share > 0.0 {
            self.attention += share;
        }
    }

    /// Notes that the rows have left RAM.
    pub fn leave(&mut self, now: u64) {
        self.left = now;
    }

    /// Whether rows that are in files should come back.
    pub fn wanted(&self, now: u64) -> bool {
        let Some(last) = self.last.filter(|&last| now.saturating_sub(last) <= RECENT) else {
            return false;
        };
        // The burst in which it left had begun before: what is left of it counts as one.
        let twice = self.before.is_some_and(|before| before > self.left);
        twice || last.saturating_sub(self.first.max(self.left)) >= SUSTAINED
    }

    /// How long nobody has referred to it; since the start where nobody has.
    pub fn idle(&self, now: u64) -> u64 {
        now.saturating_sub(self.last.unwrap_or(0).max(self.left))
    }

    /// That of a span which replaces two.
    pub fn joined(self, other: History) -> Self {
        Self {
            last: self.last.max(other.last),
            before: self.before.max(other.before),
            first: self.first.max(other.first),
            left: self.left.max(other.left),
            attention: self.attention + other.attention,
        }
    }

    /// How hot the span is now.
    pub fn rank(&self, now: u64) -> Rank {
        let since = self.last.map(|last| now.saturating_sub(last));
        Rank {
            answers: false,
            before: self.before.filter(|_| since.is_some_and(|s| s <= RETAINED)),
            in_use: since.is_some_and(|s| s <= CORRELATED),
            attention: self.attention.to_bits(),
            last: self.last,
        }
    }
}

impl Rank {
    /// That of what answers for rows in files, where it is not the rows that could go: while the span is in use, that goes
    /// after everything else, since it is little and the rows are useless without it.
    pub fn with_rows(self, rows: bool) -> Self {
        Self { answers: !rows && self.in_use, ..self }
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

/// The spans to bring back, hottest first, pinned ones before all others, when `free` bytes of a budget of `limit` are
/// free. `bytes` is what each would take.
pub fn choose_back<T>(mut candidates: Vec<Candidate<T>>, free: u64, limit: u64) -> Vec<Candidate<T>> {
    candidates.sort_by_key(|c| std::cmp::Reverse((c.pinned, c.rank)));
    let mut room = free.saturating_sub(limit / FREE_PART);
    candidates.retain(|c| {
        let fits = c.bytes > 0 && c.bytes <= room;
        room -= if fits { c.bytes } else { 0 };
        fits
    });
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

    #[test]
    fn what_is_used_again_and_again_is_wanted_back_and_a_scan_is_not() {
        let mut h = History::begun(0);
        h.refer(2 * CORRELATED, 1.0);
        h.leave(2 * CORRELATED + 1);
        // The burst in which it left, and another.
        h.refer(2 * CORRELATED + 2, 1.0);
        let again = 4 * CORRELATED;
        h.refer(again, 1.0);
        let mut twice = h;
        assert!(h.wanted(again) && h.wanted(again + RECENT) && !h.wanted(again + RECENT + 1));
        h.leave(again + 1);
        assert!(!h.wanted(again + 1), "it has just left");
        // Read from files since the start: one burst, however dense, then a second.
        let mut once = History::default();
        (0..50).for_each(|i| once.refer(1000 + i * 50, 1.0));
        assert!(!once.wanted(4000));
        once.refer(4000 + 2 * CORRELATED, 0.0);
        assert!(once.wanted(4000 + 2 * CORRELATED));
        // One answer that goes on and on.
        twice.leave(again + 1);
        let steps = SUSTAINED / 1000 + 1;
        for i in 1..=steps {
            assert!(!twice.wanted(again + i * 1000 - 1));
            twice.refer(again + i * 1000, 0.1);
        }
        assert!(twice.wanted(again + steps * 1000));
        assert!(!History::default().wanted(0));
    }

    proptest! {
        #[test]
        fn what_comes_back_leaves_a_part_free_hottest_and_pinned_first(
            spans in proptest::collection::vec((0u64..50_000, 0u64..50_000, 0u64..40, any::<bool>()), 0..30),
            free in 0u64..400, limit in 1u64..800,
        ) {
            let all: Vec<Candidate<usize>> = spans.iter().enumerate().map(|(span, &(a, b, bytes, pinned))| {
                let mut history = History::begun(a.min(b));
                history.refer(a.max(b), 0.0);
                Candidate { rank: history.rank(60_000), bytes, pinned, span }
            }).collect();
            let back = choose_back(all.clone(), free, limit);
            let room = free.saturating_sub(limit / FREE_PART);
            prop_assert!(back.iter().map(|c| c.bytes).sum::<u64>() <= room);
            prop_assert!(back.is_sorted_by_key(|c| std::cmp::Reverse((c.pinned, c.rank))));
            // Who stays did not fit beside those that go before it.
            for stays in all.iter().filter(|c| c.bytes > 0 && back.iter().all(|b| b.span != c.span)) {
                let before = back.iter().filter(|b| (b.pinned, b.rank) >= (stays.pinned, stays.rank));
                prop_assert!(before.map(|b| b.bytes).sum::<u64>() + stays.bytes > room);
            }
        }

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
