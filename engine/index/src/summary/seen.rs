//! What a search saw of each slot of its frontier on its way.
//!
//! The keys that a search scores but does not select are worth as much to the estimate of the remainder as the means:
//! their own mass is known, and a group that was seen as a whole is estimated by its values alone.

use attention::Description;
use kernels::{CodeRun, Kernels};

use super::{Frontier, Summary};

/// Scored keys and their mass, by slot, of one query head in one span.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Whether anything was noted; nothing below counts otherwise.
    pub noted: bool,
    /// The largest logit; masses are relative to it.
    pub m: f32,
    /// The number of scored visible keys: [slots].
    pub count: Vec<f32>,
    /// Their sum of exp(z - m): [slots].
    pub mass: Vec<f32>,
    weights: Vec<f32>,
    sums: Vec<f32>,
}

impl Seen {
    /// Forgets.
    pub fn clear(&mut self) {
        self.noted = false;
    }

    /// Notes scored keys, each once between two calls of [`Seen::clear`]; hidden ones have the score -inf.
    pub fn note(
        &mut self,
        numbers: (&Kernels, &Description),
        (summary, frontier): (&Summary, &Frontier),
        (ids, scores): (impl Iterator<Item = u32>, &[f32]),
    ) {
        self.begin(frontier);
        let mut weights = std::mem::take(&mut self.weights);
        weights.clear();
        weights.extend_from_slice(scores);
        self.weigh(numbers, &mut weights);
        for ((id, &w), &score) in ids.zip(&weights).zip(scores) {
            let slot = frontier.slot(summary, summary.group_of(id as usize));
            self.mass[slot] += w;
            self.count[slot] += f32::from(u8::from(score > f32::NEG_INFINITY));
        }
        self.weights = weights;
    }

    /// As [`Seen::note`], for all members of the groups of `slots`, run after run, `all` of them visible or not. The
    /// scores are turned into weights.
    pub fn note_groups(
        &mut self,
        (k, d): (&Kernels, &Description),
        frontier: &Frontier,
        (slots, runs): (&[u32], &[CodeRun]),
        (scores, all): (&mut [f32], bool),
    ) {
        self.begin(frontier);
        let mut left = &scores[..];
        for (&slot, run) in slots.iter().zip(runs) {
            let now;
            (now, left) = left.split_at(run.len as usize);
            let visible =
                if all { now.len() } else { now.iter().filter(|&&s| s > f32::NEG_INFINITY).count() };
            self.count[slot as usize] += visible as f32;
        }
        self.weigh((k, d), scores);
        self.sums.resize(runs.len(), 0.0);
        k.run_sums(scores, runs, &mut self.sums);
        for (&slot, sum) in slots.iter().zip(&self.sums) {
            self.mass[slot as usize] += sum;
        }
    }

    /// Makes room for what is noted, unless something was.
    fn begin(&mut self, frontier: &Frontier) {
        if !self.noted {
            self.noted = true;
            self.m = f32::NEG_INFINITY;
            self.count.clear();
            self.count.resize(frontier.slots(), 0.0);
            self.mass.clear();
            self.mass.resize(frontier.slots(), 0.0);
        }
    }

    /// Turns scores into weights, relative to the largest logit so far.
    fn weigh(&mut self, (k, d): (&Kernels, &Description), scores: &mut [f32]) {
        d.logits(scores);
        let m = k.max(scores);
        if m > self.m {
            k.scale((self.m - m).exp(), &mut self.mass);
            self.m = m;
        }
        k.exp_sum(scores, self.m);
    }
}
