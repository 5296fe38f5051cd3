//! The coarse sketch of a span in two levels: groups of some sixteen keys and cells of some sixteen groups, each with the
//! means of its keys and of its values.
//!
//! One scan of the cells, and of the groups of the best cells (`frontier`), serves three ends: entry points of the walk,
//! the groups whose keys a summary scan reads, and the estimate of the remainder, for which far cells count as a whole.
//! Groups and cells never cross a segment, so a visible end cuts those of one segment only.

mod cluster;
mod codes;
mod cut;
mod estimate;
mod frontier;
mod level;
mod saved;
mod seen;

use std::ops::Range;

use attention::Rows;
use half::f16;
use kernels::Kernels;
use rayon::prelude::*;

pub(crate) use codes::{Codes, Reader};
pub(crate) use cut::Cut;
pub(crate) use estimate::{Means, Remainder, Taken};
pub(crate) use frontier::Frontier;
pub(crate) use level::Level;
pub(crate) use seen::Seen;

use level::{Described, describe};

/// Tokens that are clustered together.
pub(crate) const SEGMENT: usize = 16_384;

/// Groups per cell.
const PER_CELL: usize = 16;

/// Groups and cells larger than this many times the aim are divided, so that none dominates a scan.
const OVERSIZE: usize = 4;

/// The groups and cells of a span, in segment order; those of a cell lie together.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    pub groups: Level,
    pub cells: Level,
    dim: usize,
    value_dim: usize,
    /// Means of the keys: [cells, dim].
    cell_means: Vec<f16>,
    /// The same of the groups, as deviations from those of their cells.
    group_means: Codes,
    /// The group of each token: [tokens].
    group_of: Vec<u32>,
    /// The cell of each group: [groups].
    cell_of: Vec<u32>,
    /// Where each group's members begin in `members`: [groups + 1].
    first: Vec<u32>,
    /// Token ids by group, in each group from the nearest to the mean outwards.
    members: Vec<u32>,
    /// The first group of each cell: [cells + 1].
    first_group: Vec<u32>,
    /// The first cell of each segment: [segments + 1].
    first_cell: Vec<u32>,
}

/// Tokens that were clustered together, and their cells.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub cells: Range<usize>,
    pub tokens: Range<usize>,
}

impl Segment {
    /// What of its tokens lies within `visible`.
    pub fn seen(&self, visible: &Range<usize>) -> Range<usize> {
        self.tokens.start.max(visible.start)..self.tokens.end.min(visible.end)
    }
}

/// A cell on the way: its description and that of its groups.
type Cell = (Described, Vec<Described>);

impl Summary {
    /// Clusters the keys of every segment. Deterministic, whatever the number of threads.
    pub fn build(k: &Kernels, keys: &Rows<'_>, values: &Rows<'_>, keys_per_mean: usize) -> Summary {
        let tokens = keys.len();
        let starts: Vec<usize> = (0..tokens).step_by(SEGMENT).collect();
        let segments: Vec<Vec<Cell>> = starts
            .par_iter()
            .map(|&start| segment(k, keys, values, start..(start + SEGMENT).min(tokens), keys_per_mean))
            .collect();
        let (dim, value_dim) = (keys.dim(), values.dim());
        let mut summary = Summary {
            groups: Level::new(value_dim),
            cells: Level::new(value_dim),
            dim,
            value_dim,
            cell_means: Vec::new(),
            group_means: Codes::new(0, dim, |_, _| ()),
            group_of: vec![0; tokens],
            cell_of: Vec::new(),
            first: vec![0],
            members: Vec::with_capacity(tokens),
            first_group: vec![0],
            first_cell: vec![0],
        };
        let mut means = Vec::new();
        for cells in segments {
            for (cell, groups) in cells {
                for group in groups {
                    summary.push(&group);
                    means.extend_from_slice(&group.mean);
                }
                summary.cells.push(&cell);
                summary.cell_means.extend_from_slice(&cell.mean);
                summary.first_group.push(summary.groups() as u32);
            }
            summary.first_cell.push(summary.cells() as u32);
        }
        summary.group_means = Codes::new(summary.groups(), dim, |group, out| {
            k.f16_to_f32(&means[group * dim..][..dim], out);
            let cell = summary.cell_mean(summary.cell_of(group));
            out.iter_mut().zip(cell).for_each(|(x, m)| *x -= m.to_f32());
        });
        summary
    }

    /// The keys as codes, in group order.
    pub fn code(&self, k: &Kernels, keys: &Rows<'_>) -> Codes {
        let dim = self.dim;
        let mut means = vec![0f32; self.groups() * dim];
        means.par_chunks_mut(dim).enumerate().for_each(|(group, mean)| {
            k.f16_to_f32(self.cell_mean(self.cell_of(group)), mean);
            self.group_means.add_decoded(group, mean);
        });
        Codes::new(self.tokens(), dim, |place, out| {
            let id = self.members[place] as usize;
            k.f16_to_f32(keys.row(id), out);
            out.iter_mut().zip(&means[self.group_of(id) * dim..]).for_each(|(x, m)| *x -= m);
        })
    }

    /// Adds a group of the cell that comes next.
    fn push(&mut self, group: &Described) {
        for &token in &group.members {
            self.group_of[token as usize] = self.groups() as u32;
        }
        self.groups.push(group);
        self.cell_of.push(self.cells() as u32);
        self.members.extend_from_slice(&group.members);
        self.first.push(self.members.len() as u32);
    }

    /// The number of tokens.
    pub fn tokens(&self) -> usize {
        self.group_of.len()
    }

    /// Elements of a key.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Elements of a value.
    pub fn value_dim(&self) -> usize {
        self.value_dim
    }

    /// The number of groups.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// The number of cells.
    pub fn cells(&self) -> usize {
        self.cells.len()
    }

    /// The tokens of a group, nearest to its mean first.
    pub fn members(&self, group: usize) -> &[u32] {
        &self.members[self.places(group..group + 1)]
    }

    /// The tokens of a cell, group after group.
    pub fn cell_members(&self, cell: usize) -> &[u32] {
        &self.members[self.places(self.groups_of(cell))]
    }

    /// Where the members of groups that follow each other lie in group order.
    fn places(&self, groups: Range<usize>) -> Range<usize> {
        self.first[groups.start] as usize..self.first[groups.end] as usize
    }

    /// Where the members of a group lie in group order.
    pub fn places_of(&self, group: u32) -> Range<u32> {
        self.first[group as usize]..self.first[group as usize + 1]
    }

    /// The token at a place in group order.
    pub fn token_at(&self, place: usize) -> u32 {
        self.members[place]
    }

    /// The tokens at places in group order.
    pub fn tokens_at(&self, places: Range<u32>) -> &[u32] {
        &self.members[places.start as usize..places.end as usize]
    }

    /// The number of members of a group.
    pub fn size(&self, group: usize) -> u32 {
        self.first[group + 1] - self.first[group]
    }

    /// The number of keys of a cell.
    pub fn cell_size(&self, cell: usize) -> u32 {
        self.places(self.groups_of(cell)).len() as u32
    }

    /// The groups of a cell.
    pub fn groups_of(&self, cell: usize) -> Range<usize> {
        self.first_group[cell] as usize..self.first_group[cell + 1] as usize
    }

    /// The cell of a group.
    pub fn cell_of(&self, group: usize) -> usize {
        self.cell_of[group] as usize
    }

    /// The segments in order.
    pub fn segments(&self) -> impl Iterator<Item = Segment> {
        let tokens = self.tokens();
        self.first_cell.windows(2).enumerate().map(move |(s, cells)| Segment {
            cells: cells[0] as usize..cells[1] as usize,
            tokens: s * SEGMENT..((s + 1) * SEGMENT).min(tokens),
        })
    }

    /// The group of a token.
    pub fn group_of(&self, token: usize) -> usize {
        self.group_of[token] as usize
    }

    /// The mean of the keys of a cell.
    pub fn cell_mean(&self, cell: usize) -> &[f16] {
        &self.cell_means[cell * self.dim..(cell + 1) * self.dim]
    }

    /// q . mean of every cell for g query rows: `out` is [g, cells].
    pub fn cell_scores(&self, k: &Kernels, q: &[f32], out: &mut [f32]) {
        k.dot_rows(q, self.dim, &self.cell_means, out);
    }

    /// The means of the keys of all groups, children of their cells.
    pub fn group_means(&self) -> &Codes {
        &self.group_means
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let lists =
            [&self.group_of, &self.cell_of, &self.first, &self.members, &self.first_group, &self.first_cell];
        self.groups.bytes()
            + self.cells.bytes()
            + 2 * self.cell_means.len()
            + self.group_means.bytes()
            + 4 * lists.iter().map(|l| l.len()).sum::<usize>()
    }
}

/// The cells of one segment.
fn segment(
    k: &Kernels,
    keys: &Rows<'_>,
    values: &Rows<'_>,
    tokens: Range<usize>,
    keys_per_mean: usize,
) -> Vec<Cell> {
    let dim = keys.dim();
    let groups = cluster::groups(k, keys, tokens, keys_per_mean);
    let mut groups: Vec<Option<Described>> = divided(&groups, OVERSIZE * keys_per_mean.max(1))
        .map(|members| Some(describe(k, keys, values, members)))
        .collect();
    let mut means = vec![0f32; groups.len() * dim];
    for (row, group) in means.chunks_mut(dim).zip(groups.iter().flatten()) {
        k.f16_to_f32(&group.mean, row);
    }
    let cells = cluster::cells(k, means, dim, PER_CELL);
    divided(&cells, OVERSIZE * PER_CELL)
        .map(|cell| {
            let inside: Vec<Described> = cell.iter().filter_map(|&g| groups[g as usize].take()).collect();
            let members: Vec<u32> = inside.iter().flat_map(|g| g.members.iter().copied()).collect();
            (describe(k, keys, values, &members), inside)
        })
        .collect()
}

/// Sets of at most `most` members, each of nearly equal size with those it was divided from.
fn divided(sets: &[Vec<u32>], most: usize) -> impl Iterator<Item = &[u32]> {
    sets.iter().flat_map(move |set| set.chunks(set.len().div_ceil(set.len().div_ceil(most)).max(1)))
}

fn add(sum: &mut [f64], row: &[f16]) {
    for (s, x) in sum.iter_mut().zip(row) {
        *s += f64::from(x.to_f32());
    }
}
