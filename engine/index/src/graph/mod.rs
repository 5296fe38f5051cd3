//! The attention-aware graph: edges between keys that the same queries want.
//!
//! - `project`: exact rows of the build queries become edges (pivot = nearest key, all rows of a pivot merged before
//!   pruning, reverse edges);
//! - `near`: edges to the nearest keys by distance, for connectivity;
//! - `prune`: occlusion pruning;
//! - `reach`: every key can be reached from the entries;
//! - `walk`: the search.
//!
//! Entries are the members nearest to the means of the best groups of the summary.

mod near;
mod project;
mod prune;
mod reach;
mod walk;

use attention::Rows;
use kernels::Kernels;

pub(crate) use walk::{Stop, Walk};

use crate::params::BuildParams;
use crate::rows::QueryRows;
use crate::saved::{Reader, SavedError, Writer, check_offsets};
use crate::summary::Summary;

/// Groups whose members the walk starts from.
pub(crate) const ENTRY_GROUPS: usize = 16;
/// Members of each of them.
pub(crate) const ENTRY_MEMBERS: usize = 4;

/// Out-edges of every key, in one array.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    first: Vec<u32>,
    edges: Vec<u32>,
}

impl Graph {
    /// Builds from the rows of the build queries and the groups of the summary.
    pub fn build(
        k: &Kernels,
        keys: &Rows<'_>,
        summary: &Summary,
        rows: &QueryRows,
        p: &BuildParams,
    ) -> Graph {
        let projected = project::edges(k, keys, rows, p.projected_degree);
        let near = near::edges(k, keys, summary, p.near_degree);
        let mut lists: Vec<Vec<u32>> = projected;
        for (list, near) in lists.iter_mut().zip(near) {
            for id in near {
                if !list.contains(&id) {
                    list.push(id);
                }
            }
        }
        reach::link_orphans(&mut lists, summary);
        let mut graph = Graph { first: Vec::with_capacity(lists.len() + 1), edges: Vec::new() };
        graph.first.push(0);
        for list in &lists {
            graph.edges.extend_from_slice(list);
            graph.first.push(graph.edges.len() as u32);
        }
        graph
    }

    /// Where the edges of `node` lead.
    #[inline]
    pub fn edges(&self, node: u32) -> &[u32] {
        let node = node as usize;
        &self.edges[self.first[node] as usize..self.first[node + 1] as usize]
    }

    /// Writes it.
    pub fn save(&self, w: &mut Writer) {
        w.array(&self.first);
        w.array(&self.edges);
    }

    /// Reads what [`Graph::save`] wrote of `nodes` nodes.
    pub fn load(r: &mut Reader<'_>, nodes: usize) -> Result<Graph, SavedError> {
        let (first, edges): (Vec<u32>, Vec<u32>) = (r.array("offsets of edges", nodes + 1)?, r.list()?);
        check_offsets("its edges", &first, edges.len())?;
        if edges.iter().any(|&to| to as usize >= nodes) {
            return Err(SavedError::Damaged("an edge"));
        }
        Ok(Graph { first, edges })
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.first.len() - 1
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        4 * (self.first.len() + self.edges.len())
    }
}
