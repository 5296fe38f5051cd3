//! Attention over quantised rows.
//!
//! Steps of keys go into the query, so that their codes are only widened and multiplied.

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
    /// Codes of a block.
    codes: Vec<f32>,
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
        let g = q.len() / dk;
        let QuantScratch { bases, q: stepped, codes, z, .. } = scratch;
        let steps = &self.steps[block * dk..(block + 1) * dk];
        stepped.clear();
        for q in q.chunks_exact(dk) {
            stepped.extend(q.iter().zip(steps).map(|(q, step)| q * step.to_f32()));
        }
        codes.resize(dk * BLOCK, 0.0);
        self.keys.each(block * dk, codes, |x, code| *x = code);
        if let Some(second) = &self.second {
            let worth = self.first_part();
            second.each(block * dk, codes, |x, code| *x = *x * worth + code);
        }
        z.clear();
        bases.chunks_exact(blocks).for_each(|of_head| z.resize(z.len() + BLOCK, of_head[block]));
        k.gemm_nn_add(stepped, codes, dk, g, BLOCK, z);
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
        let QuantScratch { codes, z, acc, .. } = scratch;
        if z.iter().all(|&w| w == 0.0) {
            return;
        }
        codes.resize(BLOCK * dv, 0.0);
        self.values.each(block * BLOCK, codes, |x, code| *x = code);
        let from = block * BLOCK * dv.div_ceil(group);
        let mut numbers = self.value_offsets[from..].iter().zip(&self.value_steps[from..]);
        for row in codes.chunks_exact_mut(dv) {
            for (row, (offset, step)) in row.chunks_mut(group).zip(&mut numbers) {
                let (offset, step) = (offset.to_f32(), step.to_f32());
                row.iter_mut().for_each(|x| *x = *x * step + offset);
            }
        }
        k.gemm_nn_add(z, codes, BLOCK, acc.len() / dv, dv, acc);
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
