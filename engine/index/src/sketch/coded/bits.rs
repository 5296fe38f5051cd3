//! Codes of any width, one after the other without gaps.

/// Bytes after the last code, so that a code can be read as part of eight bytes.
const PADDING: usize = 8;
/// Codes that are read from one load; of at most [`GROUPED`] bits.
const GROUP: usize = 8;
const GROUPED: usize = 7;

/// A growing sequence of codes, the lowest bits first.
#[derive(Clone, Debug)]
pub(super) struct Bits {
    bytes: Vec<u8>,
    len: usize,
}

impl Bits {
    pub fn new() -> Bits {
        Bits { bytes: vec![0; PADDING], len: 0 }
    }

    /// Bits so far: where the next code will be.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a code below 2^bits; `bits` is at most 16.
    pub fn push(&mut self, code: u32, bits: u8) {
        debug_assert!(bits <= 16 && u64::from(code) < 1 << bits);
        let end = (self.len + usize::from(bits)).div_ceil(8);
        self.bytes.resize(self.bytes.len().max(end + PADDING), 0);
        let (byte, shift) = (self.len / 8, self.len % 8);
        let placed = (code << shift).to_le_bytes();
        self.bytes[byte..byte + 4].iter_mut().zip(placed).for_each(|(to, from)| *to |= from);
        self.len += usize::from(bits);
    }

    /// The code of `bits` bits at `at`.
    pub fn get(&self, at: usize, bits: u8) -> u32 {
        (self.load(at) & ((1 << bits) - 1)) as u32
    }

    /// Codes of `bits` bits from `at` on, each less `centre`. Panics beyond the end.
    pub fn unpack(&self, at: usize, bits: u8, centre: f32, out: &mut [f32]) {
        match bits {
            0 => out.fill(-centre),
            1 => self.grouped::<1>(at, centre, out),
            2 => self.grouped::<2>(at, centre, out),
            3 => self.grouped::<3>(at, centre, out),
            4 => self.grouped::<4>(at, centre, out),
            5 => self.grouped::<5>(at, centre, out),
            6 => self.grouped::<6>(at, centre, out),
            7 => self.grouped::<GROUPED>(at, centre, out),
            _ => self.single(at, bits, centre, out),
        }
    }

    /// Eight bytes at a bit, shifted down to it: at least 57 bits.
    fn load(&self, at: usize) -> u64 {
        let mut eight = [0; 8];
        eight.copy_from_slice(&self.bytes[at / 8..at / 8 + 8]);
        u64::from_le_bytes(eight) >> (at % 8)
    }

    /// Eight codes of at most 7 bits are within the bits of one load.
    fn grouped<const B: usize>(&self, at: usize, centre: f32, out: &mut [f32]) {
        // Signed, since only these become floats in one instruction.
        let code = |eight: u64, j: usize| ((eight >> (j * B)) as i32 & ((1 << B) - 1)) as f32 - centre;
        let mut at = at;
        let mut groups = out.chunks_exact_mut(GROUP);
        for group in &mut groups {
            let eight = self.load(at);
            group.iter_mut().enumerate().for_each(|(j, x)| *x = code(eight, j));
            at += GROUP * B;
        }
        let rest = groups.into_remainder();
        if !rest.is_empty() {
            let eight = self.load(at);
            rest.iter_mut().enumerate().for_each(|(j, x)| *x = code(eight, j));
        }
    }

    fn single(&self, at: usize, bits: u8, centre: f32, out: &mut [f32]) {
        for (i, x) in out.iter_mut().enumerate() {
            *x = self.get(at + i * usize::from(bits), bits) as i32 as f32 - centre;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn codes_come_back(runs in prop::collection::vec((0u8..=16, prop::collection::vec(any::<u32>(), 0..40)), 0..12)) {
            let mut bits = Bits::new();
            let mut places = Vec::new();
            for (width, codes) in &runs {
                places.push(bits.len());
                codes.iter().for_each(|c| bits.push(c & ((1u32 << width) - 1), *width));
            }
            for ((width, codes), at) in runs.iter().zip(places) {
                let mut out = vec![f32::NAN; codes.len()];
                bits.unpack(at, *width, 0.5, &mut out);
                let wanted: Vec<f32> = codes.iter().map(|c| (c & ((1u32 << width) - 1)) as f32 - 0.5).collect();
                prop_assert_eq!(out, wanted);
                for (i, c) in codes.iter().enumerate() {
                    prop_assert_eq!(bits.get(at + i * usize::from(*width), *width), c & ((1u32 << width) - 1));
                }
            }
            prop_assert!(bits.bytes() <= bits.len().div_ceil(8) + PADDING);
        }
    }
}
