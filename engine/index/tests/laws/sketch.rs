//! Laws that every sketch keeps.

use std::ops::Range;

use attention::{Description, Partial, Rows, oracle};
use half::f16;
use index::sketch::{Sketch, SketchError, SketchKind, SketchParams, SketchScratch, Watched};
use kernels::Kernels;
use proptest::prelude::*;

use crate::data::Data;

const SCALE: f32 = 0.25;

fn rows(data: &Data) -> (Rows<'_>, Rows<'_>) {
    (Rows::contiguous(&data.keys, data.dim), Rows::contiguous(&data.values, data.value_dim))
}

fn query(data: &Data, j: usize) -> Vec<f32> {
    let width = data.queries.group * data.dim;
    data.queries.q[j * width..(j + 1) * width].iter().map(|x| x.to_f32()).collect()
}

/// The causal attention of the build queries.
fn watched(data: &Data) -> Watched {
    let (keys, values) = rows(data);
    let d = Description::scaled(SCALE);
    let mut watched = Watched::new(data.n, data.dim);
    for (j, &visible) in data.queries.visible.iter().enumerate() {
        for q in query(data, j).chunks(data.dim) {
            let all = oracle::attend(&d, q, &keys, &values, 0..visible as usize);
            let ids: Vec<u32> = (0..visible).collect();
            let weight = |&i: &u32| ((oracle::logit(&d, q, &keys, i as usize) - all.m).exp() / all.l) as f32;
            watched.observe(q, visible as usize, &ids, &ids.iter().map(weight).collect::<Vec<_>>()).unwrap();
        }
    }
    watched
}

fn sketch(data: &Data, kind: SketchKind, bytes: usize) -> Result<Sketch, SketchError> {
    let params = SketchParams { kind, bytes, scale: SCALE, exact_share: 0.5, seed: 3 };
    let (keys, values) = rows(data);
    Sketch::build(&keys, &values, &watched(data), &params)
}

fn attend(sketch: &Sketch, value_dim: usize, q: &[f32], heads: usize) -> Vec<Partial> {
    attend_range(sketch, 0..sketch.tokens(), value_dim, q, heads)
}

fn attend_range(
    sketch: &Sketch,
    range: Range<usize>,
    value_dim: usize,
    q: &[f32],
    heads: usize,
) -> Vec<Partial> {
    let (k, d) = (Kernels::native(), Description::scaled(SCALE));
    let mut out = vec![Partial::neutral(value_dim); heads];
    let mut scratch = SketchScratch::default();
    // Twice, to see that memory left over from the first does not matter.
    for _ in 0..2 {
        out.fill(Partial::neutral(value_dim));
        sketch.attend((&k, &d), q, range.clone(), &mut scratch, &mut out);
    }
    out
}

/// A range of 0..n by two shares.
fn within(n: usize, (a, b): (f64, f64)) -> Range<usize> {
    let (a, b) = ((a * n as f64) as usize, (b * n as f64) as usize);
    a.min(b)..a.max(b)
}

fn kv_bytes(data: &Data) -> usize {
    2 * data.n * (data.dim + data.value_dim)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn with_equal_logits_every_token_of_a_range_is_counted_once(
        n in prop::sample::select(vec![200usize, 255, 256, 257, 383, 700]),
        share in 0.5f64..1.5,
        kind in prop::sample::select(SketchKind::ALL.to_vec()),
        cuts in prop::collection::vec((0.0f64..1.0, 0.0f64..1.0), 8),
        seed in 0u64..50,
    ) {
        let data = Data::new(n, 20, (16, 12, 2), seed);
        // A small span pays for its channels too.
        let sketch = sketch(&data, kind, (kv_bytes(&data) as f64 * share) as usize + 4000).unwrap();
        let bounds = [0, 1, 127, 128, 129, n - 1, n];
        let near = bounds.iter().flat_map(|&a| bounds.iter().filter(move |&&b| a <= b).map(move |&b| a..b));
        for range in near.chain(cuts.into_iter().map(|cut| within(n, cut))) {
            for partial in attend_range(&sketch, range.clone(), 12, &[0.0; 32], 2) {
                let counted = partial.l_exact + partial.l_quant + partial.l_est;
                prop_assert_eq!(counted, range.len() as f32, "{:?}", range);
                prop_assert_eq!(partial.m, if range.is_empty() { f32::NEG_INFINITY } else { 0.0 });
            }
        }
    }

    #[test]
    fn attention_is_that_over_what_is_read_back(
        n in 200usize..600,
        kind in prop::sample::select(SketchKind::ALL.to_vec()),
        cut in (0.0f64..1.0, 0.0f64..1.0),
        seed in 0u64..50,
    ) {
        let data = Data::new(n, 30, (16, 12, 2), seed);
        let sketch = sketch(&data, kind, kv_bytes(&data) / 2 + 2000).unwrap();
        let q = query(&data, 29);
        let mut scratch = SketchScratch::default();
        let products = sketch.products(&Kernels::native(), &q, &mut scratch);
        let read: Vec<(Vec<f32>, Vec<f32>)> = (0..n as u32).map(|t| sketch.reconstruct(t).unwrap()).collect();
        for range in [0..n, within(n, cut)].into_iter().filter(|range| !range.is_empty()) {
            let partials = attend_range(&sketch, range.clone(), 12, &q, 2);
            for (h, (q, partial)) in q.chunks(16).zip(partials).enumerate() {
                let qk = |key: &[f32]| q.iter().zip(key).map(|(a, b)| f64::from(a * b)).sum::<f64>();
                let z: Vec<f64> = read[range.clone()].iter().map(|(key, _)| qk(key)).collect();
                for (z, product) in z.iter().zip(&products[h * n + range.start..]) {
                    prop_assert!((z - f64::from(*product)).abs() < 2e-3 * (1.0 + z.abs()), "{z} {product}");
                }
                let top = z.iter().copied().fold(f64::NEG_INFINITY, f64::max) * f64::from(SCALE);
                let w: Vec<f64> = z.iter().map(|z| (z * f64::from(SCALE) - top).exp()).collect();
                let l: f64 = w.iter().sum();
                prop_assert!((f64::from(partial.log_sum_exp()) - top - l.ln()).abs() < 2e-3);
                for (c, o) in partial.o.iter().enumerate() {
                    let value = |(w, r): (&f64, &(Vec<f32>, Vec<f32>))| w * f64::from(r.1[c]);
                    let wanted = w.iter().zip(&read[range.clone()]).map(value).sum::<f64>() / l;
                    prop_assert!((wanted - f64::from(*o)).abs() < 1e-3, "{wanted} {o}");
                }
            }
        }
    }
}

#[test]
fn a_bucket_outside_of_the_range_has_no_say_in_its_scale() {
    // The keys of the first half give logits that are larger by far more than f32 reaches in an exponent.
    let mut data = Data::new(400, 20, (16, 12, 2), 6);
    for (t, key) in data.keys.chunks_mut(16).enumerate() {
        key[0] = f16::from_f32(if t < 200 { 2000.0 } else { -2000.0 });
    }
    let mut q = [0.0; 32];
    (q[0], q[16]) = (1.0, 1.0);
    for kind in SketchKind::ALL {
        let sketch = sketch(&data, kind, kv_bytes(&data) / 2 + 2000).unwrap();
        for partial in attend_range(&sketch, 300..400, 12, &q, 2) {
            assert!(partial.l() >= 1.0 && partial.o.iter().all(|x| x.is_finite()), "{kind}: {partial:?}");
        }
    }
}

#[test]
fn with_room_for_all_it_is_dense_attention() {
    let data = Data::new(400, 20, (16, 12, 2), 1);
    let (keys, values) = rows(&data);
    for kind in [SketchKind::Coded, SketchKind::Means] {
        let sketch = sketch(&data, kind, 3 * kv_bytes(&data) + 8000).unwrap();
        let q = query(&data, 19);
        for (q, partial) in q.chunks(16).zip(attend(&sketch, 12, &q, 2)) {
            let truth = oracle::attend(&Description::scaled(SCALE), q, &keys, &values, 0..400);
            assert!(truth.output_error(&partial.o) < 1e-5 && truth.mass_error(&partial) < 1e-5, "{kind}");
            assert_eq!((partial.l_quant, partial.l_est), (0.0, 0.0), "{kind}");
        }
    }
}

#[test]
fn more_bytes_are_less_error_and_no_more_than_allowed_are_taken() {
    let data = Data::new(3000, 100, (16, 12, 2), 5);
    let (keys, values) = rows(&data);
    for kind in SketchKind::ALL {
        let mut before = f64::INFINITY;
        for share in [0.15, 0.3, 0.6] {
            let bytes = (kv_bytes(&data) as f64 * share) as usize;
            let sketch = sketch(&data, kind, bytes).unwrap();
            let taken = sketch.bytes();
            match kind {
                SketchKind::Coded => assert!(taken.total() <= bytes, "{taken:?} of {bytes}"),
                _ => assert!(taken.attention <= bytes, "{kind}: {taken:?} of {bytes}"),
            }
            assert!(taken.attention > bytes * 9 / 10, "{kind} leaves much: {taken:?} of {bytes}");
            let mut error = 0.0;
            for j in 60..100 {
                let q = query(&data, j);
                for (q, partial) in q.chunks(16).zip(attend(&sketch, 12, &q, 2)) {
                    let truth = oracle::attend(&Description::scaled(SCALE), q, &keys, &values, 0..3000);
                    error += truth.output_error(&partial.o);
                }
            }
            assert!(error < before, "{kind} at {share}: {error} after {before}");
            before = error;
        }
    }
}

#[test]
fn one_extreme_key_is_held_and_spoils_no_other() {
    let plain = Data::new(1000, 40, (16, 12, 2), 9);
    let mut data = Data::new(1000, 40, (16, 12, 2), 9);
    data.keys[500 * 16 + 3] = f16::from_f32(60_000.0);
    let bytes = kv_bytes(&data) / 3;
    let (with, without) =
        (sketch(&data, SketchKind::Coded, bytes).unwrap(), sketch(&plain, SketchKind::Coded, bytes).unwrap());
    let (key, _) = with.reconstruct(500).unwrap();
    assert_eq!(key[3], 60_000.0);
    let error = |sketch: &Sketch, data: &Data| {
        let off = |t: usize| {
            let (key, _) = sketch.reconstruct(t as u32).unwrap();
            let truth = &data.keys[t * 16..][..16];
            truth.iter().zip(key).map(|(a, b)| (a.to_f32() - b).powi(2)).sum::<f32>()
        };
        (0..1000).filter(|&t| t != 500).map(off).sum::<f32>()
    };
    assert!(error(&with, &data) < 1.3 * error(&without, &plain));
    let q = [1.0; 32];
    assert!(attend(&with, 12, &q, 2).iter().all(|p| p.o.iter().all(|x| x.is_finite()) && p.l_exact > 0.0));
}

#[test]
fn equal_keys_stay_equal_and_all_of_them_weigh() {
    let mut data = Data::new(300, 20, (16, 12, 2), 2);
    let first = data.keys[..16].to_vec();
    data.keys.chunks_mut(16).for_each(|key| key.copy_from_slice(&first));
    for kind in [SketchKind::Coded, SketchKind::Means] {
        let sketch = sketch(&data, kind, kv_bytes(&data) / 2 + 2000).unwrap();
        let q = query(&data, 19);
        for (q, partial) in q.chunks(16).zip(attend(&sketch, 12, &q, 2)) {
            let qk: f64 = q.iter().zip(&first).map(|(a, b)| f64::from(*a) * b.to_f64()).sum();
            let wanted = f64::from(SCALE) * qk + 300f64.ln();
            assert!((f64::from(partial.log_sum_exp()) - wanted).abs() < 1e-4, "{kind}");
        }
    }
}

#[test]
fn a_constant_span_needs_no_codes() {
    let mut data = Data::new(300, 20, (16, 12, 2), 2);
    data.keys.fill(f16::ONE);
    data.values.fill(f16::from_f32(-2.0));
    for kind in SketchKind::ALL {
        let sketch = sketch(&data, kind, kv_bytes(&data) / 2 + 2000).unwrap();
        for range in [0..300, 5..131, 299..300] {
            for partial in attend_range(&sketch, range.clone(), 12, &[0.0; 32], 2) {
                assert_eq!(partial.l(), range.len() as f32, "{kind}");
                if kind != SketchKind::Published {
                    assert_eq!(partial.o, [-2.0; 12], "{kind}");
                }
            }
        }
    }
}

#[test]
fn the_same_input_gives_the_same_bits() {
    let data = Data::new(500, 20, (16, 12, 2), 4);
    for kind in SketchKind::ALL {
        let answer = || attend(&sketch(&data, kind, kv_bytes(&data) / 2).unwrap(), 12, &query(&data, 3), 2);
        assert_eq!(answer(), answer(), "{kind}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let data = Data::new(300, 20, (16, 12, 2), 2);
    for kind in SketchKind::ALL {
        let refused = sketch(&data, kind, 40).unwrap_err();
        assert!(matches!(refused, SketchError::TooSmall { bytes: 40, tokens: 300, .. }), "{kind}: {refused}");
    }
    let (keys, values) = rows(&data);
    let params =
        SketchParams { kind: SketchKind::Coded, bytes: 1 << 20, scale: SCALE, exact_share: 0.5, seed: 0 };
    let other = Watched::new(299, 16);
    assert!(matches!(Sketch::build(&keys, &values, &other, &params), Err(SketchError::Watched { .. })));
    let none = Rows::contiguous(&[], 16);
    assert!(matches!(Sketch::build(&none, &none, &Watched::new(0, 16), &params), Err(SketchError::Empty)));
    let mut broken = data.values.clone();
    broken[12 * 7 + 5] = f16::INFINITY;
    let broken = Rows::contiguous(&broken, 12);
    assert!(matches!(
        Sketch::build(&keys, &broken, &watched(&data), &params),
        Err(SketchError::NotFinite { token: 7, what: "value", element: 5 })
    ));
    // Nothing was watched: every token is as likely as any other.
    let sketch = Sketch::build(&keys, &values, &Watched::new(300, 16), &params).unwrap();
    assert!(sketch.reconstruct(299).is_ok() && sketch.reconstruct(300).is_err());
}
