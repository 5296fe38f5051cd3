//! Making a coded sketch.

use attention::Rows;
use half::f16;
use kernels::PACKED_WINDOW;
use rayon::prelude::*;

use super::allocate;
use super::basis::Basis;
use super::bits::Bits;
use super::classes::{self, CLASS_BITS, CLASSES, EXACT, RATES};
use super::fold;
use super::step::{Grid, Step};
use super::{BUCKET, Bucket, Coded};
use crate::sketch::error::SketchError;
use crate::sketch::watched::Watched;

/// Share of the tokens, those farthest from the mean, that neither means nor channels are fitted to: one element of 1e5
/// would take all the bits.
const FAR: f64 = 0.01;
/// Rows that a channel's step is fitted to.
const SAMPLE: usize = 4096;
/// Tokens per task.
const CHUNK: usize = 1024;

/// Deviations of all tokens from their bucket's mean, in channels.
struct Channels {
    /// [tokens, key_dim + value_dim]
    rows: Vec<f32>,
    width: usize,
    /// Numbers of the tokens that are not far.
    near: Vec<usize>,
}

/// Codes `keys` and `values` in at most `bytes`, everything included.
pub(in crate::sketch) fn build(
    keys: &Rows<'_>,
    values: &Rows<'_>,
    watched: &Watched,
    scale: f32,
    bytes: usize,
) -> Result<Coded, SketchError> {
    let (n, dk, dv) = (keys.len(), keys.dim(), values.dim());
    let near = near(keys, values, &watched.metric(scale));
    let (key_means, key_rows) = deviations(keys, &near);
    let (value_means, value_rows) = deviations(values, &near);
    let key_basis = Basis::fit(&picked(&key_rows, dk, &near), dk, &watched.metric(scale));
    let value_basis = {
        let rows = picked(&value_rows, dv, &near);
        Basis::fit(&rows, dv, &value_metric(&rows, dv))
    };
    let mut channels = Channels { rows: vec![0.0; n * (dk + dv)], width: dk + dv, near };
    channels.rows.par_chunks_mut(dk + dv).enumerate().for_each(|(i, row)| {
        let (key, value) = row.split_at_mut(dk);
        key_basis.turn(&key_rows[i * dk..][..dk], key);
        value_basis.turn(&value_rows[i * dv..][..dv], value);
    });
    let steps = channels.steps(&[&key_basis.variances[..], &value_basis.variances].concat());

    let mut coded = Coded {
        tokens: n,
        key_dim: dk,
        value_dim: dv,
        keys: key_basis,
        values: value_basis,
        strides: std::array::from_fn(|class| fold::bits(&steps[class]).div_ceil(8)),
        steps,
        key_means,
        value_means,
        buckets: vec![Bucket::default(); n.div_ceil(BUCKET)],
        codes: Vec::new(),
        exact_keys: Vec::new(),
        exact_values: Vec::new(),
        classes: Vec::new(),
    };
    // Forward matrices served only the coding.
    coded.keys.forward = Vec::new();
    coded.values.forward = Vec::new();
    let fixed = coded.bytes().total() + PACKED_WINDOW - 1 + (n * usize::from(CLASS_BITS)).div_ceil(8);
    let mut costs = [2 * (dk + dv); CLASSES];
    costs[..CLASSES - 1].copy_from_slice(&coded.strides);
    let least = fixed + n * costs[0];
    let errors = channels.errors(&coded.steps);
    let classes = classes::choose(&errors, &watched.expected_squares(), &costs, bytes.saturating_sub(fixed))
        .ok_or(SketchError::TooSmall { bytes, tokens: n, least })?;
    coded.store(keys, values, &channels, &classes);
    Ok(coded)
}

impl Coded {
    fn store(&mut self, keys: &Rows<'_>, values: &Rows<'_>, channels: &Channels, classes: &[u8]) {
        let mut codes = Bits::default();
        for (b, members) in classes.chunks(BUCKET).enumerate() {
            let mut bucket = Bucket {
                codes: codes.align() as u64,
                exact: (self.exact_keys.len() / self.key_dim) as u32,
                members: [0; CLASSES],
            };
            members.iter().for_each(|&class| bucket.members[usize::from(class)] += 1);
            self.buckets[b] = bucket;
            let of = |class: u8| (b * BUCKET..).zip(members).filter(move |m| *m.1 == class).map(|m| m.0);
            for class in 0..EXACT {
                for token in of(class) {
                    let row = &channels.rows[token * channels.width..][..channels.width];
                    let steps = self.steps[usize::from(class)].iter().zip(row);
                    steps.for_each(|(step, x)| codes.push(step.code(*x), step.bits));
                    codes.align();
                }
            }
            for token in of(EXACT) {
                self.exact_keys.extend_from_slice(keys.row(token));
                self.exact_values.extend_from_slice(values.row(token));
            }
        }
        self.codes = codes.into_bytes();
        self.codes.extend([0; PACKED_WINDOW - 1]);
        let mut of_tokens = Bits::default();
        classes.iter().for_each(|&class| of_tokens.push(class.into(), CLASS_BITS));
        self.classes = of_tokens.into_bytes();
        // What grew keeps no more than it holds: a shard counts that.
        for rows in [&mut self.exact_keys, &mut self.exact_values] {
            rows.shrink_to_fit();
        }
        for bytes in [&mut self.codes, &mut self.classes] {
            bytes.shrink_to_fit();
        }
    }
}

impl Channels {
    /// How each class codes every channel: one step for each number of bits that any class gives a channel.
    fn steps(&self, variances: &[f64]) -> Vec<Vec<Step>> {
        let bits: Vec<Vec<u8>> = RATES
            .iter()
            .map(|rate| allocate::bits(variances, (rate * self.width as f64).round() as usize))
            .collect();
        let every = self.near.len().div_ceil(SAMPLE).max(1);
        let of_channel: Vec<Vec<Step>> = (0..self.width)
            .into_par_iter()
            .map(|j| {
                let sample: Vec<f32> =
                    self.near.iter().step_by(every).map(|&i| self.rows[i * self.width + j]).collect();
                // Classes that give a channel as many bits share the step.
                let mut steps: Vec<Step> = Vec::with_capacity(bits.len());
                for of_class in &bits {
                    let shared = steps.iter().find(|step| step.bits == of_class[j]).copied();
                    steps.push(shared.unwrap_or_else(|| Step::fit(&sample, of_class[j])));
                }
                steps
            })
            .collect();
        (0..RATES.len()).map(|class| of_channel.iter().map(|steps| steps[class]).collect()).collect()
    }

    /// The squared error of every token in every class: [tokens, CLASSES].
    fn errors(&self, steps: &[Vec<Step>]) -> Vec<f32> {
        let grids: Vec<Vec<Grid>> =
            steps.iter().map(|steps| steps.iter().map(|&step| Grid::from(step)).collect()).collect();
        let mut errors = vec![0f32; self.rows.len() / self.width * CLASSES];
        let chunks = self.rows.par_chunks(CHUNK * self.width).zip(errors.par_chunks_mut(CHUNK * CLASSES));
        chunks.for_each(|(rows, errors)| {
            let mut squares = vec![0f32; self.width];
            for (row, errors) in rows.chunks_exact(self.width).zip(errors.chunks_exact_mut(CLASSES)) {
                for (error, grids) in errors.iter_mut().zip(&grids) {
                    for ((square, &x), grid) in squares.iter_mut().zip(row).zip(grids) {
                        *square = grid.off(x).powi(2);
                    }
                    *error = squares.iter().sum();
                }
            }
        });
        errors
    }
}

/// The numbers of the tokens that are not among the farthest from the mean of all, in the metrics of keys and values.
fn near(keys: &Rows<'_>, values: &Rows<'_>, key_metric: &[f64]) -> Vec<usize> {
    // No metric is that of plain lengths.
    let distances = |rows: &Rows<'_>, metric: Option<&[f64]>| -> Vec<f64> {
        let (n, dim) = (rows.len(), rows.dim());
        let mut mean = vec![0f64; dim];
        (0..n).for_each(|i| mean.iter_mut().zip(rows.row(i)).for_each(|(m, x)| *m += x.to_f64() / n as f64));
        let distance = |i: usize| -> f64 {
            let off: Vec<f64> = rows.row(i).iter().zip(&mean).map(|(x, m)| x.to_f64() - m).collect();
            let Some(metric) = metric else { return off.iter().map(|a| a * a).sum() };
            // A metric is symmetric, so its rows can be added up in place of products with each.
            let mut turned = vec![0f64; dim];
            for (metric, a) in metric.chunks_exact(dim).zip(&off) {
                turned.iter_mut().zip(metric).for_each(|(t, m)| *t += m * a);
            }
            off.iter().zip(&turned).map(|(a, t)| a * t).sum()
        };
        (0..n).into_par_iter().map(distance).collect()
    };
    let mut far = vec![false; keys.len()];
    for distances in [distances(keys, Some(key_metric)), distances(values, None)] {
        let mut order: Vec<usize> = (0..distances.len()).collect();
        order.sort_unstable_by(|&a, &b| distances[b].total_cmp(&distances[a]).then(a.cmp(&b)));
        let most = (distances.len() as f64 * FAR) as usize;
        order[..most].iter().for_each(|&i| far[i] = true);
    }
    (0..far.len()).filter(|&i| !far[i]).collect()
}

/// Means of all buckets, rounded to f16, and what each token deviates from the rounded one. A bucket of far tokens only
/// has their mean.
fn deviations(rows: &Rows<'_>, near: &[usize]) -> (Vec<f16>, Vec<f32>) {
    let (n, dim) = (rows.len(), rows.dim());
    let mut means = Vec::with_capacity(n.div_ceil(BUCKET) * dim);
    let mut off = Vec::with_capacity(n * dim);
    for begin in (0..n).step_by(BUCKET) {
        let end = (begin + BUCKET).min(n);
        let inside = &near[near.partition_point(|&i| i < begin)..near.partition_point(|&i| i < end)];
        let all: Vec<usize> = (begin..end).collect();
        let members = if inside.is_empty() { &all } else { inside };
        // f64 sums of f16 are exact, so the mean of equal rows is that row.
        let mut sum = vec![0f64; dim];
        members.iter().for_each(|&i| sum.iter_mut().zip(rows.row(i)).for_each(|(s, x)| *s += x.to_f64()));
        let mean: Vec<f16> = sum.iter().map(|s| f16::from_f64(s / members.len() as f64)).collect();
        for i in begin..end {
            off.extend(rows.row(i).iter().zip(&mean).map(|(x, m)| x.to_f32() - m.to_f32()));
        }
        means.extend(mean);
    }
    (means, off)
}

fn picked(rows: &[f32], dim: usize, which: &[usize]) -> Vec<f32> {
    which.iter().flat_map(|&i| &rows[i * dim..(i + 1) * dim]).copied().collect()
}

/// Errors of values count as shares of their variance: so they are of the size of errors of logits, which move an output
/// by about as large a share of the spread of the values.
fn value_metric(rows: &[f32], dim: usize) -> Vec<f64> {
    let square: f64 = rows.iter().map(|&x| f64::from(x).powi(2)).sum();
    let variance = square / (rows.len() / dim).max(1) as f64;
    identity(dim, if variance > 0.0 { 1.0 / variance } else { 1.0 })
}

fn identity(dim: usize, factor: f64) -> Vec<f64> {
    (0..dim * dim).map(|x| if x / dim == x % dim { factor } else { 0.0 }).collect()
}
