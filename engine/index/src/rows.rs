//! The exact nearest keys of the build queries, by inner product, each within its visible end.

use std::ops::Range;

use attention::Rows;
use kernels::{Kernels, topk::TopK};
use rayon::prelude::*;

use crate::params::BuildQueries;

/// Query rows per task; their products with a block of keys stay in the second-level cache.
const QUERY_BLOCK: usize = 96;
/// Keys per matrix product.
const KEY_BLOCK: usize = 512;

/// One row per (position, query head), best key first.
#[derive(Clone, Debug)]
pub(crate) struct QueryRows {
    ids: Vec<u32>,
    first: Vec<usize>,
}

impl QueryRows {
    /// No row at all.
    pub fn empty() -> QueryRows {
        QueryRows { ids: Vec::new(), first: vec![0] }
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.first.len() - 1
    }

    /// The rows, each with its best key first; shorter than asked for where fewer keys were visible.
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> {
        self.first.windows(2).map(|w| &self.ids[w[0]..w[1]])
    }

    /// The `length` nearest visible keys of every query head at the given positions, in their order. Blocked products, O(positions x
    /// visible keys), no n x n buffer.
    pub fn exact(
        k: &Kernels,
        keys: &Rows<'_>,
        queries: &BuildQueries,
        positions: Range<usize>,
        length: usize,
    ) -> QueryRows {
        let (dim, group) = (keys.dim(), queries.group);
        let per_block = (QUERY_BLOCK / group).max(1);
        let starts: Vec<usize> = positions.clone().step_by(per_block).collect();
        let blocks: Vec<Vec<Vec<u32>>> = starts
            .into_par_iter()
            .map(|start| start..(start + per_block).min(positions.end))
            .map(|block| {
                let mut q = vec![0f32; block.len() * group * dim];
                k.f16_to_f32(&queries.q[block.start * group * dim..block.end * group * dim], &mut q);
                nearest(k, keys, &q, &queries.visible[block], group, length)
            })
            .collect();
        let mut rows = QueryRows::empty();
        for row in blocks.into_iter().flatten() {
            rows.ids.extend_from_slice(&row);
            rows.first.push(rows.ids.len());
        }
        rows
    }
}

/// Rows of a block of queries: `q` is [visible.len(), group, dim].
fn nearest(
    k: &Kernels,
    keys: &Rows<'_>,
    q: &[f32],
    visible: &[u32],
    group: usize,
    length: usize,
) -> Vec<Vec<u32>> {
    let (dim, m) = (keys.dim(), visible.len() * group);
    let end = visible.iter().copied().max().unwrap_or(0) as usize;
    let mut tops = vec![TopK::new(length); m];
    let mut block = vec![0f32; KEY_BLOCK * dim];
    let mut scores = vec![0f32; m * KEY_BLOCK];
    for (first, run) in keys.runs(0..end) {
        for (b, rows) in run.chunks(KEY_BLOCK * dim).enumerate() {
            let (from, n) = (first + b * KEY_BLOCK, rows.len() / dim);
            k.f16_to_f32(rows, &mut block[..n * dim]);
            k.gemm_nt(q, &block[..n * dim], dim, m, n, &mut scores[..m * n]);
            for (i, top) in tops.iter_mut().enumerate() {
                let seen = (visible[i / group] as usize).saturating_sub(from).min(n);
                top.push_run(&scores[i * n..i * n + seen], from as u32);
            }
        }
    }
    let mut sorted = Vec::new();
    tops.iter_mut()
        .map(|top| {
            sorted.clear();
            top.drain_sorted(&mut sorted);
            sorted.iter().map(|s| s.1).collect()
        })
        .collect()
}
