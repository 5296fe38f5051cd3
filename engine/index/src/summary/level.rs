//! Sets of keys, described by their means: the groups of a summary, or its cells.

use std::ops::Range;

use attention::Rows;
use half::f16;
use kernels::Kernels;

use super::add;
use crate::saved::{Reader, SavedError, Writer, check_finite};

/// What all sets of one level have, beside their means.
#[derive(Clone, Debug, Default)]
pub(crate) struct Level {
    value_dim: usize,
    /// Root mean square of a key's deviation from its mean along one direction: [sets].
    spreads: Vec<f32>,
    /// Means of the values: [sets, value_dim].
    value_means: Vec<f16>,
}

/// One set.
pub(super) struct Described {
    /// The exact mean, rounded once.
    pub mean: Vec<f16>,
    spread: f32,
    value_mean: Vec<f16>,
    /// From the nearest to the mean outwards (ties: the lower id).
    pub members: Vec<u32>,
}

/// Describes a set.
pub(super) fn describe(k: &Kernels, keys: &Rows<'_>, values: &Rows<'_>, members: &[u32]) -> Described {
    // f64 sums of f16 are exact, so the mean of equal keys is that key to the bit.
    let mut sum = vec![0f64; keys.dim()];
    let mut value_sum = vec![0f64; values.dim()];
    for &token in members {
        add(&mut sum, keys.row(token as usize));
        add(&mut value_sum, values.row(token as usize));
    }
    let per_member = |sum: &Vec<f64>| sum.iter().map(|s| f16::from_f64(s / members.len() as f64)).collect();
    let (mean, value_mean): (Vec<f16>, Vec<f16>) = (per_member(&sum), per_member(&value_sum));
    let mut order: Vec<(f32, u32)> =
        members.iter().map(|&t| (k.l2_sq_f16(&mean, keys.row(t as usize)), t)).collect();
    order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let square: f32 = order.iter().map(|o| o.0).sum();
    Described {
        mean,
        spread: (square / (members.len() * keys.dim()) as f32).sqrt(),
        value_mean,
        members: order.into_iter().map(|o| o.1).collect(),
    }
}

impl Level {
    /// None yet.
    pub(super) fn new(value_dim: usize) -> Level {
        Level { value_dim, ..Level::default() }
    }

    /// Adds a set.
    pub(super) fn push(&mut self, set: &Described) {
        self.spreads.push(set.spread);
        self.value_means.extend_from_slice(&set.value_mean);
    }

    /// The number of sets.
    pub fn len(&self) -> usize {
        self.spreads.len()
    }

    /// The means of the values of some sets.
    pub fn value_means(&self, sets: Range<usize>) -> &[f16] {
        &self.value_means[sets.start * self.value_dim..sets.end * self.value_dim]
    }

    /// Root mean square of a key's deviation from its mean along one direction: [sets].
    pub fn spreads(&self) -> &[f32] {
        &self.spreads
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        2 * self.value_means.len() + 4 * self.spreads.len()
    }

    /// Writes it.
    pub fn save(&self, w: &mut Writer) {
        w.array(&self.spreads);
        w.array(&self.value_means);
    }

    /// Reads what [`Level::save`] wrote of `sets` sets.
    pub fn load(r: &mut Reader<'_>, sets: usize, value_dim: usize) -> Result<Level, SavedError> {
        let spreads: Vec<f32> = r.array("spreads", sets)?;
        let value_means: Vec<f16> = r.array("elements of mean values", sets * value_dim)?;
        check_finite("a spread", spreads.iter().copied())?;
        check_finite("a mean value", value_means.iter().map(|x| x.to_f32()))?;
        Ok(Level { value_dim, spreads, value_means })
    }
}
