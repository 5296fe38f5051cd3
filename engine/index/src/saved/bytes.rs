//! Numbers and arrays as little-endian bytes: an array is its length (u64) and its elements.

use half::f16;

use super::SavedError;

/// A fixed-size number in little-endian bytes.
pub(crate) trait Number: Copy {
    const SIZE: usize;
    fn put(self, out: &mut Vec<u8>);
    /// `bytes` are `SIZE` long.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Number for $type {
            const SIZE: usize = size_of::<$type>();
            fn put(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> Self {
                let mut array = [0; size_of::<$type>()];
                array.copy_from_slice(bytes);
                Self::from_le_bytes(array)
            }
        }
    )*};
}
number!(u8, u32, u64, f32, f16);

/// Collects bytes.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// What was collected.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// Adds a number.
    pub fn number<T: Number>(&mut self, x: T) {
        x.put(&mut self.bytes);
    }

    /// Adds an array.
    pub fn array<T: Number>(&mut self, x: &[T]) {
        self.number(x.len() as u64);
        self.bytes.reserve(x.len() * T::SIZE);
        x.iter().for_each(|x| x.put(&mut self.bytes));
    }
}

/// Takes bytes apart; every length is checked against what is left before anything is allocated.
pub(crate) struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { left: bytes }
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], SavedError> {
        let (now, left) = self.left.split_at_checked(bytes).ok_or(SavedError::Short)?;
        self.left = left;
        Ok(now)
    }

    /// The next number.
    pub fn number<T: Number>(&mut self) -> Result<T, SavedError> {
        self.take(T::SIZE).map(T::get)
    }

    /// The next array, which must have `len` elements.
    pub fn array<T: Number>(&mut self, what: &'static str, len: usize) -> Result<Vec<T>, SavedError> {
        let found = self.number::<u64>()?;
        if found != len as u64 {
            return Err(SavedError::Length { what, found, expected: len as u64 });
        }
        self.elements(len)
    }

    /// The next array, of whatever length.
    pub fn list<T: Number>(&mut self) -> Result<Vec<T>, SavedError> {
        let len = self.number::<u64>()?;
        self.elements(usize::try_from(len).map_err(|_| SavedError::Short)?)
    }

    fn elements<T: Number>(&mut self, len: usize) -> Result<Vec<T>, SavedError> {
        let bytes = len.checked_mul(T::SIZE).ok_or(SavedError::Short)?;
        Ok(self.take(bytes)?.chunks_exact(T::SIZE).map(T::get).collect())
    }

    /// Nothing may be left.
    pub fn end(&self) -> Result<(), SavedError> {
        if self.left.is_empty() { Ok(()) } else { Err(SavedError::Beyond(self.left.len())) }
    }
}

/// Offsets of consecutive parts of `whole` elements: they begin at 0, never fall, and end there.
pub(crate) fn check_offsets(what: &'static str, offsets: &[u32], whole: usize) -> Result<(), SavedError> {
    let ends = offsets.first() == Some(&0) && offsets.last().map(|&o| o as usize) == Some(whole);
    if ends && offsets.is_sorted() { Ok(()) } else { Err(SavedError::Damaged(what)) }
}

/// All must be numbers.
pub(crate) fn check_finite(what: &'static str, mut x: impl Iterator<Item = f32>) -> Result<(), SavedError> {
    if x.all(f32::is_finite) { Ok(()) } else { Err(SavedError::Damaged(what)) }
}
