//! Clustering of one segment into groups, and of its groups into cells.
//!
//! Groups of some sixteen keys make thousands of centres a segment. Starting from a coarse clustering that is divided
//! locally, two rounds over all centres give groups as good as six rounds from nowhere (measured by the keys that must be
//! scored for recall 0.95), at a third of the work.

use std::ops::Range;

use attention::Rows;
use kernels::Kernels;

/// Keys per centre of the coarse start.
const COARSE: usize = 256;
/// Rounds of assignment and averaging of the coarse start and of its division.
const START_ROUNDS: usize = 4;
/// Rounds over all centres.
const ROUNDS: usize = 2;
/// Rounds that gather groups into cells.
const CELL_ROUNDS: usize = 6;
/// Rows per block of the assignment's matrix product.
const BLOCK: usize = 128;

/// What the assignment maximises.
#[derive(Clone, Copy, PartialEq)]
enum Metric {
    /// The product with the normalised centre: spherical k-means.
    Direction,
    /// Minus the squared distance.
    Distance,
}

/// The members of each group (span-local ids, ascending; no group is empty), `keys_per_mean` each on average.
pub(super) fn groups(
    k: &Kernels,
    keys: &Rows<'_>,
    range: Range<usize>,
    keys_per_mean: usize,
) -> Vec<Vec<u32>> {
    let (dim, start) = (keys.dim(), range.start);
    let mut rows = vec![0f32; range.len() * dim];
    for (first, run) in keys.runs(range) {
        k.f16_to_f32(run, &mut rows[(first - start) * dim..][..run.len()]);
    }
    centre(&mut rows, dim);
    let centres = start_centres(k, &rows, dim, keys_per_mean.max(1));
    let mut groups = Means::from(centres, dim, Metric::Direction).cluster(k, &rows, ROUNDS);
    groups.iter_mut().flatten().for_each(|id| *id += start as u32);
    groups
}

/// Which of the rows [n, dim] lie together, `per_cell` on average: ascending row numbers, no cell empty.
pub(super) fn cells(k: &Kernels, mut rows: Vec<f32>, dim: usize, per_cell: usize) -> Vec<Vec<u32>> {
    centre(&mut rows, dim);
    cluster(k, &rows, dim, per_cell, CELL_ROUNDS)
}

/// Centres of groups: those of a coarse clustering, each divided by the keys it holds.
fn start_centres(k: &Kernels, rows: &[f32], dim: usize, keys_per_mean: usize) -> Vec<f32> {
    let mut centres = Vec::new();
    let mut inside = Vec::new();
    for members in cluster(k, rows, dim, COARSE.max(keys_per_mean), START_ROUNDS) {
        inside.clear();
        members.iter().for_each(|&i| inside.extend_from_slice(row(rows, dim, i)));
        for group in cluster(k, &inside, dim, keys_per_mean, START_ROUNDS) {
            let mut mean = vec![0f32; dim];
            group.iter().for_each(|&i| add(&mut mean, row(&inside, dim, i)));
            centres.extend(mean.iter().map(|x| x / group.len() as f32));
        }
    }
    centres
}

/// k-means by distance from rows in even steps, one centre for `per_centre` rows.
fn cluster(k: &Kernels, rows: &[f32], dim: usize, per_centre: usize, rounds: usize) -> Vec<Vec<u32>> {
    let n = rows.len() / dim;
    let count = (n / per_centre).max(1);
    let centres = (0..count).flat_map(|i| row(rows, dim, (i * n / count) as u32)).copied().collect();
    Means::from(centres, dim, Metric::Distance).cluster(k, rows, rounds)
}

/// Centres on the way.
struct Means {
    dim: usize,
    metric: Metric,
    /// [count, dim].
    centres: Vec<f32>,
    /// What a product with each centre is reduced by.
    offsets: Vec<f32>,
}

impl Means {
    fn from(centres: Vec<f32>, dim: usize, metric: Metric) -> Means {
        let mut means = Means { dim, metric, offsets: Vec::new(), centres };
        means.settle();
        means
    }

    /// Brings the centres into the form that a product is compared in.
    fn settle(&mut self) {
        self.offsets.clear();
        for centre in self.centres.chunks_mut(self.dim) {
            let square: f32 = centre.iter().map(|x| x * x).sum();
            let offset = match self.metric {
                Metric::Distance => square / 2.0,
                Metric::Direction => {
                    let norm = square.sqrt();
                    if norm > 0.0 {
                        centre.iter_mut().for_each(|x| *x /= norm);
                    }
                    0.0
                }
            };
            self.offsets.push(offset);
        }
    }

    /// Assigns and averages; the members of the centres that have any.
    fn cluster(mut self, k: &Kernels, rows: &[f32], rounds: usize) -> Vec<Vec<u32>> {
        let count = self.offsets.len();
        let mut nearest = vec![(0u32, 0f32); rows.len() / self.dim];
        if count > 1 {
            for round in 0..rounds {
                self.assign(k, rows, &mut nearest);
                if round + 1 < rounds {
                    self.average(rows, &nearest);
                }
            }
        }
        let mut members = vec![Vec::new(); count];
        for (i, &(centre, _)) in nearest.iter().enumerate() {
            members[centre as usize].push(i as u32);
        }
        members.retain(|m| !m.is_empty());
        members
    }

    /// The best centre of each row and what makes it so (ties: the lower centre).
    fn assign(&self, k: &Kernels, rows: &[f32], nearest: &mut [(u32, f32)]) {
        let count = self.offsets.len();
        let mut scores = vec![0f32; BLOCK * count];
        for (rows, nearest) in rows.chunks(BLOCK * self.dim).zip(nearest.chunks_mut(BLOCK)) {
            let scores = &mut scores[..nearest.len() * count];
            k.gemm_nt(rows, &self.centres, self.dim, nearest.len(), count, scores);
            for (scores, nearest) in scores.chunks_mut(count).zip(nearest) {
                if self.metric == Metric::Distance {
                    scores.iter_mut().zip(&self.offsets).for_each(|(s, offset)| *s -= offset);
                }
                let best = k.max(scores);
                *nearest = (scores.iter().position(|&s| s == best).unwrap_or(0) as u32, best);
            }
        }
    }

    /// Means of the members; an empty centre restarts from one of the rows that their centre describes worst.
    fn average(&mut self, rows: &[f32], nearest: &[(u32, f32)]) {
        let dim = self.dim;
        let mut sizes = vec![0usize; self.offsets.len()];
        self.centres.fill(0.0);
        for (row, &(centre, _)) in rows.chunks(dim).zip(nearest) {
            sizes[centre as usize] += 1;
            add(&mut self.centres[centre as usize * dim..][..dim], row);
        }
        for (centre, &size) in self.centres.chunks_mut(dim).zip(&sizes) {
            centre.iter_mut().for_each(|x| *x /= size.max(1) as f32);
        }
        let empty: Vec<usize> = (0..sizes.len()).filter(|&c| sizes[c] == 0).collect();
        if !empty.is_empty() {
            for (&centre, i) in empty.iter().zip(self.worst(rows, nearest)) {
                self.centres[centre * dim..][..dim].copy_from_slice(&rows[i * dim..][..dim]);
            }
        }
        self.settle();
    }

    /// Rows by how badly their centre describes them, the worst first.
    fn worst(&self, rows: &[f32], nearest: &[(u32, f32)]) -> Vec<usize> {
        let mut order: Vec<(f32, usize)> = Vec::with_capacity(nearest.len());
        for (i, (row, &(_, best))) in rows.chunks(self.dim).zip(nearest).enumerate() {
            let square: f32 = row.iter().map(|x| x * x).sum();
            let explained = if self.metric == Metric::Distance { 2.0 * best } else { best * best };
            order.push((square - explained, i));
        }
        order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        order.into_iter().map(|(_, i)| i).collect()
    }
}

/// Takes their mean off the rows.
fn centre(rows: &mut [f32], dim: usize) {
    let n = (rows.len() / dim) as f64;
    let mut mean = vec![0f64; dim];
    for row in rows.chunks(dim) {
        mean.iter_mut().zip(row).for_each(|(m, &x)| *m += f64::from(x));
    }
    let mean: Vec<f32> = mean.iter().map(|m| (m / n) as f32).collect();
    for row in rows.chunks_mut(dim) {
        row.iter_mut().zip(&mean).for_each(|(x, m)| *x -= m);
    }
}

fn add(sum: &mut [f32], row: &[f32]) {
    sum.iter_mut().zip(row).for_each(|(s, x)| *s += x);
}

fn row(rows: &[f32], dim: usize, i: u32) -> &[f32] {
    &rows[i as usize * dim..][..dim]
}
