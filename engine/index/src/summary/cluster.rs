//! Clustering of one segment: spherical k-means over mean-centred keys.

use std::ops::Range;

use attention::Rows;
use kernels::Kernels;

/// Rounds of assignment and re-averaging; more changed neither recall nor the estimate.
const ROUNDS: usize = 6;
/// Keys per block of the assignment's matrix product.
const BLOCK: usize = 128;

/// The members of each group (span-local ids, ascending; no group is empty).
pub(super) fn segment(
    k: &Kernels,
    keys: &Rows<'_>,
    range: Range<usize>,
    keys_per_mean: usize,
) -> Vec<Vec<u32>> {
    let (n, dim) = (range.len(), keys.dim());
    let count = (n / keys_per_mean.max(1)).max(1);
    let centred = centre(k, keys, range.clone());
    let mut centres: Vec<f32> =
        (0..count).flat_map(|i| centred[i * n / count * dim..][..dim].iter().copied()).collect();
    let mut nearest = vec![(0u32, 0f32); n];
    for round in 0..ROUNDS {
        centres.chunks_mut(dim).for_each(normalise);
        assign(k, &centred, &centres, dim, &mut nearest);
        if round + 1 < ROUNDS {
            centres = average(&centred, dim, count, &nearest);
        }
    }
    let mut groups = vec![Vec::new(); count];
    for (token, &(group, _)) in range.zip(&nearest) {
        groups[group as usize].push(token as u32);
    }
    groups.retain(|g| !g.is_empty());
    groups
}

/// The keys less their mean, in f32: [n, dim].
fn centre(k: &Kernels, keys: &Rows<'_>, range: Range<usize>) -> Vec<f32> {
    let (n, dim) = (range.len(), keys.dim());
    let mut centred = vec![0f32; n * dim];
    let start = range.start;
    for (first, rows) in keys.runs(range) {
        k.f16_to_f32(rows, &mut centred[(first - start) * dim..][..rows.len()]);
    }
    let mut mean = vec![0f64; dim];
    for row in centred.chunks(dim) {
        mean.iter_mut().zip(row).for_each(|(m, &x)| *m += f64::from(x));
    }
    let mean: Vec<f32> = mean.iter().map(|m| (m / n as f64) as f32).collect();
    for row in centred.chunks_mut(dim) {
        row.iter_mut().zip(&mean).for_each(|(x, m)| *x -= m);
    }
    centred
}

fn normalise(row: &mut [f32]) {
    let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
    if norm > 0.0 {
        row.iter_mut().for_each(|x| *x /= norm);
    }
}

/// The best centre of each key and the product with it (ties: the lower centre).
fn assign(k: &Kernels, centred: &[f32], centres: &[f32], dim: usize, nearest: &mut [(u32, f32)]) {
    let count = centres.len() / dim;
    let mut scores = vec![0f32; BLOCK * count];
    for (rows, nearest) in centred.chunks(BLOCK * dim).zip(nearest.chunks_mut(BLOCK)) {
        let scores = &mut scores[..nearest.len() * count];
        k.gemm_nt(rows, centres, dim, nearest.len(), count, scores);
        for (scores, nearest) in scores.chunks(count).zip(nearest) {
            let best = k.max(scores);
            *nearest = (scores.iter().position(|&s| s == best).unwrap_or(0) as u32, best);
        }
    }
}

/// Sums of the members; an empty group restarts from one of the keys that their centre describes worst.
fn average(centred: &[f32], dim: usize, count: usize, nearest: &[(u32, f32)]) -> Vec<f32> {
    let mut sums = vec![0f32; count * dim];
    let mut sizes = vec![0usize; count];
    for (row, &(group, _)) in centred.chunks(dim).zip(nearest) {
        sizes[group as usize] += 1;
        sums[group as usize * dim..][..dim].iter_mut().zip(row).for_each(|(s, x)| *s += x);
    }
    let empty: Vec<usize> = (0..count).filter(|&g| sizes[g] == 0).collect();
    if !empty.is_empty() {
        let mut worst: Vec<(f32, usize)> = centred
            .chunks(dim)
            .zip(nearest)
            .enumerate()
            .map(|(i, (row, &(_, product)))| (row.iter().map(|x| x * x).sum::<f32>() - product * product, i))
            .collect();
        worst.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (&group, &(_, i)) in empty.iter().zip(&worst) {
            sums[group * dim..][..dim].copy_from_slice(&centred[i * dim..][..dim]);
        }
    }
    sums
}
