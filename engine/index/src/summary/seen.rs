//! What a search saw of each slot of its frontier on its way.
//!
//! The keys that a search scores but does not select are worth as much to the estimate of the remainder as the means:
//! their own mass is known, and a group that was seen as a whole is estimated by its values alone.

use attention::Description;
use kernels::Kernels;

use super::{Frontier, Summary};

/// Scored keys and their mass, by slot, of one query head in one span.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Whether anything was noted; nothing below counts otherwise.
    pub noted: bool,
    /// The largest logit; masses are relative to it.
    pub m: f32,
    /// Scored visible keys: [slots].
    pub count: Vec<u32>,
    /// Their sum of exp(z - m): [slots].
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
        numbers: (&Kernels, &Description),
        (summary, frontier): (&Summary, &Frontier),
        (ids, scores): (impl Iterator<Item = u32>, &[f32]),
    ) {
        self.weigh(numbers, frontier, scores);
        for ((id, &w), &score) in ids.zip(&self.weights).zip(scores) {
            let slot = frontier.slot(summary, summary.group_of(id as usize));
            self.mass[slot] += w;
            self.count[slot] += u32::from(score > f32::NEG_INFINITY);
        }
    }

    /// As [`Seen::note`], for all members of the groups of `slots`, group after group.
    pub fn note_groups(
        &mut self,
        numbers: (&Kernels, &Description),
        (summary, frontier): (&Summary, &Frontier),
        slots: &[u32],
        scores: &[f32],
    ) {
        self.weigh(numbers, frontier, scores);
        let (mut scores, mut weights) = (scores, &self.weights[..]);
        for slot in slots.iter().map(|&slot| slot as usize) {
            let size = summary.size(frontier.group(slot) as usize) as usize;
            let (now, w);
            (now, scores) = scores.split_at(size);
            (w, weights) = weights.split_at(size);
            self.mass[slot] += sum(w);
            self.count[slot] += now.iter().map(|&s| u32::from(s > f32::NEG_INFINITY)).sum::<u32>();
        }
    }

    /// The weights of `scores`, relative to the largest logit so far.
    fn weigh(&mut self, (k, d): (&Kernels, &Description), frontier: &Frontier, scores: &[f32]) {
        if !self.noted {
            self.noted = true;
            self.m = f32::NEG_INFINITY;
            self.count.clear();
            self.count.resize(frontier.slots(), 0);
            self.mass.clear();
            self.mass.resize(frontier.slots(), 0.0);
        }
        self.weights.clear();
        self.weights.extend_from_slice(scores);
        d.logits(&mut self.weights);
        let m = k.max(&self.weights);
        if m > self.m {
            k.scale((self.m - m).exp(), &mut self.mass);
            self.m = m;
        }
        k.exp_sum(&mut self.weights, self.m);
    }
}

/// The sum in eight lanes, which the compiler keeps in registers.
fn sum(x: &[f32]) -> f32 {
    let (whole, rest) = x.as_chunks::<8>();
    let mut lanes = [0f32; 8];
    for chunk in whole {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += x);
    }
    lanes.iter().sum::<f32>() + rest.iter().sum::<f32>()
}
