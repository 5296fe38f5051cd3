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

    /// Code `i` of a run.
    pub fn get(&self, run: usize, i: usize) -> u8 {
        let (size, from) = (self.bytes_of_run(), run * self.bytes_of_run());
        match self.bits {
            8 => self.bytes[from + i],
            _ if i < size => self.bytes[from + i] & 15,
            _ => self.bytes[from + i - size] >> 4,
        }
    }

    /// Shows the codes of the runs from `first` on to elements of `out`, in order.
    pub fn each(&self, first: usize, out: &mut [f32], put: impl Fn(&mut f32, f32)) {
        let size = self.bytes_of_run();
        let runs = self.bytes[first * size..].chunks_exact(size);
        for (out, codes) in out.chunks_exact_mut(self.run).zip(runs) {
            if self.bits == 8 {
                out.iter_mut().zip(codes).for_each(|(x, &code)| put(x, f32::from(code)));
            } else {
                let (low, high) = out.split_at_mut(size);
                low.iter_mut().zip(codes).for_each(|(x, &code)| put(x, f32::from(code & 15)));
                high.iter_mut().zip(codes).for_each(|(x, &code)| put(x, f32::from(code >> 4)));
            }
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn bytes_of_run(&self) -> usize {
        if self.bits == 8 { self.run } else { self.run.div_ceil(2) }
    }
}
