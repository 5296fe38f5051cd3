//! Products of 16-bit integer queries with 8-bit codes.
//!
//! Codes lie in blocks of 16 rows, dimension by dimension in pairs: [blocks, pairs, 16, 2]. So a register holds one pair
//! of dimensions of several rows, one multiply-add of pairs serves them all, and no sum crosses lanes. Sums are exact in
//! i32, so every path gives the same bits.

use crate::vector::{CODE_ROWS, CodeSums, Vector};

/// Heads that share a widened register of codes.
const HEADS: usize = 3;
/// The most registers that 16 rows take.
const MOST_PARTS: usize = 4;

#[inline(always)]
pub(crate) unsafe fn dot_codes<V: Vector>(q: &[i16], pairs: usize, codes: &[i8], out: &mut [i32]) {
    let block = 2 * pairs * CODE_ROWS;
    let (g, blocks) = (q.len() / (2 * pairs), codes.len() / block);
    for b in 0..blocks {
        let mut h = 0;
        while h < g {
            // SAFETY: block b and heads h.. exist; the door checked that `out` has a place for every sum.
            unsafe {
                let codes = codes.as_ptr().add(b * block);
                let q = q.as_ptr().add(h * 2 * pairs);
                let stride = blocks * CODE_ROWS;
                let out = out.as_mut_ptr().add(h * stride + b * CODE_ROWS);
                h += match g - h {
                    1 => heads::<V::Codes, 1>(q, pairs, codes, out, stride),
                    2 => heads::<V::Codes, 2>(q, pairs, codes, out, stride),
                    _ => heads::<V::Codes, HEADS>(q, pairs, codes, out, stride),
                };
            }
        }
    }
}

/// G heads against one block. Returns G.
#[inline(always)]
unsafe fn heads<V: CodeSums, const G: usize>(
    q: *const i16,
    pairs: usize,
    codes: *const i8,
    out: *mut i32,
    stride: usize,
) -> usize {
    let parts = CODE_ROWS / V::ROWS;
    // SAFETY: `q` has G rows of `pairs` pairs, the block `pairs * 16` pairs; `out` has 16 places at each of G strides.
    unsafe {
        let mut acc = [[V::zero(); MOST_PARTS]; G];
        for pair in 0..pairs {
            let mut query = [0i32; G];
            for (h, query) in query.iter_mut().enumerate() {
                *query = q.add((h * pairs + pair) * 2).cast::<i32>().read_unaligned();
            }
            for part in 0..parts {
                let wide = V::widen(codes.add((pair * CODE_ROWS + part * V::ROWS) * 2));
                for h in 0..G {
                    acc[h][part] = acc[h][part].mul_add(wide, query[h]);
                }
            }
        }
        for (h, acc) in acc.iter().enumerate() {
            for (part, acc) in acc.iter().take(parts).enumerate() {
                acc.store(out.add(h * stride + part * V::ROWS));
            }
        }
    }
    G
}
