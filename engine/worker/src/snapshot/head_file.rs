//! One head in a file, little-endian:
//!
//! ```text
//! header   magic 8, format u32, layer u32, KV head u32, group u32, key dim u32, value dim u32, tokens u64, samples u64
//! rows     blocks of up to 1 MiB, all but the last of the same number of tokens: keys [n, key_dim], values [n, value_dim], f16
//! samples  blocks of up to 1 MiB likewise: positions u64 [m], what they see u64 [m], queries [m, group, key_dim], f16
//! ```
//!
//! The header and every block are followed by their BLAKE3-256. The root, which the manifest holds, is the BLAKE3-256 over
//! these sums in order: it binds the file to the manifest, and each block can be checked by itself.

use super::error::FormatError;
use super::fields::{Fields, halves, put_halves};
use super::{FORMAT, SUM};
use half::f16;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;

const MAGIC: &[u8; 8] = b"RCLHEAD\0";
/// Bytes of the header without its sum.
const HEADER: usize = 48;
/// Bytes of a block, unless a single row is larger.
const BLOCK: u64 = 1 << 20;
/// Most layers, heads and elements of a row, as a shard takes them.
pub(super) const MOST: u32 = 4096;

/// What a head file is about. Everything about its bytes follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Layer.
    pub layer: u32,
    /// KV head.
    pub kv_head: u32,
    /// Query heads of the KV head.
    pub group: u32,
    /// Elements of a key and of a query.
    pub key_dim: u32,
    /// Elements of a value.
    pub value_dim: u32,
    /// Rows.
    pub tokens: u64,
    /// Sampled queries.
    pub samples: u64,
}

/// Rows or samples of a file: equal records in blocks.
#[derive(Debug, Clone, Copy)]
struct Section {
    offset: u128,
    records: u64,
    record: u64,
}

impl Section {
    fn per_block(&self) -> u64 {
        (BLOCK / self.record).max(1)
    }

    fn blocks(&self) -> u64 {
        self.records.div_ceil(self.per_block())
    }

    fn block(&self, i: u64) -> Range<u64> {
        let first = i * self.per_block();
        first..self.records.min(first + self.per_block())
    }

    fn end(&self) -> u128 {
        self.offset
            + u128::from(self.records) * u128::from(self.record)
            + u128::from(self.blocks()) * SUM as u128
    }
}

impl Shape {
    fn rows(&self) -> Section {
        let record = 2 * (u64::from(self.key_dim) + u64::from(self.value_dim));
        Section { offset: (HEADER + SUM) as u128, records: self.tokens, record }
    }

    fn sampled(&self) -> Section {
        let record = 16 + 2 * self.query() as u64;
        Section { offset: self.rows().end(), records: self.samples, record }
    }

    /// Elements of a sample's queries.
    pub fn query(&self) -> usize {
        self.group as usize * self.key_dim as usize
    }

    /// Tokens of a block of rows.
    pub fn tokens_per_block(&self) -> u64 {
        self.rows().per_block()
    }

    /// Samples of a block.
    pub fn samples_per_block(&self) -> u64 {
        self.sampled().per_block()
    }

    /// Bytes of the file, sums included; an error where 64 bits do not hold them.
    pub fn file_bytes(&self) -> Result<u64, FormatError> {
        let most = || FormatError::field("tokens", self.tokens, "fewer: its file would not fit 64 bits");
        u64::try_from(self.sampled().end()).map_err(|_| most())
    }

    /// Whether the numbers are such as a shard takes.
    pub fn check(&self) -> Result<(), FormatError> {
        for (field, n, least) in [
            ("layer", self.layer.saturating_add(1), 1),
            ("KV head", self.kv_head.saturating_add(1), 1),
            ("group", self.group, 1),
            ("key dim", self.key_dim, 1),
            ("value dim", self.value_dim, 1),
        ] {
            if !(least..=MOST).contains(&n) {
                return Err(FormatError::field(field, n, format!("in {least}..={MOST}")));
            }
        }
        if self.samples > self.tokens {
            return Err(FormatError::field(
                "samples",
                self.samples,
                format!("at most tokens = {}", self.tokens),
            ));
        }
        self.file_bytes().map(|_| ())
    }

    fn header(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let numbers = [FORMAT, self.layer, self.kv_head, self.group, self.key_dim, self.value_dim];
        numbers.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        [self.tokens, self.samples].iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        out
    }

    /// From the first bytes of a file.
    pub fn read(header: &[u8]) -> Result<Self, FormatError> {
        let mut r = Fields(header);
        if r.bytes(MAGIC.len(), "the magic").ok() != Some(MAGIC) {
            return Err(FormatError::Magic("head"));
        }
        let found = r.u32("the format")?;
        if found != FORMAT {
            return Err(FormatError::Format { found });
        }
        let mut n = || r.u32("the header");
        let (layer, kv_head, group, key_dim, value_dim) = (n()?, n()?, n()?, n()?, n()?);
        let (tokens, samples) = (r.u64("the header")?, r.u64("the header")?);
        let shape = Shape { layer, kv_head, group, key_dim, value_dim, tokens, samples };
        shape.check()?;
        Ok(shape)
    }
}

/// Writes a head file from front to end.
pub struct Writer<W> {
    out: W,
    root: blake3::Hasher,
    buffer: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Leaves room for the header, which is known at the end.
    pub fn new(mut out: W) -> Result<Self, FormatError> {
        out.write_all(&[0; HEADER + SUM])?;
        Ok(Self { out, root: blake3::Hasher::new(), buffer: Vec::new() })
    }

    /// A block of rows: [`Shape::tokens_per_block`] of them, the last block fewer.
    pub fn rows(&mut self, k: &[f16], v: &[f16]) -> Result<(), FormatError> {
        self.buffer.clear();
        put_halves(&mut self.buffer, k);
        put_halves(&mut self.buffer, v);
        self.block()
    }

    /// A block of samples: [`Shape::samples_per_block`] of them, the last block fewer.
    pub fn samples(&mut self, pos: &[u64], seen: &[u64], q: &[f16]) -> Result<(), FormatError> {
        self.buffer.clear();
        self.buffer.extend(pos.iter().chain(seen).flat_map(|n| n.to_le_bytes()));
        put_halves(&mut self.buffer, q);
        self.block()
    }

    fn block(&mut self) -> Result<(), FormatError> {
        let sum = blake3::hash(&self.buffer);
        self.root.update(sum.as_bytes());
        self.out.write_all(&self.buffer)?;
        self.out.write_all(sum.as_bytes())?;
        Ok(())
    }
}

impl<W: Write + Seek> Writer<W> {
    /// Writes the header; returns what is written, and the root.
    pub fn finish(mut self, shape: &Shape) -> Result<(W, [u8; SUM]), FormatError> {
        let header = shape.header();
        let sum = blake3::hash(&header);
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header)?;
        self.out.write_all(sum.as_bytes())?;
        self.out.flush()?;
        // Its sum comes last, since it is written last.
        self.root.update(sum.as_bytes());
        Ok((self.out, *self.root.finalize().as_bytes()))
    }
}

/// Reads and checks a whole file of `length` bytes; returns what it is about, and its root.
pub fn check(mut input: impl Read, length: u64) -> Result<(Shape, [u8; SUM]), FormatError> {
    let least = (HEADER + SUM) as u64;
    let mut header = [0; HEADER];
    if length < least {
        return Err(FormatError::Length { found: length, want: least });
    }
    input.read_exact(&mut header)?;
    let shape = Shape::read(&header)?;
    let want = shape.file_bytes()?;
    if length != want {
        return Err(FormatError::Length { found: length, want });
    }
    let first = sum_of(&mut input, &header, || "the header".into())?;
    let mut root = blake3::Hasher::new();
    let mut block = Vec::new();
    let mut least = 0;
    for (section, name) in [(shape.rows(), "rows"), (shape.sampled(), "samples")] {
        for i in 0..section.blocks() {
            let records = section.block(i);
            block.resize(((records.end - records.start) * section.record) as usize, 0);
            input.read_exact(&mut block)?;
            root.update(&sum_of(&mut input, &block, || format!("block {i} of the {name}"))?);
            if name == "samples" {
                let block = SampleBlock::read(&block, &shape)?;
                wire::samples::check(&block.pos, &block.seen, &(least..shape.tokens))?;
                least = block.pos.last().map_or(least, |&last| last + 1);
            }
        }
    }
    root.update(&first);
    Ok((shape, *root.finalize().as_bytes()))
}

/// Reads the sum behind a block and compares.
fn sum_of(input: &mut impl Read, block: &[u8], name: impl Fn() -> String) -> Result<[u8; SUM], FormatError> {
    let mut sum = [0; SUM];
    input.read_exact(&mut sum)?;
    if blake3::hash(block) != sum {
        return Err(FormatError::Sum(name()));
    }
    Ok(sum)
}

/// Samples of a block.
#[derive(Debug, Default, PartialEq)]
pub struct SampleBlock {
    /// Positions.
    pub pos: Vec<u64>,
    /// What they see.
    pub seen: Vec<u64>,
    /// `[m, group, key_dim]`.
    pub q: Vec<f16>,
}

impl SampleBlock {
    fn read(bytes: &[u8], shape: &Shape) -> Result<Self, FormatError> {
        let m = bytes.len() / shape.sampled().record as usize;
        let mut r = Fields(bytes);
        let (pos, seen) = (r.u64s(m, "samples")?, r.u64s(m, "samples")?);
        Ok(Self { pos, seen, q: halves(r.0) })
    }
}

/// Keys `[n, key_dim]` and values `[n, value_dim]` of a block.
pub type Rows = (Vec<f16>, Vec<f16>);

/// Reads blocks of a file that was checked, and checks each again.
pub struct Reader<R> {
    input: R,
    shape: Shape,
    buffer: Vec<u8>,
}

impl<R: Read + Seek> Reader<R> {
    /// Of a file about `shape`.
    pub fn new(input: R, shape: Shape) -> Self {
        Self { input, shape, buffer: Vec::new() }
    }

    /// Keys and values of block `i` of the rows; None behind the last.
    pub fn rows(&mut self, i: u64) -> Result<Option<Rows>, FormatError> {
        if !self.block(self.shape.rows(), i, "rows")? {
            return Ok(None);
        }
        let tokens = self.buffer.len() / self.shape.rows().record as usize;
        let (k, v) = self.buffer.split_at(tokens * 2 * self.shape.key_dim as usize);
        Ok(Some((halves(k), halves(v))))
    }

    /// Block `i` of the samples; None behind the last.
    pub fn samples(&mut self, i: u64) -> Result<Option<SampleBlock>, FormatError> {
        if !self.block(self.shape.sampled(), i, "samples")? {
            return Ok(None);
        }
        SampleBlock::read(&self.buffer, &self.shape).map(Some)
    }

    fn block(&mut self, section: Section, i: u64, name: &str) -> Result<bool, FormatError> {
        if i >= section.blocks() {
            return Ok(false);
        }
        let records = section.block(i);
        let before = u128::from(records.start) * u128::from(section.record) + u128::from(i) * SUM as u128;
        let at = u64::try_from(section.offset + before)
            .map_err(|_| FormatError::field("tokens", self.shape.tokens, "fewer"))?;
        self.buffer.resize(((records.end - records.start) * section.record) as usize, 0);
        self.input.seek(SeekFrom::Start(at))?;
        self.input.read_exact(&mut self.buffer)?;
        sum_of(&mut self.input, &self.buffer, || format!("block {i} of the {name}"))?;
        Ok(true)
    }
}

/// Makes the sums of changed bytes right, as far as the header says where they are: for the fuzz tests.
pub(super) fn reseal(bytes: &mut [u8]) {
    let Some(shape) = bytes.get(..HEADER).and_then(|header| Shape::read(header).ok()) else { return };
    let mut seal = |begin: u128, end: u128| {
        let place = |n: u128| usize::try_from(n).unwrap_or(usize::MAX);
        let (begin, end) = (place(begin), place(end));
        let Some(sum) = bytes.get(begin..end).map(blake3::hash) else { return false };
        match bytes.get_mut(end..end.saturating_add(SUM)) {
            Some(at) => at.copy_from_slice(sum.as_bytes()),
            None => return false,
        }
        true
    };
    seal(0, HEADER as u128);
    for section in [shape.rows(), shape.sampled()] {
        let mut at = section.offset;
        for i in 0..section.blocks() {
            let records = section.block(i);
            let end = at + u128::from((records.end - records.start) * section.record);
            if !seal(at, end) {
                return;
            }
            at = end + SUM as u128;
        }
    }
}

#[cfg(test)]
#[path = "head_file_tests.rs"]
mod tests;
