//! What a span can be held in: as it came, without its least attended tokens, quantised, sketched.

use anyhow::{Context, Result};
use attention::quant::{Precision, QuantScratch, Quantised};
use attention::{Description, Partial, Rows, Scratch, attend_range};
use half::f16;
use index::sketch::{Sketch, SketchKind, SketchParams, SketchScratch, Watched};
use kernels::Kernels;

/// Which tier or variant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Variant {
    /// As it came.
    Full,
    /// Quantised.
    Quantised(Precision),
    /// Only the most attended tokens, in this share of the bytes.
    Evicted(f64),
    /// A sketch, in this share of the bytes.
    Sketched(SketchKind, f64),
}

impl Variant {
    /// The name in tables and JSON.
    pub fn name(self) -> String {
        let percent = |share: f64| format!("{}", (share * 1000.0).round() / 10.0);
        match self {
            Variant::Full => "full".into(),
            Variant::Quantised(Precision::Int8) => "int8".into(),
            Variant::Quantised(Precision::Int8Plain) => "int8-plain".into(),
            Variant::Quantised(Precision::Int4) => "int4".into(),
            Variant::Evicted(share) => format!("evict-{}", percent(share)),
            Variant::Sketched(kind, share) => format!("{kind}-{}", percent(share)),
        }
    }

    /// Whether it depends on what was attended to.
    pub fn learns(self) -> bool {
        matches!(self, Variant::Evicted(_) | Variant::Sketched(..))
    }
}

/// The indexed tokens of one KV head, and how they are attended to.
pub struct Span<'a> {
    pub keys: Rows<'a>,
    pub values: Rows<'a>,
    pub description: Description,
}

/// A span in a tier.
pub struct Tier<'a> {
    span: &'a Span<'a>,
    held: Held,
}

enum Held {
    Full,
    Quantised(Box<Quantised>),
    /// Ids, ascending, with their keys and values.
    Evicted(Vec<u32>, Vec<f16>, Vec<f16>),
    Sketched(Sketch),
}

/// Memory to ask in; one per thread.
#[derive(Default)]
pub struct TierScratch {
    exact: Scratch,
    quantised: QuantScratch,
    sketched: SketchScratch,
}

impl<'a> Tier<'a> {
    /// Brings a span into a tier.
    pub fn build(span: &'a Span<'a>, variant: Variant, watched: &Watched, seed: u64) -> Result<Tier<'a>> {
        let (keys, values) = (&span.keys, &span.values);
        let row = 2 * (keys.dim() + values.dim());
        let bytes = |share: f64| (share * (keys.len() * row) as f64) as usize;
        let held = match variant {
            Variant::Full => Held::Full,
            Variant::Quantised(precision) => {
                Held::Quantised(Box::new(Quantised::new(keys, values, precision)?))
            }
            Variant::Evicted(share) => {
                let attention = watched.attention();
                let mut order: Vec<u32> = (0..keys.len() as u32).collect();
                let of = |id: u32| attention[id as usize];
                order.sort_by(|&a, &b| of(b).total_cmp(&of(a)).then(a.cmp(&b)));
                order.truncate(bytes(share) / row);
                order.sort_unstable();
                let rows = |rows: &Rows<'_>| -> Vec<f16> {
                    order.iter().flat_map(|&id| rows.row(id as usize)).copied().collect()
                };
                let (keys, values) = (rows(keys), rows(values));
                Held::Evicted(order, keys, values)
            }
            Variant::Sketched(kind, share) => {
                let params = SketchParams {
                    kind,
                    bytes: bytes(share),
                    scale: span.description.scale,
                    exact_share: 0.5,
                    seed,
                };
                Held::Sketched(Sketch::build(keys, values, watched, &params).context(variant.name())?)
            }
        };
        Ok(Tier { span, held })
    }

    /// Attention of all query heads, `q` [g, dim], over all tokens.
    pub fn attend(&self, k: &Kernels, q: &[f32], scratch: &mut TierScratch) -> Vec<Partial> {
        let (keys, values, d) = (&self.span.keys, &self.span.values, &self.span.description);
        let mut out = vec![Partial::neutral(values.dim()); q.len() / keys.dim()];
        match &self.held {
            Held::Full => attend_range(k, d, q, keys, values, 0..keys.len(), &mut scratch.exact, &mut out),
            Held::Quantised(rows) => {
                rows.attend((k, d), q, 0..keys.len(), &mut scratch.quantised, &mut out);
            }
            Held::Evicted(ids, held_keys, held_values) => {
                let held = Rows::contiguous(held_keys, keys.dim());
                let of_held = Rows::contiguous(held_values, values.dim());
                attend_range(k, d, q, &held, &of_held, 0..ids.len(), &mut scratch.exact, &mut out);
            }
            Held::Sketched(sketch) => sketch.attend(k, d, q, &mut scratch.sketched, &mut out),
        }
        out
    }

    /// Products of all query heads with all keys: [g, tokens]; -inf for a token that is gone.
    pub fn products(&self, k: &Kernels, q: &[f32], scratch: &mut TierScratch) -> Vec<f32> {
        let (dim, n) = (self.span.keys.dim(), self.span.keys.len());
        let g = q.len() / dim;
        match &self.held {
            Held::Full => {
                let mut products = vec![0.0; g * n];
                for (first, rows) in self.span.keys.runs(0..n) {
                    let mut run = vec![0.0; g * rows.len() / dim];
                    k.dot_rows(q, dim, rows, &mut run);
                    for (run, all) in run.chunks(rows.len() / dim).zip(products.chunks_mut(n)) {
                        all[first..first + run.len()].copy_from_slice(run);
                    }
                }
                products
            }
            Held::Quantised(rows) => rows.products(k, q, &mut scratch.quantised),
            Held::Evicted(ids, keys, _) => {
                let mut held = vec![0.0; g * ids.len()];
                k.dot_rows(q, dim, keys, &mut held);
                let mut products = vec![f32::NEG_INFINITY; g * n];
                for (held, products) in held.chunks(ids.len().max(1)).zip(products.chunks_mut(n)) {
                    ids.iter().zip(held).for_each(|(&id, &x)| products[id as usize] = x);
                }
                products
            }
            Held::Sketched(sketch) => sketch.products(k, q, &mut scratch.sketched),
        }
    }

    /// Bytes that attention reads, and bytes that say which token is where.
    pub fn bytes(&self) -> (usize, usize) {
        match &self.held {
            Held::Full => (2 * self.span.keys.len() * (self.span.keys.dim() + self.span.values.dim()), 0),
            Held::Quantised(rows) => (rows.bytes(), 0),
            Held::Evicted(ids, keys, values) => (2 * (keys.len() + values.len()), 4 * ids.len()),
            Held::Sketched(sketch) => (sketch.bytes().attention, sketch.bytes().reconstruction),
        }
    }
}
