//! Codes of 8 bits, or of 4 in pairs.

/// Runs of codes of one width. In 4 bits the first half of a run lies in the lower halves of its bytes and the second
/// in the upper ones, so that both are read in order.
#[derive(Clone, Debug)]
pub(super) struct Plane {
    bits: u8,
    run: usize,
    bytes: Vec<u8>,
}

impl Plane {
    /// None yet, of 4 or 8 bits, in runs of `run` codes.
    pub fn new(bits: u8, run: usize) -> Plane {
        assert!(bits == 4 || bits == 8, "codes of {bits} bits");
        Plane { bits, run, bytes: Vec::new() }
    }

    /// Adds a run.
    pub fn push(&mut self, codes: &[u8]) {
        assert!(codes.len() == self.run, "{} codes in a run of {}", codes.len(), self.run);
        if self.bits == 8 {
            return self.bytes.extend_from_slice(codes);
        }
        let (low, high) = codes.split_at(self.bytes_of_run());
        let upper = high.iter().copied().chain(std::iter::repeat(0));
        self.bytes.extend(low.iter().zip(upper).map(|(low, high)| low | high << 4));
    }

    /// Keeps no more memory than the codes take.
    pub fn settle(&mut self) {
        self.bytes.shrink_to_fit();
    }

    /// Code `i` of a run.
    pub fn get(&self, run: usize, i: usize) -> u8 {
        let (size, from) = (self.bytes_of_run(), run * self.bytes_of_run());
        match self.bits {
            8 => self.bytes[from + i],
            _ if i < size => self.bytes[from + i] & 15,
            _ => self.bytes[from + i - size] >> 4,
        }
    }

    /// The codes of `n` runs from `first` on, one a byte: as they lie, or unpacked into `out`.
    pub fn bytes_of<'a>(&'a self, first: usize, n: usize, out: &'a mut Vec<u8>) -> &'a [u8] {
        let packed = self.packed(first, n);
        if self.bits == 8 {
            return packed;
        }
        out.clear();
        for run in packed.chunks_exact(self.bytes_of_run()) {
            out.extend(run.iter().map(|codes| codes & 15));
            out.extend(run.iter().take(self.run / 2).map(|codes| codes >> 4));
        }
        out
    }

    /// The bytes of `n` runs from `first` on.
    pub fn packed(&self, first: usize, n: usize) -> &[u8] {
        let size = self.bytes_of_run();
        &self.bytes[first * size..(first + n) * size]
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn bytes_of_run(&self) -> usize {
        if self.bits == 8 { self.run } else { self.run.div_ceil(2) }
    }
}
