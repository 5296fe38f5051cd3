//! Inputs that indexes of this kind have failed on.

use half::f16;
use index::{Budget, Kind, Scratch, SpanView, attend_spans};
use kernels::Kernels;

use crate::data::{Data, Random, ask, neutral};

const N: usize = 3000;
const DIM: usize = 64;

fn best(data: &Data, kind: Kind, q: &[f32], k: usize) -> Vec<u32> {
    let index = data.build(kind);
    let view = SpanView {
        keys: data.keys(),
        values: data.values(),
        index: Some(&index),
        compact: None,
        visible: 0..data.n,
    };
    let (mut out, mut ids) = (neutral(1, data.value_dim), Vec::new());
    let ask = ask(q, 1, Budget::TopK(k), true);
    attend_spans(&Kernels::native(), &[view], &[], &ask, &mut Scratch::new(), &mut out, Some(&mut ids));
    ids.remove(0).into_iter().map(|i| i.1).collect()
}

fn data(key: impl Fn(usize, usize, &mut Random) -> f32) -> Data {
    let mut data = Data::new(N, 200, (DIM, 16, 1), 11);
    let mut r = Random::new(3);
    data.keys = (0..N * DIM).map(|i| f16::from_f32(key(i / DIM, i % DIM, &mut r))).collect();
    data
}

const SEARCHES: [Kind; 3] = [Kind::Summary, Kind::Graph, Kind::Auto];

#[test]
fn identical_keys_give_distinct_ids_and_the_needle() {
    let data = data(|i, d, _| if i == 2047 { if d == 7 { 3.0 } else { 0.0 } } else { 0.25 });
    let mut q = vec![0.0; DIM];
    q[7] = 10.0;
    for kind in SEARCHES {
        let mut ids = best(&data, kind, &q, 100);
        assert!(ids.contains(&2047), "{kind}");
        ids.dedup();
        assert_eq!(ids.len(), 100, "{kind}");
    }
}

#[test]
fn an_isolated_outlier_is_found() {
    let data = data(|i, d, r| if i == 1234 && d == 5 { 40.0 } else { r.normal() });
    let mut q = vec![0.05; DIM];
    q[5] = 1.0;
    for kind in SEARCHES {
        assert!(best(&data, kind, &q, 10).contains(&1234), "{kind}");
    }
}

#[test]
fn norms_that_differ_a_hundredfold() {
    let data = data(|i, _, r| r.normal() * if i % 50 == 0 { 10.0 } else { 0.1 });
    let q: Vec<f32> = data.keys[600 * DIM..601 * DIM].iter().map(|x| x.to_f32() * 0.1).collect();
    for kind in SEARCHES {
        assert!(best(&data, kind, &q, 20).contains(&600), "{kind}");
    }
}

#[test]
fn an_estimate_of_keys_far_apart_leaves_a_sharp_answer_alone() {
    // Logits of a hundred thousand and more: one token has all of the mass, whatever a variance says of the rest.
    let data = data(|_, _, r| r.normal());
    for size in [60_000.0, 1e15] {
        let q: Vec<f32> = (0..DIM).map(|d| if d % 3 == 0 { -size } else { size }).collect();
        let score = |i: usize| {
            let row = data.keys[i * DIM..(i + 1) * DIM].iter().zip(&q);
            row.map(|(k, q)| f64::from(k.to_f32()) * f64::from(*q)).sum::<f64>()
        };
        let best = (0..N).max_by(|&a, &b| score(a).total_cmp(&score(b))).unwrap();
        for kind in SEARCHES {
            let index = data.build(kind);
            let (keys, values) = (data.keys(), data.values());
            let view =
                SpanView { keys, values: values.clone(), index: Some(&index), compact: None, visible: 0..N };
            let mut out = neutral(1, data.value_dim);
            let ask = ask(&q, 1, Budget::TopK(20), true);
            attend_spans(&Kernels::native(), &[view], &[], &ask, &mut Scratch::new(), &mut out, None);
            let p = &out[0];
            assert!(p.l_est.is_finite() && p.l_est <= p.l_exact * 1e-6, "{kind}: {} {}", p.l_exact, p.l_est);
            for (o, v) in p.o.iter().zip(values.row(best)) {
                assert!((o - v.to_f32()).abs() < 1e-3, "{kind}: {o} {v}");
            }
        }
    }
}
