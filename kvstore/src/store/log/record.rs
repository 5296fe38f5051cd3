//! Records of a log and the segments that hold them.
//!
//! Format 1; all numbers little-endian, all sizes in bytes:
//!
//! ```text
//! segment                                          record, at a multiple of 8
//!  0   8  magic "RCLLOG\r\n"                        0   4  CRC-32 of bytes 4..72
//!  8   4  format version                            4   4  CRC-32 of the payload
//! 12   4  length of this header, 72                 8   8  number: one more than the record before
//! 16  32  BLAKE3-256 of the fingerprint message    16   8  payload length, a multiple of 8
//! 48   8  number of the session                    24   4  kind, 1: rows, 2: cut
//! 56   8  number of the segment                    28   4  layer
//! 64   4  0                                        32   4  first KV head        36   4  KV heads h
//! 68   4  CRC-32 of bytes 0..68                    40   8  first position; of a cut: the length that stays
//! 72      records                                  48   8  tokens n             56   8  sampled positions m
//!                                                  64   8  last tokens that samples do not ask for
//!                                                  72      payload: h positions to seal to (0: none), m positions,
//!                                                          keys [n, h, key_dim], values [n, h, value_dim],
//!                                                          queries [m, h * group, key_dim], zeros
//! ```

use crate::session::geometry::Geometry;
use crate::store::bytes::{Reader, Writer};
use crate::store::error::FileError;
use crate::store::header::preamble;
use half::f16;

/// First bytes of a segment.
pub const MAGIC: [u8; 8] = *b"RCLLOG\r\n";
const VERSION: u32 = 1;
const KIND: &str = "a log of Recollect";
/// Bytes before the records, and before a payload.
pub const HEADER: usize = 72;
const ROWS: u32 = 1;
const CUT: u32 = 2;

/// Rows of consecutive heads of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows<'a> {
    /// Of the model.
    pub layer: usize,
    /// First of the heads.
    pub kv_head: usize,
    /// Position of the first row.
    pub begin: u64,
    /// Rows of each head.
    pub tokens: u64,
    /// For each head, the position to seal to after these rows; 0: none.
    pub seals: Vec<u64>,
    /// `[tokens, heads, key_dim]`.
    pub k: &'a [f16],
    /// `[tokens, heads, value_dim]`.
    pub v: &'a [f16],
    /// `[m, heads * group, key_dim]`.
    pub q: &'a [f16],
    /// `[m]`.
    pub q_pos: Vec<u64>,
    /// Last tokens that the samples do not ask for.
    pub q_window: u64,
}

impl Rows<'_> {
    /// The KV heads.
    pub fn heads(&self) -> std::ops::Range<usize> {
        self.kv_head..self.kv_head + self.seals.len()
    }
}

/// One record.
#[derive(Debug, Clone, PartialEq)]
pub enum Record<'a> {
    /// Rows that were appended.
    Rows(Rows<'a>),
    /// Every token at or beyond this length was dropped.
    Cut(u64),
}

/// Whose log this is, and which part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// BLAKE3-256 of the fingerprint message.
    pub fingerprint: [u8; 32],
    /// Number of the session.
    pub session: u64,
    /// From 1.
    pub number: u64,
}

impl Segment {
    /// The header.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.bytes(&MAGIC).u32(VERSION).u32(HEADER as u32).bytes(&self.fingerprint);
        w.u64(self.session).u64(self.number).u32(0).checksum();
        w.0
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, FileError> {
        let all = r.0;
        preamble(r, (&MAGIC, KIND), VERSION)?;
        let whole = all.get(..HEADER);
        let header = whole.ok_or(FileError::Length { found: all.len() as u64, want: HEADER as u64 })?;
        let (covered, sum) = header.split_at(HEADER - 4);
        if sum != crc32fast::hash(covered).to_le_bytes() {
            return Err(FileError::Header);
        }
        let mut fields = || {
            let (length, fingerprint) = (r.u32()?, r.array()?);
            let segment = Segment { fingerprint, session: r.u64()?, number: r.u64()? };
            r.bytes(8)?;
            Some((length, segment))
        };
        match fields() {
            Some((length, segment)) if length as usize == HEADER => Ok(segment),
            _ => Err(FileError::field("header length", 0, HEADER)),
        }
    }
}

impl Record<'_> {
    /// Bytes in the log, up to the padding.
    pub fn bytes(&self) -> u64 {
        let payload = match self {
            Record::Cut(_) => 0,
            Record::Rows(r) => 8 * (r.seals.len() + r.q_pos.len()) + 2 * (r.k.len() + r.v.len() + r.q.len()),
        };
        (HEADER + payload) as u64
    }

    /// The record as bytes.
    pub fn encode(&self, number: u64) -> Vec<u8> {
        // The header is filled in last, so that rows are copied once.
        let mut record = Vec::with_capacity(self.bytes() as usize + 8);
        record.resize(HEADER, 0);
        let mut payload = Writer(record);
        let (kind, layer, kv_head, heads, position, tokens, m, window) = match self {
            Record::Cut(length) => (CUT, 0, 0, 0, *length, 0, 0, 0),
            Record::Rows(r) => {
                payload.u64s(&r.seals).u64s(&r.q_pos);
                for rows in [r.k, r.v, r.q] {
                    payload.bytes(bytemuck::cast_slice(rows));
                }
                let heads = r.seals.len() as u32;
                let m = r.q_pos.len() as u64;
                (ROWS, r.layer as u32, r.kv_head as u32, heads, r.begin, r.tokens, m, r.q_window)
            }
        };
        let mut record = payload.0;
        record.resize(record.len().next_multiple_of(8), 0);
        let payload = &record[HEADER..];
        let mut fields = Writer::default();
        fields.u32(crc32fast::hash(payload)).u64(number).u64(payload.len() as u64);
        fields.u32(kind).u32(layer).u32(kv_head).u32(heads).u64(position).u64(tokens).u64(m).u64(window);
        record[..4].copy_from_slice(&crc32fast::hash(&fields.0).to_le_bytes());
        record[4..HEADER].copy_from_slice(&fields.0);
        record
    }
}

/// What a segment holds.
#[derive(Debug)]
pub struct Contents<'a> {
    /// Whose.
    pub segment: Segment,
    /// With their numbers.
    pub records: Vec<(u64, Record<'a>)>,
    /// Where the whole records end: below the length of the file when the last write was cut short.
    pub end: usize,
}

/// Reads a segment. A last record that is not there in full was never acknowledged and is left out; any other damage is an
/// error, since what follows may have been.
pub fn read<'a>(bytes: &'a [u8], g: &Geometry) -> Result<Contents<'a>, FileError> {
    let mut r = Reader(bytes);
    let segment = Segment::read(&mut r)?;
    let mut records: Vec<(u64, Record<'a>)> = Vec::new();
    loop {
        let end = bytes.len() - r.0.len();
        let block = records.len();
        let damaged = FileError::Block { part: "the records", block };
        let Some(header) = r.bytes(HEADER) else {
            return Ok(Contents { segment, records, end });
        };
        let mut h = Reader(header);
        let sum = h.u32();
        if sum != Some(crc32fast::hash(h.0)) {
            let zeros = header.iter().chain(r.0).all(|&b| b == 0);
            return if zeros { Ok(Contents { segment, records, end }) } else { Err(damaged) };
        }
        let Some((sum, number, length)) = (|| Some((h.u32()?, h.u64()?, h.u64()?)))() else {
            return Err(damaged);
        };
        let Some(payload) = usize::try_from(length).ok().and_then(|n| r.bytes(n)) else {
            return Ok(Contents { segment, records, end });
        };
        if sum != crc32fast::hash(payload) {
            return Err(damaged);
        }
        if records.last().is_some_and(|(last, _)| last + 1 != number) {
            return Err(FileError::field("record number", number, "one more than the last"));
        }
        records.push((number, record(h, payload, g).ok_or(damaged)?));
    }
}

/// A record whose bytes are right; None when its fields do not fit each other or the geometry.
fn record<'a>(mut h: Reader<'a>, payload: &'a [u8], g: &Geometry) -> Option<Record<'a>> {
    let (kind, layer, kv_head, heads) = (h.u32()?, h.u32()?, h.u32()?, h.u32()?);
    let (begin, tokens, m, q_window) = (h.u64()?, h.u64()?, h.u64()?, h.u64()?);
    if kind == CUT {
        return payload.is_empty().then_some(Record::Cut(begin));
    }
    let (layer, range) = g.heads("", layer, kv_head, heads as usize).ok()?;
    if kind != ROWS || tokens == 0 {
        return None;
    }
    begin.checked_add(tokens)?;
    let heads = range.len() as u64;
    let mut p = Reader(payload);
    let mut numbers = |n: u64| -> Option<Vec<u64>> {
        let bytes = p.bytes(usize::try_from(n.checked_mul(8)?).ok()?)?;
        Some(bytes.chunks_exact(8).filter_map(|b| Some(u64::from_le_bytes(b.try_into().ok()?))).collect())
    };
    let (seals, q_pos) = (numbers(heads)?, numbers(m)?);
    let mut rows = |n: u64, width: usize| -> Option<&'a [f16]> {
        let bytes = n.checked_mul(heads)?.checked_mul(width as u64)?.checked_mul(2)?;
        bytemuck::try_cast_slice(p.bytes(usize::try_from(bytes).ok()?)?).ok()
    };
    let (k, v) = (rows(tokens, g.key_dim)?, rows(tokens, g.value_dim)?);
    let q = rows(m, g.group * g.key_dim)?;
    let padding = p.0.len() < 8 && p.0.iter().all(|&b| b == 0);
    let rows = Rows { layer, kv_head: range.start, begin, tokens, seals, k, v, q, q_pos, q_window };
    padding.then_some(Record::Rows(rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fingerprint;
    use proptest::prelude::*;

    fn geometry() -> Geometry {
        Geometry::read(&fingerprint(3, 4, 2, 6, 5)).unwrap()
    }

    fn numbers(n: usize, first: usize) -> Vec<f16> {
        (0..n).map(|i| f16::from_f32(((first + i) % 2039) as f32)).collect()
    }

    /// A segment of rows of both heads, and its records' ends.
    fn segment(lengths: &[u64]) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = Segment { fingerprint: [3; 32], session: 5, number: 1 }.encode();
        let mut ends = vec![bytes.len()];
        let mut begin = 0;
        for (number, &n) in (1..).zip(lengths) {
            let (k, v, q) = (numbers(n as usize * 12, 1), numbers(n as usize * 10, 2), numbers(24, 3));
            let rows = Rows {
                layer: 1,
                kv_head: 0,
                begin,
                tokens: n,
                seals: vec![0, begin + n],
                k: &k,
                v: &v,
                q: &q,
                q_pos: vec![begin],
                q_window: 4,
            };
            let record = if n == 0 { Record::Cut(3) } else { Record::Rows(rows) };
            bytes.extend(record.encode(number));
            ends.push(bytes.len());
            begin += n;
        }
        (bytes, ends)
    }

    #[test]
    fn records_read_back() {
        let (bytes, _) = segment(&[3, 0, 1]);
        let contents = read(&bytes, &geometry()).unwrap();
        assert_eq!((contents.end, contents.segment.session), (bytes.len(), 5));
        let (k, v, q) = (numbers(36, 1), numbers(30, 2), numbers(24, 3));
        let Record::Rows(first) = &contents.records[0].1 else { panic!("rows") };
        assert_eq!((first.k, first.v, first.q), (&k[..], &v[..], &q[..]));
        assert_eq!(
            (first.seals.as_slice(), first.q_pos.as_slice(), first.q_window),
            (&[0, 3][..], &[0][..], 4)
        );
        assert_eq!(contents.records[1], (2, Record::Cut(3)));
        // Rows of another geometry are not taken for ours.
        let other = Geometry::read(&fingerprint(3, 4, 2, 64, 5)).unwrap();
        assert!(read(&bytes, &other).is_err());
    }

    proptest! {
        #[test]
        fn a_cut_leaves_whole_records_and_a_flip_is_found(
            lengths in proptest::collection::vec(0u64..4, 1..6),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let (mut bytes, ends) = segment(&lengths);
            let at = at.index(bytes.len());
            let whole = ends.iter().filter(|&&e| e <= at).count();
            match read(&bytes[..at], &geometry()) {
                Ok(contents) => prop_assert_eq!(contents.records.len() + 1, whole),
                Err(_) => prop_assert_eq!(whole, 0),
            }
            bytes[at] ^= 1 << bit;
            prop_assert!(read(&bytes, &geometry()).is_err());
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), keep in 0usize..144) {
            let (good, _) = segment(&[2]);
            let mut mixed = good[..keep.min(good.len())].to_vec();
            mixed.extend(bytes);
            let _ = read(&mixed, &geometry());
        }
    }
}
