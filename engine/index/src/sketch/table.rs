//! Vague: the count sketch of KVReviver (arXiv 2512.17917).
//!
//! r hash rows of b buckets, a bucket is one vector. A token is added to one bucket of every row and read back as the
//! median of its r buckets, element by element. Values carry a random sign, so that what shares a bucket cancels out on
//! average; keys carry none: with signs the noise of a key, which stands in an exponent, makes the softmax useless
//! (measured: output error over 9). Without them a bucket's key is the sum of all keys in it, as published.
//!
//! Error: with a tokens of independent elements of variance sigma^2, one signed row reads a value with variance
//! (a - 1) / b * sigma^2. The median of r of them has about pi / (2 r) times that, within the published bound
//! a * pi / N * sigma^2, N = r * b. At any real compression a exceeds N, so the noise exceeds the signal.
//!
//! Buckets are bf16: any number of f16 rows adds up without overflow, and 2^-9 is far below the noise of sharing.

use half::bf16;

use super::hash::Hashes;

/// r x b vectors for keys and as many for values.
#[derive(Clone, Debug)]
pub struct CountTable {
    hashes: Hashes,
    buckets: usize,
    key_dim: usize,
    value_dim: usize,
    /// [rows, buckets, key_dim]
    keys: Vec<bf16>,
    /// [rows, buckets, value_dim]
    values: Vec<bf16>,
}

impl CountTable {
    /// An empty table of `rows` x `buckets`, both at least 1.
    pub fn new(
        (rows, buckets): (usize, usize),
        (key_dim, value_dim): (usize, usize),
        seed: u64,
    ) -> CountTable {
        let (rows, buckets) = (rows.max(1), buckets.max(1));
        CountTable {
            hashes: Hashes::new(rows, buckets, seed),
            buckets,
            key_dim,
            value_dim,
            keys: vec![bf16::ZERO; rows * buckets * key_dim],
            values: vec![bf16::ZERO; rows * buckets * value_dim],
        }
    }

    /// Adds tokens: `keys` [n, key_dim], `values` [n, value_dim]. Panics when shapes do not fit.
    pub fn insert(&mut self, tokens: &[u32], keys: &[f32], values: &[f32]) {
        self.add(tokens, keys, values, 1.0);
    }

    /// Takes tokens out by subtracting what is given. When that is what was read, the rest of the table is left as if
    /// the token had been what was read.
    pub fn remove(&mut self, tokens: &[u32], keys: &[f32], values: &[f32]) {
        self.add(tokens, keys, values, -1.0);
    }

    fn add(&mut self, tokens: &[u32], keys: &[f32], values: &[f32], factor: f32) {
        assert!(keys.len() == tokens.len() * self.key_dim, "{} key elements", keys.len());
        assert!(values.len() == tokens.len() * self.value_dim, "{} value elements", values.len());
        let rows = keys.chunks_exact(self.key_dim).zip(values.chunks_exact(self.value_dim));
        for (&token, (key, value)) in tokens.iter().zip(rows) {
            for row in 0..self.hashes.rows() {
                let (bucket, sign) = self.hashes.place(row, token);
                let at = row * self.buckets + bucket;
                accumulate(&mut self.keys[at * self.key_dim..][..self.key_dim], key, factor);
                accumulate(&mut self.values[at * self.value_dim..][..self.value_dim], value, sign * factor);
            }
        }
    }

    /// Reads tokens back, appending to `keys` and `values`. Of a token that was never added it reads noise.
    pub fn reconstruct(&self, tokens: &[u32], keys: &mut Vec<f32>, values: &mut Vec<f32>) {
        let mut column = Vec::with_capacity(self.hashes.rows());
        for &token in tokens {
            let places: Vec<(usize, f32)> = (0..self.hashes.rows())
                .map(|row| (row, self.hashes.place(row, token)))
                .map(|(row, (bucket, sign))| (row * self.buckets + bucket, sign))
                .collect();
            let of_keys = |i: usize| (&self.keys[places[i].0 * self.key_dim..][..self.key_dim], 1.0);
            let of_values =
                |i: usize| (&self.values[places[i].0 * self.value_dim..][..self.value_dim], places[i].1);
            medians(places.len(), of_keys, self.key_dim, &mut column, keys);
            medians(places.len(), of_values, self.value_dim, &mut column, values);
        }
    }

    /// Bytes of all buckets.
    pub fn bytes(&self) -> usize {
        2 * (self.keys.len() + self.values.len())
    }
}

fn accumulate(sums: &mut [bf16], row: &[f32], factor: f32) {
    for (sum, x) in sums.iter_mut().zip(row) {
        *sum = bf16::from_f32(sum.to_f32() + factor * x);
    }
}

/// Appends the median of `rows` vectors, each times its sign, element by element; of an even number the mean of the
/// middle two.
fn medians<'a>(
    rows: usize,
    of: impl Fn(usize) -> (&'a [bf16], f32),
    dim: usize,
    column: &mut Vec<f32>,
    out: &mut Vec<f32>,
) {
    if rows == 3 {
        // The usual number, without sorting.
        let [a, b, c] = [of(0), of(1), of(2)];
        let of_element = |i: usize| [a, b, c].map(|(row, sign)| sign * row[i].to_f32());
        out.extend((0..dim).map(of_element).map(|[a, b, c]| a.min(b).max(a.max(b).min(c))));
        return;
    }
    for i in 0..dim {
        column.clear();
        column.extend((0..rows).map(&of).map(|(row, sign)| sign * row[i].to_f32()));
        column.sort_unstable_by(f32::total_cmp);
        let middle = rows / 2;
        let median = if rows % 2 == 1 { column[middle] } else { (column[middle - 1] + column[middle]) / 2.0 };
        out.push(median);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sketch::random::Normal;

    /// The mean squared error of values read back, for `a` tokens of unit variance.
    fn value_error(a: usize, (rows, buckets): (usize, usize), seed: u64) -> f64 {
        let dim = 32;
        let mut table = CountTable::new((rows, buckets), (1, dim), seed);
        let mut normal = Normal::new(seed);
        let tokens: Vec<u32> = (0..a as u32).collect();
        let values: Vec<f32> = (0..a * dim).map(|_| normal.next()).collect();
        table.insert(&tokens, &vec![0.0; a], &values);
        let (mut keys, mut read) = (Vec::new(), Vec::new());
        table.reconstruct(&tokens, &mut keys, &mut read);
        let square = |(x, y): (&f32, &f32)| f64::from(x - y).powi(2);
        values.iter().zip(&read).map(square).sum::<f64>() / values.len() as f64
    }

    #[test]
    fn variance_on_gaussian_data_is_within_the_published_bound_and_not_by_chance() {
        for (a, rows, buckets) in [(400, 3, 100), (1000, 3, 50), (2000, 5, 100), (300, 1, 64)] {
            let bound = a as f64 * std::f64::consts::PI / (rows * buckets) as f64;
            let measured = value_error(a, (rows, buckets), 11);
            assert!(measured <= bound, "a {a}, {rows} x {buckets}: {measured} over {bound}");
            // A median of normals has at least 1 / r of the variance of one of them.
            let least = 0.8 * (a - 1) as f64 / (buckets * rows) as f64;
            assert!(
                measured >= least,
                "a {a}, {rows} x {buckets}: {measured} below {least}: too good to be true"
            );
        }
    }

    #[test]
    fn a_token_alone_is_read_back_to_the_precision_of_a_bucket() {
        let mut table = CountTable::new((3, 8), (2, 3), 5);
        table.insert(&[9], &[1.0, -2.0], &[0.5, 3.0, -65504.0]);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        table.reconstruct(&[9], &mut keys, &mut values);
        assert_eq!((keys, values), (vec![1.0, -2.0], vec![0.5, 3.0, -65536.0]));
    }

    proptest! {
        #[test]
        fn insertion_in_batches_is_insertion_one_by_one_and_removal_undoes_it(
            tokens in prop::collection::btree_set(0u32..500, 1..40), seed in 0u64..100,
        ) {
            let tokens: Vec<u32> = tokens.into_iter().collect();
            // Small integers, which bf16 adds without rounding.
            let row = |t: u32, d: usize| ((t as usize * 7 + d * 3) % 5) as f32 - 2.0;
            let keys: Vec<f32> = tokens.iter().flat_map(|&t| (0..4).map(move |d| row(t, d))).collect();
            let values: Vec<f32> = tokens.iter().flat_map(|&t| (0..2).map(move |d| row(t, d + 9))).collect();
            let mut batch = CountTable::new((3, 7), (4, 2), seed);
            let empty = batch.clone();
            let mut single = batch.clone();
            batch.insert(&tokens, &keys, &values);
            for (i, token) in tokens.iter().enumerate().rev() {
                single.insert(&[*token], &keys[i * 4..][..4], &values[i * 2..][..2]);
            }
            prop_assert_eq!((&batch.keys, &batch.values), (&single.keys, &single.values));
            batch.remove(&tokens, &keys, &values);
            prop_assert!(batch.keys.iter().chain(&batch.values).all(|x| x.to_f32() == 0.0));
            prop_assert_eq!(batch.bytes(), empty.bytes());
        }
    }
}
