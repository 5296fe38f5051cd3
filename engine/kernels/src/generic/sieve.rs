//! What a selection of the largest scores is made of: how far they reach, their buckets, those that reach a limit.

use crate::vector::Vector;

/// The largest finite `high - z`; 0 where there is none.
#[inline(always)]
pub(crate) unsafe fn depth<V: Vector>(z: &[f32], high: f32) -> f32 {
    let full = z.len() - z.len() % V::LANES;
    // SAFETY: offsets stay below the length.
    let mut deepest = unsafe {
        let (high, least) = (V::splat(high), V::splat(f32::MIN));
        let mut deepest = V::splat(0.0);
        for i in (0..full).step_by(V::LANES) {
            let z = V::load(z.as_ptr().add(i));
            deepest = high.sub(z).zero_below(z, least).max(deepest);
        }
        deepest.max_lane()
    };
    for z in &z[full..] {
        let depth = high - z;
        deepest = if depth.is_finite() { deepest.max(depth) } else { deepest };
    }
    deepest
}

/// The bucket of every element: how many times 1 / `scale` it lies below `high`, at most `last`. The compiler makes a
/// vector loop of it.
#[inline(always)]
pub(crate) unsafe fn buckets<V: Vector>(z: &[f32], high: f32, scale: f32, last: f32, out: &mut [u32]) {
    for (out, z) in out.iter_mut().zip(z) {
        let bucket = (high - z) * scale;
        let bucket = if bucket < last { bucket } else { last };
        // SAFETY: `high` is the maximum and `scale` positive, so this lies between 0 and `last`, which the door checked.
        *out = unsafe { bucket.to_int_unchecked::<i32>() } as u32;
    }
}

/// Writes the positions of the elements that reach `limit`, ascending, to the front of `out`; returns their number.
#[inline(always)]
pub(crate) unsafe fn at_least<V: Vector>(z: &[f32], limit: f32, out: &mut [u32]) -> usize {
    let full = z.len() - z.len() % (2 * V::LANES);
    let mut n = 0;
    // SAFETY: offsets stay below the length; the door checked that `out` has room for every position.
    unsafe {
        let limits = V::splat(limit);
        let mut i = 0;
        while i < full {
            let low = V::load(z.as_ptr().add(i)).at_least(limits);
            let high = V::load(z.as_ptr().add(i + V::LANES)).at_least(limits);
            let mut hits = low | high << V::LANES;
            while hits != 0 {
                *out.get_unchecked_mut(n) = i as u32 + hits.trailing_zeros();
                n += 1;
                hits &= hits - 1;
            }
            i += 2 * V::LANES;
        }
    }
    for (i, &z) in z.iter().enumerate().skip(full) {
        if z >= limit {
            out[n] = i as u32;
            n += 1;
        }
    }
    n
}
