//! Occlusion pruning.

use attention::Rows;
use kernels::Kernels;

/// At most `degree` of `candidates` as the edges of `node`: from the nearest outwards, a candidate stays when it is
/// nearer to `node` than to every one that stayed before it; free places go to the nearest of the others. Ties: the
/// lower id. `candidates` may repeat and may hold `node`.
pub(super) fn occlusion(
    k: &Kernels,
    keys: &Rows<'_>,
    node: u32,
    candidates: &mut Vec<u32>,
    degree: usize,
) -> Vec<u32> {
    candidates.sort_unstable();
    candidates.dedup();
    let row = keys.row(node as usize);
    let mut order: Vec<(f32, u32)> = candidates
        .iter()
        .filter(|&&id| id != node)
        .map(|&id| (k.l2_sq_f16(row, keys.row(id as usize)), id))
        .collect();
    order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut kept: Vec<u32> = Vec::with_capacity(degree);
    let mut occluded = Vec::new();
    for (distance, id) in order {
        if kept.len() == degree {
            break;
        }
        let row = keys.row(id as usize);
        if kept.iter().all(|&other| k.l2_sq_f16(keys.row(other as usize), row) > distance) {
            kept.push(id);
        } else if occluded.len() < degree {
            occluded.push(id);
        }
    }
    occluded.truncate(degree - kept.len());
    kept.extend(occluded);
    kept
}
