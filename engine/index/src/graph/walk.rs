//! The search: best-first from the entries with a pool of bounded width.
//!
//! The pool bounds only what is expanded. Every key that is scored on the way is offered to the caller, so a pool
//! narrower than the number of wanted tokens is enough. Nothing is allocated per query once the memory has grown.

use std::ops::Range;
use std::time::Instant;

use attention::Rows;
use kernels::Kernels;

use super::Graph;

/// Expansions between two looks at the clock.
const CLOCK_EVERY: usize = 64;

/// Marks an expanded entry of the pool; ids are 31 bits.
const EXPANDED: u32 = 1 << 31;

/// Where a walk may go and when it ends.
#[derive(Clone, Debug)]
pub(crate) struct Stop {
    /// Entries of the pool.
    pub width: usize,
    /// Keys that may be scored; others are not even passed through.
    pub within: Range<usize>,
    /// The moment to stop at, whatever was found.
    pub deadline: Option<Instant>,
}

/// What a walk works in, and what it found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walk {
    /// A bit per key: scored in this walk. All zero between walks.
    seen: Vec<u64>,
    /// Best first; the highest bit of an id says that it was expanded.
    pool: Vec<(f32, u32)>,
    /// Every scored key, in the order of scoring.
    pub ids: Vec<u32>,
    /// Its q . k.
    pub scores: Vec<f32>,
    /// Whether the deadline ended it.
    pub late: bool,
    /// Edges looked at.
    pub edges_read: usize,
}

impl Walk {
    /// Walks from `entries` with the query `q`. A key is not even scored while its promise, a score it hardly exceeds, is
    /// below everything in a full pool. Afterwards `ids` and `scores` hold every key that was scored, once.
    pub fn run(
        &mut self,
        k: &Kernels,
        (graph, keys): (&Graph, &Rows<'_>),
        (q, promise): (&[f32], impl Fn(u32) -> f32),
        entries: impl Iterator<Item = u32>,
        stop: &Stop,
    ) {
        self.clear();
        let words = graph.len().div_ceil(64);
        if self.seen.len() < words {
            self.seen.resize(words, 0);
        }
        self.score_new(k, keys, q, entries, |id| stop.within.contains(&(id as usize)));
        self.admit(0, stop.width);
        let (mut next, mut expanded) = (0, 0);
        while let Some(&(_, id)) = self.pool.get(next) {
            if id & EXPANDED != 0 {
                next += 1;
                continue;
            }
            expanded += 1;
            if expanded % CLOCK_EVERY == 0 && stop.deadline.is_some_and(|at| Instant::now() >= at) {
                self.late = true;
                break;
            }
            self.pool[next].1 |= EXPANDED;
            let from = self.ids.len();
            let edges = graph.edges(id);
            self.edges_read += edges.len();
            let worst = if self.pool.len() < stop.width { f32::NEG_INFINITY } else { self.worst() };
            self.score_new(k, keys, q, edges.iter().copied(), |id| {
                stop.within.contains(&(id as usize)) && promise(id) >= worst
            });
            next = self.admit(from, stop.width).min(next + 1);
            // The lists that are most likely read next, while the pool is looked at.
            for &(_, id) in self.pool.iter().skip(next).filter(|p| p.1 & EXPANDED == 0).take(2) {
                k.prefetch(graph.edges(id));
            }
        }
        for &id in &self.ids {
            self.seen[id as usize / 64] = 0;
        }
    }

    /// Gives what was found outside `visible` the score of nothing.
    pub fn hide(&mut self, visible: &Range<usize>) {
        for (score, &id) in self.scores.iter_mut().zip(&self.ids) {
            if !visible.contains(&(id as usize)) {
                *score = f32::NEG_INFINITY;
            }
        }
    }

    /// Forgets what was found.
    pub fn clear(&mut self) {
        self.pool.clear();
        self.ids.clear();
        self.scores.clear();
        self.late = false;
        self.edges_read = 0;
    }

    /// Scores those of `candidates` that are admitted and were not scored before.
    fn score_new(
        &mut self,
        k: &Kernels,
        keys: &Rows<'_>,
        q: &[f32],
        candidates: impl Iterator<Item = u32>,
        admitted: impl Fn(u32) -> bool,
    ) {
        let from = self.ids.len();
        for id in candidates {
            let (word, bit) = (id as usize / 64, 1u64 << (id % 64));
            if self.seen[word] & bit == 0 && admitted(id) {
                self.seen[word] |= bit;
                self.ids.push(id);
            }
        }
        self.scores.resize(self.ids.len(), 0.0);
        let rows = self.ids[from..].iter().map(|&id| keys.row(id as usize));
        k.dot_gather(q, keys.dim(), rows, &mut self.scores[from..]);
    }

    fn worst(&self) -> f32 {
        self.pool.last().map_or(f32::NEG_INFINITY, |p| p.0)
    }

    /// Brings the scores from `from` on into the pool; returns the first place that changed.
    fn admit(&mut self, from: usize, width: usize) -> usize {
        let mut lowest = usize::MAX;
        for (&score, &id) in self.scores[from..].iter().zip(&self.ids[from..]) {
            if self.pool.len() == width {
                match self.pool.last() {
                    Some(&(worst, _)) if worst < score => self.pool.pop(),
                    _ => continue,
                };
            }
            let at = self.pool.partition_point(|&(s, _)| s >= score);
            self.pool.insert(at, (score, id));
            lowest = lowest.min(at);
        }
        lowest
    }
}
