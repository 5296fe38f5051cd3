use super::*;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

/// An extent and its file.
fn sample(tokens: u32, key_dim: u32, value_dim: u32) -> (Extent, Vec<f16>, Vec<f16>, Vec<u8>) {
    let extent = Extent {
        fingerprint: *blake3::hash(b"a model").as_bytes(),
        id: 7,
        layer: 3,
        kv_head: 1,
        first: 128,
        tokens,
        key_dim,
        value_dim,
    };
    let rows = |dim: u32, shift: u32| -> Vec<f16> {
        (0..tokens * dim).map(|i| f16::from_f32(((i * 7 + shift) % 2039) as f32 / 64.0)).collect()
    };
    let (keys, values) = (rows(key_dim, 0), rows(value_dim, 5));
    let mut bytes = Vec::new();
    extent.write(&mut bytes, &keys, &values).unwrap();
    (extent, keys, values, bytes)
}

/// Rewrites a header field and the header's checksum.
fn with_field(bytes: &[u8], at: usize, field: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + field.len()].copy_from_slice(field);
    let header = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let sum = crc32fast::hash(&bytes[..header - 4]);
    bytes[header - 4..header].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn refusal(bytes: &[u8]) -> String {
    let e = Extent::read(bytes).expect_err("a refusal").to_string();
    assert!(!e.contains('\n'), "{e}");
    e
}

#[test]
fn a_full_extent_maps_back_bit_by_bit() {
    let (extent, keys, values, bytes) = sample(EXTENT_TOKENS as u32, 24, 16);
    assert_eq!(bytes.len() as u64, extent.file_bytes());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    let read = ExtentFile::open(file.path()).unwrap();
    assert_eq!(read.extent, extent);
    assert!(read.keys() == keys && read.values() == values);
    assert_eq!((read.layout.keys.start % 4096, read.layout.values.start % 4096), (0, 0));
    assert!(extent.write(&mut Vec::new(), &keys[1..], &values).is_err());
}

#[test]
fn each_kind_of_damage_has_its_name() {
    let (_, _, _, good) = sample(700, 64, 32);
    assert_eq!(refusal(&[]), "the file is empty");
    assert!(refusal(b"PK\x03\x04 a foreign file").contains("not those of an extent file"));
    assert_eq!(refusal(&good[..10]), "10 bytes, must be 12");
    assert_eq!(
        refusal(&with_field(&good, 8, &2u32.to_le_bytes())),
        "format version 2, this program reads up to 1"
    );
    assert!(refusal(&with_field(&good, 8, &[0; 4])).starts_with("format version is 0"));
    let short = good.len() - 1;
    assert_eq!(refusal(&good[..short]), format!("{short} bytes, must be {}", good.len()));
    assert_eq!(
        refusal(&[&good[..], b"x"].concat()),
        format!("{} bytes, must be {}", good.len() + 1, good.len())
    );
    let mut flipped = good.clone();
    flipped[64] ^= 1;
    assert_eq!(refusal(&flipped), "the header does not match its checksum");
    let at = u64::from_le_bytes(good[96..104].try_into().unwrap()) as usize;
    let mut flipped = good.clone();
    flipped[at + 65_536] ^= 0x80;
    assert_eq!(refusal(&flipped), "block 1 of keys does not match its checksum");
    let mut flipped = good.clone();
    flipped[at - 1] = 9;
    assert_eq!(refusal(&flipped), format!("byte {}, between header and data, is not zero", at - 1));
    // Lies under a right checksum.
    for (offset, field, name) in [
        (72, &0u32.to_le_bytes()[..], "tokens"),
        (72, &(EXTENT_TOKENS as u32 + 1).to_le_bytes(), "tokens"),
        (72, &701u32.to_le_bytes(), "length of the file"),
        (76, &2u32.to_le_bytes(), "dtype"),
        (80, &0u32.to_le_bytes(), "key_dim"),
        (84, &u32::MAX.to_le_bytes(), "value_dim"),
        (88, &3000u32.to_le_bytes(), "block size"),
        (88, &4096u32.to_le_bytes(), "header length"),
        (92, &1u32.to_le_bytes(), "reserved"),
        (96, &8192u64.to_le_bytes(), "offset of the keys"),
        (64, &u64::MAX.to_le_bytes(), "first position"),
    ] {
        let e = refusal(&with_field(&good, offset, field));
        assert!(e.contains(name), "{name}: {e}");
    }
    for header in [0u32, 3, 123, 1 << 20, u32::MAX] {
        let mut bytes = good.clone();
        bytes[12..16].copy_from_slice(&header.to_le_bytes());
        refusal(&bytes);
    }
}

/// Format 1 as it was first written. `RECOLLECT_REWRITE_FIXTURES=1` writes it anew, which is right only with a new format.
#[test]
fn format_1_stays_readable() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/extent-1.kv");
    let (extent, keys, values, bytes) = sample(40, 8, 6);
    if std::env::var_os("RECOLLECT_REWRITE_FIXTURES").is_some() {
        std::fs::write(path, &bytes).unwrap();
    }
    let read = ExtentFile::open(Path::new(path)).unwrap();
    assert_eq!(read.extent, extent);
    assert!(read.keys() == keys && read.values() == values);
    assert!(std::fs::read(path).unwrap() == bytes, "what is written today is still format 1");
}

#[test]
fn random_bytes_are_refused() {
    let mut rng = StdRng::seed_from_u64(1);
    let (_, _, _, good) = sample(20, 8, 8);
    for round in 0..20_000 {
        let mut bytes = vec![0; rng.random_range(0..9000)];
        rng.fill_bytes(&mut bytes);
        // Half of them get past the magic, some of those past the checksum of the header.
        if round % 2 == 0 {
            let n = bytes.len().min(12);
            bytes[..n].copy_from_slice(&good[..n]);
        }
        if round % 4 == 0 && bytes.len() > 140 {
            let header = rng.random_range(124..bytes.len() as u32);
            bytes[12..16].copy_from_slice(&header.to_le_bytes());
            bytes = with_field(&bytes, 92, &[0; 4]);
        }
        assert!(Extent::read(&bytes).is_err());
    }
}

proptest! {
    #[test]
    fn round_trip(tokens in 1u32..300, key_dim in 1u32..40, value_dim in 1u32..40) {
        let (extent, _, _, bytes) = sample(tokens, key_dim, value_dim);
        let (read, layout) = Extent::read(&bytes).unwrap();
        prop_assert_eq!(read, extent);
        prop_assert_eq!(layout.values.end, bytes.len());
    }

    #[test]
    fn any_flipped_bit_and_any_cut_is_found(bit in 0usize..8, at in any::<prop::sample::Index>(), cut in any::<bool>()) {
        let (_, _, _, mut bytes) = sample(33, 16, 12);
        let at = at.index(bytes.len());
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << bit;
        }
        prop_assert!(Extent::read(&bytes).is_err());
    }
}
