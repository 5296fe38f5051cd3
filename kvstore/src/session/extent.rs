//! Rows of a sealed span, in extents: immutable and counted, so that a merged span shares those of its first part.

use crate::admission::Charge;
use crate::session::fresh::Fresh;
use crate::store::extent_file::ExtentFile;
use attention::{EXTENT_TOKENS, Rows};
use half::f16;
use std::sync::{Arc, OnceLock};

/// Up to [`EXTENT_TOKENS`] consecutive tokens of one head.
#[derive(Debug)]
pub struct Extent {
    rows: Storage,
    /// Id of the file that holds the same rows; unset until it is published.
    pub file: OnceLock<u64>,
    /// Bytes of the rows; returned when the last span or reader lets go.
    _charge: Charge,
}

/// Where rows lie.
#[derive(Debug)]
enum Storage {
    /// In RAM.
    Held { keys: Vec<f16>, values: Vec<f16> },
    /// In a map of their file.
    Mapped(ExtentFile),
    /// Only in the archive: so many rows of so many bytes, to be brought back before anybody reads them.
    Archived { tokens: u64, bytes: u64 },
}

impl Extent {
    /// In the map of a file. `charge` covers the rows.
    pub fn mapped(file: ExtentFile, charge: Charge) -> Self {
        let id = OnceLock::from(file.extent.id);
        Self { rows: Storage::Mapped(file), file: id, _charge: charge }
    }

    /// Only in the archive, as the object of a file. `charge` counts the rows.
    pub fn archived(file: u64, tokens: u64, charge: Charge) -> Self {
        let rows = Storage::Archived { tokens, bytes: charge.bytes() };
        Self { rows, file: OnceLock::from(file), _charge: charge }
    }

    /// Bytes of rows that only the archive holds.
    pub fn archived_bytes(&self) -> u64 {
        match self.rows {
            Storage::Archived { bytes, .. } => bytes,
            Storage::Held { .. } | Storage::Mapped(_) => 0,
        }
    }

    /// A copy in RAM of the same file; `charge` covers its bytes, which are split off.
    pub fn copied(&self, charge: &mut Charge) -> Self {
        let rows = Storage::Held { keys: self.keys().to_vec(), values: self.values().to_vec() };
        Self { rows, file: self.file.clone(), _charge: charge.split(self.bytes()) }
    }

    /// Whether the rows lie in a map.
    pub fn is_mapped(&self) -> bool {
        matches!(self.rows, Storage::Mapped(_))
    }

    /// Bytes of the rows that are at hand.
    pub fn bytes(&self) -> u64 {
        2 * (self.keys().len() + self.values().len()) as u64
    }

    /// Rows, of keys with this many elements.
    pub fn tokens(&self, key_dim: usize) -> u64 {
        match self.rows {
            Storage::Archived { tokens, .. } => tokens,
            Storage::Held { .. } | Storage::Mapped(_) => (self.keys().len() / key_dim) as u64,
        }
    }

    /// Keys, row by row; none of an archived extent, whose span nobody reads ([`SealedRows::archived`]).
    pub fn keys(&self) -> &[f16] {
        match &self.rows {
            Storage::Held { keys, .. } => keys,
            Storage::Mapped(file) => file.keys(),
            Storage::Archived { .. } => &[],
        }
    }

    /// Values, row by row; none of an archived extent.
    pub fn values(&self) -> &[f16] {
        match &self.rows {
            Storage::Held { values, .. } => values,
            Storage::Mapped(file) => file.values(),
            Storage::Archived { .. } => &[],
        }
    }
}

/// Keys and values of a span; all extents but the last are full.
#[derive(Debug)]
pub struct SealedRows {
    extents: Vec<Arc<Extent>>,
    key_dim: usize,
    value_dim: usize,
}

/// A part of a merged span: its rows, and how many of them stay.
pub type Part<'a> = (&'a SealedRows, usize);

impl SealedRows {
    /// Takes over the buffers of fresh rows, whose charge covers them exactly.
    pub fn seal(rows: Fresh) -> Self {
        let (key_dim, value_dim) = (rows.keys.dim(), rows.values.dim());
        let mut charge = rows.charge;
        let pieces = rows.keys.into_chunks().into_iter().zip(rows.values.into_chunks());
        let extents = pieces.map(|(keys, values)| extent(keys, values, &mut charge)).collect();
        Self { extents, key_dim, value_dim }
    }

    /// Extents that were read back, all but the last of them full.
    pub fn restored(extents: Vec<Arc<Extent>>, (key_dim, value_dim): (usize, usize)) -> Self {
        Self { extents, key_dim, value_dim }
    }

    /// Rows of the same shape in other extents.
    pub fn with_extents(&self, extents: Vec<Arc<Extent>>) -> Self {
        Self { extents, key_dim: self.key_dim, value_dim: self.value_dim }
    }

    /// Elements of a key and of a value.
    pub fn dims(&self) -> (usize, usize) {
        (self.key_dim, self.value_dim)
    }

    /// Rows, wherever they lie.
    pub fn tokens(&self) -> u64 {
        self.extents.iter().map(|e| e.tokens(self.key_dim)).sum()
    }

    /// The extents in order.
    pub fn extents(&self) -> &[Arc<Extent>] {
        &self.extents
    }

    /// Rows that [`SealedRows::join`] copies: all but the full extents at the start of the first part.
    pub fn copied(parts: &[Part<'_>]) -> u64 {
        let all: usize = parts.iter().map(|p| p.1).sum();
        (all - shared(parts) * EXTENT_TOKENS) as u64
    }

    /// The parts one after the other, at least one. `charge` covers the copied rows exactly.
    pub fn join(parts: &[Part<'_>], mut charge: Charge) -> Self {
        let first = parts[0].0;
        let mut joined = Self {
            extents: first.extents[..shared(parts)].to_vec(),
            key_dim: first.key_dim,
            value_dim: first.value_dim,
        };
        let mut skip = joined.extents.len() * EXTENT_TOKENS;
        let mut left = SealedRows::copied(parts) as usize;
        let room = |left: usize, dim: usize| Vec::<f16>::with_capacity(left.min(EXTENT_TOKENS) * dim);
        let (mut keys, mut values) = (room(left, first.key_dim), room(left, first.value_dim));
        for &(part, len) in parts {
            let mut at = std::mem::take(&mut skip);
            while at < len {
                let held = keys.len() / first.key_dim;
                let n = (len - at).min(EXTENT_TOKENS - held);
                part.copy(at, at + n, &mut keys, &mut values);
                (at, left) = (at + n, left - n);
                if held + n == EXTENT_TOKENS || left == 0 {
                    let full = (
                        std::mem::replace(&mut keys, room(left, first.key_dim)),
                        std::mem::replace(&mut values, room(left, first.value_dim)),
                    );
                    joined.extents.push(extent(full.0, full.1, &mut charge));
                }
            }
        }
        joined
    }

    /// The keys for the attention code; none while any of them lie in the archive only.
    pub fn keys(&self) -> Rows<'_> {
        self.rows(Extent::keys, self.key_dim)
    }

    /// The values.
    pub fn values(&self) -> Rows<'_> {
        self.rows(Extent::values, self.value_dim)
    }

    fn rows<'s>(&'s self, of: impl Fn(&'s Extent) -> &'s [f16], dim: usize) -> Rows<'s> {
        match self.extents.iter().any(|e| e.archived_bytes() > 0) {
            true => Rows::contiguous(&[], dim),
            false => Rows::chunked(self.extents.iter().map(|e| of(e)).collect(), dim),
        }
    }

    /// Copies rows `[begin, end)` to the ends of `k` and `v`.
    pub fn copy(&self, begin: usize, end: usize, k: &mut Vec<f16>, v: &mut Vec<f16>) {
        self.keys().runs(begin..end).for_each(|(_, rows)| k.extend_from_slice(rows));
        self.values().runs(begin..end).for_each(|(_, rows)| v.extend_from_slice(rows));
    }
}

/// Full extents at the start of the first part, of which every row stays.
fn shared(parts: &[Part<'_>]) -> usize {
    parts.first().map_or(0, |p| p.1 / EXTENT_TOKENS)
}

fn extent(keys: Vec<f16>, values: Vec<f16>, charge: &mut Charge) -> Arc<Extent> {
    let bytes = 2 * (keys.len() + values.len()) as u64;
    Arc::new(Extent {
        rows: Storage::Held { keys, values },
        file: OnceLock::new(),
        _charge: charge.split(bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::{Budget, Kind, Purse};
    use crate::session::fresh::Extents;

    /// Rows whose first element counts from `first`, keys of 2 and values of 1 element.
    fn sealed(purse: &Arc<Purse>, first: usize, n: usize) -> SealedRows {
        let number = |i: usize| f16::from_f32(((first + i) % 2039) as f32);
        let (mut keys, mut values) = (Extents::new(2), Extents::new(1));
        keys.extend_strided(&(0..2 * n).map(|i| number(i / 2)).collect::<Vec<_>>(), 0, 2);
        values.extend_strided(&(0..n).map(number).collect::<Vec<_>>(), 0, 1);
        let charge = purse.charge(Kind::Kv, n as u64 * 6).unwrap();
        SealedRows::seal(Fresh { begin: 0, keys, values, charge })
    }

    #[test]
    fn joined_rows_are_those_of_the_parts_and_full_extents_are_shared() {
        let e = EXTENT_TOKENS;
        for lengths in [vec![3, 4], vec![e, 1], vec![e - 1, 2], vec![2 * e + 5, e, 7], vec![5, e, 2 * e]] {
            for cut in [0, 1] {
                let budget = Budget::new(1 << 30);
                let purse = budget.purse(0).unwrap();
                let mut first = 0;
                let mut parts = Vec::new();
                for &n in &lengths {
                    parts.push((sealed(&purse, first, n), n - cut));
                    first += n - cut;
                }
                let parts: Vec<Part<'_>> = parts.iter().map(|(rows, n)| (rows, *n)).collect();
                let before = purse.usage().kv;
                let copied = SealedRows::copied(&parts);
                assert_eq!(copied as usize, first - (lengths[0] - cut) / e * e);
                let charge = purse.charge(Kind::Kv, copied * 6).unwrap();
                let joined = SealedRows::join(&parts, charge);
                assert_eq!((joined.keys().len(), joined.values().len()), (first, first));
                let (mut k, mut v) = (Vec::new(), Vec::new());
                joined.copy(0, first, &mut k, &mut v);
                for i in 0..first {
                    let want = f16::from_f32((i % 2039) as f32);
                    assert!(k[2 * i] == want && k[2 * i + 1] == want && v[i] == want, "{lengths:?} row {i}");
                }
                assert_eq!(purse.usage().kv, before + copied * 6);
                drop(parts);
                drop(joined);
            }
        }
    }

    #[test]
    fn shared_extents_are_returned_with_their_last_holder() {
        let budget = Budget::new(1 << 30);
        let purse = budget.purse(0).unwrap();
        let (a, b) = (sealed(&purse, 0, EXTENT_TOKENS + 1), sealed(&purse, 0, 9));
        let charge = purse.charge(Kind::Kv, 10 * 6).unwrap();
        let joined = SealedRows::join(&[(&a, EXTENT_TOKENS + 1), (&b, 9)], charge);
        drop((a, b));
        assert_eq!(purse.usage().kv, (EXTENT_TOKENS as u64 + 10) * 6);
        drop(joined);
        assert_eq!(purse.usage().kv, 0);
    }
}
