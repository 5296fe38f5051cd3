//! The readers of stored bytes, for who feeds them anything (the fuzz tests of the `e2e` crate): valid bytes of each kind,
//! the way to make checksums right again after a change, and whether bytes are taken.

use crate::catalogue::records::{
    ExtentRecord, HeadRecord, LeaseRecord, NameRecord, SessionRecord, SpanRecord, VersionRecord, decode,
    encode,
};
use crate::session::geometry::Geometry;
use crate::session::samples::Stored;
use crate::store::extent_file::Extent;
use crate::store::index_file;
use crate::store::log::record::{self, HEADER, Record, Rows, Segment};
use crate::store::queries_file::{self, Owner};
use half::f16;
use wire::v1;

/// One reader.
pub struct Decoder {
    /// What it reads.
    pub name: &'static str,
    /// Bytes that it takes.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Makes the checksums of changed bytes right, as far as their places can be found.
    pub reseal: fn(&mut [u8]),
    /// Whether it takes bytes.
    pub read: fn(&[u8]) -> bool,
}

/// All of them.
pub const DECODERS: [Decoder; 5] = [
    Decoder { name: "extents", seeds: extents, reseal: reseal_extent, read: |b| Extent::read(b).is_ok() },
    Decoder {
        name: "queries",
        seeds: queries,
        reseal: reseal_queries,
        read: |b| queries_file::decode(b).is_ok(),
    },
    Decoder {
        name: "index-files",
        seeds: index_files,
        reseal: reseal_index_file,
        read: |b| index_file::Owner::read(b).is_ok(),
    },
    Decoder { name: "logs", seeds: logs, reseal: reseal_log, read: read_log },
    Decoder { name: "catalogue", seeds: records, reseal: reseal_record, read: read_record },
];

fn fingerprint() -> v1::Fingerprint {
    v1::Fingerprint {
        model: "fuzz".into(),
        layers: 3,
        q_heads: 4,
        kv_heads: 2,
        key_dim: 4,
        value_dim: 2,
        kv_dtype: v1::DType::F16.into(),
        scale: 0.5,
        provenance: v1::Provenance::Exact.into(),
        ..Default::default()
    }
}

fn halves(n: usize) -> Vec<f16> {
    (0..n).map(|i| f16::from_f32(i as f32 / 8.0)).collect()
}

fn extents() -> Vec<Vec<u8>> {
    let file = |tokens: u32| {
        let of = Extent {
            fingerprint: [3; 32],
            id: 5,
            layer: 1,
            kv_head: 1,
            first: 70,
            tokens,
            key_dim: 4,
            value_dim: 2,
        };
        let mut bytes = Vec::new();
        let written = of.write(&mut bytes, &halves(tokens as usize * 4), &halves(tokens as usize * 2));
        written.map(|()| bytes).unwrap_or_default()
    };
    vec![file(1), file(40), file(9000)]
}

/// Sets four bytes, where there are such.
fn set(bytes: &mut [u8], at: usize, sum: u32) {
    if let Some(place) = at.checked_add(4).and_then(|end| bytes.get_mut(at..end)) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let field = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(field)).ok()
}

fn reseal_extent(bytes: &mut [u8]) {
    const SUMS: usize = 120;
    let parts = || {
        let [block, keys, values] = [number(bytes, 88)?, number(bytes, 96)?, number(bytes, 104)?];
        let rows = |dim: usize| number(bytes, 72)?.checked_mul(number(bytes, dim)?)?.checked_mul(2);
        let keys = bytes.get(keys..keys.checked_add(rows(80)?)?)?;
        let values = bytes.get(values..values.checked_add(rows(84)?)?)?;
        let blocks = keys.chunks(block.max(1)).chain(values.chunks(block.max(1)));
        // More sums than the file has room for are none.
        Some(blocks.take(bytes.len() / 4).map(crc32fast::hash).collect::<Vec<u32>>())
    };
    for (i, sum) in parts().unwrap_or_default().into_iter().enumerate() {
        set(bytes, SUMS + 4 * i, sum);
    }
    if let Some(at) = number(bytes, 12).and_then(|h| h.checked_sub(4)).filter(|&at| at <= bytes.len()) {
        set(bytes, at, crc32fast::hash(&bytes[..at]));
    }
}

fn queries() -> Vec<Vec<u8>> {
    let file = |own: usize, later: usize| {
        let numbers = |n: usize| (0..n as u64).map(|i| 4 * i).collect::<Vec<u64>>();
        let stored = Stored {
            width: 8,
            pos: numbers(own),
            seen: numbers(own),
            q: halves(8 * own),
            later_seen: numbers(later),
            later_q: halves(8 * later),
        };
        queries_file::encode(&Owner { fingerprint: [3; 32], id: 6, layer: 1, kv_head: 0 }, &stored)
    };
    vec![file(0, 0), file(9, 0), file(30, 7)]
}

fn reseal_queries(bytes: &mut [u8]) {
    if let Some((_, body)) = bytes.split_at_checked(88) {
        let sum = crc32fast::hash(body);
        set(bytes, 68, sum);
        set(bytes, 84, crc32fast::hash(&bytes[..84]));
    }
}

fn index_files() -> Vec<Vec<u8>> {
    let file = |index: &[u8]| {
        let owner = index_file::Owner {
            fingerprint: [3; 32],
            id: 7,
            layer: 1,
            kv_head: 0,
            first: 70,
            tokens: 40,
            key_dim: 4,
            value_dim: 2,
            recall_target: 0.95,
            build_us: 12,
        };
        let mut bytes = Vec::new();
        let written = owner.write(&mut bytes, index);
        written.map(|()| bytes).unwrap_or_default()
    };
    vec![file(&[]), file(&[1; 90])]
}

fn reseal_index_file(bytes: &mut [u8]) {
    use index_file::{HEADER, SUM};
    if let Some((_, body)) = bytes.split_at_checked(HEADER) {
        let sum = crc32fast::hash(body);
        set(bytes, SUM, sum);
        set(bytes, HEADER - 4, crc32fast::hash(&bytes[..HEADER - 4]));
    }
}

fn logs() -> Vec<Vec<u8>> {
    let segment = Segment { fingerprint: [3; 32], session: 2, number: 1 };
    let (k, v, q) = (halves(3 * 2 * 4), halves(3 * 2 * 2), halves(2 * 2 * 2 * 4));
    let rows = Record::Rows(Rows {
        layer: 2,
        kv_head: 0,
        begin: 8,
        tokens: 3,
        seals: vec![0, 9],
        k: &k,
        v: &v,
        q: &q,
        q_pos: vec![8, 9],
        q_window: 4,
    });
    let empty = segment.encode();
    let one = [empty.clone(), rows.encode(1)].concat();
    let many = [one.clone(), Record::Cut(5).encode(2), rows.encode(3)].concat();
    vec![empty, one, many]
}

fn reseal_log(bytes: &mut [u8]) {
    if bytes.len() < HEADER {
        return;
    }
    set(bytes, HEADER - 4, crc32fast::hash(&bytes[..HEADER - 4]));
    let mut at = HEADER;
    while let Some(record) = bytes.get_mut(at..).filter(|r| r.len() >= HEADER) {
        let length = number(record, 16).unwrap_or(0).min(record.len() - HEADER);
        set(record, 4, crc32fast::hash(&record[HEADER..HEADER + length]));
        set(record, 0, crc32fast::hash(&record[4..HEADER]));
        at += HEADER + length;
    }
}

fn read_log(bytes: &[u8]) -> bool {
    Geometry::read(&fingerprint()).is_ok_and(|g| record::read(bytes, &g).is_ok())
}

fn records() -> Vec<Vec<u8>> {
    let owned = v1::HeadRange { layer_end: 3, kv_head_end: 2, ..Default::default() };
    let session = SessionRecord {
        session: vec![1; 16],
        fingerprint: Some(fingerprint()),
        owned: vec![owned],
        seed: 7,
        durable: true,
        ..Default::default()
    };
    let span = SpanRecord {
        end: 70,
        visible_end: 70,
        version: 1,
        extents: vec![5, 9],
        queries: 6,
        ..Default::default()
    };
    let head = HeadRecord { spans: vec![span.clone(), SpanRecord { begin: 70, ..span }], version: 2, cut: 0 };
    vec![
        encode(&session),
        encode(&head),
        encode(&LeaseRecord { ms: 60_000 }),
        encode(&ExtentRecord { session: 2, bytes: 4096, object: vec![9; 32] }),
        encode(&NameRecord { name: "0123".into() }),
        encode(&VersionRecord { number: 1 }),
    ]
}

fn reseal_record(bytes: &mut [u8]) {
    if let Some(body) = bytes.get(5..) {
        let sum = crc32fast::hash(body);
        set(bytes, 1, sum);
    }
}

fn read_record(bytes: &[u8]) -> bool {
    // A value does not say what it is: every kind has to bear it.
    let taken = [
        decode::<SessionRecord>("session", bytes).is_ok(),
        decode::<HeadRecord>("head", bytes).is_ok(),
        decode::<LeaseRecord>("lease", bytes).is_ok(),
        decode::<ExtentRecord>("extent", bytes).is_ok(),
        decode::<NameRecord>("name", bytes).is_ok(),
        decode::<VersionRecord>("version", bytes).is_ok(),
    ];
    taken.contains(&true)
}
