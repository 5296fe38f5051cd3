//! Prefill of a fresh prompt, layer-major: blocked causal attention here, while the layer's keys, values and a sample
//! of its queries stream to the shards and the next layer computes.

use std::sync::Arc;

use anyhow::Context;
use attention::Description;
use client::{LayerChunk, Session};
use half::f16;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::causal::causal_attention;
use crate::forward::{KvShape, LayerAttention, LayerBlock};
use crate::window::WindowCache;

/// Tokens of one append message.
const CHUNK_TOKENS: usize = 1024;
/// One query position in this many is sampled for the index.
const SAMPLE_EVERY: usize = 4;

/// Attention of prefill, and the stream to the shards.
pub struct Prefill {
    session: Arc<Session>,
    runtime: Handle,
    shape: KvShape,
    description: Description,
    window: WindowCache,
    sample: Arc<Vec<u64>>,
    in_flight: Option<JoinHandle<Result<u64, client::Error>>>,
    in_flight_bytes: usize,
    peak_kv_bytes: usize,
}

impl Prefill {
    /// Prepares a prefill of `tokens` tokens from position 0; `seed` chooses the sampled positions.
    pub fn new(
        session: Arc<Session>,
        runtime: Handle,
        shape: KvShape,
        description: Description,
        window: WindowCache,
        (tokens, seed): (usize, u64),
    ) -> Self {
        Self {
            session,
            runtime,
            shape,
            description,
            window,
            sample: Arc::new(sample_positions(tokens, seed)),
            in_flight: None,
            in_flight_bytes: 0,
            peak_kv_bytes: 0,
        }
    }

    /// Waits for the last layer's stream. Returns the filled window, the watermark, and the most bytes of K and V
    /// that were held beside the window at any time (`prefill_kv_bytes`).
    pub fn finish(mut self) -> anyhow::Result<(WindowCache, u64, usize)> {
        let watermark = self.join()?;
        Ok((self.window, watermark, self.peak_kv_bytes))
    }

    fn join(&mut self) -> anyhow::Result<u64> {
        let Some(task) = self.in_flight.take() else { return Ok(0) };
        self.in_flight_bytes = 0;
        let watermark = self.runtime.block_on(task).context("the append task ended early")??;
        Ok(watermark)
    }
}

impl LayerAttention for Prefill {
    fn attend(&mut self, block: LayerBlock) -> anyhow::Result<Vec<f32>> {
        anyhow::ensure!(block.begin == 0, "prefill starts at position 0, not {}", block.begin);
        let bytes = self.shape.layer_bytes(block.tokens);
        self.peak_kv_bytes = self.peak_kv_bytes.max(self.in_flight_bytes + bytes);
        self.join()?;
        self.window.push(block.layer, 0, &block.k, &block.v);
        self.in_flight_bytes = bytes;
        let stream = LayerStream {
            session: self.session.clone(),
            shape: self.shape,
            sample: self.sample.clone(),
            n_sink: self.window.spec().n_sink,
            n_window: self.window.spec().n_window,
            seal_to: self.window.spec().remote(block.tokens as u64).end,
            block: block.clone(),
        };
        self.in_flight = Some(self.runtime.spawn(stream.run()));
        Ok(causal_attention(self.shape, &self.description, &block))
    }
}

/// One layer on its way to the shards.
struct LayerStream {
    session: Arc<Session>,
    shape: KvShape,
    sample: Arc<Vec<u64>>,
    n_sink: u64,
    n_window: u64,
    seal_to: u64,
    block: LayerBlock,
}

impl LayerStream {
    async fn run(self) -> Result<u64, client::Error> {
        let tokens = self.block.tokens;
        let kv_row = self.shape.kv_heads * self.shape.dim;
        let mut watermark = 0;
        let mut begin = 0;
        // The sink is a span of its own: it is attended to by the worker, and its keys would draw every walk.
        let first_end = (self.n_sink as usize).min(tokens);
        let mut end = if first_end > 0 { first_end } else { CHUNK_TOKENS.min(tokens) };
        while begin < tokens {
            let (q, q_pos) = self.queries(begin, end);
            let seal_to = if end == first_end {
                Some(end as u64)
            } else if end == tokens && self.seal_to > self.n_sink {
                Some(self.seal_to)
            } else {
                None
            };
            watermark = self
                .session
                .append(LayerChunk {
                    layer: self.block.layer as u32,
                    begin: begin as u64,
                    k: &self.block.k[begin * kv_row..end * kv_row],
                    v: &self.block.v[begin * kv_row..end * kv_row],
                    q: &q,
                    q_pos: &q_pos,
                    q_window: self.n_window,
                    seal_to,
                })
                .await?;
            begin = end;
            end = (end + CHUNK_TOKENS).min(tokens);
        }
        Ok(watermark)
    }

    /// The sampled queries with positions in `[begin, end)`: `[m, q_heads, dim]` and `[m]`.
    fn queries(&self, begin: usize, end: usize) -> (Vec<f16>, Vec<u64>) {
        let row = self.shape.q_heads * self.shape.dim;
        let from = self.sample.partition_point(|&p| p < begin as u64);
        let to = self.sample.partition_point(|&p| p < end as u64);
        let positions = self.sample[from..to].to_vec();
        let mut q = Vec::with_capacity(positions.len() * row);
        for &position in &positions {
            let at = position as usize * row;
            q.extend(self.block.q[at..at + row].iter().map(|&x| f16::from_f32(x)));
        }
        (q, positions)
    }
}

/// One position out of each run of [`SAMPLE_EVERY`], so that every part of the prompt is represented.
fn sample_positions(tokens: usize, seed: u64) -> Vec<u64> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..tokens)
        .step_by(SAMPLE_EVERY)
        .map(|at| (at + rng.random_range(0..SAMPLE_EVERY.min(tokens - at))) as u64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_ascending_even_and_repeatable() {
        for tokens in [0, 1, 3, 4, 5, 1000] {
            let sample = sample_positions(tokens, 7);
            assert_eq!(sample.len(), tokens.div_ceil(SAMPLE_EVERY));
            assert!(sample.windows(2).all(|w| w[0] < w[1]));
            assert!(sample.iter().all(|&p| (p as usize) < tokens));
            assert_eq!(sample, sample_positions(tokens, 7));
        }
    }
}
