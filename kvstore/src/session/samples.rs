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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::{Budget, Kind};

    /// Samples of one element at `positions`, each holding its own position.
    fn samples(positions: &[u64], window: u64) -> Samples {
        let purse = Budget::new(1 << 20).purse(0).unwrap();
        let mut samples = Samples::new(1, purse.charge(Kind::Scratch, bytes(positions.len(), 1)).unwrap());
        let q: Vec<f16> = positions.iter().map(|&p| f16::from_f32(p as f32)).collect();
        samples.extend_strided(positions, &q, 0, 1);
        samples.window = window;
        samples
    }

    fn taken(samples: &mut Samples, begin: u64, end: u64) -> Option<(Vec<f32>, Vec<u32>)> {
        let (queries, _) = samples.take(begin, end, 1)?;
        Some((queries.q.iter().map(|q| q.to_f32()).collect(), queries.visible))
    }

    #[test]
    fn a_query_sees_what_lies_before_the_workers_window() {
        // Without a window up to and with its own position, with one that many tokens fewer; never beyond the span.
        assert_eq!(taken(&mut samples(&[0, 3, 9], 0), 0, 8), Some((vec![0.0, 3.0, 9.0], vec![1, 4, 8])));
        assert_eq!(taken(&mut samples(&[0, 3, 9], 3), 0, 8), Some((vec![3.0, 9.0], vec![1, 7])));
        // Span-local, and none when nothing of the span is seen.
        assert_eq!(taken(&mut samples(&[3, 7, 9], 2), 6, 8), Some((vec![9.0], vec![2])));
        assert_eq!(taken(&mut samples(&[3, 7], 2), 6, 8), None);
    }

    #[test]
    fn queries_beyond_the_span_stay_for_the_next() {
        let mut samples = samples(&[1, 5, 6, 9], 2);
        assert_eq!(taken(&mut samples, 0, 6), Some((vec![5.0, 6.0, 9.0], vec![4, 5, 6])));
        assert_eq!((samples.pos.clone(), samples.last()), (vec![6, 9], Some(9)));
        assert_eq!(taken(&mut samples, 6, 10), Some((vec![9.0], vec![2])));
        assert_eq!(samples.pos, Vec::<u64>::new());
    }
}
