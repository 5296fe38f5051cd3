//! Calibration: the narrowest search that meets the target on build queries that were held back.
//!
//! Decode queries come after all build queries, so late ones are held back: nothing of them is in the graph, and they are
//! the nearest to what will be asked. A small margin covers the drift from them to the decode.

use std::ops::Range;

use attention::Rows;
use kernels::Kernels;
use rayon::prelude::*;

use crate::find::{self, Finding, Reach};
use crate::params::BuildQueries;
use crate::rows::QueryRows;
use crate::scratch::Flat;
use crate::span::{Finder, SpanIndex};

/// Added to the target on held-back queries for ways of searching that learned from the queries before them.
const MARGIN: f32 = 0.018;
/// The same for a scan of groups, which knows keys only.
const MARGIN_OF_KEYS: f32 = 0.006;
/// Fewest and most positions held back.
const HELD_BACK: (usize, usize) = (32, 128);
/// Share of the positions that is held back, within those limits.
const SHARE: usize = 32;

/// Query positions by what they are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// For the graph.
    pub used: Range<usize>,
    /// For the calibration.
    pub held_back: Range<usize>,
}

/// Holds back the last positions; none when there are too few queries to spare any. Earlier passages were tried in
/// addition: they are easier, since more of the queries around them are in the graph, and mislead.
pub(crate) fn split(queries: &BuildQueries) -> Split {
    let m = queries.visible.len();
    let held = if m < 4 * HELD_BACK.0 { 0 } else { (m / SHARE).clamp(HELD_BACK.0, HELD_BACK.1) };
    Split { used: 0..m - held, held_back: m - held..m }
}

/// What a width gives on the held-back queries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Trial {
    pub width: usize,
    pub recall: f32,
    /// Keys scored per query.
    pub scored: f64,
}

/// Held-back queries with their true best keys.
pub(crate) struct Trials<'a> {
    k: &'a Kernels,
    keys: &'a Rows<'a>,
    queries: Vec<(Vec<f32>, usize)>,
    truth: Vec<&'a [u32]>,
    wanted: usize,
}

impl<'a> Trials<'a> {
    /// `truth` holds the rows of `positions`, each `wanted` long where so many keys were visible.
    pub fn new(
        k: &'a Kernels,
        keys: &'a Rows<'a>,
        queries: &BuildQueries,
        positions: Range<usize>,
        (truth, wanted): (&'a QueryRows, usize),
    ) -> Trials<'a> {
        let (dim, group) = (keys.dim(), queries.group);
        let row = |j: usize, h: usize| queries.q[(j * group + h) * dim..][..dim].iter().map(|x| x.to_f32());
        let queries = positions
            .flat_map(|j| (0..group).map(move |h| (j, h)))
            .map(|(j, h)| (row(j, h).collect(), queries.visible[j] as usize))
            .collect();
        Trials { k, keys, queries, truth: truth.iter().collect(), wanted }
    }

    /// The kernels to search with.
    pub fn kernels(&self) -> &Kernels {
        self.k
    }

    /// The keys that are searched.
    pub fn keys(&self) -> &Rows<'_> {
        self.keys
    }

    /// The queries, each with the number of keys that it sees.
    pub fn queries(&self) -> &[(Vec<f32>, usize)] {
        &self.queries
    }

    /// How far to search at a width.
    pub fn reach<'r>(&self, index: &SpanIndex, width: usize, visible: &'r Range<usize>) -> Reach<'r> {
        Reach { width: index.width_for(self.wanted, visible, Some(width)), visible, deadline: None }
    }

    /// Searches all held-back queries at a width.
    pub fn run(&self, index: &SpanIndex, width: usize) -> Trial {
        let each: Vec<(usize, usize, usize)> = self
            .queries
            .par_iter()
            .zip(&self.truth)
            .map_init(Memory::default, |memory, ((q, visible), truth)| {
                let range = 0..*visible;
                memory.search(self.k, (index, self.keys), q, &self.reach(index, width, &range));
                (memory.found(index.tokens, truth), truth.len(), memory.finding.keys_scored)
            })
            .collect();
        let found: usize = each.iter().map(|e| e.0).sum();
        let wanted: usize = each.iter().map(|e| e.1).sum();
        let scored: usize = each.iter().map(|e| e.2).sum();
        Trial {
            width,
            recall: if wanted == 0 { 1.0 } else { found as f32 / wanted as f32 },
            scored: scored as f64 / each.len().max(1) as f64,
        }
    }

    /// The narrowest width that meets the target, to within 3 %; the widest sensible one when none does.
    pub fn narrowest(&self, index: &SpanIndex, target: f32) -> Trial {
        let margin = if index.is_coded() { MARGIN_OF_KEYS } else { MARGIN };
        let target = (target + margin).min(1.0);
        let widest = match index.finder {
            Finder::Flat => return self.run(index, 1),
            Finder::Summary(_) => index.summary.groups(),
            Finder::Graph(_) | Finder::Hnsw(_) => (index.tokens / 4).max(8),
        };
        let mut good = self.run(index, 64.min(widest));
        let mut bad = 0;
        while good.recall < target && good.width < widest {
            bad = good.width;
            good = self.run(index, (good.width * 2).min(widest));
        }
        while good.recall >= target && good.width - bad > (good.width / 32).max(1) {
            let trial = self.run(index, (good.width + bad) / 2);
            if trial.recall >= target {
                good = trial;
            } else {
                bad = trial.width;
            }
        }
        good
    }
}

/// Memory of one thread.
#[derive(Default)]
pub(crate) struct Memory {
    pub finding: Finding,
    pub flat: Flat,
    cell_scores: Vec<f32>,
    wanted: Vec<u64>,
}

impl Memory {
    /// Searches for one query.
    pub fn search(
        &mut self,
        k: &Kernels,
        (index, keys): (&SpanIndex, &Rows<'_>),
        q: &[f32],
        reach: &Reach<'_>,
    ) {
        self.cell_scores.resize(index.summary.cells(), 0.0);
        index.summary.cell_scores(k, q, &mut self.cell_scores);
        let query = (q, &self.cell_scores[..]);
        let finding = std::slice::from_mut(&mut self.finding);
        find::search(k, (index, keys), query, reach, finding);
        self.finding.list(index);
    }

    /// How many of `truth` the last search scored.
    fn found(&mut self, tokens: usize, truth: &[u32]) -> usize {
        self.wanted.resize(tokens.div_ceil(64), 0);
        for &id in truth {
            self.wanted[id as usize / 64] |= 1 << (id % 64);
        }
        let is_wanted = |&&id: &&u32| self.wanted[id as usize / 64] >> (id % 64) & 1 == 1;
        let found = self.finding.walk.ids.iter().filter(is_wanted).count();
        for &id in truth {
            self.wanted[id as usize / 64] = 0;
        }
        found
    }
}
