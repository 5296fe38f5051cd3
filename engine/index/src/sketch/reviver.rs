//! KVReviver as published (arXiv 2512.17917): Recent, Candidate, Vague.
//!
//! A token enters Recent, a queue. When the queue is `slack` longer than its length, that many of its oldest move on
//! together to Candidate, a heap with the least attended token on top. What Candidate has no room for goes, together, to
//! Vague, the [`CountTable`]. A vague token whose accumulated attention comes to exceed that of the least candidate
//! changes places with it: it is read back, with the error that the table has by then, and taken out of the table.
//!
//! Recent and Candidate hold tokens as they came, and their mass is exact; a token that came back from Vague stays an
//! estimate, and is counted as one.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use attention::{Description, Partial};
use half::f16;
use kernels::Kernels;

use super::error::SketchError;
use super::part::{Part, PartScratch};
use super::table::CountTable;

/// Tokens that are read back at once.
const BLOCK: usize = 256;

/// How much of each part there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Tokens in the queue after a batch has left it.
    pub recent: usize,
    /// Tokens that leave it together; at least 1.
    pub slack: usize,
    /// Tokens in the heap.
    pub candidates: usize,
    /// Hash rows of the table; at least 1.
    pub rows: usize,
    /// Buckets of each row; at least 1.
    pub buckets: usize,
}

/// Where a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In a slot of the queue or the heap.
    Held(usize),
    Vague,
}

/// Accumulated attention, ordered.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Weight(f32);

impl Eq for Weight {}

impl Ord for Weight {
    fn cmp(&self, other: &Weight) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Weight {
    fn partial_cmp(&self, other: &Weight) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The three parts over one KV head's tokens, numbered from 0 in the order of their arrival.
#[derive(Clone, Debug)]
pub struct Reviver {
    shape: Shape,
    key_dim: usize,
    value_dim: usize,
    recent: VecDeque<u32>,
    /// Least attention on top. Weights are those at the time of entry; they only grow, so the top is checked when read.
    candidates: BinaryHeap<Reverse<(Weight, u32)>>,
    table: CountTable,
    /// By token.
    places: Vec<Place>,
    /// Accumulated attention, by token.
    weights: Vec<f32>,
    /// Rows of the slots: [slots, key_dim], [slots, value_dim].
    keys: Vec<f16>,
    values: Vec<f16>,
    /// Whether a slot holds what came, by slot.
    exact: Vec<bool>,
    free: Vec<usize>,
}

impl Reviver {
    /// Without tokens. The same seed gives the same answers to the bit.
    pub fn new(shape: Shape, (key_dim, value_dim): (usize, usize), seed: u64) -> Reviver {
        let shape = Shape {
            slack: shape.slack.max(1),
            rows: shape.rows.max(1),
            buckets: shape.buckets.max(1),
            ..shape
        };
        // The queue when a batch leaves, and the heap; the batch keeps its slots on its way through.
        let slots = shape.recent + shape.slack + 1 + shape.candidates;
        Reviver {
            shape,
            key_dim,
            value_dim,
            recent: VecDeque::new(),
            candidates: BinaryHeap::new(),
            table: CountTable::new((shape.rows, shape.buckets), (key_dim, value_dim), seed),
            places: Vec::new(),
            weights: Vec::new(),
            keys: vec![f16::ZERO; slots * key_dim],
            values: vec![f16::ZERO; slots * value_dim],
            exact: vec![false; slots],
            free: (0..slots).rev().collect(),
        }
    }

    /// Tokens so far.
    pub fn tokens(&self) -> usize {
        self.places.len()
    }

    /// Takes the next token; returns its number.
    ///
    /// # Errors
    /// A row of the wrong length, or one that is not finite.
    pub fn push(&mut self, key: &[f16], value: &[f16]) -> Result<u32, SketchError> {
        let token = self.places.len() as u32;
        check(token, "key", key, self.key_dim)?;
        check(token, "value", value, self.value_dim)?;
        let slot = self.slot();
        self.keys[slot * self.key_dim..][..self.key_dim].copy_from_slice(key);
        self.values[slot * self.value_dim..][..self.value_dim].copy_from_slice(value);
        self.exact[slot] = true;
        self.places.push(Place::Held(slot));
        self.weights.push(0.0);
        self.recent.push_back(token);
        if self.recent.len() > self.shape.recent + self.shape.slack {
            for token in self.recent.drain(..self.shape.slack) {
                self.candidates.push(Reverse((Weight(self.weights[token as usize]), token)));
            }
            self.overflow();
        }
        Ok(token)
    }

    /// Notes the attention that a decode step paid: a weight for each of some tokens. What became significant returns
    /// from Vague.
    ///
    /// # Errors
    /// A token that does not exist, or a weight that is negative or not finite; nothing is noted then.
    pub fn observe(&mut self, tokens: &[u32], weights: &[f32]) -> Result<(), SketchError> {
        assert!(tokens.len() == weights.len(), "{} tokens and {} weights", tokens.len(), weights.len());
        for (&token, weight) in tokens.iter().zip(weights) {
            if token as usize >= self.places.len() {
                return Err(SketchError::Unknown { token, tokens: self.places.len() });
            }
            if !weight.is_finite() || *weight < 0.0 {
                return Err(SketchError::Weight { token, weight: weight.to_string() });
            }
        }
        for (&token, weight) in tokens.iter().zip(weights) {
            self.weights[token as usize] += weight;
        }
        for &token in tokens {
            if self.places[token as usize] == Place::Vague {
                self.swap_back(token);
            }
        }
        Ok(())
    }

    /// Accumulated attention of a token, 0 for one that does not exist.
    pub fn weight(&self, token: u32) -> f32 {
        self.weights.get(token as usize).copied().unwrap_or(0.0)
    }

    /// Whether a token is held as it came.
    pub fn is_exact(&self, token: u32) -> bool {
        matches!(self.places.get(token as usize), Some(&Place::Held(slot)) if self.exact[slot])
    }

    /// Key and value of tokens, appended to `keys` [n, key_dim] and `values` [n, value_dim]: as they came, or what the
    /// table gives back.
    ///
    /// # Errors
    /// A token that does not exist; nothing is appended then.
    pub fn reconstruct(
        &self,
        tokens: &[u32],
        keys: &mut Vec<f32>,
        values: &mut Vec<f32>,
    ) -> Result<(), SketchError> {
        if let Some(&token) = tokens.iter().find(|&&t| t as usize >= self.places.len()) {
            return Err(SketchError::Unknown { token, tokens: self.places.len() });
        }
        self.read(tokens, keys, values);
        Ok(())
    }

    /// As [`Reviver::reconstruct`], of tokens that exist.
    fn read(&self, tokens: &[u32], keys: &mut Vec<f32>, values: &mut Vec<f32>) {
        for &token in tokens {
            match self.places[token as usize] {
                Place::Vague => self.table.reconstruct(&[token], keys, values),
                Place::Held(slot) => {
                    keys.extend(widened(&self.keys[slot * self.key_dim..][..self.key_dim]));
                    values.extend(widened(&self.values[slot * self.value_dim..][..self.value_dim]));
                }
            }
        }
    }

    /// Attention of all query heads, `q` [g, key_dim], over the tokens of `range`, merged into `out` [g]. Panics when the
    /// range is not held.
    pub fn attend(
        &self,
        (k, d): (&Kernels, &Description),
        q: &[f32],
        range: Range<usize>,
        out: &mut [Partial],
    ) {
        assert!(range.end <= self.tokens(), "tokens {range:?} of {}", self.tokens());
        let mut scratch = PartScratch::default();
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let tokens = range.start as u32..range.end as u32;
        let (exact, estimated): (Vec<u32>, Vec<u32>) = tokens.partition(|&token| self.is_exact(token));
        for (tokens, part) in [(exact, Part::Exact), (estimated, Part::Estimated)] {
            for tokens in tokens.chunks(BLOCK) {
                keys.clear();
                values.clear();
                self.read(tokens, &mut keys, &mut values);
                scratch.attend((k, d), q, (&keys, &values), part, out);
            }
        }
    }

    /// Products of all query heads, `q` [g, key_dim], with the keys as they are read back: [g, tokens].
    pub fn products(&self, k: &Kernels, q: &[f32]) -> Vec<f32> {
        let (g, n) = (q.len() / self.key_dim, self.tokens());
        let (mut keys, mut values, mut block) = (Vec::new(), Vec::new(), Vec::new());
        let mut products = vec![0.0; g * n];
        for begin in (0..n).step_by(BLOCK) {
            let tokens: Vec<u32> = (begin as u32..n.min(begin + BLOCK) as u32).collect();
            keys.clear();
            values.clear();
            self.read(&tokens, &mut keys, &mut values);
            block.resize(g * tokens.len(), 0.0);
            k.gemm_nt(q, &keys, self.key_dim, g, tokens.len(), &mut block);
            for (block, products) in block.chunks_exact(tokens.len()).zip(products.chunks_exact_mut(n)) {
                products[begin..begin + tokens.len()].copy_from_slice(block);
            }
        }
        products
    }

    /// Bytes of rows and buckets.
    pub fn bytes(&self) -> usize {
        2 * (self.keys.len() + self.values.len()) + self.table.bytes()
    }

    /// Bytes of what is kept beside them for every token: where it is, and its accumulated attention.
    pub fn bookkeeping_bytes(&self) -> usize {
        (size_of::<Place>() + size_of::<f32>()) * self.places.len()
    }

    /// Moves what Candidate has no room for to Vague, in one batch.
    fn overflow(&mut self) {
        let (mut tokens, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        while self.candidates.len() > self.shape.candidates {
            let Some(token) = self.pop_least() else { break };
            self.release(token, &mut keys, &mut values);
            tokens.push(token);
        }
        self.table.insert(&tokens, &keys, &values);
    }

    /// Changes a vague token's place with the least candidate, if that has had less attention.
    fn swap_back(&mut self, token: u32) {
        let Some(least) = self.least() else { return };
        if self.weights[token as usize] <= self.weights[least as usize] {
            return;
        }
        self.candidates.pop();
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        self.release(least, &mut keys, &mut values);
        self.table.insert(&[least], &keys, &values);
        keys.clear();
        values.clear();
        self.table.reconstruct(&[token], &mut keys, &mut values);
        // What is held is what was read, rounded to f16 and within its range; exactly that leaves the table.
        let rounded = |rows: &mut Vec<f32>| -> Vec<f16> {
            let held: Vec<f16> = rows.iter().map(|x| f16::from_f32(x.clamp(-65504.0, 65504.0))).collect();
            rows.iter_mut().zip(&held).for_each(|(x, h)| *x = h.to_f32());
            held
        };
        let (key, value) = (rounded(&mut keys), rounded(&mut values));
        self.table.remove(&[token], &keys, &values);
        let slot = self.slot();
        self.keys[slot * self.key_dim..][..self.key_dim].copy_from_slice(&key);
        self.values[slot * self.value_dim..][..self.value_dim].copy_from_slice(&value);
        self.exact[slot] = false;
        self.places[token as usize] = Place::Held(slot);
        self.candidates.push(Reverse((Weight(self.weights[token as usize]), token)));
    }

    /// The least attended candidate, on top of the heap.
    fn least(&mut self) -> Option<u32> {
        while let Some(&Reverse((Weight(then), token))) = self.candidates.peek() {
            let now = self.weights[token as usize];
            if then >= now {
                return Some(token);
            }
            self.candidates.pop();
            self.candidates.push(Reverse((Weight(now), token)));
        }
        None
    }

    fn pop_least(&mut self) -> Option<u32> {
        let least = self.least();
        self.candidates.pop();
        least
    }

    /// Appends the rows of a held token to `keys` and `values`, and gives up its slot.
    fn release(&mut self, token: u32, keys: &mut Vec<f32>, values: &mut Vec<f32>) {
        if let Place::Held(slot) = self.places[token as usize] {
            keys.extend(widened(&self.keys[slot * self.key_dim..][..self.key_dim]));
            values.extend(widened(&self.values[slot * self.value_dim..][..self.value_dim]));
            self.free.push(slot);
            self.places[token as usize] = Place::Vague;
        }
    }

    /// A free slot: there are as many as tokens can be held.
    fn slot(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.keys.resize(self.keys.len() + self.key_dim, f16::ZERO);
            self.values.resize(self.values.len() + self.value_dim, f16::ZERO);
            self.exact.push(false);
            self.exact.len() - 1
        })
    }
}

fn widened(row: &[f16]) -> impl Iterator<Item = f32> + '_ {
    row.iter().map(|x| x.to_f32())
}

/// Whether a row can be held.
fn check(token: u32, what: &'static str, row: &[f16], dim: usize) -> Result<(), SketchError> {
    if row.len() != dim {
        return Err(SketchError::Dim { what, elements: row.len(), dim });
    }
    match row.iter().position(|x| !x.is_finite()) {
        Some(element) => Err(SketchError::NotFinite { token, what, element }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
