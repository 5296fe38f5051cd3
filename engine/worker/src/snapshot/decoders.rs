//! The readers of a snapshot's bytes, for who feeds them anything (the fuzz tests of the `e2e` crate).

use super::SUM;
use super::head_file::{self, Shape, Writer};
use super::manifest::{Head, Manifest};
use half::f16;
use kvstore::decoders::Decoder;
use std::io::Cursor;
use wire::v1;

/// All of them.
pub const DECODERS: [Decoder; 2] = [
    Decoder {
        name: "snapshot-manifests",
        seeds: manifests,
        reseal: reseal_manifest,
        read: |b| Manifest::decode(b).is_ok(),
    },
    Decoder {
        name: "snapshot-heads",
        seeds: heads,
        reseal: head_file::reseal,
        read: |b| head_file::check(b, b.len() as u64).is_ok(),
    },
];

fn manifests() -> Vec<Vec<u8>> {
    let fingerprint = v1::Fingerprint {
        model: "fuzz".into(),
        layers: 2,
        q_heads: 4,
        kv_heads: 2,
        key_dim: 4,
        value_dim: 2,
        kv_dtype: v1::DType::F16.into(),
        scale: 0.5,
        provenance: v1::Provenance::Exact.into(),
        ..Default::default()
    };
    let head = |ends: &[u64]| Head { root: [7; SUM], samples: 3, ends: ends.to_vec() };
    let manifest = Manifest {
        session: [1; 16],
        tokens: 70,
        index: v1::IndexKind::Auto,
        deterministic: true,
        durable: false,
        seed: 5,
        lease_ms: 60_000,
        fingerprint,
        heads: vec![head(&[8, 70]), head(&[8, 60]), head(&[]), head(&[70])],
    };
    vec![manifest.encode()]
}

fn reseal_manifest(bytes: &mut [u8]) {
    if let Some(at) = bytes.len().checked_sub(SUM) {
        let sum = blake3::hash(&bytes[..at]);
        bytes[at..].copy_from_slice(sum.as_bytes());
    }
}

fn heads() -> Vec<Vec<u8>> {
    let file = |tokens: usize, samples: usize| {
        let numbers =
            Shape { layer: 1, kv_head: 0, group: 2, key_dim: 4, value_dim: 2, tokens: 0, samples: 0 };
        let shape = Shape { tokens: tokens as u64, samples: samples as u64, ..numbers };
        let halves = |n: usize| vec![f16::ONE; n];
        let pos: Vec<u64> = (0..samples as u64).map(|j| 2 * j).collect();
        let write = || {
            let mut writer = Writer::new(Cursor::new(Vec::new()))?;
            writer.rows(&halves(4 * tokens), &halves(2 * tokens))?;
            if samples > 0 {
                writer.samples(&pos, &pos, &halves(8 * samples))?;
            }
            writer.finish(&shape)
        };
        write().map(|(file, _)| file.into_inner()).unwrap_or_default()
    };
    vec![file(1, 0), file(70, 30), file(3000, 1000)]
}
