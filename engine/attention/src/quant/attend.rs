//! Attention over quantised rows.
//!
//! Steps of keys go into the query and steps of values into the weights, so that codes are only widened and multiplied.

use std::ops::Range;

use kernels::Kernels;

use super::{BLOCK, Quantised};
use crate::description::Description;
use crate::partial::Partial;
use crate::range::weigh;

/// Memory that attention works in.
#[derive(Clone, Debug, Default)]
pub struct QuantScratch {
    /// Queries times the offsets of all blocks: [g, blocks].
    bases: Vec<f32>,
    /// Queries times the steps of a block: [g, key_dim].
    q: Vec<f32>,
    /// Codes of a block that lie in pairs, one a byte.
    codes: Vec<u8>,
    /// Steps of the keys of a block; then offsets and steps of its values: [BLOCK, groups] each.
    numbers: [Vec<f32>; 2],
    /// Weights times the steps of one group of elements: [g, BLOCK].
    stepped: Vec<f32>,
    /// Products, then weights: [g, BLOCK].
    z: Vec<f32>,
    /// Sums of values: [g, value_dim].
    acc: Vec<f32>,
}

impl Quantised {
    /// Attention of all query heads, `q` [g, key_dim], over the tokens of `range`, merged into `out` [g]: `l_quant`, and
    /// `l_exact` of tokens held as they came. Panics when the range is not held.
    pub fn attend(
        &self,
        (k, d): (&Kernels, &Description),
        q: &[f32],
        range: Range<usize>,
        scratch: &mut QuantScratch,
        out: &mut [Partial],
    ) {
        assert!(range.end <= self.tokens, "rows {range:?} of {}", self.tokens);
        let (g, dv) = (out.len(), self.value_dim);
        let mut sums = vec![(f32::NEG_INFINITY, 0f64); g];
        scratch.acc.clear();
        scratch.acc.resize(g * dv, 0.0);
        self.bases(k, q, scratch);
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            self.products_of(k, q, block, scratch);
            let begin = block * BLOCK;
            let seen = range.start.max(begin) - begin..range.end.min(begin + BLOCK) - begin;
            for (h, z) in scratch.z.chunks_exact_mut(BLOCK).enumerate() {
                d.logits(z);
                self.hide(block, seen.clone(), z);
                let (m, l) = &mut sums[h];
                weigh(k, z, (m, l), &mut scratch.acc[h * dv..(h + 1) * dv]);
            }
            self.add_values(k, block, scratch);
        }
        for ((out, (m, l)), acc) in out.iter_mut().zip(sums).zip(scratch.acc.chunks_exact(dv)) {
            if l > 0.0 {
                let o = acc.iter().map(|a| a / l as f32).collect();
                out.merge(&Partial { m, l_exact: 0.0, l_quant: l as f32, l_est: 0.0, o });
            }
        }
        self.attend_extreme((k, d), q, range, out);
    }

    /// Products of all query heads with all keys as they are attended to: [g, tokens].
    pub fn products(&self, k: &Kernels, q: &[f32], scratch: &mut QuantScratch) -> Vec<f32> {
        let g = q.len() / self.key_dim;
        let mut products = vec![0.0; g * self.tokens];
        self.bases(k, q, scratch);
        for block in 0..self.tokens.div_ceil(BLOCK) {
            self.products_of(k, q, block, scratch);
            let begin = block * BLOCK;
            let n = BLOCK.min(self.tokens - begin);
            for (z, products) in scratch.z.chunks_exact(BLOCK).zip(products.chunks_exact_mut(self.tokens)) {
                products[begin..begin + n].copy_from_slice(&z[..n]);
            }
        }
        for (&token, key) in self.extreme.iter().zip(self.extreme_keys.chunks_exact(self.key_dim)) {
            for (q, products) in q.chunks_exact(self.key_dim).zip(products.chunks_exact_mut(self.tokens)) {
                products[token as usize] = k.dot(q, key);
            }
        }
        products
    }

    fn bases(&self, k: &Kernels, q: &[f32], scratch: &mut QuantScratch) {
        let g = q.len() / self.key_dim;
        scratch.bases.resize(g * self.tokens.div_ceil(BLOCK), 0.0);
        k.dot_rows(q, self.key_dim, &self.offsets, &mut scratch.bases);
    }

    /// Leaves the products with the keys of a block in `scratch.z`.
    fn products_of(&self, k: &Kernels, q: &[f32], block: usize, scratch: &mut QuantScratch) {
        let (dk, blocks) = (self.key_dim, self.tokens.div_ceil(BLOCK));
        let QuantScratch { bases, q: stepped, codes, numbers: [steps, _], z, .. } = scratch;
        steps.resize(dk, 0.0);
        k.f16_to_f32(&self.steps[block * dk..(block + 1) * dk], steps);
        stepped.clear();
        for q in q.chunks_exact(dk) {
            stepped.extend(q.iter().zip(&*steps).map(|(q, step)| q * step));
        }
        z.clear();
        bases.chunks_exact(blocks).for_each(|of_head| z.resize(z.len() + BLOCK, of_head[block]));
        let first = self.keys.bytes_of(block * dk, dk, codes);
        let second = self.second.as_ref().map(|plane| plane.packed(block * dk, dk));
        k.dot_channels(stepped, dk, first, second, z);
    }

    /// Leaves only the tokens of a block that are seen and have a code.
    fn hide(&self, block: usize, seen: Range<usize>, z: &mut [f32]) {
        z[..seen.start].fill(f32::NEG_INFINITY);
        z[seen.end..].fill(f32::NEG_INFINITY);
        for token in self.extreme_in(block * BLOCK..(block + 1) * BLOCK) {
            z[self.extreme[token] as usize - block * BLOCK] = f32::NEG_INFINITY;
        }
    }

    /// Numbers of the extreme tokens within a range of tokens.
    fn extreme_in(&self, range: Range<usize>) -> Range<usize> {
        let place = |token: usize| self.extreme.partition_point(|&t| (t as usize) < token);
        place(range.start)..place(range.end)
    }

    /// Adds the values of a block by the weights in `scratch.z`.
    fn add_values(&self, k: &Kernels, block: usize, scratch: &mut QuantScratch) {
        let (dv, group) = (self.value_dim, self.precision.value_group(self.value_dim));
        let QuantScratch { codes, numbers, stepped, z, acc, .. } = scratch;
        if z.iter().all(|&w| w == 0.0) {
            return;
        }
        let groups = dv.div_ceil(group);
        let from = block * BLOCK * groups;
        for (numbers, halves) in numbers.iter_mut().zip([&self.value_offsets, &self.value_steps]) {
            numbers.resize(BLOCK * groups, 0.0);
            k.f16_to_f32(&halves[from..from + BLOCK * groups], numbers);
        }
        let [offsets, steps] = numbers;
        let codes = self.values.bytes_of(block * BLOCK, BLOCK, codes);
        for of in 0..groups {
            let elements = of * group..dv.min((of + 1) * group);
            let (offsets, steps) = (offsets[of..].iter(), steps[of..].iter());
            let (offsets, steps) = (offsets.step_by(groups), steps.step_by(groups));
            stepped.clear();
            for (z, acc) in z.chunks_exact(BLOCK).zip(acc.chunks_exact_mut(dv)) {
                stepped.extend(z.iter().zip(steps.clone()).map(|(w, step)| w * step));
                let offset: f32 = z.iter().zip(offsets.clone()).map(|(w, offset)| w * offset).sum();
                acc[elements.clone()].iter_mut().for_each(|x| *x += offset);
            }
            k.axpy_codes(stepped, dv, codes, (elements.start, elements.len()), acc);
        }
    }

    fn attend_extreme(
        &self,
        (k, d): (&Kernels, &Description),
        q: &[f32],
        range: Range<usize>,
        out: &mut [Partial],
    ) {
        for at in self.extreme_in(range) {
            let key = &self.extreme_keys[at * self.key_dim..(at + 1) * self.key_dim];
            let value = &self.extreme_values[at * self.value_dim..(at + 1) * self.value_dim];
            for (q, out) in q.chunks_exact(self.key_dim).zip(out.iter_mut()) {
                let o = value.iter().map(|x| x.to_f32()).collect();
                out.merge(&Partial { m: d.logit(k.dot(q, key)), l_exact: 1.0, l_quant: 0.0, l_est: 0.0, o });
            }
        }
    }
}
