//! What an answer is measured against: dense attention in f64 over every visible token.

use std::ops::Range;

use half::f16;

/// One KV head of a capture in f64.
pub struct Reference {
    keys: Vec<f64>,
    values: Vec<f64>,
    dim: usize,
    value_dim: usize,
    scale: f64,
    indexed: Range<usize>,
}

/// The full softmax of one query.
pub struct Truth {
    /// Weights of all visible tokens; they sum to 1.
    weights: Vec<f64>,
    /// Dense output.
    pub output: Vec<f64>,
    /// Indexed tokens, best first.
    order: Vec<u32>,
}

/// Unnormalised sums over a set of tokens, so that sets can be joined.
struct Sums {
    mass: f64,
    acc: Vec<f64>,
}

impl Reference {
    /// `keys` [tokens, dim], `values` [tokens, value_dim]; `indexed` are the tokens that the index covers.
    pub fn new(
        keys: &[f16],
        values: &[f16],
        dims: (usize, usize),
        scale: f32,
        indexed: Range<usize>,
    ) -> Reference {
        let widen = |rows: &[f16]| rows.iter().map(|x| x.to_f64()).collect();
        let (dim, value_dim) = dims;
        Reference {
            keys: widen(keys),
            values: widen(values),
            dim,
            value_dim,
            scale: f64::from(scale),
            indexed,
        }
    }

    /// Attention of a query over the tokens up to and including its position.
    pub fn attend(&self, q: &[f16], position: usize) -> Truth {
        let q: Vec<f64> = q.iter().map(|x| x.to_f64()).collect();
        let visible = 0..position + 1;
        let keys = self.keys[..visible.end * self.dim].chunks_exact(self.dim);
        let mut weights: Vec<f64> = keys.map(|key| self.scale * dot(&q, key)).collect();
        let mut order: Vec<u32> = (self.indexed.start as u32..self.indexed.end as u32).collect();
        order.sort_unstable_by(|&a, &b| weights[b as usize].total_cmp(&weights[a as usize]).then(a.cmp(&b)));
        let m = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        weights.iter_mut().for_each(|z| *z = (*z - m).exp());
        let total: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|w| *w /= total);
        let sums = self.sum(&weights, visible);
        Truth { output: sums.acc, weights, order }
    }

    fn sum(&self, weights: &[f64], tokens: impl Iterator<Item = usize>) -> Sums {
        let mut sums = Sums { mass: 0.0, acc: vec![0.0; self.value_dim] };
        for token in tokens {
            sums.mass += weights[token];
            let value = &self.values[token * self.value_dim..(token + 1) * self.value_dim];
            sums.acc.iter_mut().zip(value).for_each(|(a, v)| *a += weights[token] * v);
        }
        sums
    }

    /// The output over the `k` best indexed tokens and everything outside the index: the best pure top-k can do.
    pub fn top_k_output(&self, truth: &Truth, k: usize) -> Vec<f64> {
        let best = truth.order.iter().take(k).map(|&t| t as usize);
        let outside = self.outside(truth);
        let sums = self.sum(&truth.weights, best.chain(outside));
        sums.acc.iter().map(|a| a / sums.mass).collect()
    }

    fn outside(&self, truth: &Truth) -> impl Iterator<Item = usize> + use<> {
        (0..self.indexed.start).chain(self.indexed.end..truth.weights.len())
    }

    /// The share of the mass outside the index.
    pub fn outside_share(&self, truth: &Truth) -> f64 {
        self.outside(truth).map(|t| truth.weights[t]).sum()
    }
}

impl Truth {
    /// The share of the mass of these tokens.
    pub fn share(&self, tokens: &[u32]) -> f64 {
        tokens.iter().map(|&t| self.weights[t as usize]).sum()
    }

    /// The share of the mass of the `k` best indexed tokens: the most that `k` tokens can hold.
    pub fn best_share(&self, k: usize) -> f64 {
        self.order.iter().take(k).map(|&t| self.weights[t as usize]).sum()
    }

    /// How many of the `k` best indexed tokens are among `chosen`. A token as good as the last of them counts.
    pub fn found(&self, chosen: &[u32], k: usize) -> usize {
        let Some(&last) = self.order.get(k.wrapping_sub(1)).or(self.order.last()) else { return 0 };
        let least = self.weights[last as usize];
        // f32 scores may swap neighbours in rank whose f64 scores differ in the eighth digit.
        let least = least * (1.0 - 1e-6);
        chosen.iter().filter(|&&t| self.weights[t as usize] >= least).count().min(k)
    }

    /// The fewest indexed tokens that, with all of the mass outside, reach a share.
    pub fn tokens_for(&self, share: f64, outside: f64) -> usize {
        let mut mass = outside;
        for (taken, &token) in self.order.iter().enumerate() {
            if mass >= share {
                return taken;
            }
            mass += self.weights[token as usize];
        }
        self.order.len()
    }
}

/// |o - full| / |full|.
pub fn error(o: &[f64], full: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut o.iter().zip(full).map(|(a, b)| a - b)) / norm(&mut full.iter().copied()).max(1e-300)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    // Eight sums, so that the compiler can use vectors.
    let mut sums = [0f64; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f64 = a8.remainder().iter().zip(b8.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a8.zip(b8) {
        for i in 0..8 {
            sums[i] += x[i] * y[i];
        }
    }
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_weights_and_needle() {
        let keys: Vec<f16> =
            (0..8).flat_map(|i| [f16::ZERO, f16::from_f32(if i == 5 { 9.0 } else { 0.0 })]).collect();
        let values: Vec<f16> = (0..8).map(|i| f16::from_f32(i as f32)).collect();
        let reference = Reference::new(&keys, &values, (2, 1), 1.0, 2..6);
        let flat = reference.attend(&[f16::ONE, f16::ZERO], 7);
        assert!((flat.output[0] - 3.5).abs() < 1e-12);
        assert!((reference.outside_share(&flat) - 0.5).abs() < 1e-12);
        assert_eq!(flat.tokens_for(0.74, 0.5), 2);
        let needle = reference.attend(&[f16::ZERO, f16::ONE], 7);
        assert_eq!((needle.found(&[5], 1), needle.found(&[4], 1), needle.found(&[2, 3, 4, 5], 4)), (1, 0, 4));
        assert!(error(&reference.top_k_output(&needle, 4), &needle.output) < 1e-12);
    }
}
