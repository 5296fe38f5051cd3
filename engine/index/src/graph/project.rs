//! Projection: rows of query-to-key neighbours become edges between keys.

use attention::Rows;
use kernels::Kernels;
use rayon::prelude::*;

use super::prune::occlusion;
use crate::rows::QueryRows;

/// At most `degree` edges per key. The pivot of a row is its nearest key; all rows of a pivot are merged before they
/// are pruned, then reverse edges are added and pruned to the same degree. The order within the result is arbitrary but
/// deterministic.
pub(super) fn edges(k: &Kernels, keys: &Rows<'_>, rows: &QueryRows, degree: usize) -> Vec<Vec<u32>> {
    let mut lists: Vec<Vec<u32>> = vec![Vec::new(); keys.len()];
    for row in rows.iter() {
        if let Some((&pivot, others)) = row.split_first() {
            lists[pivot as usize].extend_from_slice(others);
        }
    }
    let forward: Vec<Vec<u32>> = lists
        .into_par_iter()
        .enumerate()
        .map(
            |(node, mut list)| {
                if list.is_empty() { list } else { occlusion(k, keys, node as u32, &mut list, degree) }
            },
        )
        .collect();
    let mut both = forward.clone();
    for (node, list) in forward.iter().enumerate() {
        for &to in list {
            both[to as usize].push(node as u32);
        }
    }
    both.into_par_iter()
        .enumerate()
        .map(|(node, mut list)| {
            if list.len() > degree {
                return occlusion(k, keys, node as u32, &mut list, degree);
            }
            list.sort_unstable();
            list.dedup();
            list
        })
        .collect()
}
