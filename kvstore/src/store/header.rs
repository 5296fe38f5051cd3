//! What the files of a data directory begin with.

use crate::store::bytes::Reader;
use crate::store::error::FileError;

/// Magic and version, which every format of every kind of file begins with.
pub fn preamble(r: &mut Reader<'_>, magic: (&[u8; 8], &'static str), known: u32) -> Result<(), FileError> {
    if r.0.is_empty() {
        return Err(FileError::Empty);
    }
    if !r.0.starts_with(magic.0) {
        return Err(FileError::Foreign(magic.1));
    }
    let found = r.0.len() as u64;
    r.bytes(magic.0.len());
    match r.u32() {
        None => Err(FileError::Length { found, want: 12 }),
        Some(version) if version > known => Err(FileError::Version { found: version, known }),
        Some(0) => Err(FileError::field("format version", 0, "at least 1")),
        Some(_) => Ok(()),
    }
}

/// The header of a file whose first `length` bytes are one, their own checksum last: a reader behind magic and version, and
/// what follows the header.
pub fn checked<'a>(
    bytes: &'a [u8],
    magic: (&[u8; 8], &'static str),
    known: u32,
    length: usize,
) -> Result<(Reader<'a>, &'a [u8]), FileError> {
    let mut r = Reader(bytes);
    preamble(&mut r, magic, known)?;
    let short = FileError::Length { found: bytes.len() as u64, want: length as u64 };
    let (header, body) = bytes.split_at_checked(length).ok_or(short)?;
    let (told, sum) = header.split_at(length - 4);
    match sum == crc32fast::hash(told).to_le_bytes() {
        true => Ok((r, body)),
        false => Err(FileError::Header),
    }
}
