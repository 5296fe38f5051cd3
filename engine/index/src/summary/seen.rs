//! What a search saw of each group on its way.
//!
//! The keys that a search scores but does not select are worth as much to the estimate of the remainder as the means:
//! their own mass is known, and a group that was seen as a whole is estimated by its values alone.

use attention::Description;
use kernels::Kernels;

use super::Summary;

/// Scored keys and their mass, by group, of one query head in one span.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Whether anything was noted; nothing below counts otherwise.
    pub noted: bool,
    /// The largest logit; masses are relative to it.
    pub m: f32,
    /// Scored visible keys: [groups].
    pub count: Vec<u32>,
    /// Their sum of exp(z - m): [groups].
    pub mass: Vec<f32>,
    weights: Vec<f32>,
}

impl Seen {
    /// Forgets.
    pub fn clear(&mut self) {
        self.noted = false;
    }

    /// Notes scored keys, each once between two calls of [`Seen::clear`]; hidden ones have the score -inf.
    pub fn note(
        &mut self,
        (k, d): (&Kernels, &Description),
        summary: &Summary,
        (ids, scores): (impl Iterator<Item = u32>, &[f32]),
    ) {
        if !self.noted {
            self.noted = true;
            self.m = f32::NEG_INFINITY;
            self.count.clear();
            self.count.resize(summary.groups(), 0);
            self.mass.clear();
            self.mass.resize(summary.groups(), 0.0);
        }
        self.weights.clear();
        let logit = |&s: &f32| if s == f32::NEG_INFINITY { s } else { d.logit(s) };
        self.weights.extend(scores.iter().map(logit));
        let m = k.max(&self.weights);
        if m > self.m {
            k.scale((self.m - m).exp(), &mut self.mass);
            self.m = m;
        }
        k.exp_sum(&mut self.weights, self.m);
        for ((id, &w), &score) in ids.zip(&self.weights).zip(scores) {
            let group = summary.group_of(id as usize);
            self.mass[group] += w;
            self.count[group] += u32::from(score > f32::NEG_INFINITY);
        }
    }
}
