//! The laws of partials.

use crate::common::{Noise, paths, range};
use attention::{Description, Partial, Rows};
use proptest::prelude::*;

fn partial(m: f32, l: f32, o: &[f32]) -> Partial {
    Partial { m, l_exact: l, l_quant: 0.0, l_est: 0.0, o: o.to_vec() }
}

fn merged(a: &Partial, b: &Partial) -> Partial {
    let mut all = a.clone();
    all.merge(b);
    all
}

fn any_partial() -> impl Strategy<Value = Partial> {
    let some = (-300f32..300.0, 1f32..1e6, 0f32..1e3, 0f32..1e3, proptest::collection::vec(-10f32..10.0, 3))
        .prop_map(|(m, l_exact, l_quant, l_est, o)| Partial { m, l_exact, l_quant, l_est, o });
    prop_oneof![1 => Just(Partial::neutral(3)), 9 => some]
}

fn close(a: &Partial, b: &Partial) -> bool {
    let near = |x: f32, y: f32, size: f32| x == y || (x - y).abs() <= 2e-6 * size;
    a.m == b.m
        && near(a.l_exact, b.l_exact, a.l())
        && near(a.l_quant, b.l_quant, a.l())
        && near(a.l_est, b.l_est, a.l())
        && a.o.iter().zip(&b.o).all(|(&x, &y)| near(x, y, 10.0))
}

proptest! {
    #[test]
    fn commutative_to_the_bit(a in any_partial(), b in any_partial()) {
        prop_assert_eq!(merged(&a, &b), merged(&b, &a));
    }

    #[test]
    fn associative_up_to_rounding(a in any_partial(), b in any_partial(), c in any_partial()) {
        let (left, right) = (merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
        prop_assert!(close(&left, &right), "{:?} {:?}", left, right);
        prop_assert_eq!(&left, &Partial::fold(3, [&a, &b, &c]));
    }

    #[test]
    fn neutral_changes_nothing(a in any_partial()) {
        prop_assert_eq!(&merged(&a, &Partial::neutral(3)), &a);
        prop_assert_eq!(&merged(&Partial::neutral(3), &a), &a);
        prop_assert!((0.0..=1.0).contains(&a.coverage()));
    }
}

#[test]
fn two_neutrals_give_the_neutral() {
    let none = Partial::neutral(4);
    assert_eq!(merged(&none, &none), none);
    assert_eq!(Partial::fold(4, []), none);
    assert_eq!(Partial::fold(4, [&none, &none, &none]), none);
    assert_eq!((none.l(), none.coverage(), none.log_sum_exp()), (0.0, 1.0, f32::NEG_INFINITY));
}

#[test]
fn far_apart_masses_stay_finite() {
    let (low, high) = (partial(0.0, 1.0, &[1.0]), partial(200.0, 1.0, &[3.0]));
    assert_eq!(merged(&low, &high), partial(200.0, 1.0, &[3.0]));
    assert_eq!(merged(&high, &low), partial(200.0, 1.0, &[3.0]));
    let (low, high) = (partial(-f32::MAX, 1.0, &[1.0]), partial(f32::MAX, 1.0, &[3.0]));
    assert_eq!(merged(&low, &high), partial(f32::MAX, 1.0, &[3.0]));
}

#[test]
fn a_maximum_of_zero_is_not_unset() {
    let (zero, below) = (partial(0.0, 1.0, &[2.0]), partial(-1.0, 1.0, &[0.0]));
    let both = merged(&zero, &below);
    let w = (-1f32).exp();
    assert_eq!((both.m, both.l_exact), (0.0, 1.0 + w));
    assert!((both.o[0] - 2.0 / (1.0 + w)).abs() < 1e-6);
}

/// Base 2 in place of e would pass every test with equal maxima.
#[test]
fn unequal_shards_equal_one_that_holds_everything() {
    let (d, mut noise) = (Description::scaled(0.3), Noise(17));
    let (q, keys, values) = (noise.f32(64, 3.0), noise.f16(900 * 64, 2.0), noise.f16(900 * 64, 1.0));
    let (keys, values) = (Rows::contiguous(&keys, 64), Rows::contiguous(&values, 64));
    for k in paths() {
        let part = |r| range(&k, &d, &q, (&keys, &values), r).remove(0);
        let (one, all) = (part(0..900), [part(0..7), part(7..650), part(650..650), part(650..900)]);
        let fold = Partial::fold(64, &all);
        assert!((one.log_sum_exp() - fold.log_sum_exp()).abs() < 1e-5);
        assert!(one.o.iter().zip(&fold.o).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}

#[test]
fn a_learned_sink_counts_once_whatever_the_shards() {
    for z in [-50.0, 0.0, 3.0, 80.0] {
        let parts = [partial(1.0, 4.0, &[1.0]), partial(2.5, 2.0, &[-2.0]), partial(0.0, 9.0, &[0.5])];
        let terms =
            |n: usize| parts[..n].iter().map(|p| (f64::from(p.m), f64::from(p.l()), f64::from(p.o[0])));
        for n in 1..=3 {
            let mut all = Partial::fold(1, &parts[..n]);
            all.add_sink_logit(z);
            let mass: f64 = terms(n).map(|(m, l, _)| l * m.exp()).sum::<f64>() + f64::from(z).exp();
            let o = terms(n).map(|(m, l, o)| o * l * m.exp()).sum::<f64>() / mass;
            assert!((f64::from(all.o[0]) - o).abs() <= 1e-6 * (1e-6 + o.abs()), "{n} {z}: {} {o}", all.o[0]);
            assert!((f64::from(all.log_sum_exp()) - mass.ln()).abs() < 1e-5);
        }
    }
    let mut alone = Partial::neutral(2);
    alone.add_sink_logit(5.0);
    assert_eq!(alone, partial(5.0, 1.0, &[0.0, 0.0]));
    alone.add_sink_logit(f32::NEG_INFINITY);
    assert_eq!(alone, partial(5.0, 1.0, &[0.0, 0.0]));
}

#[test]
fn coverage_is_the_exact_share() {
    let p = Partial { m: 1.0, l_exact: 6.0, l_quant: 1.0, l_est: 1.0, o: vec![0.0] };
    assert_eq!(p.coverage(), 0.75);
}

#[test]
fn a_partial_without_mass_is_neutral() {
    // A summary whose every member was selected estimates nothing, at whatever maximum.
    let empty = Partial { m: 7.0, l_exact: 0.0, l_quant: 0.0, l_est: 0.0, o: vec![0.0] };
    let some = partial(1.0, 2.0, &[3.0]);
    assert_eq!(merged(&empty, &some), some);
    assert_eq!(merged(&some, &empty), some);
    assert_eq!(merged(&empty, &empty), Partial::neutral(1));
}
