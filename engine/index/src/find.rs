//! Candidates of one query head in one indexed span.

use std::ops::Range;
use std::time::Instant;

use attention::Rows;
use kernels::{Kernels, topk::TopK};

use crate::graph::{ENTRY_GROUPS, ENTRY_MEMBERS, Stop, Walk};
use crate::span::{Finder, SpanIndex};
use crate::summary::{CodedQuery, Summary};

/// How many spreads above its group's mean a key may be expected. Lower leaves more unscored and needs a wider pool.
const PROMISE: f32 = 3.5;

/// What a search works in; `ids` and `scores` of the walk hold its result.
#[derive(Clone, Debug, Default)]
pub(crate) struct Finding {
    pub walk: Walk,
    groups: Option<TopK>,
    best: Vec<(f32, u32)>,
    /// The numbers of the same groups.
    chosen: Vec<u32>,
    bounds: Vec<f32>,
    coded: CodedQuery,
    /// Keys scored by the last search.
    pub keys_scored: usize,
    /// Bytes of edges read by the last search.
    pub edge_bytes: usize,
}

impl Finding {
    /// Scores the keys that the index proposes: `walk.ids` with `walk.scores` (raw q . k, of a coded index close to it),
    /// each key once, hidden ones perhaps included. `group_scores` are the products of `q` with the summary's means.
    pub fn search(
        &mut self,
        k: &Kernels,
        (index, keys): (&SpanIndex, &Rows<'_>),
        (q, group_scores): (&[f32], &[f32]),
        (width, visible): (usize, &Range<usize>),
        deadline: Option<Instant>,
    ) {
        self.edge_bytes = 0;
        match &index.finder {
            Finder::Flat => {
                self.walk.clear();
                self.walk.ids.extend(0..index.tokens as u32);
                self.rescore(k, keys, q);
            }
            Finder::Summary(codes) => {
                self.best_groups(&index.summary, group_scores, width, visible);
                self.chosen.clear();
                self.chosen.extend(self.best.iter().map(|b| b.1));
                // In the order of memory.
                self.chosen.sort_unstable();
                codes.prepare(q, &mut self.coded);
                self.walk.clear();
                let found = (&mut self.walk.ids, &mut self.walk.scores);
                codes.scan(k, &index.summary, (&mut self.coded, group_scores), &self.chosen, found);
                self.keys_scored = self.walk.ids.len();
            }
            Finder::Graph(graph) => {
                let within = index.walked(visible);
                self.best_groups(&index.summary, group_scores, ENTRY_GROUPS, &within);
                let entries = entries(&index.summary, &self.best);
                index.summary.bounds(q, group_scores, PROMISE, &mut self.bounds);
                let promise = |id: u32| self.bounds[index.summary.group_of(id as usize)];
                self.walk.run(k, (graph, keys), (q, promise), entries, &Stop { width, within, deadline });
                self.keys_scored = self.walk.ids.len();
                self.edge_bytes = self.walk.edges_read * 4;
            }
            Finder::Hnsw(hnsw) => {
                self.walk.clear();
                let scored = hnsw.search(k, q, width, &mut self.walk.ids);
                self.rescore(k, keys, q);
                self.keys_scored = scored;
            }
        }
    }

    /// The groups that a search over codes read; their members lie in this order in `walk`.
    pub fn groups(&self) -> &[u32] {
        &self.chosen
    }

    fn rescore(&mut self, k: &Kernels, keys: &Rows<'_>, q: &[f32]) {
        let walk = &mut self.walk;
        walk.scores.resize(walk.ids.len(), 0.0);
        k.dot_gather(q, keys.dim(), walk.ids.iter().map(|&id| keys.row(id as usize)), &mut walk.scores);
        self.keys_scored = walk.ids.len();
    }

    /// The best groups with an entry within `visible`, in no particular order.
    fn best_groups(&mut self, summary: &Summary, scores: &[f32], count: usize, visible: &Range<usize>) {
        let top = self.groups.get_or_insert_with(|| TopK::new(count));
        top.reset(count);
        for (groups, tokens) in summary.segments() {
            if visible.start <= tokens.start && tokens.end <= visible.end {
                top.push_run(&scores[groups.clone()], groups.start as u32);
                continue;
            }
            for group in groups {
                let mut entries = summary.members(group).iter().take(ENTRY_MEMBERS);
                if entries.any(|&id| visible.contains(&(id as usize))) {
                    top.push(scores[group], group as u32);
                }
            }
        }
        self.best.clear();
        top.drain(&mut self.best);
    }
}

fn entries<'a>(summary: &'a Summary, groups: &'a [(f32, u32)]) -> impl Iterator<Item = u32> + 'a {
    groups.iter().flat_map(|&(_, group)| summary.members(group as usize).iter().take(ENTRY_MEMBERS).copied())
}
