//! The conventional baseline: hnsw_rs over the keys, by inner product. This file is its only user.
//!
//! It knows nothing of queries when it is built, which is what the comparison is about. Keys are inserted one after the
//! other, so that the same keys give the same graph.

use std::cell::Cell;

use attention::Rows;
use half::f16;
use hnsw_rs::prelude::{Distance, Hnsw as Inner};
use kernels::Kernels;

/// Links per key and layer.
const CONNECTIONS: usize = 32;
/// Width of the search at insertion.
const EF_CONSTRUCTION: usize = 128;
/// Layers at most.
const LAYERS: usize = 16;

thread_local! {
    /// Distances evaluated by this thread since it last looked.
    static EVALUATED: Cell<usize> = const { Cell::new(0) };
}

/// bound - a . b, not negative while no vector is longer than the root of the bound.
#[derive(Clone, Copy)]
struct InnerProduct {
    k: Kernels,
    bound: f32,
}

impl Distance<f16> for InnerProduct {
    fn eval(&self, a: &[f16], b: &[f16]) -> f32 {
        EVALUATED.with(|n| n.set(n.get() + 1));
        (self.bound - self.k.dot_f16(a, b)).max(0.0)
    }
}

/// The index of a span.
pub(crate) struct Hnsw {
    inner: Inner<'static, f16, InnerProduct>,
    tokens: usize,
    dim: usize,
    bound: f32,
}

impl Hnsw {
    /// Inserts every key.
    pub fn build(k: &Kernels, keys: &Rows<'_>) -> Hnsw {
        let longest = (0..keys.len()).map(|i| k.dot_f16(keys.row(i), keys.row(i))).fold(0f32, f32::max);
        let bound = longest * 1.01 + 1e-6;
        let distance = InnerProduct { k: *k, bound };
        let inner = Inner::new(CONNECTIONS, keys.len(), LAYERS, EF_CONSTRUCTION, distance);
        for i in 0..keys.len() {
            inner.insert_slice((keys.row(i), i));
        }
        Hnsw { inner, tokens: keys.len(), dim: keys.dim(), bound }
    }

    /// Ids of about the `ef` best keys, and how many keys were scored.
    pub fn search(&self, k: &Kernels, q: &[f32], ef: usize, ids: &mut Vec<u32>) -> usize {
        let norm = q.iter().map(|x| x * x).sum::<f32>().sqrt();
        // Scores of a query scaled to the length of the longest key stay within the bound; the order is the same.
        let factor = if norm > 0.0 { self.bound.sqrt() / norm * 0.99 } else { 0.0 };
        let scaled: Vec<f32> = q.iter().map(|x| x * factor).collect();
        let mut query = vec![f16::ZERO; scaled.len()];
        k.f32_to_f16(&scaled, &mut query);
        EVALUATED.with(|n| n.set(0));
        let found = self.inner.search(&query, ef, ef);
        ids.extend(found.iter().map(|n| n.d_id as u32));
        EVALUATED.with(Cell::get)
    }

    /// Bytes held, about: a copy of the keys, and 24 bytes a link on the bottom layer (hnsw_rs keeps a pointer and a
    /// distance in a reference-counted cell).
    pub fn bytes(&self) -> usize {
        self.tokens * (2 * self.dim + 2 * CONNECTIONS * 24)
    }
}

impl std::fmt::Debug for Hnsw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hnsw").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}
