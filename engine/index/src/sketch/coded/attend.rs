//! Attention over a coded sketch.
//!
//! Queries are turned into channels once. Then a logit is that of the bucket's mean plus a product with a row of codes
//! (`fold`), and an output the means and exact rows by their weights, plus one sum over channels that is turned back at the
//! end.

use std::ops::Range;

use attention::{Description, Partial};
use kernels::Kernels;

use super::fold::{Keys, Values};
use super::{BUCKET, CLASSES, Coded, EXACT, Run};

/// Share of the mass whose deviations of values may be left out: it moves an output by no more than this share of how far
/// values lie from their mean.
const NEGLIGIBLE: f64 = 1e-4;

/// Memory that attention works in.
#[derive(Clone, Debug, Default)]
pub struct CodedScratch {
    runs: Vec<Run>,
    /// Logits, then weights, of coded tokens in the order of storage: [g, coded].
    coded: Vec<f32>,
    /// The same of exact tokens: [g, exact].
    exact: Vec<f32>,
    /// Queries times means, then the masses of coded members: [g, buckets].
    buckets: Vec<f32>,
    /// Masses of runs: [g, runs].
    masses: Vec<f32>,
    /// Queries in channels, then sums of values in channels: [g, dim].
    channels: Vec<f32>,
}

/// Whole buckets that a range lies in.
struct Part {
    buckets: Range<usize>,
    /// Their coded tokens, numbered in the order of storage.
    coded: Range<usize>,
    /// Their rows among the exact tokens.
    exact: Range<usize>,
}

/// Row `h` of [g, n].
fn row(of: &[f32], h: usize, n: usize) -> &[f32] {
    &of[h * n..(h + 1) * n]
}

impl Coded {
    /// Attention of all query heads, `q` [g, key_dim], over the tokens of `range`, merged into `out` [g]: `l_est`, and
    /// `l_exact` of tokens held as they came. Panics when the range is not held.
    pub fn attend(
        &self,
        (k, d): (&Kernels, &Description),
        q: &[f32],
        range: Range<usize>,
        scratch: &mut CodedScratch,
        out: &mut [Partial],
    ) {
        assert!(range.end <= self.tokens, "tokens {range:?} of {}", self.tokens);
        if range.is_empty() || out.is_empty() {
            return;
        }
        let part = self.part(range.start / BUCKET..range.end.div_ceil(BUCKET));
        self.score(k, q, &part, scratch);
        d.logits(&mut scratch.coded);
        d.logits(&mut scratch.exact);
        self.hide(&range, &part, scratch);
        let top = |h: usize| {
            let coded = k.max(row(&scratch.coded, h, part.coded.len()));
            coded.max(k.max(row(&scratch.exact, h, part.exact.len())))
        };
        let tops: Vec<f32> = (0..out.len()).map(top).collect();
        let (exact, estimated) = self.weigh(k, &tops, &part, scratch);
        let masses: Vec<f64> = exact.iter().zip(&estimated).map(|(a, b)| a + b).collect();
        let acc = self.sum(k, &masses, &part, scratch);
        for (h, (out, acc)) in out.iter_mut().zip(acc.chunks_exact(self.value_dim)).enumerate() {
            out.merge(&Partial {
                m: tops[h],
                l_exact: exact[h] as f32,
                l_quant: 0.0,
                l_est: estimated[h] as f32,
                o: acc.iter().map(|a| (f64::from(*a) / masses[h]) as f32).collect(),
            });
        }
    }

    /// Products of all query heads with the keys as they are read back, by token: [g, tokens].
    pub fn products(&self, k: &Kernels, q: &[f32], scratch: &mut CodedScratch) -> Vec<f32> {
        let (g, n) = (q.len() / self.key_dim, self.tokens);
        let all = self.part(0..self.buckets.len());
        self.score(k, q, &all, scratch);
        let mut products = vec![0.0; g * n];
        for b in all.buckets.clone() {
            for (token, place) in self.places(b, &all) {
                for h in 0..g {
                    products[h * n + token] = match place {
                        Place::Coded(at) => scratch.coded[h * all.coded.len() + at],
                        Place::Exact(at) => scratch.exact[h * all.exact.len() + at],
                    };
                }
            }
        }
        products
    }

    fn part(&self, buckets: Range<usize>) -> Part {
        let exact = self.exact_before(buckets.start)..self.exact_before(buckets.end);
        let before = |bucket: usize| (bucket * BUCKET).min(self.tokens) - self.exact_before(bucket);
        Part { coded: before(buckets.start)..before(buckets.end), exact, buckets }
    }

    /// The tokens of a bucket of a part, and where each is.
    fn places(&self, bucket: usize, part: &Part) -> impl Iterator<Item = (usize, Place)> + '_ {
        let begin = bucket * BUCKET;
        let held = self.exact_before(bucket);
        let mut next = [begin - held - part.coded.start; CLASSES];
        for class in 1..CLASSES {
            next[class] = next[class - 1] + usize::from(self.buckets[bucket].members[class - 1]);
        }
        next[usize::from(EXACT)] = held - part.exact.start;
        (begin..(begin + BUCKET).min(self.tokens)).map(move |token| {
            let class = self.class(token);
            let at = next[usize::from(class)];
            next[usize::from(class)] += 1;
            (token, if class == EXACT { Place::Exact(at) } else { Place::Coded(at) })
        })
    }

    /// Takes the logits of tokens outside of `range` away, which the first and the last bucket may have.
    fn hide(&self, range: &Range<usize>, part: &Part, scratch: &mut CodedScratch) {
        let (first, last) = (part.buckets.start, part.buckets.end - 1);
        let cut = |b: usize| range.start > b * BUCKET || range.end < self.tokens.min((b + 1) * BUCKET);
        for b in std::iter::once(first).chain((last > first).then_some(last)).filter(|&b| cut(b)) {
            for (_, place) in self.places(b, part).filter(|(token, _)| !range.contains(token)) {
                let (z, n, at) = match place {
                    Place::Coded(at) => (&mut scratch.coded, part.coded.len(), at),
                    Place::Exact(at) => (&mut scratch.exact, part.exact.len(), at),
                };
                z.chunks_exact_mut(n).for_each(|z| z[at] = f32::NEG_INFINITY);
            }
        }
    }

    /// Leaves the products with all keys of the part in `scratch`, and its runs.
    fn score(&self, k: &Kernels, q: &[f32], part: &Part, scratch: &mut CodedScratch) {
        let (dk, n) = (self.key_dim, part.coded.len());
        assert!(q.len().is_multiple_of(dk), "{} query elements for heads of {dk}", q.len());
        let g = q.len() / dk;
        let CodedScratch { runs, coded, exact, buckets, channels, .. } = scratch;
        runs.clear();
        part.buckets.clone().for_each(|b| runs.extend(self.runs(b)));
        coded.resize(g * n, 0.0);
        exact.resize(g * part.exact.len(), 0.0);
        buckets.resize(g * part.buckets.len(), 0.0);
        channels.resize(g * dk, 0.0);
        k.dot_rows(q, dk, &self.exact_keys[part.exact.start * dk..part.exact.end * dk], exact);
        k.dot_rows(q, dk, &self.key_means[part.buckets.start * dk..part.buckets.end * dk], buckets);
        k.dot_rows(q, dk, &self.keys.backward, channels);
        let classes: Vec<Keys> = self.steps.iter().map(|steps| Keys::new(&steps[..dk], channels)).collect();
        let mut base = vec![0.0; g];
        for run in runs.iter() {
            let keys = &classes[run.class];
            for (h, base) in base.iter_mut().enumerate() {
                *base =
                    row(buckets, h, part.buckets.len())[run.bucket - part.buckets.start] - keys.centres[h];
            }
            let out = &mut coded[run.place - part.coded.start..];
            k.dot_packed(&self.rows(run, &keys.packing), &keys.q, &base, out, n);
        }
    }

    /// Turns logits into weights relative to `tops`, and leaves the masses of runs and of coded members of buckets in
    /// `scratch`; returns exact and estimated masses of all heads.
    fn weigh(
        &self,
        k: &Kernels,
        tops: &[f32],
        part: &Part,
        scratch: &mut CodedScratch,
    ) -> (Vec<f64>, Vec<f64>) {
        let CodedScratch { runs, coded, exact, buckets, masses, .. } = scratch;
        let (n, held) = (part.coded.len(), part.exact.len());
        buckets.fill(0.0);
        masses.clear();
        let mut sums = (Vec::new(), Vec::new());
        for (h, &top) in tops.iter().enumerate() {
            let mut estimated = 0.0;
            for run in runs.iter() {
                let at = h * n + run.place - part.coded.start;
                let mass = k.exp_sum(&mut coded[at..at + run.members], top);
                buckets[h * part.buckets.len() + run.bucket - part.buckets.start] += mass;
                masses.push(mass);
                estimated += f64::from(mass);
            }
            sums.0.push(f64::from(k.exp_sum(&mut exact[h * held..(h + 1) * held], top)));
            sums.1.push(estimated);
        }
        sums
    }

    /// Sums of values by weight: [g, value_dim].
    fn sum(&self, k: &Kernels, masses: &[f64], part: &Part, scratch: &mut CodedScratch) -> Vec<f32> {
        let (dk, dv, g, n) = (self.key_dim, self.value_dim, masses.len(), part.coded.len());
        let mut acc = vec![0f32; g * dv];
        let means = &self.value_means[part.buckets.start * dv..part.buckets.end * dv];
        k.axpy_rows(&scratch.buckets, dv, means, &mut acc);
        let held = &self.exact_values[part.exact.start * dv..part.exact.end * dv];
        k.axpy_rows(&scratch.exact, dv, held, &mut acc);
        let mut classes: Vec<Values> = self.steps.iter().map(|steps| Values::new(steps, dk, g)).collect();
        let runs = scratch.runs.len();
        let least = NEGLIGIBLE / runs as f64;
        for (r, run) in scratch.runs.iter().enumerate() {
            let of_head = |h: usize| scratch.masses[h * runs + r];
            if !masses.iter().enumerate().any(|(h, mass)| f64::from(of_head(h)) > least * mass) {
                continue;
            }
            let values = &mut classes[run.class];
            values.masses.iter_mut().enumerate().for_each(|(h, sum)| *sum += f64::from(of_head(h)));
            let weights = &scratch.coded[run.place - part.coded.start..];
            k.axpy_packed(&self.rows(run, &values.packing), weights, n, &mut values.sums);
        }
        scratch.channels.clear();
        scratch.channels.resize(g * dv, 0.0);
        for (values, steps) in classes.iter().zip(&self.steps) {
            values.add(&steps[dk..], &mut scratch.channels);
        }
        k.axpy_rows(&scratch.channels, dv, &self.values.backward, &mut acc);
        acc
    }
}

/// Where a token is among those of a part.
enum Place {
    Coded(usize),
    Exact(usize),
}
