//! Sampled queries, of the prefill and of decode steps: an index is built and calibrated with them. They are kept with
//! their head until the tokens of their positions are sealed, then with the span, thinned, for the merges it takes part in.

use crate::admission::{Charge, Kind, Purse, Short};
use half::f16;
use index::BuildQueries;
use std::ops::Range;
use std::sync::Arc;

/// One decode query in this many is sampled, as a worker does at prefill.
pub const DECODE_EVERY: u64 = 4;
/// Fewest positions that a span keeps, if it has them: enough to hold some back for the calibration.
const KEPT_LEAST: usize = 128;
/// A span keeps up to one query row (position x query head) for so many tokens.
const TOKENS_PER_KEPT_ROW: u64 = 8;

/// Sampled queries of one KV head: `[m, group, key_dim]` in order of their positions.
#[derive(Debug)]
pub struct Samples {
    /// Elements of one sample: group x key_dim.
    width: usize,
    pos: Vec<u64>,
    /// Position after the last that the query asks an index for: what the worker attends to itself is left out.
    seen: Vec<u64>,
    q: Vec<f16>,
    /// Bytes of positions and queries.
    pub charge: Charge,
}

/// Bytes that `m` samples of `width` elements hold.
pub fn bytes(m: usize, width: usize) -> u64 {
    m as u64 * (16 + 2 * width as u64)
}

/// Positions that a span of `tokens` keeps.
pub fn kept(tokens: u64, group: usize) -> usize {
    let share = tokens / (TOKENS_PER_KEPT_ROW * group.max(1) as u64);
    usize::try_from(share).unwrap_or(usize::MAX).max(KEPT_LEAST)
}

impl Samples {
    /// None yet.
    pub fn new(width: usize, charge: Charge) -> Self {
        Self { width, pos: Vec::new(), seen: Vec::new(), q: Vec::new(), charge }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.pos.len()
    }

    /// Position of the last sample.
    pub fn last(&self) -> Option<u64> {
        self.pos.last().copied()
    }

    /// Position, what it sees, and queries of each, in order.
    pub fn each(&self) -> impl Iterator<Item = (u64, u64, &[f16])> {
        let numbers = self.pos.iter().zip(&self.seen);
        numbers.zip(self.q.chunks_exact(self.width)).map(|((&pos, &seen), q)| (pos, seen, q))
    }

    /// Adds samples taken every `stride` elements from `source`, starting at `offset`. Each asks an index for what lies
    /// more than `window` tokens before its end.
    pub fn extend_strided(&mut self, pos: &[u64], window: u64, source: &[f16], offset: usize, stride: usize) {
        self.pos.extend_from_slice(pos);
        self.seen.extend(pos.iter().map(|p| p.saturating_add(1).saturating_sub(window)));
        for j in 0..pos.len() {
            let at = j * stride + offset;
            self.q.extend_from_slice(&source[at..at + self.width]);
        }
    }

    /// Adds copies of the samples of another span with positions below `end`. `charge` covers them.
    pub fn extend_below(&mut self, other: &Samples, end: u64) {
        for j in (0..other.len()).filter(|&j| other.pos[j] < end) {
            self.push_of(other, j);
        }
    }

    fn push_of(&mut self, other: &Samples, j: usize) {
        self.pos.push(other.pos[j]);
        self.seen.push(other.seen[j]);
        self.q.extend_from_slice(&other.q[j * self.width..(j + 1) * self.width]);
    }

    /// Splits off the samples before `end`, those of the span that ends there and of what lies before it.
    pub fn split_before(&mut self, end: u64) -> Samples {
        let at = self.pos.partition_point(|&p| p < end);
        let (pos, seen) = (self.pos.split_off(at), self.seen.split_off(at));
        let q = self.q.split_off(at * self.width);
        let charge = self.charge.split(bytes(at, self.width));
        Samples {
            width: self.width,
            pos: std::mem::replace(&mut self.pos, pos),
            seen: std::mem::replace(&mut self.seen, seen),
            q: std::mem::replace(&mut self.q, q),
            charge,
        }
    }

    /// Copies of all, uncharged: the window's samples, a small part of what a span was sealed with.
    pub fn copied(&self) -> Later {
        Later { seen: self.seen.clone(), q: self.q.clone() }
    }

    /// Divides the samples of a span: up to `most`, evenly spread, to keep, and all, with those that came `later`, for
    /// the build. None for the build when no query asks for any of the span's tokens. The charge stays with what is
    /// kept, in full until [`Samples::settle`].
    pub fn divide(
        mut self,
        later: Later,
        span: Range<u64>,
        (group, most): (usize, usize),
    ) -> (Samples, Option<BuildQueries>) {
        let few = self.few(most);
        self.seen.extend(later.seen);
        self.q.extend(later.q);
        (few, build_queries(self.seen, self.q, span, group))
    }

    /// Copies of up to `most`, evenly spread, with the charge of all.
    fn few(&mut self, most: usize) -> Samples {
        let charge = self.charge.split(u64::MAX);
        let mut few = Samples::new(self.width, charge);
        let n = self.len().min(most);
        few.q.reserve_exact(n * self.width);
        for i in 0..n {
            few.push_of(self, (i + 1) * self.len() / n - 1);
        }
        few
    }

    /// What [`Samples::divide`] keeps, for a span whose index is there.
    pub fn thinned(mut self, most: usize) -> Samples {
        let mut few = self.few(most);
        few.settle();
        few
    }

    /// Gives back the memory of what is no longer held.
    pub fn settle(&mut self) {
        let keep = bytes(self.len(), self.width);
        drop(self.charge.split(self.charge.bytes().saturating_sub(keep)));
    }

    /// Drops the samples at or beyond `length`.
    pub fn truncate(&mut self, length: u64) {
        let keep = self.pos.partition_point(|&p| p < length);
        self.pos.truncate(keep);
        self.seen.truncate(keep);
        self.q.truncate(keep * self.width);
        self.settle();
    }
}

/// The queries of a span as they are stored: its own, and those that came later.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stored {
    /// Elements of one sample.
    pub width: usize,
    /// Positions of its own.
    pub pos: Vec<u64>,
    /// What they see.
    pub seen: Vec<u64>,
    /// `[own, width]`.
    pub q: Vec<f16>,
    /// What the later ones see.
    pub later_seen: Vec<u64>,
    /// `[later, width]`.
    pub later_q: Vec<f16>,
}

impl Stored {
    /// Copies, to be written out.
    pub fn of(own: &Samples, later: &Later) -> Self {
        Self {
            width: own.width,
            pos: own.pos.clone(),
            seen: own.seen.clone(),
            q: own.q.clone(),
            later_seen: later.seen.clone(),
            later_q: later.q.clone(),
        }
    }

    /// What was read back, paid for.
    pub fn restore(self, purse: &Arc<Purse>) -> Result<(Samples, Later), Short> {
        let charge = purse.charge(Kind::Scratch, bytes(self.pos.len(), self.width))?;
        let own = Samples { width: self.width, pos: self.pos, seen: self.seen, q: self.q, charge };
        Ok((own, Later { seen: self.later_seen, q: self.later_q }))
    }
}

/// Queries that also see a span, but whose positions lie behind it.
#[derive(Debug, Default)]
pub struct Later {
    seen: Vec<u64>,
    q: Vec<f16>,
}

/// The queries that ask for something of a span, in order of what they see of it.
fn build_queries(seen: Vec<u64>, mut q: Vec<f16>, span: Range<u64>, group: usize) -> Option<BuildQueries> {
    let width = q.len().checked_div(seen.len())?;
    let mut order: Vec<usize> = (0..seen.len()).filter(|&j| seen[j] > span.start).collect();
    let &first = order.first()?;
    if seen[first..].is_sorted() {
        q.drain(..first * width);
    } else {
        order.sort_by_key(|&j| seen[j]);
        q = order.iter().flat_map(|&j| q[j * width..(j + 1) * width].iter().copied()).collect();
    }
    let visible = order.iter().map(|&j| (seen[j].min(span.end) - span.start) as u32).collect();
    Some(BuildQueries { q, visible, group })
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
        samples.extend_strided(positions, window, &q, 0, 1);
        samples
    }

    fn built(samples: &mut Samples, begin: u64, end: u64) -> Option<(Vec<f32>, Vec<u32>)> {
        let own = samples.split_before(end);
        let (_, queries) = own.divide(samples.copied(), begin..end, (1, 9));
        queries.map(|b| (b.q.iter().map(|q| q.to_f32()).collect(), b.visible))
    }

    #[test]
    fn a_query_sees_what_lies_before_the_workers_window() {
        // Without a window up to and with its own position, with one that many tokens fewer; never beyond the span.
        assert_eq!(built(&mut samples(&[0, 3, 9], 0), 0, 8), Some((vec![0.0, 3.0, 9.0], vec![1, 4, 8])));
        assert_eq!(built(&mut samples(&[0, 3, 9], 3), 0, 8), Some((vec![3.0, 9.0], vec![1, 7])));
        // Span-local, and none when nothing of the span is seen.
        assert_eq!(built(&mut samples(&[3, 7, 9], 2), 6, 8), Some((vec![9.0], vec![2])));
        assert_eq!(built(&mut samples(&[3, 7], 2), 6, 8), None);
        assert_eq!(built(&mut samples(&[], 2), 6, 8), None);
    }

    #[test]
    fn queries_beyond_the_span_stay_for_the_next() {
        let mut samples = samples(&[1, 5, 6, 9], 2);
        assert_eq!(built(&mut samples, 0, 6), Some((vec![5.0, 6.0, 9.0], vec![4, 5, 6])));
        assert_eq!((samples.pos.clone(), samples.last()), (vec![6, 9], Some(9)));
        assert_eq!(built(&mut samples, 6, 10), Some((vec![9.0], vec![2])));
        assert_eq!(samples.pos, Vec::<u64>::new());
        assert_eq!(samples.charge.bytes(), 0);
    }

    #[test]
    fn a_span_keeps_an_even_part_with_the_last_and_the_memory_of_no_more() {
        let all: Vec<u64> = (0..100).collect();
        for (most, want) in [(4, vec![24, 49, 74, 99]), (1, vec![99]), (100, all.clone()), (500, all.clone())]
        {
            let (mut few, queries) = samples(&all, 0).divide(Later::default(), 0..100, (1, most));
            assert_eq!((&few.pos, queries.unwrap().visible.len()), (&want, 100));
            assert_eq!(few.charge.bytes(), bytes(100, 1));
            few.settle();
            assert_eq!(few.charge.bytes(), bytes(want.len(), 1));
            let thinned = samples(&all, 0).thinned(most);
            assert_eq!((&thinned.pos, &thinned.q), (&few.pos, &few.q));
            assert_eq!(thinned.charge.bytes(), few.charge.bytes());
        }
        assert_eq!((kept(1024, 3), kept(32_768, 3), kept(1 << 20, 1)), (128, 1365, 131_072));
    }

    #[test]
    fn samples_of_parts_join_in_order_of_what_they_see() {
        let mut joined = samples(&[], 0);
        // A wide window first, a narrow one after it; what a truncation dropped is left out.
        joined.extend_below(&samples(&[4, 8, 9], 6), 9);
        joined.extend_below(&samples(&[9, 11], 1), 20);
        assert_eq!((joined.pos.clone(), joined.seen.clone()), (vec![4, 8, 9, 11], vec![0, 3, 9, 11]));
        joined.extend_below(&samples(&[12], 8), 20);
        let (_, queries) = joined.divide(Later::default(), 0..10, (1, 9));
        let queries = queries.unwrap();
        assert_eq!(queries.visible, [3, 5, 9, 10]);
        assert_eq!(queries.q.iter().map(|q| q.to_f32()).collect::<Vec<_>>(), [8.0, 12.0, 9.0, 11.0]);
    }
}
