//! Fixed little-endian fields, written and read one after the other. Reading past the end is None, never a panic.

/// Fields to write.
#[derive(Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// Raw bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Four bytes.
    pub fn u32(&mut self, x: u32) -> &mut Self {
        self.bytes(&x.to_le_bytes())
    }

    /// Eight bytes.
    pub fn u64(&mut self, x: u64) -> &mut Self {
        self.bytes(&x.to_le_bytes())
    }

    /// Eight bytes each.
    pub fn u64s(&mut self, numbers: &[u64]) -> &mut Self {
        numbers.iter().for_each(|&x| {
            self.u64(x);
        });
        self
    }

    /// The CRC-32 of everything before it.
    pub fn checksum(&mut self) -> &mut Self {
        self.u32(crc32fast::hash(&self.0))
    }
}

/// Fields to read.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (now, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(now)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
