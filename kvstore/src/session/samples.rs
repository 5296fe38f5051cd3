//! Queries of the prefill, kept until the span they see is sealed; the index is built and calibrated with them.

use crate::admission::Charge;
use half::f16;
use index::BuildQueries;

/// Sampled queries of one KV head: `[m, group, key_dim]` with ascending positions.
#[derive(Debug)]
pub struct Samples {
    /// Elements of one sample: group x key_dim.
    width: usize,
    pos: Vec<u64>,
    q: Vec<f16>,
    /// Tokens up to a query's own that a worker attends to itself at decode: what an index is built for and calibrated
    /// on leaves them out too.
    pub window: u64,
    /// Bytes of positions and queries.
    pub charge: Charge,
}

/// Bytes that `m` samples of `width` elements hold.
pub fn bytes(m: usize, width: usize) -> u64 {
    m as u64 * (8 + 2 * width as u64)
}

impl Samples {
    /// None yet.
    pub fn new(width: usize, charge: Charge) -> Self {
        Self { width, pos: Vec::new(), q: Vec::new(), window: 0, charge }
    }

    /// Position of the last sample.
    pub fn last(&self) -> Option<u64> {
        self.pos.last().copied()
    }

    /// Adds samples taken every `stride` elements from `source`, starting at `offset`.
    pub fn extend_strided(&mut self, pos: &[u64], source: &[f16], offset: usize, stride: usize) {
        self.pos.extend_from_slice(pos);
        for j in 0..pos.len() {
            let at = j * stride + offset;
            self.q.extend_from_slice(&source[at..at + self.width]);
        }
    }

    /// Queries for a span `[begin, end)`: each that sees at least one of its keys. Those that a later span can still
    /// use, at or beyond `end`, stay here too. None when there are none.
    pub fn take(&mut self, begin: u64, end: u64, group: usize) -> Option<(BuildQueries, Charge)> {
        let seen = |p: u64| p.saturating_add(1).saturating_sub(self.window);
        let first = self.pos.partition_point(|&p| seen(p) <= begin);
        let keep = self.pos.partition_point(|&p| p < end);
        let visible: Vec<u32> =
            self.pos[first..].iter().map(|&p| (seen(p).min(end) - begin) as u32).collect();
        let q = self.q[first * self.width..].to_vec();
        self.pos.drain(..keep);
        self.q.drain(..keep * self.width);
        // What stays is copied too, uncharged: the window's samples, a small part of the whole.
        let charge = self.charge.split(bytes(keep, self.width));
        (!visible.is_empty()).then_some((BuildQueries { q, visible, group }, charge))
    }

    /// Drops the samples at or beyond `length`.
    pub fn truncate(&mut self, length: u64) {
        let keep = self.pos.partition_point(|&p| p < length);
        let gone = bytes(self.pos.len() - keep, self.width);
        self.pos.truncate(keep);
        self.q.truncate(keep * self.width);
        drop(self.charge.split(gone));
    }

    /// Drops the samples before `end`, which see no key of any later span.
    pub fn discard_before(&mut self, end: u64) {
        let gone = self.pos.partition_point(|&p| p < end);
        self.pos.drain(..gone);
        self.q.drain(..gone * self.width);
        drop(self.charge.split(bytes(gone, self.width)));
    }
}
