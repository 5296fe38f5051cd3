//! Attention over rows, and which part of the mass they are.

use attention::{Description, Partial};
use half::f16;
use kernels::Kernels;

/// How tokens were accounted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// At stored precision.
    Exact,
    /// From what a sketch gave back.
    Estimated,
}

impl Part {
    /// The partial of these sums.
    fn partial(self, m: f32, l: f32, o: Vec<f32>) -> Partial {
        let (l_exact, l_est) = match self {
            Part::Exact => (l, 0.0),
            Part::Estimated => (0.0, l),
        };
        Partial { m, l_exact, l_quant: 0.0, l_est, o }
    }
}

/// Memory that attention works in.
#[derive(Clone, Debug, Default)]
pub(super) struct PartScratch {
    /// Logits, then weights: [g, n].
    z: Vec<f32>,
    /// Largest logits and masses: [g].
    sums: Vec<(f32, f32)>,
    /// Sums of values: [g, value_dim].
    acc: Vec<f32>,
}

impl PartScratch {
    /// Attends with all query heads, `q` [g, key_dim], to rows `keys` [n, key_dim] and `values` [n, value_dim] that were
    /// read back, and merges the result into `out` [g].
    pub fn attend(
        &mut self,
        (k, d): (&Kernels, &Description),
        q: &[f32],
        (keys, values): (&[f32], &[f32]),
        part: Part,
        out: &mut [Partial],
    ) {
        let (g, key_dim, value_dim) = (out.len(), q.len() / out.len(), out[0].o.len());
        let n = keys.len() / key_dim;
        self.z.resize(g * n, 0.0);
        k.gemm_nt(q, keys, key_dim, g, n, &mut self.z);
        self.weigh((k, d), n, None);
        self.acc.resize(g * value_dim, 0.0);
        k.gemm_nn_add(&self.z, values, n, g, value_dim, &mut self.acc);
        self.merge(part, out);
    }

    /// The same for stored rows, each of which stands for as many tokens as `counts` [n] says, none included, or for one.
    pub fn attend_stored(
        &mut self,
        (k, d): (&Kernels, &Description),
        q: &[f32],
        (keys, values): (&[f16], &[f16]),
        (counts, part): (Option<&[f32]>, Part),
        out: &mut [Partial],
    ) {
        let (g, key_dim, value_dim) = (out.len(), q.len() / out.len(), out[0].o.len());
        let n = keys.len() / key_dim;
        self.z.resize(g * n, 0.0);
        k.dot_rows(q, key_dim, keys, &mut self.z);
        self.weigh((k, d), n, counts);
        self.acc.resize(g * value_dim, 0.0);
        k.axpy_rows(&self.z, value_dim, values, &mut self.acc);
        self.merge(part, out);
    }

    /// Products to weights.
    fn weigh(&mut self, (k, d): (&Kernels, &Description), n: usize, counts: Option<&[f32]>) {
        d.logits(&mut self.z);
        self.sums.clear();
        self.acc.clear();
        for z in self.z.chunks_exact_mut(n.max(1)) {
            // What stands for no token must not be the largest either.
            let hidden =
                counts.iter().flat_map(|counts| counts.iter().enumerate().filter(|each| *each.1 == 0.0));
            hidden.for_each(|(i, _)| z[i] = f32::NEG_INFINITY);
            let m = k.max(z);
            let plain = k.exp_sum(z, m);
            let l = match counts {
                None => plain,
                Some(counts) => {
                    z.iter_mut().zip(counts).for_each(|(w, count)| *w *= count);
                    z.iter().map(|&w| f64::from(w)).sum::<f64>() as f32
                }
            };
            self.sums.push((m, l));
        }
    }

    fn merge(&self, part: Part, out: &mut [Partial]) {
        let value_dim = out[0].o.len();
        let each = out.iter_mut().zip(&self.sums).zip(self.acc.chunks_exact(value_dim));
        for ((out, &(m, l)), acc) in each.filter(|((_, sums), _)| sums.1 > 0.0) {
            out.merge(&part.partial(m, l, acc.iter().map(|a| a / l).collect()));
        }
    }
}
