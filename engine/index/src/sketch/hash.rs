//! Seeded hashing of token numbers: the same buckets and signs everywhere.

/// Which bucket a token falls into in every hash row, and with which sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hashes {
    /// A key of its own for every row.
    rows: Vec<u64>,
    buckets: usize,
}

impl Hashes {
    /// `rows` independent functions into `buckets` buckets each.
    pub fn new(rows: usize, buckets: usize, seed: u64) -> Hashes {
        Hashes { rows: (0..rows as u64).map(|row| mix(seed ^ mix(row + 1))).collect(), buckets }
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The bucket and the sign (1 or -1) of a token in a row.
    pub fn place(&self, row: usize, token: u32) -> (usize, f32) {
        let hash = mix(self.rows[row] ^ u64::from(token));
        // The upper half picks the bucket by multiplication, the lowest bit the sign.
        let bucket = ((hash >> 32) * self.buckets as u64) >> 32;
        (bucket as usize, if hash & 1 == 0 { 1.0 } else { -1.0 })
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_even_signs_balanced_and_rows_differ() {
        let hashes = Hashes::new(3, 64, 7);
        let n = 64_000u32;
        for row in 0..3 {
            let mut counts = [0u32; 64];
            let mut signs = 0.0;
            for token in 0..n {
                let (bucket, sign) = hashes.place(row, token);
                counts[bucket] += 1;
                signs += sign;
            }
            // Binomial with mean 1000, deviation 31; the sum of signs has deviation 253.
            assert!(counts.iter().all(|c| (820..1180).contains(c)), "{counts:?}");
            assert!(f32::abs(signs) < 1300.0, "{signs}");
        }
        let together = (0..n).filter(|&t| hashes.place(0, t).0 == hashes.place(1, t).0).count();
        assert!((800..1200).contains(&together), "{together} of an expected 1000");
        assert_eq!(hashes, Hashes::new(3, 64, 7));
        assert_ne!(hashes, Hashes::new(3, 64, 8));
    }
}
