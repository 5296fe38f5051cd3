//! Candidates of the query heads of a KV head in one indexed span.

use std::ops::Range;
use std::time::Instant;

use attention::Rows;
use kernels::{CodeRun, Kernels};

use crate::graph::{ENTRY_GROUPS, ENTRY_MEMBERS, Stop, Walk};
use crate::span::{Finder, SpanIndex};
use crate::summary::{Codes, Frontier, Reader, Summary};

/// How many spreads above its group's mean a key may be expected. Lower leaves more unscored and needs a wider pool.
const PROMISE: f32 = 3.5;

/// What the searches of one query head work in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Finding {
    /// How far the head looked into the summary.
    pub frontier: Frontier,
    /// `ids` and `scores` hold the result.
    pub walk: Walk,
    /// Slots of the groups that a search over codes reads, ascending; their members lie in this order in `walk`.
    pub slots: Vec<u32>,
    bounds: Vec<f32>,
    /// What a search over codes read; its scores lie in `walk`.
    pub reader: Reader,
    /// Keys scored by the last search.
    pub keys_scored: usize,
    /// Bytes of edges read by the last search.
    pub edge_bytes: usize,
}

/// How far to search.
#[derive(Clone, Debug)]
pub(crate) struct Reach<'a> {
    pub width: usize,
    pub visible: &'a Range<usize>,
    pub deadline: Option<Instant>,
}

/// Scores the keys that the index proposes to each query head, one of `findings` for each: `walk.ids` with `walk.scores`
/// (raw q . k, of a coded index close to it and without the ids, see [`Finding::list`]), each key once, hidden ones perhaps
/// included. `q` is [heads, dim], `cell_scores` are its products with the means of the cells, [heads, cells].
pub(crate) fn search(
    k: &Kernels,
    (index, keys): (&SpanIndex, &Rows<'_>),
    (q, cell_scores): (&[f32], &[f32]),
    reach: &Reach<'_>,
    findings: &mut [Finding],
) {
    let summary = &index.summary;
    let heads = findings.iter_mut().zip(q.chunks(keys.dim())).zip(cell_scores.chunks(summary.cells()));
    for ((finding, q), cells) in heads {
        let wanted = (index.opened(reach.width), reach.visible);
        finding.frontier.open(k, summary, (q, cells), wanted);
        match &index.finder {
            Finder::Summary(codes) => finding.read_groups(k, (summary, codes), q, reach),
            _ => finding.walk(k, (index, keys), q, reach),
        }
    }
}

impl Finding {
    /// Scores the members of the best groups from their codes.
    fn read_groups(
        &mut self,
        k: &Kernels,
        (summary, codes): (&Summary, &Codes),
        q: &[f32],
        reach: &Reach<'_>,
    ) {
        let Finding { frontier, walk, slots, reader, .. } = self;
        frontier.best(summary, reach.width, reach.visible, slots);
        reader.runs.clear();
        reader.runs.extend(slots.iter().map(|&slot| {
            let places = summary.places_of(frontier.group(slot as usize));
            CodeRun {
                first: places.start,
                len: places.len() as u32,
                parent: frontier.scores()[slot as usize],
            }
        }));
        codes.prepare(q, reader);
        codes.read(k, reader);
        walk.ids.clear();
        walk.late = false;
        (self.keys_scored, self.edge_bytes) = (reader.scores.len(), 0);
        std::mem::swap(&mut walk.scores, &mut reader.scores);
    }

    /// Fills `walk.ids`, which a search over codes leaves empty: few of them are ever asked for.
    pub fn list(&mut self, index: &SpanIndex) {
        if index.is_coded() {
            for run in &self.reader.runs {
                self.walk.ids.extend_from_slice(index.summary.tokens_at(run.first..run.first + run.len));
            }
        }
    }

    /// The id of each score of a search over codes; to be asked for with ascending numbers.
    pub fn ids_of_codes<'a>(&'a self, summary: &'a Summary) -> impl FnMut(usize) -> u32 + 'a {
        let mut runs = self.reader.runs.iter();
        let (mut first, mut from, mut end) = (0, 0, 0);
        move |i| {
            while i >= end {
                let Some(run) = runs.next() else { break };
                (first, from) = (run.first as usize, end);
                end += run.len as usize;
            }
            summary.token_at(first + i - from)
        }
    }

    /// A search over keys.
    fn walk(&mut self, k: &Kernels, (index, keys): (&SpanIndex, &Rows<'_>), q: &[f32], reach: &Reach<'_>) {
        let summary = &index.summary;
        self.edge_bytes = 0;
        match &index.finder {
            Finder::Graph(graph) => {
                let within = index.walked(reach.visible);
                self.frontier.best(summary, ENTRY_GROUPS, &within, &mut self.slots);
                let frontier = &self.frontier;
                let groups = self.slots.iter().map(|&slot| frontier.group(slot as usize) as usize);
                let entries = groups.flat_map(|g| summary.members(g).iter().take(ENTRY_MEMBERS).copied());
                frontier.bounds(summary, q, PROMISE, &mut self.bounds);
                let promise = |id: u32| self.bounds[frontier.slot(summary, summary.group_of(id as usize))];
                let stop = Stop { width: reach.width, within, deadline: reach.deadline };
                self.walk.run(k, (graph, keys), (q, promise), entries, &stop);
                self.keys_scored = self.walk.ids.len();
                self.edge_bytes = self.walk.edges_read * 4;
            }
            Finder::Hnsw(hnsw) => {
                self.walk.clear();
                let scored = hnsw.search(k, q, reach.width, &mut self.walk.ids);
                self.score_all(k, keys, q);
                self.keys_scored = scored;
            }
            Finder::Flat | Finder::Summary(_) => {
                self.walk.clear();
                self.walk.ids.extend(0..index.tokens as u32);
                self.score_all(k, keys, q);
                self.keys_scored = self.walk.ids.len();
            }
        }
    }

    fn score_all(&mut self, k: &Kernels, keys: &Rows<'_>, q: &[f32]) {
        let walk = &mut self.walk;
        walk.scores.resize(walk.ids.len(), 0.0);
        k.dot_gather(q, keys.dim(), walk.ids.iter().map(|&id| keys.row(id as usize)), &mut walk.scores);
    }
}
