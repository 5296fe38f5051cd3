//! The coarse sketch of a span: group means of keys and of values, with counts.
//!
//! One scan of the means serves three ends: entry points of the walk, the groups that a summary scan reads, and the
//! estimate of the remainder. Groups never cross a segment, so a visible end cuts the groups of one segment only.

mod cluster;
mod codes;
mod cut;
mod estimate;
mod seen;

use std::ops::Range;

use attention::Rows;
use half::f16;
use kernels::Kernels;
use rayon::prelude::*;

pub(crate) use codes::{CodedQuery, Codes};
pub(crate) use cut::Cut;
pub(crate) use estimate::{Means, Remainder, Taken};
pub(crate) use seen::Seen;

/// Tokens that are clustered together.
pub(crate) const SEGMENT: usize = 16_384;

/// Groups larger than this many times the aim are divided, so that no group dominates a scan.
const OVERSIZE: usize = 4;

/// The groups of a span, in segment order.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    dim: usize,
    value_dim: usize,
    /// [groups, dim], the exact mean rounded once.
    means: Vec<f16>,
    /// Root mean square of a key's deviation from its mean along one direction: [groups].
    spreads: Vec<f32>,
    /// Means of the values: [groups, value_dim].
    value_means: Vec<f16>,
    /// The group of each token: [tokens].
    group_of: Vec<u32>,
    /// Where each group's members begin in `members`: [groups + 1].
    first: Vec<u32>,
    /// Token ids by group, in each group from the nearest to the mean outwards.
    members: Vec<u32>,
    /// The first group of each segment, and the number of groups.
    segments: Vec<u32>,
}

impl Summary {
    /// Clusters the keys of every segment. Deterministic, whatever the number of threads.
    pub fn build(k: &Kernels, keys: &Rows<'_>, values: &Rows<'_>, keys_per_mean: usize) -> Summary {
        let tokens = keys.len();
        let starts: Vec<usize> = (0..tokens).step_by(SEGMENT).collect();
        let most = OVERSIZE * keys_per_mean.max(1);
        let parts: Vec<Vec<Vec<u32>>> = starts
            .par_iter()
            .map(|&start| {
                let range = start..(start + SEGMENT).min(tokens);
                let groups = cluster::segment(k, keys, range, keys_per_mean);
                groups
                    .iter()
                    .flat_map(|g| g.chunks(g.len().div_ceil(g.len().div_ceil(most)).max(1)))
                    .map(<[u32]>::to_vec)
                    .collect()
            })
            .collect();
        let mut segments = vec![0];
        for part in &parts {
            segments.push(segments[segments.len() - 1] + part.len() as u32);
        }
        let groups: Vec<Vec<u32>> = parts.into_iter().flatten().collect();
        let built: Vec<Group> =
            groups.into_par_iter().map(|members| describe(k, keys, values, members)).collect();
        let mut summary = Summary {
            dim: keys.dim(),
            value_dim: values.dim(),
            means: Vec::with_capacity(built.len() * keys.dim()),
            spreads: Vec::with_capacity(built.len()),
            value_means: Vec::with_capacity(built.len() * values.dim()),
            group_of: vec![0; tokens],
            first: vec![0],
            members: Vec::with_capacity(tokens),
            segments,
        };
        for (group, Group { mean, spread, value_mean, members }) in built.into_iter().enumerate() {
            summary.means.extend_from_slice(&mean);
            summary.spreads.push(spread);
            summary.value_means.extend_from_slice(&value_mean);
            for &token in &members {
                summary.group_of[token as usize] = group as u32;
            }
            summary.members.extend_from_slice(&members);
            summary.first.push(summary.members.len() as u32);
        }
        summary
    }

    /// The number of tokens.
    pub fn tokens(&self) -> usize {
        self.group_of.len()
    }

    /// The number of groups.
    pub fn groups(&self) -> usize {
        self.first.len() - 1
    }

    /// The tokens of a group, nearest to its mean first.
    pub fn members(&self, group: usize) -> &[u32] {
        &self.members[self.first[group] as usize..self.first[group + 1] as usize]
    }

    /// The number of members of a group.
    pub fn size(&self, group: usize) -> u32 {
        self.first[group + 1] - self.first[group]
    }

    /// The groups of every segment with its tokens.
    pub fn segments(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let tokens = self.tokens();
        self.segments.windows(2).enumerate().map(move |(s, groups)| {
            (groups[0] as usize..groups[1] as usize, s * SEGMENT..((s + 1) * SEGMENT).min(tokens))
        })
    }

    /// The group of a token.
    pub fn group_of(&self, token: usize) -> usize {
        self.group_of[token] as usize
    }

    /// The mean of a group's keys.
    pub fn mean(&self, group: usize) -> &[f16] {
        &self.means[group * self.dim..(group + 1) * self.dim]
    }

    /// q . mean for g query rows: `out` is [g, groups].
    pub fn scores(&self, k: &Kernels, q: &[f32], out: &mut [f32]) {
        k.dot_rows(q, self.dim, &self.means, out);
    }

    /// A product with q that a member of a group rarely exceeds: `factor` spreads above the mean's, for each group.
    pub fn bounds(&self, q: &[f32], scores: &[f32], factor: f32, out: &mut Vec<f32>) {
        let reach = factor * q.iter().map(|x| x * x).sum::<f32>().sqrt();
        out.clear();
        out.extend(scores.iter().zip(&self.spreads).map(|(s, spread)| s + reach * spread));
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        2 * (self.means.len() + self.value_means.len())
            + 4 * (self.spreads.len()
                + self.group_of.len()
                + self.first.len()
                + self.members.len()
                + self.segments.len())
    }
}

struct Group {
    mean: Vec<f16>,
    spread: f32,
    value_mean: Vec<f16>,
    members: Vec<u32>,
}

/// A group with its members from the nearest to the mean outwards (ties: the lower id).
fn describe(k: &Kernels, keys: &Rows<'_>, values: &Rows<'_>, members: Vec<u32>) -> Group {
    // f64 sums of f16 are exact, so the mean of equal keys is that key to the bit.
    let mut sum = vec![0f64; keys.dim()];
    let mut value_sum = vec![0f64; values.dim()];
    for &token in &members {
        add(&mut sum, keys.row(token as usize));
        add(&mut value_sum, values.row(token as usize));
    }
    let per_member = |sum: &Vec<f64>| sum.iter().map(|s| f16::from_f64(s / members.len() as f64)).collect();
    let (mean, value_mean): (Vec<f16>, Vec<f16>) = (per_member(&sum), per_member(&value_sum));
    let mut order: Vec<(f32, u32)> =
        members.iter().map(|&t| (k.l2_sq_f16(&mean, keys.row(t as usize)), t)).collect();
    order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let square: f32 = order.iter().map(|o| o.0).sum();
    Group {
        mean,
        spread: (square / (members.len() * keys.dim()) as f32).sqrt(),
        value_mean,
        members: order.into_iter().map(|o| o.1).collect(),
    }
}

fn add(sum: &mut [f64], row: &[f16]) {
    for (s, x) in sum.iter_mut().zip(row) {
        *s += f64::from(x.to_f32());
    }
}
