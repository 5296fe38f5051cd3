//! Attention over a coded sketch.
//!
//! Queries are turned into channels once. Then a logit is that of the bucket's mean plus a product over channels, and an
//! output the means and exact rows by their weights, plus one sum over channels that is turned back at the end.

use std::ops::Range;

use attention::{Description, Partial};
use kernels::Kernels;

use super::step::Step;
use super::{BUCKET, CLASSES, Coded, EXACT, Run};

/// Share of the mass whose deviations of values may be left out: it moves an output by no more than this share of how far
/// values lie from their mean.
const NEGLIGIBLE: f64 = 1e-3;

/// Memory that attention works in.
#[derive(Clone, Debug, Default)]
pub struct CodedScratch {
    /// Logits, then weights, of the tokens of the buckets in question, in the order of storage: bucket by bucket, class by
    /// class. [g, tokens]
    z: Vec<f32>,
    /// Queries times means, then the masses of coded members: [g, buckets].
    buckets: Vec<f32>,
    /// Queries in channels: [g, key_dim].
    q: Vec<f32>,
    block: Block,
}

/// Codes of one class of one bucket.
#[derive(Clone, Debug, Default)]
struct Block {
    /// Codes, less their centre, of the channels that have bits: [channels, members].
    codes: Vec<f32>,
    /// What belongs to them: queries times steps [g, channels], or sums of codes.
    factors: Vec<f32>,
    /// Logits or weights of the members: [g, members].
    members: Vec<f32>,
}

/// Whole buckets that a range lies in, and their tokens.
struct Part {
    buckets: Range<usize>,
    tokens: Range<usize>,
}

/// The channels that have bits.
fn used(steps: &[Step]) -> impl Iterator<Item = (usize, &Step)> + Clone {
    steps.iter().enumerate().filter(|(_, step)| step.bits > 0)
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
        d.logits(&mut scratch.z);
        self.hide(&range, &part, &mut scratch.z);
        let tops: Vec<f32> = scratch.z.chunks_exact(part.tokens.len()).map(|z| k.max(z)).collect();
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
        let g = q.len() / self.key_dim;
        let all = self.part(0..self.buckets.len());
        self.score(k, q, &all, scratch);
        let mut products = vec![0.0; g * self.tokens];
        for b in all.buckets {
            for (token, place) in self.places(b) {
                (0..g).for_each(|h| products[h * self.tokens + token] = scratch.z[h * self.tokens + place]);
            }
        }
        products
    }

    fn part(&self, buckets: Range<usize>) -> Part {
        let tokens = buckets.start * BUCKET..(buckets.end * BUCKET).min(self.tokens);
        Part { buckets, tokens }
    }

    /// The tokens of a bucket, and where each is in the order of storage.
    fn places(&self, bucket: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let begin = bucket * BUCKET;
        let mut next = [begin; CLASSES];
        for class in 1..CLASSES {
            next[class] = next[class - 1] + usize::from(self.buckets[bucket].members[class - 1]);
        }
        (begin..(begin + BUCKET).min(self.tokens)).map(move |token| {
            let place = &mut next[usize::from(self.class(token))];
            *place += 1;
            (token, *place - 1)
        })
    }

    /// Takes the logits of tokens outside of `range` away, which the first and the last bucket may have.
    fn hide(&self, range: &Range<usize>, part: &Part, z: &mut [f32]) {
        let (first, last) = (part.buckets.start, part.buckets.end - 1);
        let cut = |b: usize| range.start > b * BUCKET || range.end < part.tokens.end.min((b + 1) * BUCKET);
        for b in std::iter::once(first).chain((last > first).then_some(last)).filter(|&b| cut(b)) {
            for (_, place) in self.places(b).filter(|(token, _)| !range.contains(token)) {
                for z in z.chunks_exact_mut(part.tokens.len()) {
                    z[place - part.tokens.start] = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// Leaves the products with all keys of the part in `scratch.z`.
    fn score(&self, k: &Kernels, q: &[f32], part: &Part, scratch: &mut CodedScratch) {
        let (dk, n) = (self.key_dim, part.tokens.len());
        assert!(q.len().is_multiple_of(dk), "{} query elements for heads of {dk}", q.len());
        let g = q.len() / dk;
        let CodedScratch { z, buckets, q: turned, block } = scratch;
        z.resize(g * n, 0.0);
        buckets.resize(g * part.buckets.len(), 0.0);
        k.dot_rows(q, dk, &self.key_means[part.buckets.start * dk..part.buckets.end * dk], buckets);
        turned.resize(g * dk, 0.0);
        k.dot_rows(q, dk, &self.keys.backward, turned);
        for (i, b) in part.buckets.clone().enumerate() {
            let mut at = i * BUCKET;
            for run in self.runs(b) {
                let steps = &self.steps[run.class][..dk];
                let channels = self.unpack(run.keys, steps, run.members, &mut block.codes);
                block.factors.clear();
                for q in turned.chunks_exact(dk) {
                    block.factors.extend(used(steps).map(|(j, step)| q[j] * step.width));
                }
                block.members.clear();
                for of_head in buckets.chunks_exact(part.buckets.len()) {
                    block.members.resize(block.members.len() + run.members, of_head[i]);
                }
                if channels > 0 {
                    k.gemm_nn_add(&block.factors, &block.codes, channels, g, run.members, &mut block.members);
                }
                at += spread(&block.members, run.members, (z, n), at);
            }
            let (from, members) = self.exact(b);
            if members > 0 {
                block.members.resize(g * members, 0.0);
                k.dot_rows(q, dk, &self.exact_keys[from * dk..(from + members) * dk], &mut block.members);
                spread(&block.members, members, (z, n), at);
            }
        }
    }

    /// Turns logits into weights relative to `tops`, and leaves the masses of coded members in `scratch.buckets`; returns
    /// exact and estimated masses of all heads.
    fn weigh(
        &self,
        k: &Kernels,
        tops: &[f32],
        part: &Part,
        scratch: &mut CodedScratch,
    ) -> (Vec<f64>, Vec<f64>) {
        let (mut exact, mut estimated) = (vec![0f64; tops.len()], vec![0f64; tops.len()]);
        let heads = scratch.z.chunks_exact_mut(part.tokens.len());
        for (h, (z, masses)) in heads.zip(scratch.buckets.chunks_exact_mut(part.buckets.len())).enumerate() {
            for ((b, z), mass) in part.buckets.clone().zip(z.chunks_mut(BUCKET)).zip(masses) {
                let (coded, held) = z.split_at_mut(z.len() - self.exact(b).1);
                *mass = k.exp_sum(coded, tops[h]);
                estimated[h] += f64::from(*mass);
                exact[h] += f64::from(k.exp_sum(held, tops[h]));
            }
        }
        (exact, estimated)
    }

    /// Sums of values by weight: [g, value_dim].
    fn sum(&self, k: &Kernels, masses: &[f64], part: &Part, scratch: &mut CodedScratch) -> Vec<f32> {
        let (dv, g, n) = (self.value_dim, masses.len(), part.tokens.len());
        let CodedScratch { z, buckets, block, .. } = scratch;
        let mut acc = vec![0f32; g * dv];
        let mut channels = vec![0f32; g * dv];
        k.axpy_rows(buckets, dv, &self.value_means[part.buckets.start * dv..part.buckets.end * dv], &mut acc);
        let least = NEGLIGIBLE / part.buckets.len() as f64;
        for (i, b) in part.buckets.clone().enumerate() {
            let mut at = i * BUCKET;
            let heavy =
                |(h, mass): (usize, &f64)| f64::from(buckets[h * part.buckets.len() + i]) > least * mass;
            let heavy = masses.iter().enumerate().any(heavy);
            for run in self.runs(b) {
                if heavy {
                    gather(z, n, at..at + run.members, &mut block.members);
                    self.add_channels(k, &run, block, &mut channels);
                }
                at += run.members;
            }
            let (from, members) = self.exact(b);
            if members > 0 {
                gather(z, n, at..at + members, &mut block.members);
                let rows = &self.exact_values[from * dv..(from + members) * dv];
                k.axpy_rows(&block.members, dv, rows, &mut acc);
            }
        }
        k.axpy_rows(&channels, dv, &self.values.backward, &mut acc);
        acc
    }

    /// Adds the channels of a run's values by the weights of its members to `channels` [g, value_dim].
    fn add_channels(&self, k: &Kernels, run: &Run, block: &mut Block, channels: &mut [f32]) {
        let steps = &self.steps[run.class][self.key_dim..];
        let count = self.unpack(run.values, steps, run.members, &mut block.codes);
        if count == 0 {
            return;
        }
        let g = block.members.len() / run.members;
        block.factors.resize(g * count, 0.0);
        k.gemm_nt(&block.members, &block.codes, run.members, g, count, &mut block.factors);
        for (sums, channels) in
            block.factors.chunks_exact(count).zip(channels.chunks_exact_mut(self.value_dim))
        {
            for ((j, step), sum) in used(steps).zip(sums) {
                channels[j] += sum * step.width;
            }
        }
    }

    /// Reads the codes of a run, less their centres: [channels with bits, members]. Returns how many channels.
    fn unpack(&self, mut at: usize, steps: &[Step], members: usize, codes: &mut Vec<f32>) -> usize {
        let count = used(steps).count();
        codes.resize(count * members, 0.0);
        for ((_, step), codes) in used(steps).zip(codes.chunks_exact_mut(members)) {
            self.codes.unpack(at, step.bits, step.centre(), codes);
            at += members * usize::from(step.bits);
        }
        count
    }

    /// The first exact row of a bucket, and how many there are.
    fn exact(&self, bucket: usize) -> (usize, usize) {
        let bucket = &self.buckets[bucket];
        (bucket.exact as usize, bucket.members[usize::from(EXACT)].into())
    }
}

/// Copies [g, members] to places `at` of [g, n]; returns the number of members.
fn spread(from: &[f32], members: usize, (to, n): (&mut [f32], usize), at: usize) -> usize {
    for (from, to) in from.chunks_exact(members).zip(to.chunks_exact_mut(n)) {
        to[at..at + members].copy_from_slice(from);
    }
    members
}

/// The places `range` of [g, n], one head after the other.
fn gather(from: &[f32], n: usize, range: Range<usize>, to: &mut Vec<f32>) {
    to.clear();
    from.chunks_exact(n).for_each(|from| to.extend_from_slice(&from[range.clone()]));
}
