//! Maximum and exponentials.
//!
//! exp(x) = 2^n * e^r with n = round(x / ln 2) and |r| <= ln 2 / 2. ln 2 is split in two so that r is exact to about
//! 2^-30; e^r is the degree-6 minimax polynomial of Cephes (expf, S. Moshier). The relative error is below 2e-7 for
//! x in [-87, 88], and exp(0) is exactly 1. Below -87 the result is 0, above 88 it stays at exp(88).

use crate::scalar::{EXP_MAX, EXP_MIN};
use crate::vector::Vector;

/// The upper part of ln 2: few enough bits that n * LN2_HIGH is exact.
const LN2_HIGH: f32 = 0.693_359_4;
/// ln 2 - LN2_HIGH.
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Coefficients of (e^r - 1 - r) / r^2, highest power first.
const POLYNOMIAL: [f32; 6] = [1.987_569_2e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

#[inline(always)]
unsafe fn exp<V: Vector>(x: V) -> V {
    // SAFETY: the caller runs on the vector's instruction set.
    unsafe {
        let x = V::splat(EXP_MAX).min(x);
        let n = x.mul(V::splat(std::f32::consts::LOG2_E)).round();
        let r = n.neg_mul_add(V::splat(LN2_HIGH), x);
        let r = n.neg_mul_add(V::splat(LN2_LOW), r);
        let mut p = V::splat(POLYNOMIAL[0]);
        for &c in &POLYNOMIAL[1..] {
            p = p.mul_add(r, V::splat(c));
        }
        let p = p.mul_add(r.mul(r), r).add(V::splat(1.0));
        p.mul(n.pow2()).zero_below(x, V::splat(EXP_MIN))
    }
}

#[inline(always)]
pub(crate) unsafe fn exp_sum<V: Vector>(z: &mut [f32], m: f32) -> f32 {
    let len = z.len();
    let (pairs, full) = (len - len % (2 * V::LANES), len - len % V::LANES);
    let z = z.as_mut_ptr();
    // SAFETY: offsets stay below the length.
    unsafe {
        let m = V::splat(m);
        let mut sums = [V::splat(0.0); 2];
        let mut i = 0;
        while i < pairs {
            for (u, sum) in sums.iter_mut().enumerate() {
                let at = z.add(i + u * V::LANES);
                let e = exp(V::load(at).sub(m));
                e.store(at);
                *sum = sum.add(e);
            }
            i += 2 * V::LANES;
        }
        if i < full {
            let e = exp(V::load(z.add(i)).sub(m));
            e.store(z.add(i));
            sums[0] = sums[0].add(e);
            i += V::LANES;
        }
        let mut sum = sums[0].add(sums[1]).sum();
        if i < len {
            let mut rest = [0.0f32; 64];
            debug_assert!(V::LANES <= rest.len());
            exp(V::load_part(z.add(i), len - i).sub(m)).store(rest.as_mut_ptr());
            for (j, &e) in rest[..len - i].iter().enumerate() {
                *z.add(i + j) = e;
                sum += e;
            }
        }
        sum
    }
}

#[inline(always)]
pub(crate) unsafe fn max<V: Vector>(z: &[f32]) -> f32 {
    let len = z.len();
    let (pairs, full) = (len - len % (2 * V::LANES), len - len % V::LANES);
    // SAFETY: offsets stay below the length.
    unsafe {
        let mut best = [V::splat(f32::NEG_INFINITY); 2];
        let mut i = 0;
        while i < pairs {
            for (u, best) in best.iter_mut().enumerate() {
                *best = best.max(V::load(z.as_ptr().add(i + u * V::LANES)));
            }
            i += 2 * V::LANES;
        }
        if i < full {
            best[0] = best[0].max(V::load(z.as_ptr().add(i)));
        }
        let mut max = best[0].max(best[1]).max_lane();
        for &z in &z[full..] {
            max = max.max(z);
        }
        max
    }
}
