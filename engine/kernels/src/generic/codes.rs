//! Products of 8-bit integer queries with 7-bit codes.
//!
//! Codes lie in blocks of 8 rows: the scales of the rows, then dimension by dimension in fours, [fours, 8, 4]. So a
//! register holds four dimensions of several rows, byte products serve them all, and no sum crosses lanes. Sums are exact
//! in i32 and the three operations after them are rounded each, so every path gives the same bits.

use crate::arch::prefetch_line;
use crate::vector::{CODE_DIMS, CODE_HEAD, CODE_ROWS, CodeQuery, CodeRun, CodeSums, Vector};

/// The most registers that the rows of a block take.
const MOST_PARTS: usize = 2;
/// Runs between the one that is scored and the one that is fetched from memory.
const AHEAD: usize = 3;
/// Bytes of a cache line.
const LINE: usize = 64;

/// `out` has a place for every row of the runs and [`CODE_ROWS`] more, which are overwritten.
#[inline(always)]
pub(crate) unsafe fn dot_codes<V: Vector>(
    query: &CodeQuery<'_>,
    blocks: &[u8],
    runs: &[CodeRun],
    out: &mut [f32],
) {
    let dim = query.q.len();
    let size = CODE_HEAD + dim * CODE_ROWS;
    let mut out = out.as_mut_ptr();
    for (i, run) in runs.iter().enumerate() {
        if let Some(coming) = runs.get(i + AHEAD) {
            let (first, last) = (coming.first as usize, (coming.first + coming.len) as usize);
            let bytes = first / CODE_ROWS * size..last.div_ceil(CODE_ROWS) * size;
            bytes.step_by(LINE).for_each(|at| prefetch_line(blocks.as_ptr().wrapping_add(at)));
        }
        let (first, mut left) = (run.first as usize, run.len as usize);
        let skip = first % CODE_ROWS;
        // SAFETY: the door checked that the rows of every run exist and that `out` has a place for each of them, and 8
        // more for what is written beyond a run's last row.
        unsafe {
            let mut block = blocks.as_ptr().add(first / CODE_ROWS * size);
            if skip > 0 && left > 0 {
                let mut products = [0f32; CODE_ROWS];
                score::<V::Codes, 1>(query, block, run.parent, products.as_mut_ptr());
                let now = left.min(CODE_ROWS - skip);
                std::ptr::copy_nonoverlapping(products.as_ptr().add(skip), out, now);
                (block, out, left) = (block.add(size), out.add(now), left - now);
            }
            while left > CODE_ROWS {
                score::<V::Codes, 2>(query, block, run.parent, out);
                let now = left.min(2 * CODE_ROWS);
                (block, out, left) = (block.wrapping_add(2 * size), out.add(now), left - now);
            }
            if left > 0 {
                score::<V::Codes, 1>(query, block, run.parent, out);
                out = out.add(left);
            }
        }
    }
}

/// The eight rows of each of `B` blocks that follow each other.
#[inline(always)]
unsafe fn score<V: CodeSums, const B: usize>(
    query: &CodeQuery<'_>,
    blocks: *const u8,
    parent: f32,
    out: *mut f32,
) {
    let (parts, size) = (CODE_ROWS / V::ROWS, CODE_HEAD + query.q.len() * CODE_ROWS);
    // SAFETY: each block has 8 scales and 8 rows of the query's length; `out` has 8 places for each.
    unsafe {
        let mut acc = [[V::splat(-query.zero); MOST_PARTS]; B];
        for d in (0..query.q.len()).step_by(CODE_DIMS) {
            let q = query.q.as_ptr().add(d).cast::<i32>().read_unaligned();
            for (b, acc) in acc.iter_mut().enumerate() {
                let codes = blocks.add(b * size + CODE_HEAD + d * CODE_ROWS);
                for (part, acc) in acc.iter_mut().take(parts).enumerate() {
                    *acc = acc.mul_add(codes.add(part * V::ROWS * CODE_DIMS), q);
                }
            }
        }
        for (b, acc) in acc.iter().enumerate() {
            for (part, acc) in acc.iter().take(parts).enumerate() {
                let first = part * V::ROWS;
                acc.store(
                    query.step,
                    blocks.add(b * size + 4 * first),
                    parent,
                    out.add(b * CODE_ROWS + first),
                );
            }
        }
    }
}
