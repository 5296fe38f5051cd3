//! Decode: each layer's new keys, values and queries go to the shards in one message; while they search, the worker
//! attends to its sink and window; the two partials merge exactly.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use attention::{Description, Partial, Scratch};
use client::{Budget, NewTokenKv, RowAnswer, RowAsk, Session};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::coverage::CoverageTally;
use crate::forward::{KvShape, LayerAttention, LayerBlock};
use crate::window::WindowCache;

/// What a decode step may spend, and on what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spending {
    /// Exactly attended tokens of the shards' range per query head.
    pub budget: Budget,
    /// Whether the shards estimate what they did not select.
    pub estimate: bool,
}

impl Spending {
    /// Whether answers tell their coverage: tokens that are neither attended to nor estimated have a mass that nobody
    /// knows.
    fn tells_coverage(self) -> bool {
        self.estimate || self.budget == Budget::All
    }
}

/// Sums over the steps since the last [`Decode::take_stats`].
#[derive(Clone, Copy, Debug, Default)]
pub struct DecodeStats {
    /// Time in the worker's own attention.
    pub local: Duration,
    /// Time waited for shards after the worker's own attention was done.
    pub remote_wait: Duration,
    /// Rows (query position x layer) answered by shards.
    pub rows: u64,
    /// Keys scored per query head, summed over rows.
    pub keys_scored: f64,
    /// Exactly attended tokens per query head, summed over rows.
    pub exact_tokens: f64,
    /// Coverage of the merged answers, one term per query head and row.
    pub coverage: CoverageTally,
}

/// Attention of decode over shards and window.
pub struct Decode {
    session: Arc<Session>,
    runtime: Handle,
    shape: KvShape,
    description: Description,
    window: WindowCache,
    committed: u64,
    spending: Spending,
    scratch: Scratch,
    stats: DecodeStats,
}

impl Decode {
    /// Continues after a prefill that left `window` and committed `committed` tokens.
    pub fn new(
        session: Arc<Session>,
        runtime: Handle,
        (shape, description): (KvShape, Description),
        window: WindowCache,
        committed: u64,
        spending: Spending,
    ) -> Self {
        Self {
            session,
            runtime,
            shape,
            description,
            window,
            committed,
            spending,
            scratch: Scratch::default(),
            stats: DecodeStats::default(),
        }
    }

    /// The worker's own KV.
    pub fn window(&self) -> &WindowCache {
        &self.window
    }

    /// Puts back an earlier window after the shards were truncated to `committed` tokens.
    pub fn rewind(&mut self, window: WindowCache, committed: u64) {
        self.window = window;
        self.committed = committed;
    }

    /// Changes what later steps may spend.
    pub fn set_spending(&mut self, spending: Spending) {
        self.spending = spending;
    }

    /// The sums since the last call.
    pub fn take_stats(&mut self) -> DecodeStats {
        std::mem::take(&mut self.stats)
    }

    /// One row per token of the block: its K and V, and its queries where the shards have something to attend to.
    fn rows(&self, block: &LayerBlock) -> Vec<RowAsk> {
        let kv_row = self.shape.kv_heads * self.shape.dim;
        let q_row = self.shape.q_heads * self.shape.dim;
        (0..block.tokens)
            .map(|i| {
                let position = block.begin + i as u64;
                let range = self.window.spec().remote(position + 1);
                let q =
                    if range.is_empty() { Vec::new() } else { block.q[i * q_row..(i + 1) * q_row].to_vec() };
                RowAsk {
                    layer: block.layer as u32,
                    begin: range.start,
                    end: range.end,
                    budget: self.spending.budget,
                    estimate: self.spending.estimate,
                    q,
                    beside: Vec::new(),
                    token: Some(NewTokenKv {
                        position,
                        k: block.k[i * kv_row..(i + 1) * kv_row].to_vec(),
                        v: block.v[i * kv_row..(i + 1) * kv_row].to_vec(),
                    }),
                }
            })
            .collect()
    }

    fn send(&self, asks: Vec<RowAsk>) -> JoinHandle<Result<Vec<RowAnswer>, client::Error>> {
        let session = self.session.clone();
        self.runtime.spawn(async move { session.attend(asks).await })
    }

    /// The worker's own partials: [tokens, q_heads].
    fn attend_window(&mut self, block: &LayerBlock) -> Vec<Partial> {
        let clock = Instant::now();
        let q_row = self.shape.q_heads * self.shape.dim;
        let mut own = vec![Partial::neutral(self.shape.dim); block.tokens * self.shape.q_heads];
        for (i, out) in own.chunks_mut(self.shape.q_heads).enumerate() {
            let at = (block.layer, block.begin + i as u64);
            let q = &block.q[i * q_row..(i + 1) * q_row];
            self.window.attend(at, q, &self.description, &mut self.scratch, out);
        }
        self.stats.local += clock.elapsed();
        own
    }
}

impl LayerAttention for Decode {
    fn attend(&mut self, block: LayerBlock) -> anyhow::Result<Vec<f32>> {
        let spec = self.window.spec();
        anyhow::ensure!(
            block.tokens as u64 <= spec.chunk,
            "a decode block has {} tokens; the append chunk is {}",
            block.tokens,
            spec.chunk
        );
        let mut asks = self.rows(&block);
        self.window.trim(block.layer, self.committed, block.tokens as u64);
        self.window.push(block.layer, block.begin, &block.k, &block.v);
        // A coverage is one of the whole softmax: the shards can only stop in time when they know what the worker's own
        // tokens weigh. For any other budget both sides work at the same time.
        let (pending, mut merged) = match self.spending.budget {
            Budget::Coverage(_) => {
                let merged = self.attend_window(&block);
                for (ask, own) in asks.iter_mut().zip(merged.chunks(self.shape.q_heads)) {
                    ask.beside = own.iter().map(Partial::log_sum_exp).collect();
                }
                (self.send(asks), merged)
            }
            _ => (self.send(asks), self.attend_window(&block)),
        };

        let clock = Instant::now();
        let answers = self.runtime.block_on(pending).context("the attend task ended early")??;
        self.stats.remote_wait += clock.elapsed();
        anyhow::ensure!(answers.len() == block.tokens, "{} answers to {} rows", answers.len(), block.tokens);
        for (answer, out) in answers.iter().zip(merged.chunks_mut(self.shape.q_heads)) {
            anyhow::ensure!(
                answer.missing_tokens == 0,
                "layer {}: the shards left {} visible tokens unanswered",
                block.layer,
                answer.missing_tokens
            );
            for (local, remote) in out.iter_mut().zip(&answer.partials) {
                local.merge(remote);
            }
            if !answer.partials.is_empty() {
                self.stats.rows += 1;
                self.stats.keys_scored += answer.stats.keys_scored;
                self.stats.exact_tokens += answer.stats.exact_tokens;
            }
            let known = self.spending.tells_coverage() || answer.partials.is_empty();
            for partial in out.iter() {
                self.stats.coverage.note(known.then(|| partial.coverage()));
            }
        }
        self.committed = self.session.watermark();
        let mut out = Vec::with_capacity(block.q.len());
        for partial in &merged {
            out.extend_from_slice(&partial.o);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_is_told_by_an_estimate_or_by_attending_to_everything() {
        for (budget, estimate, told) in [
            (Budget::All, false, true),
            (Budget::All, true, true),
            (Budget::TopK(100), true, true),
            (Budget::TopK(100), false, false),
            (Budget::Coverage(0.9), false, false),
        ] {
            assert_eq!(Spending { budget, estimate }.tells_coverage(), told, "{budget:?}, {estimate}");
        }
    }
}
