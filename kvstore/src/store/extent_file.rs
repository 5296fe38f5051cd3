//! Extent files: the rows of one extent, immutable, checked and mapped as they are.
//!
//! Format 1; all numbers little-endian, all sizes in bytes:
//!
//! ```text
//! offset  size
//!      0     8  magic "RCLEXT\r\n"
//!      8     4  format version
//!     12     4  header length H: everything up to and with the header checksum
//!     16    32  BLAKE3-256 of the session's Fingerprint message
//!     48     8  id, which is also the file's name
//!     56     4  layer                       60  4  KV head
//!     64     8  first position
//!     72     4  tokens n                    76  4  dtype of the rows, 1: IEEE half
//!     80     4  key_dim                     84  4  value_dim
//!     88     4  block size B                92  4  0
//!     96     8  offset of the keys, a multiple of 4096
//!    104     8  offset of the values, a multiple of 4096
//!    112     8  length of the file
//!    120   4*b  CRC-32 of each block of B bytes of the keys, then of the values; the last block of each may be short
//!    H-4     4  CRC-32 of all of the header before it
//!              zeros
//!      K     n * key_dim * 2      keys [n, key_dim]
//!              zeros
//!      V     n * value_dim * 2    values [n, value_dim], up to the end of the file
//! ```
//!
//! A reader of format 1 trusts nothing: every byte of the file is either checked against a checksum or must be zero.

use crate::store::bytes::{Reader, Writer};
use crate::store::error::FileError;
use crate::store::header::preamble;
use crate::store::map;
use attention::EXTENT_TOKENS;
use half::f16;
use memmap2::Mmap;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

const _: () =
    assert!(cfg!(target_endian = "little"), "stored rows are mapped as they are: little-endian only");

/// First bytes of the file. The line end shows transfers in text mode.
pub const MAGIC: [u8; 8] = *b"RCLEXT\r\n";
/// The newest format, which is what is written.
pub const VERSION: u32 = 1;
/// Bytes under one checksum.
const BLOCK: u32 = 64 << 10;
/// Rows start at multiples of this: a page, so that they can be mapped on their own.
const ALIGN: u64 = 4096;
/// Bytes before the checksums.
const FIXED: usize = 120;
const DTYPE_F16: u32 = 1;
const MAX_DIM: u32 = 4096;
const KIND: &str = "an extent file of Recollect";

/// What an extent file says about its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// BLAKE3-256 of the fingerprint message.
    pub fingerprint: [u8; 32],
    /// Unique in its data directory.
    pub id: u64,
    /// Of the model.
    pub layer: u32,
    /// Of the layer.
    pub kv_head: u32,
    /// Position of the first row.
    pub first: u64,
    /// Rows.
    pub tokens: u32,
    /// Elements of a key.
    pub key_dim: u32,
    /// Elements of a value.
    pub value_dim: u32,
}

/// Where the parts of a file lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Header with its checksums.
    pub header: usize,
    /// Bytes under one checksum.
    pub block: usize,
    /// Of the keys.
    pub keys: Range<usize>,
    /// Of the values.
    pub values: Range<usize>,
}

impl Extent {
    /// Where the parts lie for blocks of `block` bytes. Dimensions and tokens are in range, so nothing overflows.
    fn layout(&self, block: u32) -> Layout {
        let bytes = |dim: u32| u64::from(self.tokens) * u64::from(dim) * 2;
        let (k, v) = (bytes(self.key_dim), bytes(self.value_dim));
        let blocks = k.div_ceil(u64::from(block)) + v.div_ceil(u64::from(block));
        let header = FIXED as u64 + 4 * blocks + 4;
        let keys = header.next_multiple_of(ALIGN);
        let values = (keys + k).next_multiple_of(ALIGN);
        let at = |from: u64, n: u64| from as usize..(from + n) as usize;
        Layout { header: header as usize, block: block as usize, keys: at(keys, k), values: at(values, v) }
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.layout(BLOCK).values.end as u64
    }

    /// Writes the file. The rows are `[tokens, key_dim]` and `[tokens, value_dim]`; others are refused.
    pub fn write(&self, out: &mut impl Write, keys: &[f16], values: &[f16]) -> io::Result<()> {
        self.check().map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e.to_string()))?;
        let layout = self.layout(BLOCK);
        let (k, v): (&[u8], &[u8]) = (bytemuck::cast_slice(keys), bytemuck::cast_slice(values));
        if (k.len(), v.len()) != (layout.keys.len(), layout.values.len()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "rows of another shape than the header's",
            ));
        }
        let mut h = Writer::default();
        h.bytes(&MAGIC).u32(VERSION).u32(layout.header as u32).bytes(&self.fingerprint).u64(self.id);
        h.u32(self.layer).u32(self.kv_head).u64(self.first).u32(self.tokens).u32(DTYPE_F16);
        h.u32(self.key_dim).u32(self.value_dim).u32(BLOCK).u32(0);
        h.u64(layout.keys.start as u64).u64(layout.values.start as u64).u64(layout.values.end as u64);
        for block in k.chunks(layout.block).chain(v.chunks(layout.block)) {
            h.u32(crc32fast::hash(block));
        }
        h.checksum();
        let zeros = [0; ALIGN as usize];
        out.write_all(&h.0)?;
        out.write_all(&zeros[..layout.keys.start - layout.header])?;
        out.write_all(k)?;
        out.write_all(&zeros[..layout.values.start - layout.keys.end])?;
        out.write_all(v)
    }

    fn check(&self) -> Result<(), FileError> {
        let within = |field, got: u32, max: u32| match (1..=max).contains(&got) {
            true => Ok(()),
            false => Err(FileError::field(field, got.into(), format_args!("in 1..={max}"))),
        };
        within("tokens", self.tokens, EXTENT_TOKENS as u32)?;
        within("key_dim", self.key_dim, MAX_DIM)?;
        within("value_dim", self.value_dim, MAX_DIM)
    }

    /// Reads and checks the whole file.
    pub fn read(bytes: &[u8]) -> Result<(Self, Layout), FileError> {
        let (extent, layout) = Self::read_header(bytes)?;
        let mut sums = Reader(&bytes[FIXED..layout.header]);
        for (part, range) in [("keys", &layout.keys), ("values", &layout.values)] {
            for (block, data) in bytes[range.clone()].chunks(layout.block).enumerate() {
                if sums.u32() != Some(crc32fast::hash(data)) {
                    return Err(FileError::Block { part, block });
                }
            }
        }
        for range in [layout.header..layout.keys.start, layout.keys.end..layout.values.start] {
            if let Some(i) = bytes[range.clone()].iter().position(|&b| b != 0) {
                return Err(FileError::Padding(range.start + i));
            }
        }
        Ok((extent, layout))
    }

    /// Reads and checks the header and the lengths.
    fn read_header(bytes: &[u8]) -> Result<(Self, Layout), FileError> {
        let found = bytes.len() as u64;
        let short = || FileError::Length { found, want: FIXED as u64 + 12 };
        let mut r = Reader(bytes);
        preamble(&mut r, (&MAGIC, KIND), VERSION)?;
        let header = r.u32().ok_or_else(short)?;
        let sum_at = (header as usize).checked_sub(4).filter(|&at| at >= FIXED);
        let sum_at = sum_at.ok_or_else(|| {
            FileError::field("header length", header.into(), format_args!("at least {}", FIXED + 4))
        })?;
        let held = bytes.get(..sum_at).zip(bytes.get(sum_at..header as usize));
        let (covered, sum) = held.ok_or(FileError::Length { found, want: header.into() })?;
        if sum != crc32fast::hash(covered).to_le_bytes() {
            return Err(FileError::Header);
        }
        let mut fields = || {
            let fingerprint = r.array()?;
            let (id, layer, kv_head, first) = (r.u64()?, r.u32()?, r.u32()?, r.u64()?);
            let (tokens, dtype, key_dim, value_dim) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
            let extent = Extent { fingerprint, id, layer, kv_head, first, tokens, key_dim, value_dim };
            Some((extent, dtype, (r.u32()?, r.u32()?), [r.u64()?, r.u64()?, r.u64()?]))
        };
        let (extent, dtype, (block, reserved), places) = fields().ok_or_else(short)?;
        extent.check()?;
        let is = |field, found: u64, want: u64| match found == want {
            true => Ok(()),
            false => Err(FileError::field(field, found, want)),
        };
        is("dtype", dtype.into(), DTYPE_F16.into())?;
        is("the reserved field", reserved.into(), 0)?;
        if extent.first.checked_add(extent.tokens.into()).is_none() {
            return Err(FileError::field(
                "first position",
                extent.first,
                "one that leaves room for the tokens",
            ));
        }
        if !block.is_power_of_two() || !(4096..=1 << 30).contains(&block) {
            return Err(FileError::field("block size", block.into(), "a power of two in 4096..=2^30"));
        }
        let layout = extent.layout(block);
        is("header length", header.into(), layout.header as u64)?;
        is("offset of the keys", places[0], layout.keys.start as u64)?;
        is("offset of the values", places[1], layout.values.start as u64)?;
        is("length of the file", places[2], layout.values.end as u64)?;
        match found == places[2] {
            true => Ok((extent, layout)),
            false => Err(FileError::Length { found, want: places[2] }),
        }
    }
}

/// An extent file, mapped and checked.
#[derive(Debug)]
pub struct ExtentFile {
    /// What it says.
    pub extent: Extent,
    layout: Layout,
    map: Mmap,
}

impl ExtentFile {
    /// Maps a file and checks every byte of it.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let map = map::map(path)?;
        let (extent, layout) = Extent::read(&map)?;
        // The check has touched every page; a search touches few of them.
        map::let_go(&map)?;
        Ok(Self { extent, layout, map })
    }

    /// Rows `[tokens, key_dim]`, in the map.
    pub fn keys(&self) -> &[f16] {
        bytemuck::cast_slice(&self.map[self.layout.keys.clone()])
    }

    /// Rows `[tokens, value_dim]`, in the map.
    pub fn values(&self) -> &[f16] {
        bytemuck::cast_slice(&self.map[self.layout.values.clone()])
    }

    /// Where its parts lie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
}

#[cfg(test)]
mod tests;
