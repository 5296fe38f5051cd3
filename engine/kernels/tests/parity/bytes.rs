//! Products and sums of byte codes, on every path against f64.

use crate::{Noise, dot64, near, paths};
use kernels::CHANNEL_ROWS;
use proptest::prelude::*;

fn bytes(noise: &mut Noise, n: usize) -> Vec<u8> {
    noise.f32(n).into_iter().map(|x| (127.5 * (x + 1.0)) as u8).collect()
}

proptest! {
    #[test]
    fn codes_by_channel(g in 0usize..10, dim in 1usize..40, blocks in 0usize..3, fine: bool, seed: u64) {
        let mut noise = Noise(seed | 1);
        let n = blocks * CHANNEL_ROWS;
        let (q, start) = (noise.f32(g * dim), noise.f32(g * n));
        let (first, second) = (bytes(&mut noise, dim * n), bytes(&mut noise, dim * n / 2));
        let code = |d: usize, r: usize| {
            let whole = f64::from(first[d * n + r]);
            match fine {
                false => whole,
                true if r < n / 2 => 16.0 * whole + f64::from(second[d * (n / 2) + r] % 16),
                true => 16.0 * whole + f64::from(second[d * (n / 2) + r - n / 2] / 16),
            }
        };
        for k in paths() {
            let mut z = start.clone();
            k.dot_channels(&q, dim, &first, fine.then_some(&second[..]), &mut z);
            for h in 0..g {
                for r in 0..n {
                    let terms = (0..dim).map(|d| (f64::from(q[h * dim + d]), code(d, r)));
                    let all = std::iter::once((f64::from(start[h * n + r]), 1.0)).chain(terms);
                    near(z[h * n + r], dot64(all), "dot_channels");
                }
            }
        }
    }

    #[test]
    fn weighted_codes(
        g in 0usize..8, dim in 1usize..150, n in 0usize..70, cut in (0.0f64..1.0, 0.0f64..1.0), seed: u64,
    ) {
        let mut noise = Noise(seed | 1);
        let (w, start, codes) = (noise.f32(g * n), noise.f32(g * dim), bytes(&mut noise, n * dim));
        let (a, b) = ((cut.0 * dim as f64) as usize, (cut.1 * dim as f64) as usize + 1);
        let (from, end) = (a.min(b), a.max(b));
        for k in paths() {
            let mut acc = start.clone();
            k.axpy_codes(&w, dim, &codes, (from, end - from), &mut acc);
            for h in 0..g {
                for d in 0..dim {
                    let terms = (0..n).map(|r| (f64::from(w[h * n + r]), f64::from(codes[r * dim + d])));
                    let first = std::iter::once((f64::from(start[h * dim + d]), 1.0));
                    match (from..end).contains(&d) {
                        true => near(acc[h * dim + d], dot64(first.chain(terms)), "axpy_codes"),
                        false => prop_assert_eq!(acc[h * dim + d], start[h * dim + d]),
                    }
                }
            }
        }
    }
}
