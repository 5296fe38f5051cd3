//! Attention over rows that were read back, and which part of the mass they are.

use attention::{Description, Partial};
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
    pub fn partial(self, m: f32, l: f32, o: Vec<f32>) -> Partial {
        let (l_exact, l_est) = match self {
            Part::Exact => (l, 0.0),
            Part::Estimated => (0.0, l),
        };
        Partial { m, l_exact, l_quant: 0.0, l_est, o }
    }
}

/// Scores and sums of one block.
#[derive(Clone, Debug, Default)]
pub(super) struct PartScratch {
    z: Vec<f32>,
    acc: Vec<f32>,
}

/// Attends with all query heads, `q` [g, key_dim], to rows `keys` [n, key_dim] and `values` [n, value_dim], and merges
/// the result into `out` [g].
pub(super) fn attend_rows(
    (k, d): (&Kernels, &Description),
    q: &[f32],
    (keys, values): (&[f32], &[f32]),
    part: Part,
    scratch: &mut PartScratch,
    out: &mut [Partial],
) {
    let (g, key_dim) = (out.len(), q.len() / out.len());
    let n = keys.len() / key_dim;
    if n == 0 {
        return;
    }
    let value_dim = values.len() / n;
    scratch.z.resize(g * n, 0.0);
    k.gemm_nt(q, keys, key_dim, g, n, &mut scratch.z);
    d.logits(&mut scratch.z);
    let mut sums = Vec::with_capacity(g);
    for z in scratch.z.chunks_exact_mut(n) {
        let m = k.max(z);
        sums.push((m, k.exp_sum(z, m)));
    }
    scratch.acc.clear();
    scratch.acc.resize(g * value_dim, 0.0);
    k.gemm_nn_add(&scratch.z, values, n, g, value_dim, &mut scratch.acc);
    for ((out, (m, l)), acc) in out.iter_mut().zip(sums).zip(scratch.acc.chunks_exact(value_dim)) {
        out.merge(&part.partial(m, l, acc.iter().map(|a| a / l).collect()));
    }
}
