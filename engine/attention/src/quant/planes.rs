//! Codes of 8 bits, or of 4 in pairs.

/// A sequence of codes of one width.
#[derive(Clone, Debug)]
pub(super) struct Plane {
    bits: u8,
    bytes: Vec<u8>,
    len: usize,
}

impl Plane {
    /// None yet, of 4 or 8 bits.
    pub fn new(bits: u8) -> Plane {
        assert!(bits == 4 || bits == 8, "codes of {bits} bits");
        Plane { bits, bytes: Vec::new(), len: 0 }
    }

    /// Adds a code.
    pub fn push(&mut self, code: u32) {
        match self.bits {
            4 if self.len % 2 == 1 => self.bytes[self.len / 2] |= (code as u8) << 4,
            _ => self.bytes.push(code as u8),
        }
        self.len += 1;
    }

    /// One code.
    pub fn get(&self, at: usize) -> u32 {
        match self.bits {
            8 => self.bytes[at].into(),
            _ => (self.bytes[at / 2] >> (at % 2 * 4) & 15).into(),
        }
    }

    /// Codes from `at`, which is even, on: `out[i] = code * factor + offset`.
    pub fn read(&self, at: usize, factor: f32, offset: f32, out: &mut [f32]) {
        self.each(at, out, |x, code| *x = code * factor + offset);
    }

    /// Adds codes from `at`, which is even, on.
    pub fn add(&self, at: usize, out: &mut [f32]) {
        self.each(at, out, |x, code| *x += code);
    }

    fn each(&self, at: usize, out: &mut [f32], put: impl Fn(&mut f32, f32)) {
        if self.bits == 8 {
            let codes = &self.bytes[at..at + out.len()];
            return out.iter_mut().zip(codes).for_each(|(x, &code)| put(x, f32::from(code)));
        }
        let codes = &self.bytes[at / 2..(at + out.len()).div_ceil(2)];
        for (pair, &codes) in out.chunks_mut(2).zip(codes) {
            put(&mut pair[0], f32::from(codes & 15));
            if let Some(second) = pair.get_mut(1) {
                put(second, f32::from(codes >> 4));
            }
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }
}
