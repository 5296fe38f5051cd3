//! Files of sampled queries: what the index of a span is built with, so that a restart builds the same one.
//!
//! Format 1; all numbers little-endian, all sizes in bytes:
//!
//! ```text
//! offset  size
//!      0     8  magic "RCLQRY\r\n"
//!      8     4  format version
//!     12     4  length of this header, 88
//!     16    32  BLAKE3-256 of the session's Fingerprint message
//!     48     8  id, which is also the file's name
//!     56     4  layer                       60  4  KV head
//!     64     4  elements of a sample, w     68  4  CRC-32 of everything after the header
//!     72     4  samples of the span, a      76  4  samples that came later, b
//!     80     4  0                           84  4  CRC-32 of the header before it
//!     88        positions of a, what each of a sees, what each of b sees (8 each); queries [a, w], [b, w] in half
//! ```

use crate::session::samples::Stored;
use crate::store::bytes::{Reader, Writer};
use crate::store::error::FileError;
use crate::store::header::checked;

/// First bytes of the file.
const MAGIC: [u8; 8] = *b"RCLQRY\r\n";
const VERSION: u32 = 1;
const KIND: &str = "a file of queries of Recollect";
const HEADER: usize = 88;

/// Whose queries a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// BLAKE3-256 of the fingerprint message.
    pub fingerprint: [u8; 32],
    /// Unique in its data directory.
    pub id: u64,
    /// Of the model.
    pub layer: u32,
    /// Of the layer.
    pub kv_head: u32,
}

/// The whole file.
pub fn encode(owner: &Owner, queries: &Stored) -> Vec<u8> {
    let mut body = Writer::default();
    body.u64s(&queries.pos).u64s(&queries.seen).u64s(&queries.later_seen);
    body.bytes(bytemuck::cast_slice(&queries.q)).bytes(bytemuck::cast_slice(&queries.later_q));
    let mut file = Writer::default();
    file.bytes(&MAGIC).u32(VERSION).u32(HEADER as u32).bytes(&owner.fingerprint).u64(owner.id);
    file.u32(owner.layer).u32(owner.kv_head).u32(queries.width as u32).u32(crc32fast::hash(&body.0));
    file.u32(queries.pos.len() as u32).u32(queries.later_seen.len() as u32).u32(0).checksum();
    file.bytes(&body.0);
    file.0
}

/// Reads and checks a whole file.
pub fn decode(bytes: &[u8]) -> Result<(Owner, Stored), FileError> {
    let (mut r, body) = checked(bytes, (&MAGIC, KIND), VERSION, HEADER)?;
    let found = bytes.len() as u64;
    let short = || FileError::Length { found, want: HEADER as u64 };
    let mut fields = || {
        let length = r.u32()?;
        let owner = Owner { fingerprint: r.array()?, id: r.u64()?, layer: r.u32()?, kv_head: r.u32()? };
        Some((length, owner, r.u32()?, r.u32()?, [r.u32()?, r.u32()?, r.u32()?]))
    };
    let (length, owner, width, sum, [own, later, reserved]) = fields().ok_or_else(short)?;
    if length as usize != HEADER || reserved != 0 {
        return Err(FileError::field("header length", length.into(), HEADER));
    }
    let rows = u64::from(own) + u64::from(later);
    let halves = rows.checked_mul(u64::from(width) * 2);
    let want =
        halves.and_then(|h| h.checked_add(8 * (2 * u64::from(own) + u64::from(later)) + HEADER as u64));
    let want = want.ok_or_else(|| FileError::field("elements of a sample", width.into(), "fewer"))?;
    if found != want {
        return Err(FileError::Length { found, want });
    }
    if sum != crc32fast::hash(body) {
        return Err(FileError::Block { part: "the queries", block: 0 });
    }
    let mut r = Reader(body);
    let mut numbers = |n: u32| -> Option<Vec<u64>> { (0..n).map(|_| r.u64()).collect() };
    let (pos, seen, later_seen) = match (numbers(own), numbers(own), numbers(later)) {
        (Some(pos), Some(seen), Some(later)) => (pos, seen, later),
        _ => return Err(short()),
    };
    let (q, later_q) = r.0.split_at(own as usize * width as usize * 2);
    let halves =
        |bytes: &[u8]| bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]])).collect();
    let stored =
        Stored { width: width as usize, pos, seen, q: halves(q), later_seen, later_q: halves(later_q) };
    Ok((owner, stored))
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;
    use proptest::prelude::*;

    fn sample(own: u64, later: u64, width: usize) -> (Owner, Stored) {
        let owner = Owner { fingerprint: [9; 32], id: 4, layer: 2, kv_head: 1 };
        let halves = |n: u64| (0..n as usize * width).map(|i| f16::from_f32(i as f32)).collect();
        let stored = Stored {
            width,
            pos: (0..own).map(|i| 3 * i).collect(),
            seen: (0..own).collect(),
            q: halves(own),
            later_seen: (7..7 + later).collect(),
            later_q: halves(later),
        };
        (owner, stored)
    }

    proptest! {
        #[test]
        fn queries_read_back_and_damage_is_found(
            own in 0u64..9, later in 0u64..5, width in 1usize..9,
            at in any::<prop::sample::Index>(), bit in 0u8..8,
        ) {
            let (owner, stored) = sample(own, later, width);
            let mut bytes = encode(&owner, &stored);
            prop_assert_eq!(decode(&bytes).unwrap(), (owner, stored));
            let at = at.index(bytes.len());
            prop_assert!(decode(&bytes[..at]).is_err());
            bytes[at] ^= 1 << bit;
            prop_assert!(decode(&bytes).is_err());
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), keep in 0usize..88) {
            let (owner, stored) = sample(1, 1, 2);
            let mut mixed = encode(&owner, &stored)[..keep].to_vec();
            mixed.extend(bytes);
            prop_assert!(decode(&mixed).is_err());
        }
    }
}
