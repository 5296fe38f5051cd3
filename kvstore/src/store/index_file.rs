//! Index files: the index of a span as it was built, so that a restart reads it and builds nothing.
//!
//! Format 1; all numbers little-endian, all sizes in bytes:
//!
//! ```text
//! offset  size
//!      0     8  magic "RCLIDX\r\n"
//!      8     4  format version
//!     12     4  length of this header, 120
//!     16    32  BLAKE3-256 of the session's Fingerprint message
//!     48     8  id, which is also the file's name
//!     56     4  layer                       60  4  KV head
//!     64     8  first position              72  8  tokens
//!     80     4  key_dim                     84  4  value_dim
//!     88     4  recall that the build was asked for, IEEE single
//!     92     4  CRC-32 of everything after the header
//!     96     8  microseconds that the build took
//!    104     8  length of the file
//!    112     4  0                          116  4  CRC-32 of the header before it
//!    120        the index, as `index::SpanIndex::save` writes it
//! ```
//!
//! It can be built again from extents and queries, so nothing depends on it: one that is damaged is put away.

use crate::session::span::About;
use crate::store::bytes::Writer;
use crate::store::error::FileError;
use crate::store::header::checked;
use crate::store::map;
use index::{Shape, SpanIndex, Told};
use memmap2::Mmap;
use std::io::{self, Write};
use std::path::Path;

/// First bytes of the file.
const MAGIC: [u8; 8] = *b"RCLIDX\r\n";
const VERSION: u32 = 1;
const KIND: &str = "an index file of Recollect";
/// Bytes of the header.
pub const HEADER: usize = 120;
/// Where the checksum of what follows the header is.
pub const SUM: usize = 92;

/// Whose index a file holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Owner {
    /// BLAKE3-256 of the fingerprint message.
    pub fingerprint: [u8; 32],
    /// Unique in its data directory.
    pub id: u64,
    /// Of the model.
    pub layer: u32,
    /// Of the layer.
    pub kv_head: u32,
    /// Position of the span's first row.
    pub first: u64,
    /// Rows of the span.
    pub tokens: u64,
    /// Elements of a key.
    pub key_dim: u32,
    /// Elements of a value.
    pub value_dim: u32,
    /// Recall that the build was asked for.
    pub recall_target: f32,
    /// Microseconds that the build took.
    pub build_us: u64,
}

impl Owner {
    /// Bytes of the file of an index of so many bytes.
    pub fn file_bytes(index: &[u8]) -> u64 {
        (HEADER + index.len()) as u64
    }

    /// Writes the file.
    pub fn write(&self, out: &mut impl Write, index: &[u8]) -> io::Result<()> {
        let mut h = Writer::default();
        h.bytes(&MAGIC).u32(VERSION).u32(HEADER as u32).bytes(&self.fingerprint).u64(self.id);
        h.u32(self.layer).u32(self.kv_head).u64(self.first).u64(self.tokens);
        h.u32(self.key_dim).u32(self.value_dim).u32(self.recall_target.to_bits());
        h.u32(crc32fast::hash(index)).u64(self.build_us).u64(Self::file_bytes(index)).u32(0).checksum();
        out.write_all(&h.0)?;
        out.write_all(index)
    }

    /// Reads the header and checks the whole file against it.
    pub fn read(bytes: &[u8]) -> Result<Self, FileError> {
        let (mut r, body) = checked(bytes, (&MAGIC, KIND), VERSION, HEADER)?;
        let found = bytes.len() as u64;
        let short = || FileError::Length { found, want: HEADER as u64 };
        let mut fields = || {
            let length = r.u32()?;
            let (fingerprint, id) = (r.array()?, r.u64()?);
            let (layer, kv_head, first, tokens) = (r.u32()?, r.u32()?, r.u64()?, r.u64()?);
            let (key_dim, value_dim, recall_target) = (r.u32()?, r.u32()?, f32::from_bits(r.u32()?));
            let (sum, build_us, whole, reserved) = (r.u32()?, r.u64()?, r.u64()?, r.u32()?);
            let place = Self {
                fingerprint,
                id,
                layer,
                kv_head,
                first,
                tokens,
                key_dim,
                value_dim,
                recall_target,
                build_us,
            };
            Some((place, length, sum, whole, reserved))
        };
        let (owner, length, sum, whole, reserved) = fields().ok_or_else(short)?;
        if length as usize != HEADER || reserved != 0 {
            return Err(FileError::field("header length", length.into(), HEADER));
        }
        if whole != found {
            return Err(FileError::Length { found, want: whole });
        }
        match sum == crc32fast::hash(body) {
            true => Ok(owner),
            false => Err(FileError::Block { part: "the index", block: 0 }),
        }
    }
}

/// An index file, mapped and checked.
#[derive(Debug)]
pub struct IndexFile {
    /// What it says.
    pub owner: Owner,
    map: Mmap,
}

impl IndexFile {
    /// Maps a file and checks every byte of it.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let map = map::map(path)?;
        let owner = Owner::read(&map)?;
        Ok(Self { owner, map })
    }

    /// Bytes of the index as it is stored, which is about what it takes in RAM.
    pub fn index_bytes(&self) -> u64 {
        (self.map.len() - HEADER) as u64
    }

    /// The index, in RAM.
    pub fn load(&self) -> Result<SpanIndex, FileError> {
        Ok(SpanIndex::load(&self.map[HEADER..], self.shape())?)
    }

    /// What is told of it.
    pub fn about(&self) -> Result<About, FileError> {
        let Told { kind, recall, width } = SpanIndex::told(&self.map[HEADER..], self.shape())?;
        let Owner { recall_target, build_us, .. } = self.owner;
        Ok(About { kind, recall, width, recall_target, build_us })
    }

    fn shape(&self) -> Shape {
        let o = &self.owner;
        Shape {
            tokens: usize::try_from(o.tokens).unwrap_or(usize::MAX),
            key_dim: o.key_dim as usize,
            value_dim: o.value_dim as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Owner {
        Owner {
            fingerprint: [9; 32],
            id: 4,
            layer: 2,
            kv_head: 1,
            first: 128,
            tokens: 900,
            key_dim: 16,
            value_dim: 12,
            recall_target: 0.95,
            build_us: 1234,
        }
    }

    fn bytes(index: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        sample().write(&mut file, index).unwrap();
        file
    }

    proptest! {
        #[test]
        fn headers_read_back_and_damage_is_found(
            index in proptest::collection::vec(any::<u8>(), 0..300),
            at in any::<prop::sample::Index>(), bit in 0u8..8,
        ) {
            let mut file = bytes(&index);
            prop_assert_eq!(file.len() as u64, Owner::file_bytes(&index));
            prop_assert_eq!(Owner::read(&file).unwrap(), sample());
            let at = at.index(file.len());
            prop_assert!(Owner::read(&file[..at]).is_err());
            file[at] ^= 1 << bit;
            prop_assert!(Owner::read(&file).is_err());
        }

        #[test]
        fn random_bytes_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..200), keep in 0usize..HEADER) {
            let mut mixed = bytes(b"index")[..keep].to_vec();
            mixed.extend(tail);
            prop_assert!(Owner::read(&mixed).is_err());
        }
    }

    #[test]
    fn a_whole_file_with_no_index_in_it_does_not_load() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, bytes(b"not an index")).unwrap();
        let file = IndexFile::open(&path).unwrap();
        let e = file.load().unwrap_err().to_string();
        assert!(e.contains("saved index") && !e.contains('\n'), "{e}");
        assert_eq!((file.owner, file.index_bytes()), (sample(), 12));
    }
}
