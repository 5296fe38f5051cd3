//! Changes to valid bytes, all of them from one seed.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Numbers at which counts and lengths go wrong.
const EDGES: [u64; 10] =
    [0, 1, 0x7f, 0x80, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x1_0000_0000, i64::MAX as u64, u64::MAX];
/// No input grows beyond this.
const MOST: usize = 1 << 18;

/// A source of changed bytes.
pub struct Mutator {
    rng: StdRng,
    seeds: Vec<Vec<u8>>,
}

impl Mutator {
    pub fn new(seeds: Vec<Vec<u8>>, seed: u64) -> Self {
        assert!(!seeds.is_empty());
        Self { rng: StdRng::seed_from_u64(seed), seeds }
    }

    /// True once in so many.
    pub fn once_in(&mut self, n: u32) -> bool {
        self.rng.random_ratio(1, n)
    }

    /// The next input: a valid one with a few changes.
    pub fn next(&mut self) -> Vec<u8> {
        let mut bytes = self.seeds[self.rng.random_range(0..self.seeds.len())].clone();
        for _ in 0..self.rng.random_range(1..=6) {
            self.change(&mut bytes);
        }
        bytes.truncate(MOST);
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let rng = &mut self.rng;
        if bytes.is_empty() {
            bytes.push(rng.random());
            return;
        }
        // Headers are short and decide the most.
        let most = if rng.random_bool(0.5) { bytes.len().min(160) } else { bytes.len() };
        let at = rng.random_range(0..most);
        let run = |rng: &mut StdRng| at..at + rng.random_range(0..=64.min(bytes.len() - at));
        match rng.random_range(0..9) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = rng.random(),
            2 | 3 => {
                let edge = EDGES[rng.random_range(0..EDGES.len())].wrapping_add(rng.random_range(0..3));
                let width = [1, 2, 4, 8][rng.random_range(0..4)];
                let edge = edge.to_le_bytes();
                bytes[at..].iter_mut().zip(&edge[..width]).for_each(|(b, e)| *b = *e);
            }
            4 => bytes.truncate(at),
            5 => {
                let run = run(rng);
                bytes.drain(run);
            }
            6 => {
                let copy = bytes[run(rng)].to_vec();
                bytes.splice(at..at, copy);
            }
            7 => {
                let more: Vec<u8> = (0..rng.random_range(1..64)).map(|_| rng.random()).collect();
                bytes.splice(at..at, more);
            }
            _ => {
                let other = &self.seeds[rng.random_range(0..self.seeds.len())];
                let from = rng.random_range(0..=other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
}
