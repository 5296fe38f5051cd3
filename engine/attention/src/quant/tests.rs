//! Laws of quantised rows.

use kernels::Kernels;
use proptest::prelude::*;

use super::*;
use crate::description::Description;
use crate::oracle;
use crate::partial::Partial;

const ALL: [Precision; 3] = [Precision::Int8, Precision::Int8Plain, Precision::Int4];

/// Numbers in -1..1 from a seed.
fn noise(n: usize, seed: u64) -> Vec<f16> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        f16::from_f32((x >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
    };
    (0..n).map(|_| next()).collect()
}

fn attend(quantised: &Quantised, q: &[f32], range: std::ops::Range<usize>, dv: usize) -> Vec<Partial> {
    let mut out = vec![Partial::neutral(dv); q.len() / quantised.key_dim];
    let mut scratch = QuantScratch::default();
    let d = Description::scaled(0.5);
    for _ in 0..2 {
        out.fill(Partial::neutral(dv));
        quantised.attend((&Kernels::native(), &d), q, range.clone(), &mut scratch, &mut out);
    }
    out
}

proptest! {
    #[test]
    fn every_token_of_the_range_is_counted_once(
        n in 0usize..200, cut in (0.0f64..1.0, 0.0f64..1.0), which in 0usize..3, seed in 0u64..100,
    ) {
        let (keys, values) = (noise(n * 8, seed), noise(n * 6, seed + 1));
        let rows = (Rows::contiguous(&keys, 8), Rows::contiguous(&values, 6));
        let quantised = Quantised::new(&rows.0, &rows.1, ALL[which]).unwrap();
        let (a, b) = ((cut.0 * n as f64) as usize, (cut.1 * n as f64) as usize);
        let range = a.min(b)..a.max(b);
        for partial in attend(&quantised, &[0.0; 16], range.clone(), 6) {
            prop_assert_eq!(partial.l_exact + partial.l_quant + partial.l_est, range.len() as f32);
        }
    }

    #[test]
    fn rows_come_back_within_half_a_step_and_attention_is_that_over_them(
        n in 1usize..150, which in 0usize..3, seed in 0u64..100,
    ) {
        let (dk, dv) = (20, 24);
        let (keys, values) = (noise(n * dk, seed), noise(n * dv, seed + 1));
        let rows = (Rows::contiguous(&keys, dk), Rows::contiguous(&values, dv));
        let quantised = Quantised::new(&rows.0, &rows.1, ALL[which]).unwrap();
        let (step, scale) = [(2.0 / 4095.0, 2.0 / 255.0), (2.0 / 255.0, 2.0 / 255.0), (2.0 / 15.0, 2.0 / 15.0)][which];
        let (mut read_keys, mut read_values) = (Vec::new(), Vec::new());
        for t in 0..n {
            let (key, value) = quantised.reconstruct(t).unwrap();
            // A step in f16 is up to 2^-10 wider.
            let near = |a: &f16, b: &f32, step: f32| (a.to_f32() - b).abs() <= 0.502 * step + 1e-6;
            prop_assert!(keys[t * dk..].iter().zip(&key).all(|(a, b)| near(a, b, step)), "{key:?}");
            prop_assert!(values[t * dv..].iter().zip(&value).all(|(a, b)| near(a, b, scale)));
            read_keys.extend(key);
            read_values.extend(value);
        }
        let q: Vec<f32> = noise(2 * dk, seed + 2).iter().map(|x| 3.0 * x.to_f32()).collect();
        for (q, partial) in q.chunks(dk).zip(attend(&quantised, &q, 0..n, dv)) {
            let qk = |key: &[f32]| q.iter().zip(key).map(|(a, b)| f64::from(a * b)).sum::<f64>();
            let w: Vec<f64> = read_keys.chunks(dk).map(|key| (0.5 * qk(key)).exp()).collect();
            let l: f64 = w.iter().sum();
            prop_assert!((f64::from(partial.log_sum_exp()) - l.ln()).abs() < 1e-5);
            for (c, o) in partial.o.iter().enumerate() {
                let wanted = w.iter().enumerate().map(|(t, w)| w * f64::from(read_values[t * dv + c])).sum::<f64>() / l;
                prop_assert!((wanted - f64::from(*o)).abs() < 1e-5, "{wanted} {o}");
            }
        }
    }
}

#[test]
fn one_extreme_key_is_exact_and_its_block_is_as_fine_as_before() {
    let (mut keys, values) = (noise(100 * 8, 4), noise(100 * 6, 5));
    keys[30 * 8 + 2] = f16::from_f32(-60_000.0);
    let rows = (Rows::contiguous(&keys, 8), Rows::contiguous(&values, 6));
    for precision in ALL {
        let quantised = Quantised::new(&rows.0, &rows.1, precision).unwrap();
        assert_eq!(quantised.extreme, [30]);
        let (key, _) = quantised.reconstruct(29).unwrap();
        assert!((key[2] - keys[29 * 8 + 2].to_f32()).abs() < 0.08, "{key:?}");
        let q = [0.0, 0.0, -1e-3, 0.0, 0.0, 0.0, 0.0, 0.0];
        let truth = oracle::attend(&Description::scaled(0.5), &q, &rows.0, &rows.1, 0..100);
        let partial = &attend(&quantised, &q, 0..100, 6)[0];
        assert!(truth.output_error(&partial.o) < 1e-4 && partial.l_exact == 1.0, "{partial:?}");
        let scratch = &mut QuantScratch::default();
        let products = quantised.products(&Kernels::native(), &q, scratch);
        assert!((products[30] - 60.0).abs() < 0.1 && products.len() == 100);
    }
}

#[test]
fn constant_channels_zero_values_and_the_largest_numbers() {
    let keys = [f16::from_f32(-3.25); 4 * 65];
    let mut values = [f16::ZERO; 2 * 65];
    values[7] = f16::MAX;
    let rows = (Rows::contiguous(&keys, 4), Rows::contiguous(&values, 2));
    let quantised = Quantised::new(&rows.0, &rows.1, Precision::Int8).unwrap();
    assert_eq!(quantised.reconstruct(64), Some((vec![-3.25; 4], vec![0.0; 2])));
    let value = quantised.reconstruct(3).unwrap().1[1];
    assert!(value.is_finite() && (value / 65504.0 - 1.0).abs() < 2e-3, "{value}");
    assert_eq!(quantised.reconstruct(65), None);
}

#[test]
fn what_is_not_finite_is_refused_by_name() {
    let mut values = noise(6 * 3, 1);
    values[6 * 2 + 4] = f16::NAN;
    let keys = noise(8 * 3, 1);
    let rows = (Rows::contiguous(&keys, 8), Rows::contiguous(&values, 6));
    let refused = Quantised::new(&rows.0, &rows.1, Precision::Int4).unwrap_err();
    assert_eq!(refused, NotFinite { token: 2, what: "value", element: 4 });
}

#[test]
fn bytes_of_a_token() {
    let (keys, values) = (noise(128 * 64, 1), noise(128 * 64, 2));
    let rows = (Rows::contiguous(&keys, 64), Rows::contiguous(&values, 64));
    let of = |precision| Quantised::new(&rows.0, &rows.1, precision).unwrap().bytes() as f64 / 128.0;
    // Codes; two numbers a channel of a block; two a group of a value.
    assert_eq!(of(Precision::Int8), 96.0 + 64.0 + 4.0 + 8.0);
    assert_eq!(of(Precision::Int8Plain), 64.0 + 64.0 + 4.0 + 4.0);
    assert_eq!(of(Precision::Int4), 32.0 + 32.0 + 4.0 + 4.0);
}
