//! Exact attention in every form against the f64 oracle, within the bound that the crate states.

use crate::common::{Noise, check, paths, range};
use attention::{
    BlockPartials, BlockScratch, CausalBlock, Description, EXTENT_TOKENS, HeadRows, Partial, Rows, Scratch,
    attend_block, attend_ids, attend_range, oracle,
};
use kernels::{Kernels, f16};
use proptest::prelude::*;

/// (query heads, KV heads, key dim, value dim)
const GEOMETRIES: [(usize, usize, usize, usize); 7] = [
    (4, 4, 80, 80),
    (28, 4, 128, 128),
    (9, 3, 64, 64),
    (8, 1, 96, 96),
    (2, 1, 256, 256),
    (4, 2, 192, 128),
    (3, 1, 64, 40),
];

#[test]
fn every_geometry_equals_the_oracle() {
    for k in paths() {
        for (q_heads, kv_heads, key_dim, value_dim) in GEOMETRIES {
            let d = Description::scaled(1.0 / (key_dim as f32).sqrt());
            let (g, mut noise) = (q_heads / kv_heads, Noise(11));
            let q = noise.f32(q_heads * key_dim, 2.0);
            for head in 0..kv_heads {
                // A key set of its own per KV head: reading a neighbour's would show.
                let (keys, values) = (noise.f16(300 * key_dim, 2.0), noise.f16(300 * value_dim, 1.0));
                let (keys, values) = (Rows::contiguous(&keys, key_dim), Rows::contiguous(&values, value_dim));
                let q = &q[head * g * key_dim..(head + 1) * g * key_dim];
                for (h, got) in range(&k, &d, q, (&keys, &values), 1..300).iter().enumerate() {
                    check(&d, &q[h * key_dim..(h + 1) * key_dim], (&keys, &values), 1..300, got);
                }
            }
        }
    }
}

#[test]
fn poisoned_scratch_and_zero_to_three_tokens() {
    for k in paths() {
        let (d, mut noise) = (Description::scaled(0.125), Noise(5));
        let (q, keys, values) = (noise.f32(3 * 64, 1.0), noise.f16(3 * 64, 1.0), noise.f16(3 * 64, 1.0));
        let (keys, values) = (Rows::contiguous(&keys, 64), Rows::contiguous(&values, 64));
        let mut scratch = Scratch::new();
        range_into(&k, &d, &q, (&keys, &values), 0..3, &mut scratch);
        for n in 0..=3 {
            scratch.poison();
            let out = range_into(&k, &d, &q, (&keys, &values), 0..n, &mut scratch);
            for (h, got) in out.iter().enumerate() {
                check(&d, &q[h * 64..(h + 1) * 64], (&keys, &values), 0..n, got);
            }
            scratch.poison();
            let chosen: Vec<_> = (0..n).map(|i| (i as u32, k.dot(&q[..64], keys.row(i)))).collect();
            let mut got = Partial::neutral(64);
            attend_ids(&k, &d, &chosen, &values, &mut scratch, &mut got);
            check(&d, &q[..64], (&keys, &values), 0..n, &got);
        }
    }
}

fn range_into(
    k: &Kernels,
    d: &Description,
    q: &[f32],
    (keys, values): (&Rows<'_>, &Rows<'_>),
    range: std::ops::Range<usize>,
    scratch: &mut Scratch,
) -> Vec<Partial> {
    let mut out = vec![Partial::neutral(values.dim()); q.len() / keys.dim()];
    attend_range(k, d, q, keys, values, range, scratch, &mut out);
    out
}

/// With all logits equal, l is the count, at every length around every boundary inside.
#[test]
fn uniform_keys_count_exactly() {
    let len = 3 * EXTENT_TOKENS + 5;
    let (keys, values) = (vec![f16::from_f32(0.5); len * 16], vec![f16::ONE; len * 16]);
    let (keys, values) = (Rows::contiguous(&keys, 16), Rows::contiguous(&values, 16));
    let q = vec![0.3; 2 * 16];
    let d = Description::scaled(0.25);
    for k in paths() {
        for edge in [1, 2, 128, 4096, EXTENT_TOKENS, 2 * EXTENT_TOKENS, len - 1] {
            for end in edge - 1..=edge + 1 {
                for start in [0, 1, 127, 4095].into_iter().filter(|s| *s <= end) {
                    let out = range(&k, &d, &q, (&keys, &values), start..end);
                    for partial in &out {
                        assert_eq!(partial.l_exact, (end - start) as f32, "{k:?} {start}..{end}");
                    }
                }
            }
        }
        let chosen: Vec<(u32, f32)> = (0..9000).map(|i| (i, 1.5)).collect();
        let mut out = Partial::neutral(16);
        attend_ids(&k, &d, &chosen, &values, &mut Scratch::new(), &mut out);
        assert_eq!(out.l_exact, 9000.0);
    }
}

#[test]
fn extents_read_like_one_piece() {
    let (len, dim) = (2 * EXTENT_TOKENS + 77, 8);
    let mut noise = Noise(3);
    let (keys, values) = (noise.f16(len * dim, 1.0), noise.f16(len * dim, 1.0));
    let q = noise.f32(dim, 3.0);
    let d = Description::scaled(1.0);
    let chunks = |data| -> Vec<&[f16]> { <[f16]>::chunks(data, EXTENT_TOKENS * dim).collect() };
    let pieces = (Rows::chunked(chunks(&keys), dim), Rows::chunked(chunks(&values), dim));
    let whole = (Rows::contiguous(&keys, dim), Rows::contiguous(&values, dim));
    let at = EXTENT_TOKENS - 3..2 * EXTENT_TOKENS + 9;
    assert_eq!(
        range(&Kernels::native(), &d, &q, (&pieces.0, &pieces.1), at.clone()),
        range(&Kernels::native(), &d, &q, (&whole.0, &whole.1), at.clone()),
    );
    for i in [0, EXTENT_TOKENS - 1, EXTENT_TOKENS, len - 1] {
        assert_eq!(pieces.0.row(i), &keys[i * dim..(i + 1) * dim]);
    }
    let runs: Vec<_> = pieces.0.runs(at).map(|(first, rows)| (first, rows.len() / dim)).collect();
    assert_eq!(runs, [(EXTENT_TOKENS - 3, 3), (EXTENT_TOKENS, EXTENT_TOKENS), (2 * EXTENT_TOKENS, 9)]);
}

#[test]
fn scores_of_zero_and_beyond_f16() {
    let d = Description::scaled(0.125);
    for k in paths() {
        // q . k is exactly 0 for key 0 and far above 65504 for key 1.
        let mut keys = vec![f16::ZERO; 64];
        keys.extend(vec![f16::from_f32(3000.0); 64]);
        let values: Vec<f16> = (0..128).map(|i| f16::from_f32(i as f32)).collect();
        let (keys, values) = (Rows::contiguous(&keys, 64), Rows::contiguous(&values, 64));
        let q = vec![50.0; 64];
        let one = range(&k, &d, &q, (&keys, &values), 0..1);
        assert_eq!((one[0].m, one[0].l_exact), (0.0, 1.0), "a logit of 0 is a logit");
        let both = range(&k, &d, &q, (&keys, &values), 0..2);
        assert_eq!(both[0].m, 0.125 * 64.0 * 50.0 * 3000.0);
        assert_eq!(both[0].o, values.row(1).iter().map(|v| v.to_f32()).collect::<Vec<_>>());
    }
}

#[test]
fn a_needle_in_the_last_row_of_a_long_range() {
    let len = EXTENT_TOKENS * 4 + 1;
    let mut keys = vec![f16::from_f32(0.01); len * 16];
    let mut values = vec![f16::ZERO; len * 16];
    keys[(len - 1) * 16..].fill(f16::from_f32(4.0));
    values[(len - 1) * 16..].fill(f16::ONE);
    let (keys, values) = (Rows::contiguous(&keys, 16), Rows::contiguous(&values, 16));
    let out = range(&Kernels::native(), &Description::scaled(1.0), &[1.0; 16], (&keys, &values), 0..len);
    assert!(out[0].o.iter().all(|&o| o > 0.999));
}

struct Causal {
    rows: usize,
    first: usize,
    n: usize,
    softcap: Option<f32>,
}

fn check_causal(k: &Kernels, geometry: (usize, usize, usize, usize), case: &Causal, seed: u64) {
    let (q_heads, kv_heads, key_dim, value_dim) = geometry;
    let (g, mut noise) = (q_heads / kv_heads, Noise(seed | 1));
    let d = Description { scale: 1.0 / (key_dim as f32).sqrt(), softcap: case.softcap };
    let q = noise.f32(case.rows * q_heads * key_dim, 2.0);
    let keys = noise.f16(case.n * kv_heads * key_dim, 2.0);
    let values = noise.f16(case.n * kv_heads * value_dim, 1.0);
    let (mut scratch, mut out) = (BlockScratch::default(), BlockPartials::default());
    for head in 0..kv_heads {
        let block = CausalBlock {
            q: &q,
            q_heads,
            heads: head * g..(head + 1) * g,
            first: case.first,
            keys: HeadRows::new(&keys, kv_heads, head, key_dim),
            values: HeadRows::new(&values, kv_heads, head, value_dim),
        };
        let from = case.rows / 3;
        attend_block(k, &d, &block, from..case.rows, &mut scratch, &mut out);
        assert_eq!(out.m.len(), (case.rows - from) * g);
        for r in from..case.rows {
            for h in 0..g {
                let seen = (case.first + r + 1).min(case.n);
                let q = &q[(r * q_heads + head * g + h) * key_dim..][..key_dim];
                let got = out.partial((r - from) * g + h);
                check(&d, q, (&block.keys, &block.values), 0..seen, &got);
            }
        }
    }
}

#[test]
fn causal_blocks_equal_the_oracle() {
    for k in paths() {
        for geometry in GEOMETRIES {
            check_causal(&k, geometry, &Causal { rows: 20, first: 0, n: 20, softcap: None }, 1);
        }
        // Around the tile of 256 keys, a prefix before the rows, and rows that all see everything.
        for (rows, first, n) in
            [(1, 0, 1), (9, 250, 259), (9, 255, 264), (5, 512, 517), (4, 1000, 300), (300, 0, 300)]
        {
            check_causal(&k, (2, 1, 16, 24), &Causal { rows, first, n, softcap: None }, 2);
        }
        check_causal(&k, (3, 1, 64, 64), &Causal { rows: 7, first: 30, n: 37, softcap: Some(2.0) }, 3);
    }
}

#[test]
fn rows_without_any_key_are_neutral() {
    let (q, none) = (vec![1.0; 2 * 8], Vec::new());
    let block = CausalBlock {
        q: &q,
        q_heads: 1,
        heads: 0..1,
        first: 0,
        keys: HeadRows::new(&none, 1, 0, 8),
        values: HeadRows::new(&none, 1, 0, 8),
    };
    let (mut scratch, mut out) = (BlockScratch::default(), BlockPartials::default());
    let d = Description::scaled(1.0);
    attend_block(&Kernels::native(), &d, &block, 0..2, &mut scratch, &mut out);
    assert_eq!(out.partial(0), Partial::neutral(8));
    attend_block(&Kernels::native(), &d, &block, 1..1, &mut scratch, &mut out);
    assert!(out.m.is_empty() && out.o.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any set in any two pieces, by range or by ids, with or without a soft-cap.
    #[test]
    fn ranges_and_ids(
        g in 1usize..9, key_dim in 1usize..150, value_dim in 1usize..150, n in 0usize..400,
        cut in 0.0f64..1.0, softcap in proptest::option::of(0.5f32..30.0), size in 0.01f32..8.0, seed: u64,
    ) {
        let d = Description { scale: 1.0 / (key_dim as f32).sqrt(), softcap };
        let mut noise = Noise(seed | 1);
        let q = noise.f32(g * key_dim, size);
        let (keys, values) = (noise.f16(n * key_dim, 2.0), noise.f16(n * value_dim, 1.0));
        let (keys, values) = (Rows::contiguous(&keys, key_dim), Rows::contiguous(&values, value_dim));
        let cut = (cut * n as f64) as usize;
        for k in paths() {
            let mut scratch = Scratch::new();
            let mut out = vec![Partial::neutral(value_dim); g];
            attend_range(&k, &d, &q, &keys, &values, 0..cut, &mut scratch, &mut out);
            for (h, out) in out.iter_mut().enumerate() {
                let q = &q[h * key_dim..(h + 1) * key_dim];
                let rest: Vec<_> = (cut..n).rev().map(|i| (i as u32, k.dot(q, keys.row(i)))).collect();
                attend_ids(&k, &d, &rest, &values, &mut scratch, out);
                check(&d, q, (&keys, &values), 0..n, out);
            }
        }
    }
}

#[test]
fn the_oracle_merges_with_itself() {
    let mut noise = Noise(8);
    let (q, keys, values) = (noise.f32(24, 2.0), noise.f16(50 * 24, 2.0), noise.f16(50 * 24, 1.0));
    let (keys, values) = (Rows::contiguous(&keys, 24), Rows::contiguous(&values, 24));
    let d = Description::scaled(0.2);
    let attend = |ids: Vec<usize>| oracle::attend(&d, &q, &keys, &values, ids);
    let mut merged = attend((0..50).step_by(2).collect());
    merged.merge(&attend((1..50).step_by(2).collect()));
    merged.merge(&attend(Vec::new()));
    let whole = attend((0..50).collect());
    assert!((merged.l - whole.l).abs() < 1e-12 && merged.m == whole.m);
    assert!(merged.o.iter().zip(&whole.o).all(|(a, b)| (a - b).abs() < 1e-12));
}
