//! The worker's own copy of KV: the attention sink and the recent window of every layer and KV head.
//!
//! It is a cache: the shards hold the same tokens. At most one append chunk beyond sink + window is held, so that
//! dropping old rows is a rare bulk move and not a shift per token.

use std::ops::Range;

use attention::{Description, Partial, Rows, Scratch, attend_range};
use half::f16;
use kernels::Kernels;

use crate::forward::KvShape;

/// How many tokens of which kind the worker attends to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSpec {
    /// First tokens of the sequence.
    pub n_sink: u64,
    /// Last tokens of the sequence, the current one included; at least 1.
    pub n_window: u64,
    /// Tokens that one block may add before old ones are dropped.
    pub chunk: u64,
}

impl WindowSpec {
    /// The positions that the shards answer for when `tokens` tokens exist: `[n_sink, tokens - n_window)`, or empty.
    pub fn remote(&self, tokens: u64) -> Range<u64> {
        let end = tokens.saturating_sub(self.n_window);
        self.n_sink.min(end)..end
    }

    /// The sink and the window positions when `tokens` tokens exist; with [`Self::remote`] they tile `[0, tokens)`.
    pub fn local(&self, tokens: u64) -> [Range<u64>; 2] {
        let sink = self.n_sink.min(tokens);
        let begin = tokens.saturating_sub(self.n_window).max(sink);
        [0..sink, begin..tokens]
    }
}

/// Rows of one KV head.
#[derive(Clone, Default)]
struct HeadRows {
    k: Vec<f16>,
    v: Vec<f16>,
}

impl HeadRows {
    fn push(&mut self, k: &[f16], v: &[f16]) {
        self.k.extend_from_slice(k);
        self.v.extend_from_slice(v);
    }

    fn drop_front(&mut self, elements: usize) {
        self.k.drain(..elements);
        self.v.drain(..elements);
    }
}

#[derive(Clone)]
struct LayerWindow {
    sink: Vec<HeadRows>,
    recent: Vec<HeadRows>,
    /// Position of the first row in `recent`.
    recent_begin: u64,
    /// Tokens seen by this layer.
    len: u64,
}

/// Sink and window of all layers.
#[derive(Clone)]
pub struct WindowCache {
    spec: WindowSpec,
    shape: KvShape,
    layers: Vec<LayerWindow>,
}

impl WindowCache {
    /// An empty cache.
    pub fn new(spec: WindowSpec, shape: KvShape) -> Self {
        let layer = LayerWindow {
            sink: vec![HeadRows::default(); shape.kv_heads],
            recent: vec![HeadRows::default(); shape.kv_heads],
            recent_begin: spec.n_sink,
            len: 0,
        };
        Self { spec, shape, layers: vec![layer; shape.layers] }
    }

    /// The split of positions that this cache serves.
    pub fn spec(&self) -> WindowSpec {
        self.spec
    }

    /// Appends `n` tokens to one layer: `k`, `v` are `[n, kv_heads, dim]`. Rows that no later block needs are skipped.
    pub fn push(&mut self, layer: usize, begin: u64, k: &[f16], v: &[f16]) {
        let (heads, dim) = (self.shape.kv_heads, self.shape.dim);
        let tokens = (k.len() / (heads * dim)) as u64;
        let end = begin + tokens;
        let state = &mut self.layers[layer];
        assert_eq!(state.len, begin, "layer {layer}: tokens must arrive in order");
        // Of a block larger than a chunk (prefill) only its own tail will ever be attended to from here.
        let keep_from = if tokens > self.spec.chunk { end.saturating_sub(self.spec.n_window) } else { begin };
        for position in begin..end {
            let at = ((position - begin) as usize) * heads * dim;
            let rows = if position < self.spec.n_sink {
                &mut state.sink
            } else if position >= keep_from {
                if state.recent[0].k.is_empty() {
                    state.recent_begin = position;
                }
                &mut state.recent
            } else {
                continue;
            };
            for (h, rows) in rows.iter_mut().enumerate() {
                let at = at + h * dim;
                rows.push(&k[at..at + dim], &v[at..at + dim]);
            }
        }
        state.len = end;
    }

    /// Drops rows that left the window and that the shards have committed (`committed`: the watermark), once a whole
    /// chunk of them has gathered or the next block of `incoming` tokens would exceed the bound.
    pub fn trim(&mut self, layer: usize, committed: u64, incoming: u64) {
        let state = &mut self.layers[layer];
        // The first query of the next block sits at `len`; its window begins at len + 1 - n_window.
        let keep_from = (state.len + 1).saturating_sub(self.spec.n_window).min(committed);
        let held = state.len.saturating_sub(state.recent_begin);
        if keep_from <= state.recent_begin
            || held + incoming <= self.spec.n_window.saturating_add(self.spec.chunk)
        {
            return;
        }
        let elements = (keep_from - state.recent_begin) as usize * self.shape.dim;
        for rows in &mut state.recent {
            rows.drop_front(elements.min(rows.k.len()));
        }
        state.recent_begin = keep_from;
    }

    /// Merges the attention of the query at `position` over sink and window into `out` (`q_heads` partials).
    /// `q` is `[q_heads, dim]`.
    pub fn attend(
        &self,
        at: (usize, u64),
        q: &[f32],
        description: &Description,
        scratch: &mut Scratch,
        out: &mut [Partial],
    ) {
        let (layer, position) = at;
        let state = &self.layers[layer];
        let (dim, group) = (self.shape.dim, self.shape.group());
        let [sink, window] = self.spec.local(position + 1);
        assert!(
            window.is_empty() || window.start >= state.recent_begin,
            "layer {layer}: position {position} needs token {} but the window begins at {}",
            window.start,
            state.recent_begin
        );
        let kernels = Kernels::native();
        for head in 0..self.shape.kv_heads {
            let q = &q[head * group * dim..(head + 1) * group * dim];
            let out = &mut out[head * group..(head + 1) * group];
            let parts = [
                (&state.sink[head], sink.clone(), 0),
                (&state.recent[head], window.clone(), state.recent_begin),
            ];
            for (rows, range, first) in parts {
                if range.is_empty() {
                    continue;
                }
                let (keys, values) = (Rows::contiguous(&rows.k, dim), Rows::contiguous(&rows.v, dim));
                let range = (range.start - first) as usize..(range.end - first) as usize;
                attend_range(&kernels, description, q, &keys, &values, range, scratch, out);
            }
        }
    }

    /// Tokens and bytes of KV held now: the largest layer's tokens, all layers' bytes.
    pub fn held(&self) -> (u64, u64) {
        let mut tokens = 0;
        let mut bytes = 0;
        for layer in &self.layers {
            let rows = (layer.sink[0].k.len() + layer.recent[0].k.len()) / self.shape.dim;
            tokens = tokens.max(rows as u64);
            for head in layer.sink.iter().chain(&layer.recent) {
                bytes += ((head.k.len() + head.v.len()) * size_of::<f16>()) as u64;
            }
        }
        (tokens, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape = KvShape { layers: 1, q_heads: 2, kv_heads: 1, dim: 4 };

    fn zeros(tokens: usize) -> Vec<f16> {
        vec![f16::ZERO; tokens * SHAPE.kv_heads * SHAPE.dim]
    }

    #[test]
    fn local_and_remote_tile_every_length() {
        let spec = WindowSpec { n_sink: 3, n_window: 5, chunk: 4 };
        for tokens in 0..40u64 {
            let [sink, window] = spec.local(tokens);
            let remote = spec.remote(tokens);
            assert_eq!(sink.start, 0);
            let mut seen: Vec<u64> = sink.chain(remote).chain(window).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..tokens).collect::<Vec<_>>(), "{tokens} tokens");
        }
    }

    #[test]
    fn holds_sink_window_and_at_most_a_chunk_and_counts_each_local_token_once() {
        let spec = WindowSpec { n_sink: 3, n_window: 5, chunk: 4 };
        let mut cache = WindowCache::new(spec, SHAPE);
        cache.push(0, 0, &zeros(20), &zeros(20));
        let mut scratch = Scratch::default();
        let description = Description { scale: 1.0, softcap: None };
        for position in 20..60u64 {
            cache.trim(0, position, 1);
            cache.push(0, position, &zeros(1), &zeros(1));
            let mut out = vec![Partial::neutral(SHAPE.dim); SHAPE.q_heads];
            cache.attend((0, position), &[0.5; 8], &description, &mut scratch, &mut out);
            for partial in &out {
                assert_eq!(partial.l_exact, 8.0);
            }
            let (tokens, bytes) = cache.held();
            assert!(tokens <= 3 + 5 + 4, "{tokens} tokens held");
            assert_eq!(bytes, tokens * SHAPE.layer_bytes(1) as u64);
        }
    }

    #[test]
    fn uncommitted_tokens_are_not_dropped() {
        let spec = WindowSpec { n_sink: 0, n_window: 2, chunk: 1 };
        let mut cache = WindowCache::new(spec, SHAPE);
        for position in 0..10 {
            cache.trim(0, 4, 1);
            cache.push(0, position, &zeros(1), &zeros(1));
        }
        assert!(cache.layers[0].recent_begin <= 4);
    }
}
