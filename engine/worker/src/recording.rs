//! Keys, values and queries of a text as the layers see them: what captures hold and what the study measures.

use attention::Description;
use half::f16;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::causal::causal_attention;
use crate::forward::{KvShape, LayerBlock};
use crate::model::Llama;

/// Of the positions that an index learns from, one in this many gives its queries.
const SAMPLE_STRIDE: usize = 4;

/// Runs `ids` through the layers from 0 to `last` and hands each one's block to `on_layer` before it is attended to.
///
/// # Errors
/// Of the model, or the first of `on_layer`.
pub fn layers(
    model: &Llama,
    ids: &[u32],
    last: usize,
    mut on_layer: impl FnMut(&LayerBlock) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let description = Description { scale: model.scale(), softcap: None };
    let mut x = model.embed(ids)?;
    for layer in 0..=last {
        let block = model.qkv(layer, &x, 0)?;
        on_layer(&block)?;
        if layer < last {
            let out = causal_attention(model.shape(), &description, &block);
            x = model.finish(layer, &x, out)?;
        }
    }
    Ok(())
}

/// Positions before `eval_from` whose queries an index learns from, ascending: one drawn from every stride.
pub fn sample(eval_from: usize, seed: u64) -> Vec<usize> {
    let mut rng = StdRng::seed_from_u64(seed);
    let strides = (0..eval_from).step_by(SAMPLE_STRIDE);
    strides.map(|start| rng.random_range(start..(start + SAMPLE_STRIDE).min(eval_from))).collect()
}

/// Rows of one KV head out of `[tokens, kv_heads, dim]`: `[tokens, dim]`.
pub fn of_head(rows: &[f16], shape: KvShape, head: usize) -> Vec<f16> {
    let heads = rows.chunks_exact(shape.kv_heads * shape.dim);
    heads.flat_map(|row| &row[head * shape.dim..(head + 1) * shape.dim]).copied().collect()
}

/// Queries of the group of one KV head at `positions`, as f16: `[m, group, dim]`.
///
/// # Errors
/// When a component is beyond f16.
pub fn queries(
    block: &LayerBlock,
    shape: KvShape,
    head: usize,
    positions: &[usize],
) -> anyhow::Result<Vec<f16>> {
    let width = shape.group() * shape.dim;
    let mut out = Vec::with_capacity(positions.len() * width);
    for position in positions {
        let row = &block.q[position * shape.q_heads * shape.dim + head * width..][..width];
        out.extend(row.iter().map(|&value| f16::from_f32(value)));
    }
    anyhow::ensure!(
        out.iter().all(|value| value.is_finite()),
        "layer {}, KV head {head}: a query component is beyond f16",
        block.layer
    );
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampled_positions_ascend_and_repeat_with_the_seed() {
        let positions = sample(902, 7);
        assert!(positions.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(positions.len(), 902usize.div_ceil(SAMPLE_STRIDE));
        assert!(positions.iter().all(|&p| p < 902));
        assert_eq!(positions, sample(902, 7));
        assert_ne!(positions, sample(902, 8));
    }
}
