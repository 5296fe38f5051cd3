//! Rows in fewer bits: the quantised tier.
//!
//! Tokens lie in blocks of [`BLOCK`]. Keys have an offset and a step for each channel of a block: their channels differ by
//! more than their tokens (KIVI, arXiv 2402.02750, section 3.2), and a logit sums over channels. Values have an offset and a
//! step for each token, [`Precision::Int8`] for each 32 elements of it: an output sums over tokens.
//!
//! [`Precision::Int8`] stores keys in two parts: 8 bits, and 4 more that say where within the step a key lies. With the
//! first part alone the noise of the logits of a head with large queries (20 and more) moves outputs by 1 %.
//!
//! What one extreme key would do to the steps of its block is not done: it is held as it came, and counts as exact.

mod attend;
mod planes;

use half::f16;

use self::planes::Plane;
use crate::rows::Rows;

pub use self::attend::QuantScratch;

/// Tokens that share offsets and steps.
pub const BLOCK: usize = kernels::CHANNEL_ROWS;
/// A token that alone makes a channel's range this many times as wide is held as it came.
const EXTREME: f32 = 8.0;

/// How many bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Keys in 8 + 4 bits, values in 8 bits with a step for 32 elements.
    Int8,
    /// Keys and values in 8 bits, one step a value.
    Int8Plain,
    /// Keys and values in 4 bits, one step a value.
    Int4,
}

impl Precision {
    /// Bits of the two parts of a key; the second may be 0.
    fn key_bits(self) -> (u8, u8) {
        match self {
            Precision::Int8 => (8, 4),
            Precision::Int8Plain => (8, 0),
            Precision::Int4 => (4, 0),
        }
    }

    fn value_bits(self) -> u8 {
        if self == Precision::Int4 { 4 } else { 8 }
    }

    /// Elements of a value that share a step.
    fn value_group(self, dim: usize) -> usize {
        if self == Precision::Int8 { 32.min(dim) } else { dim }
    }
}

/// An element that cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token {token}: {what} element {element} is not finite")]
pub struct NotFinite {
    /// Row number.
    pub token: usize,
    /// Key or value.
    pub what: &'static str,
    /// Index of the element.
    pub element: usize,
}

/// Quantised keys and values of one KV head.
#[derive(Clone, Debug)]
pub struct Quantised {
    tokens: usize,
    key_dim: usize,
    value_dim: usize,
    precision: Precision,
    /// Offset and step of each channel: [blocks, key_dim].
    offsets: Vec<f16>,
    steps: Vec<f16>,
    /// Codes of keys, by channel: [blocks, key_dim, BLOCK].
    keys: Plane,
    second: Option<Plane>,
    /// Offsets and steps of values: [blocks, BLOCK, groups].
    value_offsets: Vec<f16>,
    value_steps: Vec<f16>,
    /// Codes of values: [blocks, BLOCK, value_dim].
    values: Plane,
    /// Tokens held as they came, ascending, and their rows.
    extreme: Vec<u32>,
    extreme_keys: Vec<f16>,
    extreme_values: Vec<f16>,
}

impl Quantised {
    /// Quantises rows. Panics when the counts differ.
    ///
    /// # Errors
    /// The first element that is not finite.
    pub fn new(keys: &Rows<'_>, values: &Rows<'_>, precision: Precision) -> Result<Quantised, NotFinite> {
        assert!(keys.len() == values.len(), "{} keys and {} values", keys.len(), values.len());
        for (what, rows) in [("key", keys), ("value", values)] {
            for token in 0..rows.len() {
                if let Some(element) = rows.row(token).iter().position(|x| !x.is_finite()) {
                    return Err(NotFinite { token, what, element });
                }
            }
        }
        let (first, second) = precision.key_bits();
        let mut quantised = Quantised {
            tokens: keys.len(),
            key_dim: keys.dim(),
            value_dim: values.dim(),
            precision,
            offsets: Vec::new(),
            steps: Vec::new(),
            keys: Plane::new(first, BLOCK),
            second: (second > 0).then(|| Plane::new(second, BLOCK)),
            value_offsets: Vec::new(),
            value_steps: Vec::new(),
            values: Plane::new(precision.value_bits(), values.dim()),
            extreme: Vec::new(),
            extreme_keys: Vec::new(),
            extreme_values: Vec::new(),
        };
        for begin in (0..keys.len()).step_by(BLOCK) {
            let tokens = begin..(begin + BLOCK).min(keys.len());
            quantised.push_keys(keys, values, tokens.clone());
            quantised.push_values(values, tokens);
        }
        quantised.settle();
        Ok(quantised)
    }

    /// Keeps no more memory than [`Quantised::bytes`] tells.
    fn settle(&mut self) {
        self.keys.settle();
        self.second.iter_mut().for_each(Plane::settle);
        self.values.settle();
        for halves in [
            &mut self.offsets,
            &mut self.steps,
            &mut self.value_offsets,
            &mut self.value_steps,
            &mut self.extreme_keys,
            &mut self.extreme_values,
        ] {
            halves.shrink_to_fit();
        }
        self.extreme.shrink_to_fit();
    }

    /// Tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Tokens held as they came.
    pub fn exact_tokens(&self) -> usize {
        self.extreme.len()
    }

    /// Bytes of codes, offsets, steps, scales and extreme tokens.
    pub fn bytes(&self) -> usize {
        let halves = self.offsets.len()
            + self.steps.len()
            + self.value_offsets.len()
            + self.value_steps.len()
            + self.extreme_keys.len()
            + self.extreme_values.len();
        let planes = self.keys.bytes() + self.values.bytes() + self.second.as_ref().map_or(0, Plane::bytes);
        2 * halves + planes + 4 * self.extreme.len()
    }

    /// Key and value of a token as they are attended to; None for one that does not exist.
    pub fn reconstruct(&self, token: usize) -> Option<(Vec<f32>, Vec<f32>)> {
        if token >= self.tokens {
            return None;
        }
        let row = |rows: &[f16], at: usize, dim: usize| -> Vec<f32> {
            rows[at * dim..(at + 1) * dim].iter().map(|x| x.to_f32()).collect()
        };
        if let Ok(at) = self.extreme.binary_search(&(token as u32)) {
            return Some((
                row(&self.extreme_keys, at, self.key_dim),
                row(&self.extreme_values, at, self.value_dim),
            ));
        }
        let (block, within) = (token / BLOCK, token % BLOCK);
        let key = |j: usize| {
            let at = block * self.key_dim + j;
            self.offsets[at].to_f32() + self.steps[at].to_f32() * self.key_code(at, within)
        };
        let group = self.precision.value_group(self.value_dim);
        let value = |j: usize| {
            let at = token * self.value_dim.div_ceil(group) + j / group;
            let code = f32::from(self.values.get(token, j));
            self.value_offsets[at].to_f32() + self.value_steps[at].to_f32() * code
        };
        Some(((0..self.key_dim).map(key).collect(), (0..self.value_dim).map(value).collect()))
    }

    /// The code of a key, in steps from the offset.
    fn key_code(&self, channel: usize, within: usize) -> f32 {
        let first = f32::from(self.keys.get(channel, within));
        match &self.second {
            None => first,
            Some(second) => first * self.first_part() + f32::from(second.get(channel, within)),
        }
    }

    /// What one of the first part of a key's code is worth in the second.
    fn first_part(&self) -> f32 {
        (1u32 << self.precision.key_bits().1) as f32
    }

    fn push_keys(&mut self, keys: &Rows<'_>, values: &Rows<'_>, tokens: std::ops::Range<usize>) {
        let mut plain: Vec<usize> = tokens.clone().collect();
        for j in 0..self.key_dim {
            if let Some(token) = extreme(&plain, |i| keys.row(i)[j].to_f32()) {
                plain.retain(|&i| i != token);
            }
        }
        for token in tokens.clone().filter(|i| !plain.contains(i)) {
            self.extreme.push(token as u32);
            self.extreme_keys.extend_from_slice(keys.row(token));
            self.extreme_values.extend_from_slice(values.row(token));
        }
        let (first, second) = self.precision.key_bits();
        let most = (1u32 << (first + second)) - 1;
        for j in 0..self.key_dim {
            let of = |&i: &usize| keys.row(i)[j].to_f32();
            let (low, high) = range(plain.iter().map(of));
            let step = step_over(high - low, most);
            self.offsets.push(f16::from_f32(low));
            self.steps.push(step);
            // Padding and extreme tokens have a code too, which nobody reads.
            let code = |i: usize| match i < tokens.end {
                true => (((of(&i) - low).max(0.0) / step.to_f32()).round() as u32).min(most),
                false => 0,
            };
            let codes: Vec<u32> = (tokens.start..tokens.start + BLOCK).map(code).collect();
            let part =
                |of: &dyn Fn(u32) -> u32| codes.iter().map(|&code| of(code) as u8).collect::<Vec<u8>>();
            self.keys.push(&part(&|code| code >> second));
            if let Some(plane) = &mut self.second {
                plane.push(&part(&|code| code & ((1 << second) - 1)));
            }
        }
    }

    fn push_values(&mut self, values: &Rows<'_>, tokens: std::ops::Range<usize>) {
        let group = self.precision.value_group(self.value_dim);
        let most = (1u32 << self.precision.value_bits()) - 1;
        // Padding has codes too, so that a block is always whole.
        let zeros = vec![f16::ZERO; self.value_dim];
        let mut codes = Vec::with_capacity(self.value_dim);
        for i in tokens.start..tokens.start + BLOCK {
            let row = if i < tokens.end { values.row(i) } else { &zeros };
            codes.clear();
            for elements in row.chunks(group) {
                let (low, high) = range(elements.iter().map(|x| x.to_f32()));
                let step = step_over(high - low, most);
                self.value_offsets.push(f16::from_f32(low));
                self.value_steps.push(step);
                let code = |x: &f16| (((x.to_f32() - low) / step.to_f32()).round() as u32).min(most) as u8;
                codes.extend(elements.iter().map(code));
            }
            self.values.push(&codes);
        }
    }
}

/// The smallest step in f16 by which `most` steps reach over `width`; above 0.
fn step_over(width: f32, most: u32) -> f16 {
    let step = f16::from_f32(width / most as f32).max(f16::from_bits(1));
    if step.to_f32() * (most as f32) < width { f16::from_bits(step.to_bits() + 1) } else { step }
}

fn range(values: impl Iterator<Item = f32>) -> (f32, f32) {
    let (low, high) = values.fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)));
    if low <= high { (low, high) } else { (0.0, 0.0) }
}

/// The one token, if there is one, without which the range of all is far narrower.
fn extreme(tokens: &[usize], of: impl Fn(usize) -> f32) -> Option<usize> {
    let mut order: Vec<(f32, usize)> = tokens.iter().map(|&i| (of(i), i)).collect();
    order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (&[low, next, ..], &[.., before, high]) = (&order[..], &order[..]) else { return None };
    let all = high.0 - low.0;
    if next.0 - low.0 > high.0 - before.0 {
        let rest = high.0 - next.0;
        (rest > 0.0 && all > EXTREME * rest).then_some(low.1)
    } else {
        let rest = before.0 - low.0;
        (rest > 0.0 && all > EXTREME * rest).then_some(high.1)
    }
}

#[cfg(test)]
mod tests;
