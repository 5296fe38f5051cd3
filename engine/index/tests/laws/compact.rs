//! Spans in a compact form beside others.

use std::ops::Range;

use attention::quant::{Precision, Quantised};
use attention::{Partial, Rows};
use index::sketch::{Sketch, SketchKind, SketchParams, WatchedRow, watch};
use index::{Budget, Compact, Kind, Scratch, SpanIndex, SpanView, Stats, attend_spans};
use kernels::Kernels;

use crate::data::{DESCRIPTION, Data, ask, dense, neutral};

const N: usize = 2000;
const GROUP: usize = 2;

fn data() -> Data {
    Data::new(N, 200, (32, 24, GROUP), 8)
}

fn quantised(data: &Data) -> Compact {
    Compact::Quantised(Box::new(Quantised::new(&data.keys(), &data.values(), Precision::Int8).unwrap()))
}

fn sketched(data: &Data) -> Compact {
    let queries = &data.queries;
    let rows: Vec<WatchedRow> = queries
        .q
        .chunks(GROUP * data.dim)
        .zip(&queries.visible)
        .map(|(q, &visible)| WatchedRow {
            q: q.iter().map(|x| x.to_f32()).collect(),
            visible: visible as usize,
        })
        .collect();
    let keys = [(0, data.keys())];
    let watched = watch((&Kernels::native(), &DESCRIPTION), (&keys, data.dim), 0..N, &rows).unwrap();
    let bytes = N * 2 * (data.dim + data.value_dim) / 4;
    let params =
        SketchParams { kind: SketchKind::Coded, bytes, scale: DESCRIPTION.scale, exact_share: 0.0, seed: 1 };
    Compact::Sketched(Sketch::build(&data.keys(), &data.values(), &watched, &params).unwrap())
}

/// A span of which only the form is there.
fn form<'a>(data: &'a Data, compact: &'a Compact, visible: Range<usize>) -> SpanView<'a> {
    SpanView {
        keys: Rows::contiguous(&[], data.dim),
        values: Rows::contiguous(&[], data.value_dim),
        index: None,
        compact: Some(compact),
        visible,
    }
}

fn full<'a>(data: &'a Data, index: Option<&'a SpanIndex>, compact: Option<&'a Compact>) -> SpanView<'a> {
    SpanView { keys: data.keys(), values: data.values(), index, compact, visible: 0..N }
}

fn attend(
    views: &[SpanView<'_>],
    q: &[f32],
    budget: Budget,
    estimate: bool,
) -> (Vec<Partial>, Stats, Vec<f32>) {
    let (mut out, mut scratch) = (neutral(GROUP, 24), Scratch::new());
    let ask = ask(q, GROUP, budget, estimate);
    let stats = attend_spans(&Kernels::native(), views, &[], &ask, &mut scratch, &mut out, None);
    (out, stats, scratch.span_shares().to_vec())
}

#[test]
fn every_token_of_every_form_is_counted_once_at_every_budget() {
    let data = data();
    let (int8, sketch, index) = (quantised(&data), sketched(&data), data.build(Kind::Summary));
    let q = vec![0.0; GROUP * data.dim];
    for budget in [Budget::TopK(1), Budget::TopK(700), Budget::TopK(9_999), Budget::Coverage(0.9)] {
        for cut in [0..N, 0..0, 0..1, 700..701, 100..1999, 1536..N] {
            let views = [
                form(&data, &sketch, cut.clone()),
                full(&data, Some(&index), None),
                form(&data, &int8, cut.clone()),
                full(&data, None, None),
            ];
            let (out, stats, _) = attend(&views, &q, budget, true);
            for partial in &out {
                assert_eq!(partial.l_quant, cut.len() as f32, "{budget:?} {cut:?}");
                let all = partial.l_exact + partial.l_quant + partial.l_est;
                assert_eq!(all, (2 * N + 2 * cut.len()) as f32, "{budget:?} {cut:?}");
            }
            assert_eq!(stats.compact_tokens, 2.0 * cut.len() as f64);
        }
    }
}

#[test]
fn forms_answer_as_the_rows_would_and_take_nothing_of_the_budget() {
    let data = data();
    let (int8, sketch, index) = (quantised(&data), sketched(&data), data.build(Kind::Summary));
    for q in data.fresh_queries(4, 3).chunks(GROUP * data.dim) {
        let views = [full(&data, Some(&index), None), full(&data, Some(&index), None)];
        let (want, stats, _) = attend(&views, q, Budget::TopK(100), true);
        assert_eq!((stats.exact_tokens, stats.compact_tokens), (100.0, 0.0));
        for (compact, bound) in [(&int8, 0.005), (&sketch, 0.1)] {
            let views = [form(&data, compact, 0..N), full(&data, Some(&index), None)];
            let (out, stats, shares) = attend(&views, q, Budget::TopK(100), true);
            assert_eq!((stats.exact_tokens, stats.compact_tokens), (100.0, N as f64));
            // Two equal spans share the mass.
            assert!((shares[0] - 0.5).abs() < 0.05 && shares[1] > 0.0, "{shares:?}");
            for ((h, out), want) in out.iter().enumerate().zip(&want) {
                let truth = dense(&q[h * data.dim..(h + 1) * data.dim], &data.keys(), &data.values(), 0..N);
                let (error, of_rows) = (truth.output_error(&out.o), truth.output_error(&want.o));
                assert!(error < of_rows + bound, "{error}, {of_rows}");
                let mass = |p: &Partial| (f64::from(p.log_sum_exp()) - truth.m - (2.0 * truth.l).ln()).abs();
                assert!(mass(out) < mass(want) + bound, "{}, {}", mass(out), mass(want));
                assert!(out.coverage() < want.coverage());
            }
        }
    }
}

#[test]
fn who_wants_no_estimate_or_everything_gets_the_rows() {
    let data = data();
    let (int8, sketch) = (quantised(&data), sketched(&data));
    let q = data.fresh_queries(1, 5);
    let plain = |budget, estimate| attend(&[full(&data, None, None)], &q, budget, estimate).0;
    for (compact, budget, estimate) in [
        (&int8, Budget::All, true),
        (&sketch, Budget::All, true),
        (&sketch, Budget::TopK(60), false),
        (&sketch, Budget::Coverage(0.9), false),
    ] {
        let (out, stats, _) = attend(&[full(&data, None, Some(compact))], &q, budget, estimate);
        assert_eq!(out, plain(budget, estimate), "{budget:?}");
        assert_eq!(stats.compact_tokens, 0.0);
    }
    // Without an estimate a quantised form still answers: its tokens are attended to one by one.
    let (out, stats, _) = attend(&[full(&data, None, Some(&int8))], &q, Budget::TopK(60), false);
    assert!(out.iter().all(|p| p.l_quant > 0.0 && p.l_est == 0.0) && stats.compact_tokens == N as f64);
    assert_eq!((int8.tokens(), sketch.tokens()), (N, N));
    assert!(sketch.bytes() * 2 < int8.bytes() && int8.bytes() < N * 2 * (32 + 24));
}
