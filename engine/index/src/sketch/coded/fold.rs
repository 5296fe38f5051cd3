//! Steps folded into what codes are multiplied with.
//!
//! A code stands for (code - centre) * width. The widths, and what makes a packed number of a code, go into the query once
//! for all rows of a class; sums of values get them at the end, once for all rows too. The centres come out of the sum as
//! one number for each head.

use kernels::Packing;

use super::step::Step;

/// The channels that have bits.
fn used(steps: &[Step]) -> impl Iterator<Item = (usize, &Step)> + Clone {
    steps.iter().enumerate().filter(|(_, step)| step.bits > 0)
}

/// Bits of a row of codes of these channels.
pub(super) fn bits(steps: &[Step]) -> usize {
    steps.iter().map(|step| usize::from(step.bits)).sum()
}

fn packing(first_bit: usize, steps: &[Step]) -> Packing {
    let bits: Vec<u8> = used(steps).map(|(_, step)| step.bits).collect();
    Packing::new(first_bit, bits.into_iter())
}

/// What the keys of a class are multiplied with.
pub(super) struct Keys {
    pub packing: Packing,
    /// [g, lanes]
    pub q: Vec<f32>,
    /// What the centres of all codes come to: [g].
    pub centres: Vec<f32>,
}

impl Keys {
    /// `steps` [dim] of the class, queries in channels [g, dim].
    pub fn new(steps: &[Step], channels: &[f32]) -> Keys {
        let packing = packing(0, steps);
        let lanes = packing.lanes();
        let g = channels.len() / steps.len();
        let (mut q, mut centres) = (vec![0.0; g * lanes], vec![0.0; g]);
        for (h, channels) in channels.chunks_exact(steps.len()).enumerate() {
            let mut sum = 0.0;
            for (lane, (j, step)) in used(steps).enumerate() {
                let factor = channels[j] * step.width;
                q[h * lanes + lane] = factor * packing.units()[lane];
                sum += f64::from(factor) * f64::from(step.centre());
            }
            centres[h] = sum as f32;
        }
        Keys { packing, q, centres }
    }
}

/// Sums of the values of a class.
pub(super) struct Values {
    pub packing: Packing,
    /// Of packed numbers: [g, lanes].
    pub sums: Vec<f32>,
    /// Of the weights: [g].
    pub masses: Vec<f64>,
}

impl Values {
    /// None yet, for `g` heads; `steps` [key_dim + value_dim] of the class.
    pub fn new(steps: &[Step], key_dim: usize, g: usize) -> Values {
        let (keys, values) = steps.split_at(key_dim);
        let packing = packing(bits(keys), values);
        Values { sums: vec![0.0; g * packing.lanes()], packing, masses: vec![0.0; g] }
    }

    /// Adds what the sums stand for to `channels` [g, dim]; `steps` [dim].
    pub fn add(&self, steps: &[Step], channels: &mut [f32]) {
        let lanes = self.packing.lanes();
        for (h, channels) in channels.chunks_exact_mut(steps.len()).enumerate() {
            for (lane, (j, step)) in used(steps).enumerate() {
                let codes = f64::from(self.sums[h * lanes + lane]) * f64::from(self.packing.units()[lane]);
                channels[j] +=
                    ((codes - f64::from(step.centre()) * self.masses[h]) * f64::from(step.width)) as f32;
            }
        }
    }
}
