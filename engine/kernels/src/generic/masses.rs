//! The arithmetic of masses: plain loops, which the compiler makes vector loops of. No product is fused with a sum, so
//! every path gives the same bits, but for the order of a sum.

use crate::vector::{CodeRun, Vector};

/// `z = min(scale * z + lift * spread^2, most)`, but -inf where `count` is 0.
#[inline(always)]
pub(crate) unsafe fn lift<V: Vector>(
    z: &mut [f32],
    scale: f32,
    spreads: &[f32],
    (lift, most): (f32, f32),
    counts: &[f32],
) {
    for ((z, spread), &count) in z.iter_mut().zip(spreads).zip(counts) {
        let lifted = scale * *z + lift * (spread * spread);
        // Also where a product of extremes is not a number.
        let lifted = if lifted < most { lifted } else { most };
        *z = if count > 0.0 { lifted } else { f32::NEG_INFINITY };
    }
}

/// `x = x * a + w * b`.
#[inline(always)]
pub(crate) unsafe fn blend<V: Vector>(x: &mut [f32], a: &[f32], w: f32, b: &[f32]) {
    for ((x, a), b) in x.iter_mut().zip(a).zip(b) {
        *x = *x * a + w * b;
    }
}

/// The sum of every run of `x`; the runs follow each other.
#[inline(always)]
pub(crate) unsafe fn run_sums<V: Vector>(x: &[f32], runs: &[CodeRun], out: &mut [f32]) {
    let mut x = x.as_ptr();
    for (run, out) in runs.iter().zip(out) {
        let len = run.len as usize;
        let full = len - len % V::LANES;
        // SAFETY: the door checked that `x` holds all runs.
        unsafe {
            let mut sum = V::splat(0.0);
            for i in (0..full).step_by(V::LANES) {
                sum = sum.add(V::load(x.add(i)));
            }
            if full < len {
                sum = sum.add(V::load_part(x.add(full), len - full));
            }
            *out = sum.sum();
            x = x.add(len);
        }
    }
}
