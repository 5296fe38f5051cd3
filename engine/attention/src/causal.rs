//! Exact causal attention of many rows: prefill.

use std::ops::Range;

use kernels::Kernels;

use crate::description::Description;
use crate::partial::Partial;
use crate::range::weigh;
use crate::rows::RowSource;
use crate::scratch::sized;

/// Keys per tile of scores.
const TILE: usize = 256;

/// What one call of [`attend_block`] reads: many query rows of one KV head's group, and that head's keys and values.
#[derive(Clone, Debug)]
pub struct CausalBlock<'a, S> {
    /// All query rows: [rows, q_heads, key_dim].
    pub q: &'a [f32],
    /// Query heads in `q`.
    pub q_heads: usize,
    /// The query heads that share the KV head.
    pub heads: Range<usize>,
    /// Row r of `q` attends to the keys 0..min(first + r + 1, number of keys). With `first` at least the number of
    /// keys every row sees all of them.
    pub first: usize,
    /// The keys of the KV head.
    pub keys: S,
    /// The values of the KV head.
    pub values: S,
}

/// Partials of a block of rows, all mass exact. Index (r, h): r * g + h with r from the start of the block and h from
/// the first head of the group.
#[derive(Clone, Debug, Default)]
pub struct BlockPartials {
    /// Largest logits: [rows, g].
    pub m: Vec<f32>,
    /// Masses: [rows, g].
    pub l: Vec<f32>,
    /// Outputs: [rows, g, value_dim].
    pub o: Vec<f32>,
}

impl BlockPartials {
    /// The partial at index r * g + h.
    pub fn partial(&self, index: usize) -> Partial {
        let dim = self.o.len() / self.m.len();
        Partial {
            m: self.m[index],
            l_exact: self.l[index],
            l_quant: 0.0,
            l_est: 0.0,
            o: self.o[index * dim..(index + 1) * dim].to_vec(),
        }
    }
}

/// Memory that [`attend_block`] works in, kept between calls; one per thread.
#[derive(Clone, Debug, Default)]
pub struct BlockScratch {
    q: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
    l: Vec<f64>,
}

/// Exact attention of the rows `rows` of a causal block, into `out` (replaced).
///
/// Works on tiles of (rows x group) x 256 scores with a running maximum, so memory does not depend on the number of
/// keys. The caller runs (KV head, block of rows) pairs in parallel; 64 rows a call are a good size. Panics when shapes
/// do not fit.
pub fn attend_block<S: RowSource>(
    k: &Kernels,
    d: &Description,
    block: &CausalBlock<'_, S>,
    rows: Range<usize>,
    scratch: &mut BlockScratch,
    out: &mut BlockPartials,
) {
    let (key_dim, value_dim) = (block.keys.width(), block.values.width());
    let (from, to) = (block.heads.start, block.heads.end);
    assert!(from < to && to <= block.q_heads, "heads {from}..{to} of {}", block.q_heads);
    assert!(block.keys.count() == block.values.count(), "as many keys as values");
    let g = to - from;
    let m_rows = rows.len() * g;

    scratch.q.clear();
    for r in rows.clone() {
        let row = &block.q[r * block.q_heads * key_dim..(r + 1) * block.q_heads * key_dim];
        scratch.q.extend_from_slice(&row[from * key_dim..to * key_dim]);
    }
    k.scale(d.scale, &mut scratch.q);
    refill(&mut out.m, m_rows, f32::NEG_INFINITY);
    refill(&mut out.o, m_rows * value_dim, 0.0);
    scratch.l.clear();
    scratch.l.resize(m_rows, 0.0);

    let visible = |i: usize| block.first.saturating_add(rows.start + i / g + 1).min(block.keys.count());
    let end = if m_rows == 0 { 0 } else { visible(m_rows - 1) };
    for tile in (0..end).step_by(TILE) {
        let n = TILE.min(end - tile);
        widen(k, &block.keys, tile..tile + n, &mut scratch.keys);
        let scores = sized(&mut scratch.scores, m_rows * n);
        k.gemm_nt(&scratch.q, &scratch.keys, key_dim, m_rows, n, scores);
        for (i, z) in scores.chunks_exact_mut(n).enumerate() {
            let (seen, hidden) = z.split_at_mut(visible(i).saturating_sub(tile).min(n));
            hidden.fill(0.0);
            if !seen.is_empty() {
                d.cap_all(seen);
                let acc = &mut out.o[i * value_dim..(i + 1) * value_dim];
                weigh(k, seen, (&mut out.m[i], &mut scratch.l[i]), acc);
            }
        }
        widen(k, &block.values, tile..tile + n, &mut scratch.values);
        k.gemm_nn_add(scores, &scratch.values, n, m_rows, value_dim, &mut out.o);
    }

    out.l.clear();
    out.l.extend(scratch.l.iter().map(|&l| l as f32));
    for (&l, o) in out.l.iter().zip(out.o.chunks_exact_mut(value_dim)) {
        if l > 0.0 {
            k.scale(1.0 / l, o);
        }
    }
}

/// The rows of `range` as f32, one after the other.
fn widen(k: &Kernels, from: &impl RowSource, range: Range<usize>, to: &mut Vec<f32>) {
    let width = from.width();
    to.resize(range.len() * width, 0.0);
    for (i, to) in range.zip(to.chunks_exact_mut(width)) {
        k.f16_to_f32(from.get(i), to);
    }
}

fn refill(buffer: &mut Vec<f32>, len: usize, value: f32) {
    buffer.clear();
    buffer.resize(len, value);
}
