//! Candidates of the query heads of a KV head in one indexed span.

use std::ops::Range;
use std::time::Instant;

use attention::Rows;
use kernels::Kernels;

use crate::graph::{ENTRY_GROUPS, ENTRY_MEMBERS, Stop, Walk};
use crate::span::{Finder, SpanIndex};
use crate::summary::{Codes, Family, Frontier, Plan, Reader, Summary};

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
    /// Keys scored by the last search.
    pub keys_scored: usize,
    /// Bytes of edges read by the last search.
    pub edge_bytes: usize,
}

/// What searches over codes share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    readers: Vec<Reader>,
    pub plan: Plan,
}

/// How far to search.
#[derive(Clone, Debug)]
pub(crate) struct Reach<'a> {
    pub width: usize,
    pub visible: &'a Range<usize>,
    pub deadline: Option<Instant>,
}

/// Scores the keys that the index proposes to each query head, one of `findings` for each: `walk.ids` with `walk.scores`
/// (raw q . k, of a coded index close to it), each key once, hidden ones perhaps included. `q` is [heads, dim],
/// `cell_scores` are its products with the means of the cells, [heads, cells].
pub(crate) fn search(
    k: &Kernels,
    (index, keys): (&SpanIndex, &Rows<'_>),
    (q, cell_scores): (&[f32], &[f32]),
    reach: &Reach<'_>,
    findings: &mut [Finding],
    reading: &mut Reading,
) {
    let summary = &index.summary;
    let heads = findings.iter_mut().zip(q.chunks(keys.dim())).zip(cell_scores.chunks(summary.cells()));
    for ((finding, q), cells) in heads {
        let wanted = (index.opened(reach.width), reach.visible);
        finding.frontier.open(k, summary, (q, cells), wanted, &mut reading.plan);
    }
    match &index.finder {
        Finder::Summary(codes) => read_groups(k, (summary, codes), (q, keys.dim()), reach, findings, reading),
        _ => findings.iter_mut().zip(q.chunks(keys.dim())).for_each(|(finding, q)| {
            finding.walk(k, (index, keys), q, reach);
        }),
    }
}

/// Scores the members of the best groups of every head from their codes, reading together what several heads want.
fn read_groups(
    k: &Kernels,
    (summary, codes): (&Summary, &Codes),
    (q, dim): (&[f32], usize),
    reach: &Reach<'_>,
    findings: &mut [Finding],
    reading: &mut Reading,
) {
    reading.readers.resize_with(reading.readers.len().max(findings.len()), Reader::default);
    let readers = &mut reading.readers[..findings.len()];
    for ((finding, reader), q) in findings.iter_mut().zip(readers.iter_mut()).zip(q.chunks(dim)) {
        let frontier = &mut finding.frontier;
        frontier.best(summary, reach.width, reach.visible, &mut finding.slots);
        codes.prepare(q, reader);
        reader.families.clear();
        reader.families.extend(finding.slots.iter().map(|&slot| {
            let slot = slot as usize;
            Family { children: summary.places_of(frontier.group(slot)), parent: frontier.scores()[slot] }
        }));
    }
    codes.read(k, readers, &mut reading.plan);
    for (finding, reader) in findings.iter_mut().zip(readers) {
        finding.walk.clear();
        std::mem::swap(&mut finding.walk.scores, &mut reader.scores);
        for family in &reader.families {
            finding.walk.ids.extend_from_slice(summary.tokens_at(family.children.clone()));
        }
        (finding.keys_scored, finding.edge_bytes) = (finding.walk.ids.len(), 0);
    }
}

impl Finding {
    /// A search over keys, one head at a time.
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
