//! Exact causal attention of a fresh block, on all cores: one task per (KV head, run of rows).

use attention::{BlockPartials, BlockScratch, CausalBlock, Description, HeadRows, attend_block};
use kernels::Kernels;
use rayon::prelude::*;

use crate::forward::{KvShape, LayerBlock};

/// Rows of one task: enough to reuse a tile of keys, few enough to balance the cores.
const ROWS: usize = 64;

/// Attention of every token of `block` over itself and the tokens before it in the block: `[n, q_heads, dim]`.
pub fn causal_attention(shape: KvShape, description: &Description, block: &LayerBlock) -> Vec<f32> {
    let (dim, group) = (shape.dim, shape.group());
    let q_row = shape.q_heads * dim;
    let kernels = Kernels::native();
    let mut out = vec![0.0; block.tokens * q_row];
    // Later rows see more keys: handing them out in order leaves the long ones for the end, so go backwards.
    out.par_chunks_mut(ROWS * q_row).enumerate().rev().for_each_init(
        || (BlockScratch::default(), BlockPartials::default()),
        |(scratch, partials), (run, out)| {
            let rows = run * ROWS..(run * ROWS + out.len() / q_row);
            for head in 0..shape.kv_heads {
                let causal = CausalBlock {
                    q: &block.q,
                    q_heads: shape.q_heads,
                    heads: head * group..(head + 1) * group,
                    first: 0,
                    keys: HeadRows::new(&block.k, shape.kv_heads, head, dim),
                    values: HeadRows::new(&block.v, shape.kv_heads, head, dim),
                };
                attend_block(&kernels, description, &causal, rows.clone(), scratch, partials);
                for (row, o) in out.chunks_mut(q_row).zip(partials.o.chunks(group * dim)) {
                    row[head * group * dim..(head + 1) * group * dim].copy_from_slice(o);
                }
            }
        },
    );
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use attention::oracle;
    use half::f16;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn equals_the_oracle_at_every_row() {
        let shape = KvShape { layers: 1, q_heads: 4, kv_heads: 2, dim: 24 };
        let tokens = 150;
        let mut rng = StdRng::seed_from_u64(1);
        let mut draw = |n: usize| (0..n).map(|_| rng.random_range(-1.0f32..1.0)).collect::<Vec<_>>();
        let q = draw(tokens * 4 * 24);
        let mut halves = |n: usize| draw(n).into_iter().map(f16::from_f32).collect::<Vec<_>>();
        let (k, v) = (halves(tokens * 2 * 24), halves(tokens * 2 * 24));
        let block = LayerBlock { layer: 0, begin: 0, tokens, q: Arc::new(q), k: Arc::new(k), v: Arc::new(v) };
        let description = Description { scale: 0.2, softcap: None };
        let out = causal_attention(shape, &description, &block);
        for (row, out) in out.chunks(4 * 24).enumerate() {
            for (h, o) in out.chunks(24).enumerate() {
                let q = &block.q[(row * 4 + h) * 24..][..24];
                let keys = HeadRows::new(&block.k, 2, h / 2, 24);
                let values = HeadRows::new(&block.v, 2, h / 2, 24);
                let exact = oracle::attend(&description, q, &keys, &values, 0..row + 1);
                assert!(exact.output_error(o) < 1e-4, "row {row}, head {h}");
            }
        }
    }
}
