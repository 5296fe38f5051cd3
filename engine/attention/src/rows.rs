//! Stored rows of one head.

use std::ops::Range;

use kernels::f16;

/// Rows per extent, the unit of storage: every chunk of [`Rows`] but the last has exactly this many.
pub const EXTENT_TOKENS: usize = 16_384;

/// The keys (or values) of one KV head over a span of tokens: [len, dim] in f16, in chunks of [`EXTENT_TOKENS`] rows.
/// Row numbers are span-local.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    chunks: Vec<&'a [f16]>,
    dim: usize,
    len: usize,
}

impl<'a> Rows<'a> {
    /// Rows that lie in one piece. Panics when `dim` is 0 or does not divide the length.
    pub fn contiguous(data: &'a [f16], dim: usize) -> Rows<'a> {
        assert!(dim > 0, "rows of dim 0");
        Rows::chunked(data.chunks(EXTENT_TOKENS * dim).collect(), dim)
    }

    /// Rows in extents. Panics when `dim` is 0, or a chunk but the last is not [`EXTENT_TOKENS`] rows, or the last is
    /// longer or not whole rows.
    pub fn chunked(chunks: Vec<&'a [f16]>, dim: usize) -> Rows<'a> {
        assert!(dim > 0, "rows of dim 0");
        let full = EXTENT_TOKENS * dim;
        let last = chunks.last().map_or(0, |c| c.len());
        let before = chunks.len().saturating_sub(1);
        assert!(chunks[..before].iter().all(|c| c.len() == full), "a chunk but the last is not an extent");
        assert!(last <= full && last.is_multiple_of(dim), "{last} elements are not up to an extent of {dim}");
        Rows { len: before * EXTENT_TOKENS + last / dim, chunks, dim }
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements of a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Row `i`. Panics when it does not exist.
    #[inline]
    pub fn row(&self, i: usize) -> &'a [f16] {
        let at = i % EXTENT_TOKENS * self.dim;
        &self.chunks[i / EXTENT_TOKENS][at..at + self.dim]
    }

    /// The rows of `range` in pieces that lie together: (first row, rows). Panics when the range reaches beyond the
    /// end.
    pub fn runs(&self, range: Range<usize>) -> impl Iterator<Item = (usize, &'a [f16])> + '_ {
        self.pieces(range, EXTENT_TOKENS)
    }

    /// As [`Rows::runs`], each piece at most `most` rows. Pieces of two `Rows` of the same length start at the same
    /// rows.
    pub(crate) fn pieces(
        &self,
        range: Range<usize>,
        most: usize,
    ) -> impl Iterator<Item = (usize, &'a [f16])> + '_ {
        assert!(range.end <= self.len, "rows {range:?} of {}", self.len);
        let mut next = range.start;
        std::iter::from_fn(move || {
            if next >= range.end {
                return None;
            }
            let (first, within) = (next, next % EXTENT_TOKENS);
            let n = most.min(EXTENT_TOKENS - within).min(range.end - first);
            next += n;
            let chunk = self.chunks[first / EXTENT_TOKENS];
            Some((first, &chunk[within * self.dim..(within + n) * self.dim]))
        })
    }
}

/// Rows that are asked for one at a time; what [`attend_block`](crate::attend_block) reads.
pub trait RowSource {
    /// The number of rows.
    fn count(&self) -> usize;
    /// The elements of a row.
    fn width(&self) -> usize;
    /// Row `i`, less than `count`.
    fn get(&self, i: usize) -> &[f16];
}

impl RowSource for Rows<'_> {
    fn count(&self) -> usize {
        self.len
    }
    fn width(&self) -> usize {
        self.dim
    }
    fn get(&self, i: usize) -> &[f16] {
        self.row(i)
    }
}

/// One KV head out of [n, kv_heads, dim].
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<'a> {
    data: &'a [f16],
    kv_heads: usize,
    head: usize,
    dim: usize,
}

impl<'a> HeadRows<'a> {
    /// Head `head` of `data`, [n, kv_heads, dim]. Panics when the length is not a multiple, or the head does not exist.
    pub fn new(data: &'a [f16], kv_heads: usize, head: usize, dim: usize) -> HeadRows<'a> {
        assert!(dim > 0 && head < kv_heads, "head {head} of {kv_heads}, dim {dim}");
        assert!(data.len().is_multiple_of(kv_heads * dim), "{} elements of [{kv_heads}, {dim}]", data.len());
        HeadRows { data, kv_heads, head, dim }
    }
}

impl RowSource for HeadRows<'_> {
    fn count(&self) -> usize {
        self.data.len() / (self.kv_heads * self.dim)
    }
    fn width(&self) -> usize {
        self.dim
    }
    fn get(&self, i: usize) -> &[f16] {
        &self.data[(i * self.kv_heads + self.head) * self.dim..][..self.dim]
    }
}
