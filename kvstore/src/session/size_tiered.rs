//! Which spans of a head merge: the size-tiered rule of log-structured merge trees, as a pure function.

/// The first span that merges with all behind it, given the lengths of the spans in order; None when none does.
///
/// A span merges with everything behind it as soon as that is together at least as long, the longest such run first. With
/// n tokens in spans of at least u each:
///
/// - Every span left is longer than all behind it together, so there are at most log2(n / u) + 1 of them.
/// - Write amplification: a token is built once in its first span, and every merge that it takes part in, but for the
///   first, at least doubles the span it lies in. (In the first span of the run: what joins it is as long. In a later
///   one but the newest: the rule had not fired before the newest came, so that span was shorter than the first of the
///   run. The newest span was not merged before.) So each token is built at most log2(n / u) + 2 times.
/// - The span of the prefill is rebuilt only when decoding has added as many tokens again; up to then the spans behind
///   it cost a search each, at most log2 of their length.
///
/// Truncation starts the count anew for what is left. Of merges that wait for the builder only the last is done, so a
/// busy shard rebuilds less.
pub fn first_of_run(lengths: &[u64]) -> Option<usize> {
    let mut behind: u64 = lengths.iter().sum();
    for (i, &length) in lengths.iter().enumerate() {
        behind -= length;
        if behind >= length && i + 1 < lengths.len() {
            return Some(i);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_spans_are_a_binary_counter() {
        let mut spans: Vec<u64> = Vec::new();
        for n in 1..=64u64 {
            spans.push(1);
            if let Some(i) = first_of_run(&spans) {
                let merged = spans.drain(i..).sum();
                spans.push(merged);
            }
            let bits = (0..64).rev().map(|b| 1u64 << b).filter(|b| n & b != 0);
            assert_eq!(spans, bits.collect::<Vec<_>>(), "after {n}");
        }
    }

    #[test]
    fn a_long_first_span_waits_until_as_much_is_behind_it() {
        assert_eq!(first_of_run(&[]), None);
        assert_eq!(first_of_run(&[5]), None);
        assert_eq!(first_of_run(&[31_000, 16_384, 4096]), None);
        assert_eq!(first_of_run(&[31_000, 16_384, 1024, 1024]), Some(2));
        assert_eq!(first_of_run(&[31_000, 16_384, 8192, 4096, 2048, 1024]), Some(0));
    }

    proptest! {
        #[test]
        fn few_spans_and_few_rebuilds(added in proptest::collection::vec(1u64..5000, 1..400)) {
            let least = *added.iter().min().unwrap();
            // A span and how often its most rebuilt token was built.
            let mut spans: Vec<(u64, u32)> = Vec::new();
            for length in added {
                spans.push((length, 1));
                let lengths: Vec<u64> = spans.iter().map(|s| s.0).collect();
                if let Some(i) = first_of_run(&lengths) {
                    let run: Vec<(u64, u32)> = spans.drain(i..).collect();
                    let most = run.iter().map(|s| s.1).max().unwrap();
                    spans.push((run.iter().map(|s| s.0).sum(), most + 1));
                }
                let lengths: Vec<u64> = spans.iter().map(|s| s.0).collect();
                prop_assert_eq!(first_of_run(&lengths), None);
                let doublings = (lengths.iter().sum::<u64>() as f64 / least as f64).log2();
                prop_assert!(spans.len() as f64 <= doublings + 1.0);
                for &(length, builds) in &spans {
                    prop_assert!(f64::from(builds) <= (length as f64 / least as f64).log2() + 2.0);
                }
            }
        }
    }
}
