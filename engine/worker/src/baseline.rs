//! What the product is measured against, in one process: attention that holds all KV itself.

use attention::{Description, Partial, Rows, Scratch, attend_range};
use half::f16;
use index::{Ask, Budget, SpanView, attend_spans};
use kernels::Kernels;
use rayon::prelude::*;

use crate::causal::causal_attention;
use crate::forward::{KvShape, LayerAttention, LayerBlock};
use crate::window::WindowSpec;

/// Which tokens a baseline attends to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// All of them.
    Full,
    /// Sink and window only.
    Window,
    /// Sink, window and the exact top-k of the rest for each query head: the best that a pure top-k can do.
    ExactTopK(usize),
}

/// Keys and values of one head, `[tokens, dim]` each.
type HeadKv = (Vec<f16>, Vec<f16>);

/// All KV of one sequence, per layer and KV head, as stored by shards (f16).
pub struct FullCache {
    shape: KvShape,
    description: Description,
    spec: WindowSpec,
    /// What later blocks attend to. Blocks that start an empty cache are always attended in full.
    pub mode: Mode,
    /// `[layer][kv_head]`
    heads: Vec<Vec<HeadKv>>,
}

impl FullCache {
    /// An empty cache.
    pub fn new(shape: KvShape, description: Description, spec: WindowSpec) -> Self {
        let heads = vec![vec![(Vec::new(), Vec::new()); shape.kv_heads]; shape.layers];
        Self { shape, description, spec, mode: Mode::Full, heads }
    }

    /// Drops every token at or beyond `tokens`.
    pub fn truncate(&mut self, tokens: usize) {
        for (k, v) in self.heads.iter_mut().flatten() {
            k.truncate(tokens * self.shape.dim);
            v.truncate(tokens * self.shape.dim);
        }
    }

    /// Appends the rows of a block.
    pub fn push(&mut self, block: &LayerBlock) {
        let dim = self.shape.dim;
        let row = self.shape.kv_heads * dim;
        for (h, (k, v)) in self.heads[block.layer].iter_mut().enumerate() {
            for i in 0..block.tokens {
                let at = i * row + h * dim;
                k.extend_from_slice(&block.k[at..at + dim]);
                v.extend_from_slice(&block.v[at..at + dim]);
            }
        }
    }

    /// Attention of one query position of one KV head: `q` is `[group, dim]`.
    fn attend_one(
        &self,
        (layer, head): (usize, usize),
        position: u64,
        q: &[f32],
        scratch: &mut HeadScratch,
    ) -> Vec<Partial> {
        let (dim, group) = (self.shape.dim, self.shape.group());
        let (k, v) = &self.heads[layer][head];
        let (keys, values) = (Rows::contiguous(k, dim), Rows::contiguous(v, dim));
        let mut out = vec![Partial::neutral(dim); group];
        let tokens = position + 1;
        let kernels = Kernels::native();
        let mut exact = |range: std::ops::Range<u64>, out: &mut [Partial]| {
            let range = range.start as usize..range.end as usize;
            attend_range(&kernels, &self.description, q, &keys, &values, range, &mut scratch.exact, out);
        };
        if self.mode == Mode::Full {
            exact(0..tokens, &mut out);
            return out;
        }
        for range in self.spec.local(tokens) {
            exact(range, &mut out);
        }
        let rest = self.spec.remote(tokens);
        if let (Mode::ExactTopK(top), false) = (self.mode, rest.is_empty()) {
            let span = SpanView {
                keys: Rows::contiguous(k, dim),
                values: Rows::contiguous(v, dim),
                index: None,
                visible: rest.start as usize..rest.end as usize,
            };
            let ask = Ask {
                q,
                group,
                description: self.description,
                budget: Budget::TopK(top),
                estimate: false,
                width: None,
                deadline: None,
            };
            attend_spans(&kernels, &[span], &[], &ask, &mut scratch.spans, &mut out, None);
        }
        out
    }
}

#[derive(Default)]
struct HeadScratch {
    exact: Scratch,
    spans: index::Scratch,
}

impl LayerAttention for FullCache {
    fn attend(&mut self, block: LayerBlock) -> anyhow::Result<Vec<f32>> {
        self.push(&block);
        if block.begin == 0 {
            return Ok(causal_attention(self.shape, &self.description, &block));
        }
        let (dim, group) = (self.shape.dim, self.shape.group());
        let q_row = self.shape.q_heads * dim;
        let mut out = vec![0.0; block.tokens * q_row];
        out.par_chunks_mut(group * dim).enumerate().for_each_init(
            HeadScratch::default,
            |scratch, (job, out)| {
                let (i, head) = (job / self.shape.kv_heads, job % self.shape.kv_heads);
                let at = i * q_row + head * group * dim;
                let q = &block.q[at..at + group * dim];
                let partials = self.attend_one((block.layer, head), block.begin + i as u64, q, scratch);
                for (partial, out) in partials.iter().zip(out.chunks_mut(dim)) {
                    out.copy_from_slice(&partial.o);
                }
            },
        );
        Ok(out)
    }
}
