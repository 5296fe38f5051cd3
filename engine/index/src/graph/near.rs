//! Edges to the nearest keys by Euclidean distance, looked for in the nearest cells: nothing is quadratic in n.

use attention::Rows;
use kernels::{Kernels, topk::TopK};
use rayon::prelude::*;

use crate::summary::Summary;

/// Cells that are searched, the key's own among them.
const PROBED: usize = 16;
/// Keys whose distances to all candidates are held at once.
const BLOCK: usize = 128;

/// The `degree` nearest keys of every key (nearly always: a near key in a far cell is missed), nearest first.
pub(super) fn edges(k: &Kernels, keys: &Rows<'_>, summary: &Summary, degree: usize) -> Vec<Vec<u32>> {
    let mut lists = vec![Vec::new(); keys.len()];
    let found: Vec<Vec<(u32, Vec<u32>)>> =
        (0..summary.cells()).into_par_iter().map(|cell| of_cell(k, keys, summary, cell, degree)).collect();
    for (id, list) in found.into_iter().flatten() {
        lists[id as usize] = list;
    }
    lists
}

fn of_cell(
    k: &Kernels,
    keys: &Rows<'_>,
    summary: &Summary,
    cell: usize,
    degree: usize,
) -> Vec<(u32, Vec<u32>)> {
    let dim = keys.dim();
    let mut candidates = Vec::new();
    for near in nearest_cells(k, summary, cell) {
        candidates.extend_from_slice(summary.cell_members(near as usize));
    }
    let others = gather(k, keys, &candidates);
    let half_norms: Vec<f32> =
        others.chunks(dim).map(|row| row.iter().map(|x| x * x).sum::<f32>() / 2.0).collect();
    let members = summary.cell_members(cell);
    let n = candidates.len();
    let mut scores = vec![0f32; BLOCK.min(members.len()) * n];
    let mut top = TopK::new(degree + 1);
    let (mut best, mut lists) = (Vec::new(), Vec::with_capacity(members.len()));
    for members in members.chunks(BLOCK) {
        let rows = gather(k, keys, members);
        let scores = &mut scores[..members.len() * n];
        k.gemm_nt(&rows, &others, dim, members.len(), n, scores);
        for (&id, scores) in members.iter().zip(scores.chunks_mut(n)) {
            // -|x - y|^2 / 2 up to |x|^2 / 2, which is the same for all y.
            scores.iter_mut().zip(&half_norms).for_each(|(s, h)| *s -= h);
            top.push_all(scores, &candidates, 0);
            best.clear();
            top.drain_sorted(&mut best);
            let mut list: Vec<u32> = best.iter().map(|b| b.1).filter(|&other| other != id).collect();
            list.truncate(degree);
            lists.push((id, list));
        }
    }
    lists
}

/// The cells whose means are nearest, the cell itself first.
fn nearest_cells(k: &Kernels, summary: &Summary, cell: usize) -> Vec<u32> {
    let mean = summary.cell_mean(cell);
    let mut top = TopK::new(PROBED - 1);
    for other in (0..summary.cells()).filter(|&other| other != cell) {
        top.push(-k.l2_sq_f16(mean, summary.cell_mean(other)), other as u32);
    }
    let mut best = Vec::new();
    top.drain_sorted(&mut best);
    std::iter::once(cell as u32).chain(best.into_iter().map(|b| b.1)).collect()
}

/// Rows in f32, one after the other.
fn gather(k: &Kernels, keys: &Rows<'_>, ids: &[u32]) -> Vec<f32> {
    let dim = keys.dim();
    let mut rows = vec![0f32; ids.len() * dim];
    for (row, &id) in rows.chunks_mut(dim).zip(ids) {
        k.f16_to_f32(keys.row(id as usize), row);
    }
    rows
}
