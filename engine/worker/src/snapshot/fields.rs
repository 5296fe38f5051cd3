//! Fixed little-endian fields, read one after the other. Reading past the end is an error that names the field.

use super::error::FormatError;
use half::f16;

/// What is left to read.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next `n` bytes.
    pub fn bytes(&mut self, n: usize, field: &'static str) -> Result<&'a [u8], FormatError> {
        let (now, rest) = self.0.split_at_checked(n).ok_or(FormatError::Short(field))?;
        self.0 = rest;
        Ok(now)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], FormatError> {
        self.bytes(N, field)?.try_into().map_err(|_| FormatError::Short(field))
    }

    /// Four bytes.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, FormatError> {
        self.array(field).map(u32::from_le_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, FormatError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// `n` numbers of eight bytes; memory is taken only for what is there.
    pub fn u64s(&mut self, n: usize, field: &'static str) -> Result<Vec<u64>, FormatError> {
        let bytes = self.bytes(n.checked_mul(8).ok_or(FormatError::Short(field))?, field)?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|&b| u64::from_le_bytes(b)).collect())
    }
}

/// Halves as they are written.
pub fn put_halves(out: &mut Vec<u8>, halves: &[f16]) {
    out.extend(halves.iter().flat_map(|x| x.to_le_bytes()));
}

/// Halves as they were written.
pub fn halves(bytes: &[u8]) -> Vec<f16> {
    bytes.as_chunks::<2>().0.iter().map(|&b| f16::from_le_bytes(b)).collect()
}
