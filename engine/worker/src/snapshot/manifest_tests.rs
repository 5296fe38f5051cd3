use super::*;
use proptest::prelude::*;

fn manifest() -> Manifest {
    let fingerprint = v1::Fingerprint {
        model: "a model".into(),
        weight_revision: "ab".repeat(32),
        layers: 2,
        q_heads: 6,
        kv_heads: 2,
        key_dim: 8,
        value_dim: 6,
        kv_dtype: v1::DType::F16.into(),
        rope_base: 1e6 / 7.0,
        scale: 0.1,
        provenance: v1::Provenance::Budget.into(),
        ..Default::default()
    };
    let head = |n: u8, ends: &[u64]| Head { root: [n; SUM], samples: u64::from(n), ends: ends.to_vec() };
    Manifest {
        session: [7; 16],
        tokens: 1 << 33,
        index: v1::IndexKind::Graph,
        deterministic: true,
        durable: true,
        seed: u64::MAX,
        lease_ms: 1234,
        fingerprint,
        heads: vec![head(1, &[128, 1 << 33]), head(2, &[]), head(3, &[1]), head(4, &[128, 500, 501])],
    }
}

#[test]
fn a_manifest_reads_back_as_it_was() {
    let plain = Manifest { deterministic: false, durable: false, ..manifest() };
    for m in [manifest(), plain] {
        assert_eq!(Manifest::decode(&m.encode()).unwrap(), m);
    }
    let places: Vec<(u32, u32)> = manifest().each().map(|(layer, kv_head, _)| (layer, kv_head)).collect();
    assert_eq!(places, [(0, 0), (0, 1), (1, 0), (1, 1)]);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    type Spoil = fn(&mut Manifest);
    let cases: [(&str, Spoil); 11] = [
        ("tokens: 0", |m| m.tokens = 0),
        ("layers: 0", |m| m.fingerprint.layers = 0),
        ("kv_heads: 5000", |m| m.fingerprint.kv_heads = 5000),
        ("q_heads: 5, must be a multiple of kv_heads = 2", |m| m.fingerprint.q_heads = 5),
        ("kv_dtype: D_TYPE_BF16", |m| m.fingerprint.kv_dtype = v1::DType::Bf16.into()),
        ("key dim: 0", |m| m.fingerprint.key_dim = 0),
        ("ends inside a head", |m| drop(m.heads.pop())),
        ("bytes behind the last head", |m| m.heads.push(m.heads[0].clone())),
        ("end of a span: 128, must be in 129..", |m| m.heads[0].ends = vec![128, 128]),
        ("end of a span: 8589934593", |m| m.heads[0].ends = vec![(1 << 33) + 1]),
        ("samples: 8589934593, must be at most tokens", |m| m.heads[1].samples = (1 << 33) + 1),
    ];
    for (words, spoil) in cases {
        let mut m = manifest();
        spoil(&mut m);
        let line = Manifest::decode(&m.encode()).unwrap_err().to_string();
        assert!(line.contains(words), "{words}: {line}");
    }
    let huge = Manifest { tokens: u64::MAX, ..manifest() };
    let line = Manifest::decode(&huge.encode()).unwrap_err().to_string();
    assert!(line.contains("would not fit 64 bits"), "{line}");
}

proptest! {
    #[test]
    fn every_bit_counts(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = manifest().encode();
        let at = at.index(bytes.len());
        prop_assert!(Manifest::decode(&bytes[..at]).is_err());
        bytes[at] ^= 1 << bit;
        prop_assert!(Manifest::decode(&bytes).is_err());
    }
}
