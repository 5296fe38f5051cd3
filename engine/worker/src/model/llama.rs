//! The Llama block, with attention left outside: `embed`, then for every layer `qkv` -> attention by the caller ->
//! `finish`, then `head`.
//!
//! ```text
//! x = embed(ids)
//! for each layer:  block = qkv(layer, x, begin)      RMSNorm, projections, RoPE; K and V rounded to f16 as stored
//!                  a     = attention over the block  the caller: shards, window, or all of it
//!                  x     = finish(layer, x, a)       output projection, residual, RMSNorm, SwiGLU, residual
//! head(x)
//! ```
//! Rows are tokens, row-major f32. Any number of rows goes in; scratch is bounded by blocks of rows inside.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use half::f16;
use kernels::Kernels;
use rayon::prelude::*;
use wire::v1;

use crate::forward::{KvShape, LayerBlock};

use super::config::{ModelConfig, RopeLayout};
use super::error::ModelError;
use super::matrix::{Matrix, Precision};
use super::parts::{Part, TensorSource};
use super::rope::{Rope, RopeScaling};

/// Rows of the feed-forward part at a time.
const ROW_BLOCK: usize = 1024;

struct Layer {
    attention_norm: Vec<f32>,
    /// Query, key and value rows, one below the other.
    qkv: Matrix,
    output: Matrix,
    feed_forward_norm: Vec<f32>,
    /// Gate and up rows, one below the other.
    gate_up: Matrix,
    down: Matrix,
}

/// The weights and the arithmetic of a Llama-family model.
pub struct Llama {
    config: ModelConfig,
    kernels: Kernels,
    rope: Rope,
    embedding: Matrix,
    layers: Vec<Layer>,
    final_norm: Vec<f32>,
    head: Option<Matrix>,
    revision: String,
}

impl Llama {
    /// Reads every tensor of `config` from `source`.
    pub(crate) fn load(
        config: ModelConfig,
        source: &mut dyn TensorSource,
        precision: Precision,
        revision: String,
    ) -> Result<Self, ModelError> {
        let mut matrix = |parts: &[Part]| {
            let mut values = Vec::new();
            let mut rows = 0;
            for part in parts {
                rows += part.shape(&config).0;
                match values.is_empty() {
                    true => values = source.checked(*part, &config)?,
                    false => values.extend(source.checked(*part, &config)?),
                }
            }
            let columns = parts.first().map_or(0, |part| part.shape(&config).1);
            Matrix::new(rows, columns, values, precision)
        };
        let embedding = matrix(&[Part::Embedding])?;
        let head = match config.tied_head {
            true => None,
            false => Some(matrix(&[Part::Head])?),
        };
        let mut matrices = Vec::with_capacity(config.layers);
        for i in 0..config.layers {
            matrices.push((
                matrix(&[Part::Query(i), Part::Key(i), Part::Value(i)])?,
                matrix(&[Part::Output(i)])?,
                matrix(&[Part::Gate(i), Part::Up(i)])?,
                matrix(&[Part::Down(i)])?,
            ));
        }
        let mut layers = Vec::with_capacity(config.layers);
        for (i, (qkv, output, gate_up, down)) in matrices.into_iter().enumerate() {
            layers.push(Layer {
                attention_norm: source.checked(Part::AttentionNorm(i), &config)?,
                qkv,
                output,
                feed_forward_norm: source.checked(Part::FeedForwardNorm(i), &config)?,
                gate_up,
                down,
            });
        }
        Ok(Self {
            kernels: Kernels::native(),
            rope: Rope::new(config.rope_base, config.head_dim, config.rope_layout),
            final_norm: source.checked(Part::FinalNorm, &config)?,
            embedding,
            layers,
            head,
            revision,
            config,
        })
    }

    /// The geometry.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The RoPE base in use, after scaling.
    pub fn rope_base(&self) -> f64 {
        self.rope.base()
    }

    /// Prepares for `context` tokens in all, prompt and answer: sets the RoPE base. Call it before the first token.
    ///
    /// # Errors
    /// [`ModelError::Context`] when scaling is off and `context` is beyond the trained one.
    pub fn set_context(&mut self, context: usize, scaling: RopeScaling) -> Result<(), ModelError> {
        let base = scaling.base(&self.config, context)?;
        self.rope = Rope::new(base, self.config.head_dim, self.config.rope_layout);
        Ok(())
    }

    /// Bytes of the weight matrices.
    pub fn weight_bytes(&self) -> usize {
        let layer = |l: &Layer| l.qkv.bytes() + l.output.bytes() + l.gate_up.bytes() + l.down.bytes();
        self.embedding.bytes()
            + self.head.as_ref().map_or(0, Matrix::bytes)
            + self.layers.iter().map(layer).sum::<usize>()
    }

    /// Sizes of the model's KV.
    pub fn shape(&self) -> KvShape {
        KvShape {
            layers: self.config.layers,
            q_heads: self.config.q_heads,
            kv_heads: self.config.kv_heads,
            dim: self.config.head_dim,
        }
    }

    /// Factor on `q . k` before softmax.
    pub fn scale(&self) -> f32 {
        self.config.scale()
    }

    /// All that makes the model's KV meaningful, with the RoPE base in use.
    pub fn fingerprint(&self) -> v1::Fingerprint {
        let config = &self.config;
        v1::Fingerprint {
            model: config.name.clone(),
            weight_revision: self.revision.clone(),
            adapter: String::new(),
            layers: config.layers as u32,
            q_heads: config.q_heads as u32,
            kv_heads: config.kv_heads as u32,
            key_dim: config.head_dim as u32,
            value_dim: config.head_dim as u32,
            kv_dtype: v1::DType::F16.into(),
            rope_base: self.rope.base(),
            rope_interleaved: config.rope_layout == RopeLayout::Interleaved,
            scale: config.scale(),
            provenance: v1::Provenance::Exact.into(),
        }
    }

    /// Embeddings of `ids`: `[n, hidden]`.
    ///
    /// # Errors
    /// [`ModelError::TokenId`] for an id outside the vocabulary.
    pub fn embed(&self, ids: &[u32]) -> Result<Tensor, ModelError> {
        let (hidden, vocab) = (self.config.hidden, self.config.vocab);
        let mut x = vec![0.0; ids.len() * hidden];
        for (position, (&id, row)) in ids.iter().zip(x.chunks_exact_mut(hidden)).enumerate() {
            if id as usize >= vocab {
                return Err(ModelError::TokenId { id, position, vocab });
            }
            self.embedding.row(id as usize, row)?;
        }
        tensor(x, hidden)
    }

    /// Queries (f32), keys and values (f16, as stored) of the tokens `x [n, hidden]` at positions `begin..begin + n`,
    /// after RoPE.
    ///
    /// # Errors
    /// [`ModelError::Compute`] when the tensor library refuses.
    pub fn qkv(&self, layer: usize, x: &Tensor, begin: u64) -> Result<LayerBlock, ModelError> {
        let x = rows(x)?;
        let weights = &self.layers[layer];
        let (hidden, half) = (self.config.hidden, self.config.head_dim / 2);
        let (q_width, kv_width) = (self.config.q_width(), self.config.kv_width());
        let tokens = x.len() / hidden;
        let mut q = vec![0.0; tokens * q_width];
        let mut k = vec![f16::ZERO; tokens * kv_width];
        let mut v = vec![f16::ZERO; tokens * kv_width];
        let blocks = q
            .chunks_mut(ROW_BLOCK * q_width)
            .zip(k.chunks_mut(ROW_BLOCK * kv_width))
            .zip(v.chunks_mut(ROW_BLOCK * kv_width))
            .zip(x.chunks(ROW_BLOCK * hidden));
        let mut position = begin;
        for (((q, k), v), x) in blocks {
            let normed = self.norm(x, &weights.attention_norm);
            let mut fused = weights.qkv.apply(&self.kernels, &normed)?;
            let angles = self.rope.angles(position..position + (x.len() / hidden) as u64);
            position += (x.len() / hidden) as u64;
            q.par_chunks_mut(q_width)
                .zip(k.par_chunks_mut(kv_width))
                .zip(v.par_chunks_mut(kv_width))
                .zip(fused.par_chunks_mut(q_width + 2 * kv_width))
                .zip(angles.par_chunks(half))
                .with_min_len(32)
                .for_each(|((((q, k), v), fused), angles)| {
                    let (turned, from_v) = fused.split_at_mut(q_width + kv_width);
                    self.rope.turn(turned, angles);
                    q.copy_from_slice(&turned[..q_width]);
                    self.kernels.f32_to_f16(&turned[q_width..], k);
                    self.kernels.f32_to_f16(from_v, v);
                });
        }
        Ok(LayerBlock { layer, begin, tokens, q: Arc::new(q), k: Arc::new(k), v: Arc::new(v) })
    }

    /// Ends `layer`: from its input `x [n, hidden]` and the outputs of attention, `[n, q_heads, head_dim]`, to the input
    /// of the next layer, `[n, hidden]`.
    ///
    /// # Errors
    /// [`ModelError::Compute`] when the tensor library refuses.
    pub fn finish(&self, layer: usize, x: &Tensor, attention: Vec<f32>) -> Result<Tensor, ModelError> {
        let mut x = rows(x)?;
        let layer = &self.layers[layer];
        let inner = self.config.intermediate;
        let attention = attention.chunks(ROW_BLOCK * self.config.q_width());
        for (x, attention) in x.chunks_mut(ROW_BLOCK * self.config.hidden).zip(attention) {
            add(x, &layer.output.apply(&self.kernels, attention)?);
            let normed = self.norm(x, &layer.feed_forward_norm);
            let gate_up = layer.gate_up.apply(&self.kernels, &normed)?;
            let mut gated = vec![0.0; gate_up.len() / 2];
            gated.par_chunks_mut(inner).zip(gate_up.par_chunks(2 * inner)).with_min_len(16).for_each(
                |(gated, gate_up)| {
                    let (gate, up) = gate_up.split_at(inner);
                    for ((out, g), u) in gated.iter_mut().zip(gate).zip(up) {
                        *out = g / (1.0 + (-g).exp()) * u;
                    }
                },
            );
            add(x, &layer.down.apply(&self.kernels, &gated)?);
        }
        tensor(x, self.config.hidden)
    }

    /// Logits of hidden states `x [n, hidden]`: `[n, vocab]`. That is `n * vocab * 4` bytes: ask for the rows you need.
    ///
    /// # Errors
    /// [`ModelError::Compute`] when the tensor library refuses.
    pub fn head(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        let normed = self.norm(&rows(x)?, &self.final_norm);
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        tensor(head.apply(&self.kernels, &normed)?, self.config.vocab)
    }

    /// RMSNorm of every row.
    fn norm(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        out.par_chunks_mut(weight.len()).zip(x.par_chunks(weight.len())).with_min_len(64).for_each(
            |(out, x)| {
                let mean = x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32;
                let factor = 1.0 / (mean + self.config.rms_eps).sqrt();
                for ((out, v), w) in out.iter_mut().zip(x).zip(weight) {
                    *out = v * factor * w;
                }
            },
        );
        out
    }
}

/// The values of a `[n, width]` tensor.
fn rows(x: &Tensor) -> Result<Vec<f32>, ModelError> {
    Ok(x.flatten_all()?.to_vec1()?)
}

/// `[n, width]` from its values.
fn tensor(values: Vec<f32>, width: usize) -> Result<Tensor, ModelError> {
    let n = values.len() / width;
    Ok(Tensor::from_vec(values, (n, width), &Device::Cpu)?)
}

fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}
