//! One block of tokens through the model, layer by layer, with attention left to the caller.
//!
//! Prefill, decode, teacher forcing and the baselines differ only in their [`LayerAttention`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::Tensor;
use half::f16;

use crate::model::Llama;

/// The sizes of one model's KV: what every holder of keys and values must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers.
    pub layers: usize,
    /// Query heads per layer.
    pub q_heads: usize,
    /// KV heads per layer; divides `q_heads`.
    pub kv_heads: usize,
    /// Elements of one key and of one value.
    pub dim: usize,
}

impl KvShape {
    /// Query heads that share one KV head.
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }

    /// Bytes of K and V of `tokens` tokens in one layer, f16.
    pub fn layer_bytes(&self, tokens: usize) -> usize {
        tokens * self.kv_heads * self.dim * 2 * size_of::<f16>()
    }
}

/// What one layer hands to attention: tokens `[begin, begin + n)`, after RoPE, keys and values as stored (f16).
#[derive(Clone)]
pub struct LayerBlock {
    /// Index of the layer.
    pub layer: usize,
    /// Position of the first token.
    pub begin: u64,
    /// Tokens in the block.
    pub tokens: usize,
    /// `[n, q_heads, dim]`
    pub q: Arc<Vec<f32>>,
    /// `[n, kv_heads, dim]`
    pub k: Arc<Vec<f16>>,
    /// `[n, kv_heads, dim]`
    pub v: Arc<Vec<f16>>,
}

/// Attention of one layer over everything before and inside the block (causal).
pub trait LayerAttention {
    /// Returns the outputs `[n, q_heads, dim]`.
    fn attend(&mut self, block: LayerBlock) -> anyhow::Result<Vec<f32>>;
}

/// Runs tokens `ids` at positions `[begin, begin + n)` through all layers.
///
/// Returns the hidden states `[n, hidden]` before the final norm, and the time spent outside attention.
pub fn forward(
    model: &Llama,
    ids: &[u32],
    begin: u64,
    attention: &mut dyn LayerAttention,
) -> anyhow::Result<(Tensor, Duration)> {
    let mut in_model = Duration::ZERO;
    let mut clock = Instant::now();
    let mut x = model.embed(ids)?;
    for layer in 0..model.shape().layers {
        let block = model.qkv(layer, &x, begin)?;
        in_model += clock.elapsed();
        let out = attention.attend(block)?;
        clock = Instant::now();
        x = model.finish(layer, &x, out)?;
    }
    in_model += clock.elapsed();
    Ok((x, in_model))
}
