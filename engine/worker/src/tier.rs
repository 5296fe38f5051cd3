//! What a span can be held in: as it came, without its least attended tokens, quantised, sketched.

use std::str::FromStr;

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

impl FromStr for Variant {
    type Err = String;

    fn from_str(text: &str) -> Result<Variant, String> {
        for precision in [Precision::Int8, Precision::Int8Plain, Precision::Int4] {
            if Variant::Quantised(precision).name() == text {
                return Ok(Variant::Quantised(precision));
            }
        }
        let unknown = || {
            format!(
                "unknown tier '{text}' (full, int8, int8-plain, int4, or evict, coded, means, published with -PERCENT)"
            )
        };
        if text == "full" {
            return Ok(Variant::Full);
        }
        let (name, percent) = text.split_once('-').ok_or_else(unknown)?;
        let share = parse_percent(percent)?;
        match name {
            "evict" => Ok(Variant::Evicted(share)),
            _ => name.parse().map(|kind| Variant::Sketched(kind, share)).map_err(|_| unknown()),
        }
    }
}

/// A share of the bytes, given in percent.
pub fn parse_percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent / 100.0),
        _ => Err(format!("{text}: a percentage in (0, 100] is needed")),
    }
}

/// Consecutive tokens of one KV head, and how they are attended to.
#[derive(Clone, Debug)]
pub struct Span<'a> {
    /// [tokens, dim]
    pub keys: Rows<'a>,
    /// [tokens, value_dim]
    pub values: Rows<'a>,
    /// Scale and soft-cap.
    pub description: Description,
}

/// A span in a tier.
#[derive(Clone, Debug)]
pub enum Tier {
    /// As it came.
    Full,
    /// In fewer bits.
    Quantised(Box<Quantised>),
    /// Ids, ascending, with their keys and values.
    Evicted(Vec<u32>, Vec<f16>, Vec<f16>),
    /// As a sketch.
    Sketched(Sketch),
}

/// Memory to ask in; one per thread.
#[derive(Default)]
pub struct TierScratch {
    exact: Scratch,
    quantised: QuantScratch,
    sketched: SketchScratch,
}

impl Tier {
    /// Brings a span into a tier.
    pub fn build(span: &Span<'_>, variant: Variant, watched: &Watched, seed: u64) -> Result<Tier> {
        let (keys, values) = (&span.keys, &span.values);
        let row = 2 * (keys.dim() + values.dim());
        let bytes = |share: f64| (share * (keys.len() * row) as f64) as usize;
        Ok(match variant {
            Variant::Full => Tier::Full,
            Variant::Quantised(precision) => {
                Tier::Quantised(Box::new(Quantised::new(keys, values, precision)?))
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
                Tier::Evicted(order, keys, values)
            }
            Variant::Sketched(kind, share) => {
                let params = SketchParams {
                    kind,
                    bytes: bytes(share),
                    scale: span.description.scale,
                    exact_share: 0.5,
                    seed,
                };
                Tier::Sketched(Sketch::build(keys, values, watched, &params).context(variant.name())?)
            }
        })
    }

    /// Attention of all query heads, `q` [g, dim], over all tokens of the span that was brought into the tier.
    pub fn attend(&self, k: &Kernels, span: &Span<'_>, q: &[f32], scratch: &mut TierScratch) -> Vec<Partial> {
        let (keys, values, d) = (&span.keys, &span.values, &span.description);
        let mut out = vec![Partial::neutral(values.dim()); q.len() / keys.dim()];
        match self {
            Tier::Full => attend_range(k, d, q, keys, values, 0..keys.len(), &mut scratch.exact, &mut out),
            Tier::Quantised(rows) => {
                rows.attend((k, d), q, 0..keys.len(), &mut scratch.quantised, &mut out);
            }
            Tier::Evicted(ids, held_keys, held_values) => {
                let held = Rows::contiguous(held_keys, keys.dim());
                let of_held = Rows::contiguous(held_values, values.dim());
                attend_range(k, d, q, &held, &of_held, 0..ids.len(), &mut scratch.exact, &mut out);
            }
            Tier::Sketched(sketch) => {
                sketch.attend((k, d), q, 0..keys.len(), &mut scratch.sketched, &mut out);
            }
        }
        out
    }

    /// Products of all query heads with all keys: [g, tokens]; -inf for a token that is gone.
    pub fn products(&self, k: &Kernels, span: &Span<'_>, q: &[f32], scratch: &mut TierScratch) -> Vec<f32> {
        let (dim, n) = (span.keys.dim(), span.keys.len());
        let g = q.len() / dim;
        match self {
            Tier::Full => {
                let mut products = vec![0.0; g * n];
                for (first, rows) in span.keys.runs(0..n) {
                    let mut run = vec![0.0; g * rows.len() / dim];
                    k.dot_rows(q, dim, rows, &mut run);
                    for (run, all) in run.chunks(rows.len() / dim).zip(products.chunks_mut(n)) {
                        all[first..first + run.len()].copy_from_slice(run);
                    }
                }
                products
            }
            Tier::Quantised(rows) => rows.products(k, q, &mut scratch.quantised),
            Tier::Evicted(ids, keys, _) => {
                let mut held = vec![0.0; g * ids.len()];
                k.dot_rows(q, dim, keys, &mut held);
                let mut products = vec![f32::NEG_INFINITY; g * n];
                for (held, products) in held.chunks(ids.len().max(1)).zip(products.chunks_mut(n)) {
                    ids.iter().zip(held).for_each(|(&id, &x)| products[id as usize] = x);
                }
                products
            }
            Tier::Sketched(sketch) => sketch.products(k, q, &mut scratch.sketched),
        }
    }

    /// Bytes that attention reads, and bytes that say which token is where.
    pub fn bytes(&self, span: &Span<'_>) -> (usize, usize) {
        match self {
            Tier::Full => (2 * span.keys.len() * (span.keys.dim() + span.values.dim()), 0),
            Tier::Quantised(rows) => (rows.bytes(), 0),
            Tier::Evicted(ids, keys, values) => (2 * (keys.len() + values.len()), 4 * ids.len()),
            Tier::Sketched(sketch) => (sketch.bytes().attention, sketch.bytes().reconstruction),
        }
    }
}
