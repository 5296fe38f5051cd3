//! What the product is measured against, in one process: attention that holds all KV itself.

use std::ops::Range;

use attention::{Description, Partial, Rows, Scratch, attend_range};
use half::f16;
use index::sketch::{WatchedRow, watch};
use index::{Ask, Budget, SpanView, attend_spans};
use kernels::Kernels;
use rayon::prelude::*;

use crate::causal::causal_attention;
use crate::forward::{KvShape, LayerAttention, LayerBlock};
use crate::tier::{Span, Tier, TierScratch, Variant};
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
    /// Sink, window and what followed the prefill; the rest of it as [`FullCache::bring`] left it.
    Tiered,
}

/// Last positions of the prefill whose attention decides what a tier keeps.
const WATCHED: usize = 512;

/// Keys and values of one head, `[tokens, dim]` each.
type HeadKv = (Vec<f16>, Vec<f16>);

/// All KV of one sequence, per layer and KV head, as stored by shards (f16).
pub struct FullCache {
    shape: KvShape,
    description: Description,
    spec: WindowSpec,
    /// What later blocks attend to. Blocks that start an empty cache are always attended in full.
    pub mode: Mode,
    /// Tokens of the block that started the cache: what the shards hold in spans.
    prefilled: u64,
    /// `[layer][kv_head]`
    heads: Vec<Vec<HeadKv>>,
    /// Queries of the last [`WATCHED`] positions of the prefill: `[layer]`, each [positions, q_heads, dim].
    queries: Vec<Vec<f32>>,
    /// `[layer][kv_head]`
    tiers: Vec<Vec<Tier>>,
}

impl FullCache {
    /// An empty cache.
    pub fn new(shape: KvShape, description: Description, spec: WindowSpec) -> Self {
        let heads = vec![vec![(Vec::new(), Vec::new()); shape.kv_heads]; shape.layers];
        let queries = vec![Vec::new(); shape.layers];
        Self { shape, description, spec, mode: Mode::Full, prefilled: 0, heads, queries, tiers: Vec::new() }
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
        if block.begin == 0 {
            self.prefilled = block.tokens as u64;
            let row = self.shape.q_heads * self.shape.dim;
            let first = block.tokens.saturating_sub(WATCHED) * row;
            self.queries[block.layer] = block.q[first..block.tokens * row].to_vec();
        }
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

    /// Brings what the shards would hold of the prefill into a tier, by the attention of its last positions.
    ///
    /// # Errors
    /// A tier that cannot be built: too few bytes.
    pub fn bring(&mut self, variant: Variant, seed: u64) -> anyhow::Result<()> {
        let jobs: Vec<(usize, usize)> = (0..self.shape.layers)
            .flat_map(|layer| (0..self.shape.kv_heads).map(move |head| (layer, head)))
            .collect();
        let tiers: Vec<Tier> = jobs
            .into_par_iter()
            .map(|(layer, head)| {
                let range = self.sealed();
                let rows = if variant.learns() { self.watched_rows(layer, head) } else { Vec::new() };
                let keys = (0, Rows::contiguous(&self.heads[layer][head].0, self.shape.dim));
                let numbers = (&Kernels::native(), &self.description);
                let watched = watch(numbers, (&[keys], self.shape.dim), range, &rows)?;
                Tier::build(&self.span(layer, head), variant, &watched, seed)
            })
            .collect::<anyhow::Result<_>>()?;
        self.tiers = tiers.chunks(self.shape.kv_heads).map(<[Tier]>::to_vec).collect();
        Ok(())
    }

    /// The part of the prefill that shards index.
    fn sealed(&self) -> Range<usize> {
        let remote = self.spec.remote(self.prefilled);
        remote.start as usize..remote.end as usize
    }

    fn span(&self, layer: usize, head: usize) -> Span<'_> {
        let (range, dim) = (self.sealed(), self.shape.dim);
        let (keys, values) = &self.heads[layer][head];
        Span {
            keys: Rows::contiguous(&keys[range.start * dim..range.end * dim], dim),
            values: Rows::contiguous(&values[range.start * dim..range.end * dim], dim),
            description: self.description,
        }
    }

    fn watched_rows(&self, layer: usize, head: usize) -> Vec<WatchedRow> {
        let width = self.shape.group() * self.shape.dim;
        let rows = self.queries[layer].chunks_exact(self.shape.q_heads * self.shape.dim);
        let first = self.prefilled as usize - rows.len();
        rows.zip(first + 1..)
            .map(|(row, visible)| WatchedRow { q: row[head * width..(head + 1) * width].to_vec(), visible })
            .collect()
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
        let mut out = vec![Partial::neutral(dim); group];
        let tokens = position + 1;
        let kernels = Kernels::native();
        // `from`: the row that blocks of the sum are counted from.
        let mut exact = |from: u64, range: Range<u64>, out: &mut [Partial]| {
            let held = from as usize * dim..range.end as usize * dim;
            let (keys, values) = (Rows::contiguous(&k[held.clone()], dim), Rows::contiguous(&v[held], dim));
            let range = (range.start - from) as usize..(range.end - from) as usize;
            attend_range(&kernels, &self.description, q, &keys, &values, range, &mut scratch.exact, out);
        };
        for range in self.spec.local(tokens) {
            exact(range.start, range, &mut out);
        }
        let rest = self.spec.remote(tokens);
        if self.mode == Mode::Full {
            // The order in which shard and worker sum at budget all, so that even rounding is the same there and every
            // difference is one of the method.
            let mut remote = vec![Partial::neutral(dim); group];
            // Prefill seals the sink and the range up to its window as a span each; what follows is fresh.
            let sealed = self.spec.remote(self.prefilled).end.clamp(rest.start, rest.end);
            exact(sealed, sealed..rest.end, &mut remote);
            exact(rest.start, rest.start..sealed, &mut remote);
            out.iter_mut().zip(&remote).for_each(|(out, remote)| out.merge(remote));
            return out;
        }
        if self.mode == Mode::Tiered {
            let sealed = self.sealed().end as u64;
            exact(sealed, sealed.max(rest.start)..rest.end, &mut out);
            let tier = &self.tiers[layer][head];
            let partials = tier.attend(&kernels, &self.span(layer, head), q, &mut scratch.tiers);
            out.iter_mut().zip(&partials).for_each(|(out, partial)| out.merge(partial));
            return out;
        }
        if let (Mode::ExactTopK(top), false) = (self.mode, rest.is_empty()) {
            let span = SpanView {
                keys: Rows::contiguous(k, dim),
                values: Rows::contiguous(v, dim),
                index: None,
                compact: None,
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
                outside: None,
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
    tiers: TierScratch,
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
