//! The arithmetic of masses and of the sieve, on every path against one plain expression each.

use crate::{Noise, paths};
use kernels::CodeRun;
use proptest::prelude::*;

proptest! {
    #[test]
    fn masses_have_the_same_bits_on_every_path(n in 0usize..200, seed: u64, hidden in 0usize..9) {
        let mut noise = Noise(seed | 1);
        let (z, spreads, other) = (noise.f32(n), noise.f32(n), noise.f32(n));
        let counts: Vec<f32> = noise.f32(n).iter().map(|x| (9.0 * x.abs()).floor()).collect();
        for k in paths() {
            let mut lifted = z.clone();
            k.lift(&mut lifted, 0.3, &spreads, (1.7, 0.9), &counts);
            for i in 0..n {
                let want = (0.3 * z[i] + 1.7 * (spreads[i] * spreads[i])).min(0.9);
                prop_assert_eq!(lifted[i], if counts[i] > 0.0 { want } else { f32::NEG_INFINITY });
            }
            let mut blended = z.clone();
            k.blend(&mut blended, &counts, -0.7, &other);
            for i in 0..n {
                prop_assert_eq!(blended[i], z[i] * counts[i] + -0.7 * other[i]);
            }
            let mut scores = z.clone();
            scores.iter_mut().skip(1).step_by(hidden + 1).for_each(|z| *z = f32::NEG_INFINITY);
            let high = k.max(&scores);
            if high.is_finite() {
                let least = scores.iter().copied().filter(|z| z.is_finite()).fold(high, f32::min);
                prop_assert_eq!(k.depth(&scores, high), high - least);
                let mut buckets = vec![7; n];
                k.buckets(&scores, high, 23.0, 32, &mut buckets);
                for (z, bucket) in scores.iter().zip(buckets) {
                    prop_assert_eq!(bucket, ((high - z) * 23.0).min(31.0) as u32);
                }
            }
        }
    }

    #[test]
    fn the_sum_of_every_run(lens in proptest::collection::vec(0u32..40, 0..12), seed: u64) {
        let x = Noise(seed | 1).f32(lens.iter().sum::<u32>() as usize);
        let runs: Vec<CodeRun> = lens.iter().map(|&len| CodeRun { first: 3, len, parent: 0.5 }).collect();
        for k in paths() {
            let mut sums = vec![f32::NAN; runs.len()];
            k.run_sums(&x, &runs, &mut sums);
            let mut left = &x[..];
            for (run, sum) in runs.iter().zip(sums) {
                let now;
                (now, left) = left.split_at(run.len as usize);
                let want: f64 = now.iter().map(|&x| f64::from(x)).sum();
                prop_assert!((f64::from(sum) - want).abs() <= 1e-5, "{:?}: {} {}", k, sum, want);
            }
        }
    }
}
