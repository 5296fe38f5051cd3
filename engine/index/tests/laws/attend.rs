//! Attention over what an index finds: budget all, masks, uniform keys, several spans, coverage, threads.

use std::ops::Range;

use attention::{Partial, Rows};
use half::f16;
use index::{Budget, BuildParams, Kind, Scratch, SpanIndex, SpanView, attend_spans};
use kernels::Kernels;

use crate::data::{Data, ask, dense, neutral};

const KINDS: [Kind; 5] = Kind::ALL;

fn view<'a>(data: &'a Data, index: Option<&'a SpanIndex>, visible: Range<usize>) -> SpanView<'a> {
    SpanView { keys: data.keys(), values: data.values(), index, compact: None, visible }
}

fn attend(
    views: &[SpanView<'_>],
    q: &[f32],
    group: usize,
    budget: Budget,
    estimate: bool,
) -> (Vec<Partial>, index::Chosen) {
    let (mut out, mut ids) = (neutral(group, views[0].values.dim()), Vec::new());
    let ask = ask(q, group, budget, estimate);
    attend_spans(&Kernels::native(), views, &[], &ask, &mut Scratch::new(), &mut out, Some(&mut ids));
    (out, ids)
}

#[test]
fn budget_all_is_dense_for_every_kind_and_geometry() {
    for (dim, value_dim, group) in [(64, 64, 3), (80, 48, 1), (128, 128, 7)] {
        let data = Data::new(1500, 200, (dim, value_dim, group), 1);
        for kind in KINDS {
            let index = data.build(kind);
            let q = data.fresh_queries(2, 5);
            for q in q.chunks(group * dim) {
                for visible in [0..1500, 0..1, 0..0, 3..1499] {
                    let (out, ids) =
                        attend(&[view(&data, Some(&index), visible.clone())], q, group, Budget::All, true);
                    for (h, partial) in out.iter().enumerate() {
                        let truth =
                            dense(&q[h * dim..(h + 1) * dim], &data.keys(), &data.values(), visible.clone());
                        assert!(truth.output_error(&partial.o) < 1e-5, "{kind} {visible:?}");
                        assert!(truth.mass_error(partial) < 1e-5, "{kind} {visible:?}");
                        assert_eq!(ids[h].len(), visible.len());
                        assert_eq!((partial.l_est, partial.l_quant), (0.0, 0.0));
                    }
                }
            }
        }
    }
}

#[test]
fn a_selection_is_attended_exactly_and_nothing_hidden_gets_in() {
    let (dim, group) = (64, 2);
    let data = Data::new(5000, 400, (dim, 32, group), 2);
    for kind in KINDS {
        let index = data.build(kind);
        for visible in
            [0..5000, 0..4999, 0..2600, 0..2400, 0..1100, 0..101, 0..100, 0..99, 4000..5000, 17..4001]
        {
            let q = data.fresh_queries(3, 9);
            for q in q.chunks(group * dim) {
                let (out, ids) =
                    attend(&[view(&data, Some(&index), visible.clone())], q, group, Budget::TopK(100), false);
                for (h, partial) in out.iter().enumerate() {
                    let mut chosen: Vec<usize> = ids[h].iter().map(|&(_, id)| id as usize).collect();
                    assert_eq!(chosen.len(), visible.len().min(100), "{kind} {visible:?}");
                    assert!(chosen.iter().all(|id| visible.contains(id)), "{kind} {visible:?}");
                    chosen.dedup();
                    assert_eq!(chosen.len(), ids[h].len(), "an id twice");
                    let truth = dense(&q[h * dim..(h + 1) * dim], &data.keys(), &data.values(), 0..0);
                    assert!(truth.l == 0.0);
                    let exact = attention::oracle::attend(
                        &crate::data::DESCRIPTION,
                        &q[h * dim..(h + 1) * dim],
                        &data.keys(),
                        &data.values(),
                        chosen,
                    );
                    assert!(exact.output_error(&partial.o) < 1e-5 && exact.mass_error(partial) < 1e-5);
                    assert_eq!(partial.l_est, 0.0);
                }
            }
        }
    }
}

#[test]
fn uniform_logits_count_every_token_once() {
    let data = Data::new(3000, 200, (32, 16, 1), 3);
    for kind in KINDS {
        let built = data.build(kind);
        for index in [Some(&built), None] {
            for budget in
                [Budget::TopK(1), Budget::TopK(100), Budget::TopK(2999), Budget::TopK(3000), Budget::All]
            {
                for visible in [0..3000, 0..2999, 0..1025, 0..1024, 0..1, 5..2000, 0..0] {
                    let n = visible.len() as f32;
                    let (out, _) = attend(&[view(&data, index, visible)], &[0.0; 32], 1, budget, true);
                    assert_eq!(out[0].l_exact + out[0].l_est, n, "{kind} {budget:?}");
                }
            }
        }
    }
}

#[test]
fn identical_keys_count_every_token_once() {
    let mut data = Data::new(2500, 100, (64, 16, 1), 4);
    let row = data.keys[..64].to_vec();
    data.keys = row.repeat(2500);
    for kind in [Kind::Flat, Kind::Summary, Kind::Graph] {
        let index = data.build(kind);
        let q = data.fresh_queries(1, 3);
        for budget in [Budget::TopK(1), Budget::TopK(77), Budget::TopK(100), Budget::TopK(1000)] {
            for end in [2500, 2499, 1200, 64] {
                let (out, _) = attend(&[view(&data, Some(&index), 0..end)], &q, 1, budget, true);
                let l = out[0].l_exact + out[0].l_est;
                assert!((l - end as f32).abs() <= 2e-5 * end as f32, "{kind} {budget:?} {end}: {l}");
            }
        }
    }
}

#[test]
fn off_is_off_to_the_bit() {
    let data = Data::new(4000, 300, (64, 64, 2), 5);
    let index = data.build(Kind::Graph);
    let q = data.fresh_queries(1, 1);
    let (with, _) = attend(&[view(&data, Some(&index), 0..4000)], &q, 2, Budget::TopK(50), true);
    let (without, ids) = attend(&[view(&data, Some(&index), 0..4000)], &q, 2, Budget::TopK(50), false);
    for (h, partial) in without.iter().enumerate() {
        assert_eq!(partial.l_est, 0.0);
        assert!(with[h].l_est > 0.0);
        let q = &q[h * 64..(h + 1) * 64];
        let ids = ids[h].iter().map(|i| i.1 as usize);
        let exact =
            attention::oracle::attend(&crate::data::DESCRIPTION, q, &data.keys(), &data.values(), ids);
        assert!(exact.output_error(&partial.o) < 1e-5);
    }
}

#[test]
fn finalists_of_all_spans_compete() {
    let (n, dim) = (4096, 64);
    let data = Data::new(n, 256, (dim, 32, 1), 6);
    let q = data.fresh_queries(1, 2);
    let (one, best) = attend(&[view(&data, None, 0..n)], &q, 1, Budget::TopK(100), true);
    let cut = |range: Range<usize>| SpanView {
        keys: Rows::contiguous(&data.keys[range.start * dim..range.end * dim], dim),
        values: Rows::contiguous(&data.values[range.start * 32..range.end * 32], 32),
        index: None,
        compact: None,
        visible: 0..range.len(),
    };
    let views = [cut(0..1000), cut(1000..1001), cut(1001..1001), cut(1001..n)];
    let (many, ids) = attend(&views, &q, 1, Budget::TopK(100), true);
    let begins = [0, 1000, 1001, 1001];
    let global: Vec<u32> = ids[0].iter().map(|&(s, id)| begins[s as usize] + id).collect();
    assert_eq!(global, best[0].iter().map(|i| i.1).collect::<Vec<_>>());
    let l = |p: &Partial| (p.log_sum_exp(), p.coverage());
    assert!((l(&one[0]).0 - l(&many[0]).0).abs() < 1e-5 && (l(&one[0]).1 - l(&many[0]).1).abs() < 1e-5);
    let dense = dense(&q, &data.keys(), &data.values(), 0..n);
    assert!(dense.output_error(&many[0].o) < 1e-5, "without a summary the remainder is exact");
}

#[test]
fn fresh_tokens_come_on_top() {
    let data = Data::new(3000, 200, (64, 16, 1), 7);
    let index = data.build(Kind::Graph);
    let q = data.fresh_queries(1, 2);
    let mut out = neutral(1, 16);
    let spans = [view(&data, Some(&index), 0..2900)];
    let fresh = [view(&data, None, 2900..3000)];
    let ask = ask(&q, 1, Budget::TopK(100), false);
    let stats = attend_spans(&Kernels::native(), &spans, &fresh, &ask, &mut Scratch::new(), &mut out, None);
    assert_eq!(stats.exact_tokens, 200.0);
}

#[test]
fn coverage_reaches_its_share_where_nothing_is_estimated() {
    let data = Data::new(3000, 200, (64, 16, 2), 8);
    let graph = data.build(Kind::Graph);
    for q in data.fresh_queries(4, 4).chunks(128) {
        for share in [0.0, 0.5, 0.9, 0.99, 1.0] {
            let (out, ids) = attend(&[view(&data, None, 0..3000)], q, 2, Budget::Coverage(share), true);
            for (partial, ids) in out.iter().zip(ids) {
                assert!(partial.coverage() >= share - 1e-5, "{} < {share}", partial.coverage());
                assert!(share < 0.5 || !ids.is_empty());
            }
            let (out, ids) =
                attend(&[view(&data, Some(&graph), 0..3000)], q, 2, Budget::Coverage(share), true);
            for (h, (partial, ids)) in out.iter().zip(ids).enumerate() {
                let truth = dense(&q[h * 64..(h + 1) * 64], &data.keys(), &data.values(), 0..3000);
                let exact = f64::from(partial.l_exact) * (f64::from(partial.m) - truth.m).exp();
                assert!(exact >= f64::from(share) * truth.l - 0.05 * truth.l, "{} of {}", exact, truth.l);
                assert!(share < 1.0 || ids.len() == 3000);
            }
        }
    }
}

#[test]
fn mass_elsewhere_counts_towards_a_coverage() {
    let data = Data::new(3000, 200, (64, 16, 2), 8);
    let index = data.build(Kind::Summary);
    let q = data.fresh_queries(1, 4);
    let taken = |outside: Option<&[f32]>| {
        let (mut out, mut ids) = (neutral(2, 16), Vec::new());
        let ask = index::Ask { outside, ..ask(&q, 2, Budget::Coverage(0.9), true) };
        let views = [view(&data, Some(&index), 0..3000)];
        attend_spans(&Kernels::native(), &views, &[], &ask, &mut Scratch::new(), &mut out, Some(&mut ids));
        ids.iter().map(Vec::len).collect::<Vec<_>>()
    };
    let alone = taken(None);
    assert!(alone.iter().all(|&n| n > 0));
    assert_eq!(taken(Some(&[f32::NEG_INFINITY; 2])), alone, "nothing elsewhere");
    let mass = |h: usize| dense(&q[h * 64..(h + 1) * 64], &data.keys(), &data.values(), 0..3000);
    let as_much: Vec<f32> = (0..2).map(|h| (mass(h).m + mass(h).l.ln()) as f32).collect();
    let half = taken(Some(&as_much));
    assert!(half.iter().zip(&alone).all(|(h, a)| h < a), "{half:?} of {alone:?}");
    assert_eq!(
        taken(Some(&as_much.iter().map(|m| m + 9.0).collect::<Vec<_>>())),
        [0, 0],
        "all but everything"
    );
}

#[test]
fn threads_do_not_matter() {
    let data = Data::new(6000, 600, (64, 32, 2), 9);
    let q = data.fresh_queries(8, 4);
    let results: Vec<_> = [1, 3]
        .map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            pool.install(|| {
                [Kind::Graph, Kind::Summary, Kind::Auto].map(|kind| {
                    let index = data.build(kind);
                    let answers: Vec<_> = q
                        .chunks(128)
                        .map(|q| attend(&[view(&data, Some(&index), 0..6000)], q, 2, Budget::TopK(60), true))
                        .collect();
                    (index.kind(), index.width(), index.bytes(), answers)
                })
            })
        })
        .into_iter()
        .collect();
    assert_eq!(results[0], results[1]);
}

#[test]
fn a_copy_answers_as_its_original() {
    let data = Data::new(3000, 400, (64, 32, 2), 11);
    let q = data.fresh_queries(4, 5);
    for kind in [Kind::Flat, Kind::Summary, Kind::Graph] {
        let index = data.build(kind);
        let copy = index.copied().expect("only hnsw cannot be copied");
        assert_eq!((copy.kind(), copy.width(), copy.bytes()), (index.kind(), index.width(), index.bytes()));
        for q in q.chunks(128) {
            let [a, b] = [&index, &copy]
                .map(|index| attend(&[view(&data, Some(index), 0..2900)], q, 2, Budget::TopK(60), true));
            assert_eq!(a, b, "{kind}");
        }
    }
    assert!(data.build(Kind::Hnsw).copied().is_none());
}

#[test]
fn wrong_input_is_refused_by_name() {
    let data = Data::new(100, 10, (16, 8, 1), 1);
    let params = BuildParams::default();
    let refuse = |keys: &Rows<'_>, values: &Rows<'_>, q: &index::BuildQueries| {
        index::build(keys, values, Some(q), &params).expect_err("accepted").to_string()
    };
    let empty: [f16; 0] = [];
    let none = Rows::contiguous(&empty, 16);
    assert!(refuse(&none, &none, &data.queries).contains("0 tokens"));
    assert!(refuse(&data.keys(), &none, &data.queries).contains("100 keys and 0 values"));
    let mut queries = data.queries.clone();
    queries.visible[9] = 101;
    assert!(refuse(&data.keys(), &data.values(), &queries).contains("101"));
    queries.visible.pop();
    assert!(refuse(&data.keys(), &data.values(), &queries).contains("160 elements"));
}

#[test]
fn shares_of_spans_are_the_mass_of_what_was_attended_to_in_them() {
    let (dim, group) = (64, 3);
    let data = Data::new(3000, 200, (dim, 32, group), 3);
    let index = data.build(Kind::Summary);
    let views = [
        view(&data, Some(&index), 0..3000),
        // The same rows a second time, as a span without an index.
        view(&data, None, 500..2500),
        view(&data, None, 7..7),
    ];
    let q = data.fresh_queries(1, 9);
    let mut scratch = Scratch::new();
    for (budget, estimate) in [
        (Budget::All, false),
        (Budget::TopK(40), false),
        (Budget::TopK(40), true),
        (Budget::Coverage(0.5), true),
    ] {
        let (mut out, mut ids) = (neutral(group, 32), Vec::new());
        let ask = ask(&q, group, budget, estimate);
        attend_spans(&Kernels::native(), &views, &[], &ask, &mut scratch, &mut out, Some(&mut ids));
        let shares = scratch.span_shares();
        assert_eq!((shares.len(), shares[2]), (3, 0.0));
        for (s, view) in views.iter().enumerate() {
            let share = (0..group).map(|h| {
                let q = &q[h * dim..(h + 1) * dim];
                let total = f64::from(out[h].log_sum_exp());
                let chosen = ids[h].iter().filter(|(span, _)| *span as usize == s);
                let mass = chosen.map(|&(_, id)| {
                    let id = id as usize;
                    let truth = dense(q, &view.keys, &view.values, id..id + 1);
                    (truth.m + truth.l.ln() - total).exp()
                });
                mass.sum::<f64>() / group as f64
            });
            let want: f64 = share.sum();
            assert!((f64::from(shares[s]) - want).abs() < 1e-4, "{budget:?}: {} {want}", shares[s]);
        }
    }
}
