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

/// The positions of the set bits of every byte, first ones first.
const BITS: [[u8; 8]; 256] = {
    let mut table = [[0; 8]; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut bit, mut n) = (0, 0);
        while bit < 8 {
            if byte >> bit & 1 == 1 {
                table[byte][n] = bit as u8;
                n += 1;
            }
            bit += 1;
        }
        byte += 1;
    }
    table
};

/// Writes the positions of the elements that reach `limit`, ascending, to the front of `out`; returns their number. `out`
/// has a place for every element.
#[inline(always)]
pub(crate) unsafe fn at_least<V: Vector>(z: &[f32], limit: f32, out: &mut [u32]) -> usize {
    const STEP: usize = 16;
    let full = z.len() - z.len() % STEP;
    let mut n = 0;
    // SAFETY: offsets stay below the length; of the first i elements at most i positions were written, so there is room
    // for eight more before each byte of hits, of which those beyond its own bits are overwritten or never read.
    unsafe {
        let limits = V::splat(limit);
        for i in (0..full).step_by(STEP) {
            let mut hits = 0;
            for lane in (0..STEP).step_by(V::LANES) {
                hits |= V::load(z.as_ptr().add(i + lane)).at_least(limits) << lane;
            }
            if hits == 0 {
                continue;
            }
            for byte in 0..STEP / 8 {
                let bits = hits >> (8 * byte) & 255;
                let places = out.as_mut_ptr().add(n);
                for (place, &bit) in BITS[bits as usize].iter().enumerate() {
                    places.add(place).write((i + 8 * byte) as u32 + u32::from(bit));
                }
                n += bits.count_ones() as usize;
            }
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
