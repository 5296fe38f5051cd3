//! Cluster means in place of random buckets: the table of the count sketch with a locality-preserving hash.
//!
//! The most attended tokens are held as they came, the others by their bucket: the mean key and the mean value of tokens
//! whose keys lie together, and how many they are. A bucket weighs its count times exp(scale q . mean); a token reads
//! back as the means of its bucket.

use std::ops::Range;

use attention::{Description, Partial, Rows};
use half::f16;
use kernels::Kernels;

use super::SketchBytes;
use super::error::SketchError;
use super::part::{Part, PartScratch};
use super::watched::Watched;

/// Tokens, consecutive but for the exact ones, that are clustered together: the cost stays linear.
const SEGMENT: usize = 4096;
/// Rounds of assignment and averaging.
const ROUNDS: usize = 5;

/// Exact tokens and buckets.
#[derive(Clone, Debug)]
pub struct Means {
    key_dim: usize,
    value_dim: usize,
    /// [exact, key_dim], [exact, value_dim], in the order of `exact`.
    exact_keys: Vec<f16>,
    exact_values: Vec<f16>,
    /// Means: [buckets, key_dim], [buckets, value_dim].
    keys: Vec<f16>,
    values: Vec<f16>,
    /// Tokens in each bucket.
    counts: Vec<f32>,
    /// By token: its bucket, or the complement of its row among the exact ones.
    places: Vec<i32>,
}

/// Where a token is.
enum Place {
    Exact(usize),
    Bucket(usize),
}

/// Sketches a span: `share` of `bytes` for exact tokens, the rest for buckets.
pub(super) fn build(
    k: &Kernels,
    (keys, values): (&Rows<'_>, &Rows<'_>),
    watched: &Watched,
    bytes: usize,
    share: f64,
) -> Result<Means, SketchError> {
    let (n, dk, dv) = (keys.len(), keys.dim(), values.dim());
    let row = 2 * (dk + dv);
    let exact = ((bytes as f64 * share) as usize / row).min(n);
    let rest = n - exact;
    // At least one for each segment.
    let buckets = (bytes.saturating_sub(exact * row) / (row + size_of::<f32>())).min(rest);
    let segments = rest.div_ceil(SEGMENT);
    if buckets < segments {
        let least = (segments * (row + size_of::<f32>())) as f64 / (1.0 - share).max(1e-9);
        return Err(SketchError::TooSmall { bytes, tokens: n, least: least as usize });
    }
    let mut order: Vec<usize> = (0..n).collect();
    let attention = watched.attention();
    order.sort_by(|&a, &b| attention[b].total_cmp(&attention[a]).then(a.cmp(&b)));
    order[..exact].sort_unstable();
    order[exact..].sort_unstable();
    let mut means = Means {
        key_dim: dk,
        value_dim: dv,
        exact_keys: Vec::with_capacity(exact * dk),
        exact_values: Vec::with_capacity(exact * dv),
        keys: Vec::new(),
        values: Vec::new(),
        counts: Vec::new(),
        places: vec![0; n],
    };
    for (at, &token) in order[..exact].iter().enumerate() {
        means.exact_keys.extend_from_slice(keys.row(token));
        means.exact_values.extend_from_slice(values.row(token));
        means.places[token] = !(at as i32);
    }
    for (s, tokens) in order[exact..].chunks(SEGMENT).enumerate() {
        let count = buckets * (s + 1) / segments - buckets * s / segments;
        means.add_segment(k, (keys, values), tokens, count.min(tokens.len()));
    }
    Ok(means)
}

impl Means {
    /// Tokens held.
    pub fn tokens(&self) -> usize {
        self.places.len()
    }

    /// Attention of all query heads, `q` [g, key_dim], over the tokens of `range`, merged into `out` [g]: a bucket weighs
    /// as many of its tokens as the range has. Panics when the range is not held.
    pub fn attend(
        &self,
        (k, d): (&Kernels, &Description),
        q: &[f32],
        range: Range<usize>,
        out: &mut [Partial],
    ) {
        assert!(range.end <= self.tokens(), "tokens {range:?} of {}", self.tokens());
        // Exact rows are in the order of their tokens.
        let mut exact: Option<Range<usize>> = None;
        let mut counts = vec![0.0; self.counts.len()];
        for token in range {
            match self.place(token) {
                Place::Exact(at) => exact = Some(exact.map_or(at, |rows| rows.start)..at + 1),
                Place::Bucket(at) => counts[at] += 1.0,
            }
        }
        let mut scratch = PartScratch::default();
        let (dk, dv, rows) = (self.key_dim, self.value_dim, exact.unwrap_or_default());
        let held = (
            &self.exact_keys[rows.start * dk..rows.end * dk],
            &self.exact_values[rows.start * dv..rows.end * dv],
        );
        scratch.attend_stored((k, d), q, held, (None, Part::Exact), out);
        let means = (&self.keys[..], &self.values[..]);
        scratch.attend_stored((k, d), q, means, (Some(&counts), Part::Estimated), out);
    }

    /// Products of all query heads, `q` [g, key_dim], with the keys as they are read back: [g, tokens].
    pub fn products(&self, k: &Kernels, q: &[f32]) -> Vec<f32> {
        let g = q.len() / self.key_dim;
        let of = |rows: &[f16]| {
            let mut products = vec![0.0; g * rows.len() / self.key_dim];
            k.dot_rows(q, self.key_dim, rows, &mut products);
            products
        };
        let (exact, means) = (of(&self.exact_keys), of(&self.keys));
        let place = |h: usize, token: usize| match self.place(token) {
            Place::Exact(at) => exact[h * (exact.len() / g) + at],
            Place::Bucket(at) => means[h * (means.len() / g) + at],
        };
        (0..g).flat_map(|h| (0..self.tokens()).map(move |t| (h, t))).map(|(h, t)| place(h, t)).collect()
    }

    /// Key and value of a token: as it came, or the means of its bucket. None for a token that does not exist.
    pub fn reconstruct(&self, token: usize) -> Option<(Vec<f32>, Vec<f32>)> {
        if token >= self.tokens() {
            return None;
        }
        let (keys, values, at) = match self.place(token) {
            Place::Exact(at) => (&self.exact_keys, &self.exact_values, at),
            Place::Bucket(at) => (&self.keys, &self.values, at),
        };
        let row =
            |rows: &[f16], dim: usize| rows[at * dim..(at + 1) * dim].iter().map(|x| x.to_f32()).collect();
        Some((row(keys, self.key_dim), row(values, self.value_dim)))
    }

    /// Bytes of rows, means and counts, and of what says where a token is.
    pub fn bytes(&self) -> SketchBytes {
        let rows = self.exact_keys.len() + self.exact_values.len() + self.keys.len() + self.values.len();
        SketchBytes {
            attention: 2 * rows + size_of::<f32>() * self.counts.len(),
            reconstruction: size_of::<i32>() * self.places.len(),
        }
    }

    fn place(&self, token: usize) -> Place {
        match self.places[token] {
            bucket if bucket >= 0 => Place::Bucket(bucket as usize),
            exact => Place::Exact(!exact as usize),
        }
    }

    /// Buckets of these tokens: k-means of their keys from `count` of them in even steps.
    fn add_segment(
        &mut self,
        k: &Kernels,
        (keys, values): (&Rows<'_>, &Rows<'_>),
        tokens: &[usize],
        count: usize,
    ) {
        let (dk, n) = (self.key_dim, tokens.len());
        let mut rows = vec![0f32; n * dk];
        for (row, &token) in rows.chunks_exact_mut(dk).zip(tokens) {
            k.f16_to_f32(keys.row(token), row);
        }
        let mut centres: Vec<f32> =
            (0..count).flat_map(|i| &rows[i * n / count * dk..][..dk]).copied().collect();
        let mut nearest = vec![0usize; n];
        for _ in 0..ROUNDS {
            assign(k, &rows, &centres, dk, &mut nearest);
            average(&rows, dk, &nearest, &mut centres);
        }
        let mut members = vec![Vec::new(); count];
        nearest.iter().zip(tokens).for_each(|(&centre, &token)| members[centre].push(token));
        for members in members.iter().filter(|members| !members.is_empty()) {
            members.iter().for_each(|&token| self.places[token] = self.counts.len() as i32);
            self.counts.push(members.len() as f32);
            self.keys.extend(mean(keys, members));
            self.values.extend(mean(values, members));
        }
    }
}

/// The nearest centre of every row (ties: the lower centre).
fn assign(k: &Kernels, rows: &[f32], centres: &[f32], dim: usize, nearest: &mut [usize]) {
    const BLOCK: usize = 128;
    let count = centres.len() / dim;
    let halves: Vec<f32> =
        centres.chunks_exact(dim).map(|c| c.iter().map(|x| x * x).sum::<f32>() / 2.0).collect();
    let mut scores = vec![0f32; BLOCK * count];
    for (rows, nearest) in rows.chunks(BLOCK * dim).zip(nearest.chunks_mut(BLOCK)) {
        let scores = &mut scores[..nearest.len() * count];
        k.gemm_nt(rows, centres, dim, nearest.len(), count, scores);
        for (scores, nearest) in scores.chunks_exact_mut(count).zip(nearest) {
            scores.iter_mut().zip(&halves).for_each(|(s, half)| *s -= half);
            let best = k.max(scores);
            *nearest = scores.iter().position(|&s| s == best).unwrap_or(0);
        }
    }
}

/// Moves every centre that has members to their mean.
fn average(rows: &[f32], dim: usize, nearest: &[usize], centres: &mut [f32]) {
    let mut sums = vec![0f32; centres.len()];
    let mut counts = vec![0f32; centres.len() / dim];
    for (row, &centre) in rows.chunks_exact(dim).zip(nearest) {
        sums[centre * dim..][..dim].iter_mut().zip(row).for_each(|(s, x)| *s += x);
        counts[centre] += 1.0;
    }
    let each = centres.chunks_exact_mut(dim).zip(sums.chunks_exact(dim)).zip(counts);
    for ((centre, sum), count) in each.filter(|each| each.1 > 0.0) {
        centre.iter_mut().zip(sum).for_each(|(c, s)| *c = s / count);
    }
}

/// The mean of rows, rounded once: f64 sums of f16 are exact.
fn mean(rows: &Rows<'_>, members: &[usize]) -> impl Iterator<Item = f16> + use<> {
    let mut sum = vec![0f64; rows.dim()];
    members.iter().for_each(|&i| sum.iter_mut().zip(rows.row(i)).for_each(|(s, x)| *s += x.to_f64()));
    let n = members.len() as f64;
    sum.into_iter().map(move |s| f16::from_f64(s / n))
}
