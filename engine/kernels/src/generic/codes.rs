//! Products of 8-bit integer queries with 7-bit codes.
//!
//! Codes lie in blocks of 8 rows: the scales of the rows, then dimension by dimension in fours, [fours, 8, 4]. So a
//! register holds four dimensions of several rows, byte products serve them all, and no sum crosses lanes. Sums are exact
//! in i32 and the two products after them are rounded each, so every path gives the same bits.

use crate::vector::{CODE_DIMS, CODE_HEAD, CODE_ROWS, CodeQuery, CodeSums, Vector};

/// Heads that share a pass over a block.
const HEADS: usize = 3;
/// The most registers that the rows of a block take.
const MOST_PARTS: usize = 2;

#[inline(always)]
pub(crate) unsafe fn dot_codes<V: Vector>(
    queries: &[CodeQuery<'_>],
    dim: usize,
    blocks: &[u8],
    out: &mut [f32],
) {
    let size = CODE_HEAD + dim * CODE_ROWS;
    let n = blocks.len() / size * CODE_ROWS;
    for (b, block) in blocks.chunks_exact(size).enumerate() {
        for (h, heads) in queries.chunks(HEADS).enumerate() {
            // SAFETY: the door checked that every query has `dim` elements and `out` a place for every product.
            unsafe {
                let out = out.as_mut_ptr().add(h * HEADS * n + b * CODE_ROWS);
                match heads.len() {
                    1 => products::<V::Codes, 1>(heads, dim, block, out, n),
                    2 => products::<V::Codes, 2>(heads, dim, block, out, n),
                    _ => products::<V::Codes, HEADS>(heads, dim, block, out, n),
                }
            }
        }
    }
}

/// G heads against one block.
#[inline(always)]
unsafe fn products<V: CodeSums, const G: usize>(
    queries: &[CodeQuery<'_>],
    dim: usize,
    block: &[u8],
    out: *mut f32,
    stride: usize,
) {
    let parts = CODE_ROWS / V::ROWS;
    // SAFETY: there are G queries of `dim`, the block has 8 scales and 8 rows of `dim`; `out` has 8 places at each of G
    // strides.
    unsafe {
        let (scales, codes) = (block.as_ptr(), block.as_ptr().add(CODE_HEAD));
        let mut acc = [[V::splat(0); MOST_PARTS]; G];
        for (acc, query) in acc.iter_mut().zip(queries) {
            *acc = [V::splat(-query.zero); MOST_PARTS];
        }
        for d in (0..dim).step_by(CODE_DIMS) {
            for (acc, query) in acc.iter_mut().zip(queries) {
                let q = query.q.as_ptr().add(d).cast::<i32>().read_unaligned();
                for (part, acc) in acc.iter_mut().take(parts).enumerate() {
                    *acc = acc.mul_add(codes.add(d * CODE_ROWS + part * V::ROWS * CODE_DIMS), q);
                }
            }
        }
        for (h, (acc, query)) in acc.iter().zip(queries).enumerate() {
            for (part, acc) in acc.iter().take(parts).enumerate() {
                let first = part * V::ROWS;
                acc.store(query.step, scales.add(4 * first), out.add(h * stride + first));
            }
        }
    }
}
