//! Codes of any width, one after the other without gaps.

/// A growing sequence of codes, the lowest bits first.
#[derive(Clone, Debug, Default)]
pub(super) struct Bits {
    bytes: Vec<u8>,
    len: usize,
}

impl Bits {
    /// Adds a code below 2^bits; `bits` is at most 16.
    pub fn push(&mut self, code: u32, bits: u8) {
        debug_assert!(bits <= 16 && u64::from(code) < 1 << bits);
        let (byte, shift) = (self.len / 8, self.len % 8);
        self.len += usize::from(bits);
        self.bytes.resize(self.len.div_ceil(8), 0);
        let placed = (code << shift).to_le_bytes();
        self.bytes[byte..].iter_mut().zip(placed).for_each(|(to, from)| *to |= from);
    }

    /// Goes on with a new byte; returns its number.
    pub fn align(&mut self) -> usize {
        self.len = 8 * self.bytes.len();
        self.bytes.len()
    }

    /// All bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// The code of `bits` bits at bit `at`; `bits` is at most 16. Bits beyond the last byte are 0.
pub(super) fn get(bytes: &[u8], at: usize, bits: u8) -> u32 {
    let rest = &bytes[(at / 8).min(bytes.len())..];
    let four = match rest.first_chunk() {
        Some(four) => u32::from_le_bytes(*four),
        None => rest.iter().rev().fold(0, |sum, &byte| sum << 8 | u32::from(byte)),
    };
    (four >> (at % 8)) & ((1 << bits) - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn codes_come_back(runs in prop::collection::vec((0u8..=16, prop::collection::vec(any::<u32>(), 0..40)), 0..12)) {
            let mut bits = Bits::default();
            let mut places = Vec::new();
            for (width, codes) in &runs {
                places.push(8 * bits.align());
                codes.iter().for_each(|c| bits.push(c & ((1u32 << width) - 1), *width));
            }
            let total: usize =
                runs.iter().map(|(width, codes)| (usize::from(*width) * codes.len()).div_ceil(8)).sum();
            let bytes = bits.into_bytes();
            prop_assert_eq!(bytes.len(), total);
            for ((width, codes), at) in runs.iter().zip(places) {
                for (i, c) in codes.iter().enumerate() {
                    prop_assert_eq!(get(&bytes, at + i * usize::from(*width), *width), c & ((1u32 << width) - 1));
                }
            }
        }
    }
}
