//! The tail of a head: committed tokens that are not in a span yet.
//!
//! Rows lie in extents of 16,384 tokens counted from the tail's begin, so that sealing moves buffers and copies only
//! what stays fresh.

use crate::admission::Charge;
use attention::{EXTENT_TOKENS, Rows};
use half::f16;

/// Rows in extents: all but the last hold [`EXTENT_TOKENS`] rows.
#[derive(Debug, Default)]
pub struct Extents {
    dim: usize,
    chunks: Vec<Vec<f16>>,
}

/// Tokens for which memory is held when `tokens` are stored: the last extent grows in steps of 128, later 1,024.
pub fn capacity(tokens: u64) -> u64 {
    let rest = tokens % EXTENT_TOKENS as u64;
    let step = if rest <= 1024 { 128 } else { 1024 };
    (tokens - rest).saturating_add(rest.next_multiple_of(step))
}

impl Extents {
    /// No rows of `dim` elements.
    pub fn new(dim: usize) -> Self {
        Self { dim, chunks: Vec::new() }
    }

    /// Elements of a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The buffers, one for each extent.
    pub fn into_chunks(self) -> Vec<Vec<f16>> {
        self.chunks
    }

    /// Rows held.
    pub fn len(&self) -> usize {
        match self.chunks.last() {
            None => 0,
            Some(last) => (self.chunks.len() - 1) * EXTENT_TOKENS + last.len() / self.dim,
        }
    }

    /// Makes room for `rows` more in steps of [`capacity`].
    fn room(&mut self, rows: usize) {
        let full = EXTENT_TOKENS * self.dim;
        if self.chunks.last().is_none_or(|c| c.len() == full) {
            self.chunks.push(Vec::new());
        }
        if let Some(last) = self.chunks.last_mut() {
            let have = last.len() / self.dim;
            let want = capacity((have + rows).min(EXTENT_TOKENS) as u64) as usize * self.dim;
            last.reserve_exact(want.saturating_sub(last.len()));
        }
    }

    /// Appends rows taken every `stride` elements from `source`, starting at `offset`.
    pub fn extend_strided(&mut self, source: &[f16], offset: usize, stride: usize) {
        let mut left = source.len() / stride;
        let mut at = offset;
        while left > 0 {
            self.room(left);
            let dim = self.dim;
            let Some(last) = self.chunks.last_mut() else {
                return;
            };
            let now = left.min(EXTENT_TOKENS - last.len() / dim);
            for _ in 0..now {
                last.extend_from_slice(&source[at..at + dim]);
                at += stride;
            }
            left -= now;
        }
    }

    /// Keeps the first `rows`.
    pub fn truncate(&mut self, rows: usize) {
        self.chunks.truncate(rows.div_ceil(EXTENT_TOKENS));
        let before = self.chunks.len().saturating_sub(1) * EXTENT_TOKENS;
        let keep = capacity((rows - before) as u64) as usize * self.dim;
        if let Some(last) = self.chunks.last_mut() {
            last.truncate((rows - before) * self.dim);
            last.shrink_to(keep);
        }
    }

    /// Splits off the first `rows`, which keep their buffers; the rest is copied into new ones.
    fn split_front(&mut self, rows: usize) -> Extents {
        let mut rest = Extents::new(self.dim);
        for i in rows / EXTENT_TOKENS..self.chunks.len() {
            let skip = rows.saturating_sub(i * EXTENT_TOKENS) * self.dim;
            rest.extend_strided(&self.chunks[i][skip..], 0, self.dim);
        }
        self.truncate(rows);
        if let Some(last) = self.chunks.last_mut() {
            last.shrink_to_fit();
        }
        std::mem::replace(self, rest)
    }

    /// A view for the attention code.
    pub fn rows(&self) -> Rows<'_> {
        Rows::chunked(self.chunks.iter().map(Vec::as_slice).collect(), self.dim)
    }

    /// Copies rows `[begin, end)` to the end of `out`.
    pub fn copy(&self, begin: usize, end: usize, out: &mut Vec<f16>) {
        let mut at = begin;
        while at < end {
            let (chunk, first) = (at / EXTENT_TOKENS, at % EXTENT_TOKENS);
            let now = (end - at).min(EXTENT_TOKENS - first);
            out.extend_from_slice(&self.chunks[chunk][first * self.dim..(first + now) * self.dim]);
            at += now;
        }
    }
}

/// Keys and values of the tail, and the memory they hold.
#[derive(Debug)]
pub struct Fresh {
    /// Position of the first row.
    pub begin: u64,
    /// Keys.
    pub keys: Extents,
    /// Values.
    pub values: Extents,
    /// Covers [`capacity`] of the rows held.
    pub charge: Charge,
}

impl Fresh {
    /// Rows held.
    pub fn len(&self) -> u64 {
        self.keys.len() as u64
    }

    /// Position after the last row.
    pub fn end(&self) -> u64 {
        self.begin + self.len()
    }

    /// Takes the first `rows` out, with the part of the charge that covers them exactly.
    pub fn split_front(&mut self, rows: u64, row_bytes: u64) -> Fresh {
        let front = Fresh {
            begin: self.begin,
            keys: self.keys.split_front(rows as usize),
            values: self.values.split_front(rows as usize),
            charge: self.charge.split(rows * row_bytes),
        };
        self.begin += rows;
        self.trim(row_bytes);
        front
    }

    /// Keeps the first `rows` and returns the memory of the others.
    pub fn truncate(&mut self, rows: u64, row_bytes: u64) {
        self.keys.truncate(rows as usize);
        self.values.truncate(rows as usize);
        self.trim(row_bytes);
    }

    fn trim(&mut self, row_bytes: u64) {
        let keep = capacity(self.len()) * row_bytes;
        drop(self.charge.split(self.charge.bytes().saturating_sub(keep)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(n: usize, dim: usize, first: usize) -> Vec<f16> {
        (0..n * dim).map(|i| f16::from_f32(((first * dim + i) % 2039) as f32)).collect()
    }

    #[test]
    fn rows_survive_growth_split_and_truncation_around_an_extent() {
        let dim = 3;
        for n in
            [1, 127, 128, 129, EXTENT_TOKENS - 1, EXTENT_TOKENS, EXTENT_TOKENS + 1, 2 * EXTENT_TOKENS + 700]
        {
            let all = rows(n, dim, 0);
            let mut whole = Extents::new(dim);
            for part in all.chunks(1000 * dim) {
                whole.extend_strided(part, 0, dim);
            }
            assert_eq!(whole.len(), n);
            for at in [0, 1, n / 2, n.saturating_sub(512), n] {
                let mut tail = Extents::new(dim);
                tail.extend_strided(&all, 0, dim);
                let front = tail.split_front(at);
                assert_eq!((front.len(), tail.len()), (at, n - at));
                let mut joined = Vec::new();
                front.copy(0, at, &mut joined);
                tail.copy(0, n - at, &mut joined);
                assert!(joined == all, "n {n} split at {at}");
                let mut cut = Extents::new(dim);
                cut.extend_strided(&all, 0, dim);
                cut.truncate(at);
                let mut kept = Vec::new();
                cut.copy(0, at, &mut kept);
                assert!(kept == all[..at * dim] && cut.len() == at);
            }
        }
    }

    #[test]
    fn strides_pick_one_head() {
        let source = rows(5, 6, 0);
        let mut head1 = Extents::new(2);
        head1.extend_strided(&source, 2, 6);
        let mut out = Vec::new();
        head1.copy(0, 5, &mut out);
        for t in 0..5 {
            assert_eq!(out[t * 2..t * 2 + 2], source[t * 6 + 2..t * 6 + 4]);
        }
    }

    #[test]
    fn memory_held_is_what_is_charged() {
        let mut e = Extents::new(4);
        for n in 1..=1500usize {
            e.extend_strided(&rows(1, 4, n), 0, 4);
            let held: usize = e.chunks.iter().map(Vec::capacity).sum();
            assert_eq!(held as u64, capacity(n as u64) * 4, "after {n}");
        }
    }
}
