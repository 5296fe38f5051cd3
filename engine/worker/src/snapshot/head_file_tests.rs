use super::*;
use proptest::prelude::*;
use std::io::Cursor;

/// A file with its root, and what is in it.
type Sample = (Shape, Vec<u8>, [u8; SUM], (Rows, SampleBlock));

/// Numbers of its own in every place.
fn sample(tokens: u64, samples: u64, (key_dim, value_dim): (u32, u32)) -> Sample {
    let shape = Shape { layer: 3, kv_head: 1, group: 2, key_dim, value_dim, tokens, samples };
    let halves = |n: u64| -> Vec<f16> { (0..n).map(|i| f16::from_f32((i % 2039) as f32)).collect() };
    let (k, v) = (halves(tokens * u64::from(key_dim)), halves(tokens * u64::from(value_dim)));
    let pos: Vec<u64> = (tokens - samples..tokens).collect();
    let seen = pos.iter().map(|p| p / 2).collect();
    let all = SampleBlock { pos, seen, q: halves(samples * shape.query() as u64) };
    let mut writer = Writer::new(Cursor::new(Vec::new())).unwrap();
    let (kd, vd, w) = (key_dim as usize, value_dim as usize, shape.query());
    let step = shape.tokens_per_block() as usize;
    for from in (0..tokens as usize).step_by(step) {
        let to = (from + step).min(tokens as usize);
        writer.rows(&k[from * kd..to * kd], &v[from * vd..to * vd]).unwrap();
    }
    let step = shape.samples_per_block() as usize;
    for from in (0..samples as usize).step_by(step) {
        let to = (from + step).min(samples as usize);
        writer.samples(&all.pos[from..to], &all.seen[from..to], &all.q[from * w..to * w]).unwrap();
    }
    let (file, root) = writer.finish(&shape).unwrap();
    (shape, file.into_inner(), root, ((k, v), all))
}

#[test]
fn several_blocks_read_back_as_they_were() {
    // Rows of 8 KiB and samples of 8 KiB and more: 128 rows a block.
    for (tokens, samples) in [(127, 127), (128, 1), (129, 129), (300, 257)] {
        let (shape, bytes, root, ((k, v), all)) = sample(tokens, samples, (2048, 2048));
        assert_eq!(bytes.len() as u64, shape.file_bytes().unwrap());
        assert_eq!(check(&bytes[..], bytes.len() as u64).unwrap(), (shape, root));
        let mut reader = Reader::new(Cursor::new(&bytes), shape);
        let (mut k2, mut v2, mut all2) = (Vec::new(), Vec::new(), SampleBlock::default());
        for i in 0.. {
            let Some((k, v)) = reader.rows(i).unwrap() else { break };
            k2.extend(k);
            v2.extend(v);
        }
        for i in 0.. {
            let Some(block) = reader.samples(i).unwrap() else { break };
            all2.pos.extend(block.pos);
            all2.seen.extend(block.seen);
            all2.q.extend(block.q);
        }
        assert!(k2 == k && v2 == v && all2 == all, "{tokens} tokens, {samples} samples");
    }
}

#[test]
fn a_block_that_changed_after_the_check_is_found() {
    let (shape, mut bytes, ..) = sample(20, 5, (4, 2));
    bytes[HEADER + SUM] ^= 1;
    let mut reader = Reader::new(Cursor::new(&bytes), shape);
    let line = reader.rows(0).unwrap_err().to_string();
    assert_eq!(line, "block 0 of the rows does not match its checksum");
    assert!(reader.samples(0).is_ok());
}

/// A file whose sums are right can still tell of samples that cannot be.
#[test]
fn samples_that_no_head_has_are_refused() {
    let (_, bytes, ..) = sample(20, 2, (4, 2));
    let at = bytes.len() - SUM - 2 * 8 * 2 - 32;
    for (place, number, words) in [
        (at, 20u64, "pos[0]: 20, must be in 0..20"),
        (at, 19, "pos[1]: 19, must be in 20..20"),
        (at + 16, 20, "seen[0]: 20, must be at most 19"),
    ] {
        let mut hurt = bytes.clone();
        hurt[place..place + 8].copy_from_slice(&number.to_le_bytes());
        reseal(&mut hurt);
        let line = check(&hurt[..], hurt.len() as u64).unwrap_err().to_string();
        assert!(line.contains(words), "{line}");
    }
}

proptest! {
    #[test]
    fn every_bit_counts(tokens in 1u64..40, some in 0u64..40, at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let (shape, mut bytes, root, _) = sample(tokens, some.min(tokens), (3, 5));
        let length = bytes.len() as u64;
        prop_assert_eq!(check(&bytes[..], length).unwrap(), (shape, root));
        let at = at.index(bytes.len());
        prop_assert!(check(&bytes[..at], at as u64).is_err());
        bytes[at] ^= 1 << bit;
        prop_assert!(check(&bytes[..], length).is_err());
    }
}
