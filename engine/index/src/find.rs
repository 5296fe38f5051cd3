//! Candidates of one query head in one indexed span.

use std::time::Instant;

use attention::Rows;
use kernels::{Kernels, topk::TopK};

use crate::graph::{ENTRY_GROUPS, ENTRY_MEMBERS, Stop, Walk};
use crate::span::{Finder, SpanIndex};
use crate::summary::Summary;

/// What a search works in; `ids` and `scores` of the walk hold its result.
#[derive(Clone, Debug, Default)]
pub(crate) struct Finding {
    pub walk: Walk,
    groups: Option<TopK>,
    best: Vec<(f32, u32)>,
    /// Keys scored by the last search.
    pub keys_scored: usize,
    /// Bytes of edges read by the last search.
    pub edge_bytes: usize,
}

impl Finding {
    /// Scores the keys that the index proposes: `walk.ids` with `walk.scores` (raw q . k), each key once, hidden ones
    /// included. `group_scores` are the products of `q` with the summary's means.
    pub fn search(
        &mut self,
        k: &Kernels,
        (index, keys): (&SpanIndex, &Rows<'_>),
        (q, group_scores): (&[f32], &[f32]),
        width: usize,
        deadline: Option<Instant>,
    ) {
        self.edge_bytes = 0;
        match &index.finder {
            Finder::Flat => {
                self.walk.clear();
                self.walk.ids.extend(0..index.tokens as u32);
                self.rescore(k, keys, q);
            }
            Finder::Summary => {
                self.best_groups(group_scores, width);
                self.walk.clear();
                for &(_, group) in &self.best {
                    self.walk.ids.extend_from_slice(index.summary.members(group as usize));
                }
                self.rescore(k, keys, q);
            }
            Finder::Graph(graph) => {
                self.best_groups(group_scores, ENTRY_GROUPS);
                let entries = entries(&index.summary, &self.best);
                self.walk.run(k, (graph, keys), q, entries, Stop { width, deadline });
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

    fn rescore(&mut self, k: &Kernels, keys: &Rows<'_>, q: &[f32]) {
        let walk = &mut self.walk;
        walk.scores.resize(walk.ids.len(), 0.0);
        k.dot_gather(q, keys.dim(), walk.ids.iter().map(|&id| keys.row(id as usize)), &mut walk.scores);
        self.keys_scored = walk.ids.len();
    }

    fn best_groups(&mut self, group_scores: &[f32], count: usize) {
        let top = self.groups.get_or_insert_with(|| TopK::new(count));
        top.reset(count);
        top.push_run(group_scores, 0);
        self.best.clear();
        top.drain_sorted(&mut self.best);
    }
}

fn entries<'a>(summary: &'a Summary, groups: &'a [(f32, u32)]) -> impl Iterator<Item = u32> + 'a {
    groups.iter().flat_map(|&(_, group)| summary.members(group as usize).iter().take(ENTRY_MEMBERS).copied())
}
