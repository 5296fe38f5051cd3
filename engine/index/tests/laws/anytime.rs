//! Stopping early, and every kernel path.

use std::time::Instant;

use attention::Partial;
use index::{Budget, Chosen, Kind, Scratch, SpanIndex, SpanView, Stats, attend_spans};
use kernels::{Isa, Kernels};

use crate::data::{Data, ask, dense, neutral};

const GROUP: usize = 2;
const DIM: usize = 64;

/// One step over a whole span; `late` with a deadline that has passed.
fn step(
    k: &Kernels,
    data: &Data,
    index: &SpanIndex,
    q: &[f32],
    (late, estimate): (bool, bool),
) -> (Vec<Partial>, Chosen, Stats) {
    let view = SpanView {
        keys: data.keys(),
        values: data.values(),
        index: Some(index),
        compact: None,
        visible: 0..data.n,
    };
    let mut ask = ask(q, GROUP, Budget::TopK(100), estimate);
    ask.deadline = late.then(Instant::now);
    let (mut out, mut ids) = (neutral(GROUP, 32), Vec::new());
    let views = std::slice::from_ref(&view);
    let stats = attend_spans(k, views, &[], &ask, &mut Scratch::new(), &mut out, Some(&mut ids));
    (out, ids, stats)
}

#[test]
fn a_search_that_is_stopped_answers_with_what_it_has_and_the_estimate() {
    let data = Data::new(6000, 400, (DIM, 32, GROUP), 31);
    let k = Kernels::native();
    for kind in [Kind::Summary, Kind::Graph] {
        let index = data.build(kind);
        let (zero, _, stats) = step(&k, &data, &index, &[0.0; GROUP * DIM], (true, true));
        assert!(stats.deadline_hit, "{kind}");
        assert!(zero.iter().all(|p| p.l_exact + p.l_est == 6000.0), "{kind}: every token counts once");
        let (mut early, mut without) = (0.0, 0.0);
        let queries = data.fresh_queries(8, 32);
        for q in queries.chunks(GROUP * DIM) {
            let (out, ids, stats) = step(&k, &data, &index, q, (true, true));
            let (bare, _, _) = step(&k, &data, &index, q, (true, false));
            let (_, whole, _) = step(&k, &data, &index, q, (false, true));
            assert!(stats.deadline_hit && stats.keys_scored < 1500.0, "{kind}: {stats:?}");
            for (h, partial) in out.iter().enumerate() {
                assert!(!ids[h].is_empty() && ids[h].len() <= whole[h].len(), "{kind}");
                assert!(ids[h].windows(2).all(|pair| pair[0] < pair[1]), "{kind}: ascending, none twice");
                let truth = dense(&q[h * DIM..(h + 1) * DIM], &data.keys(), &data.values(), 0..data.n);
                early += truth.output_error(&partial.o);
                without += truth.output_error(&bare[h].o);
            }
        }
        assert!(early < without, "{kind}: {early}, without the estimate {without}");
    }
}

#[test]
fn every_kernel_path_finds_the_same_up_to_ties() {
    let data = Data::new(6000, 400, (DIM, 32, GROUP), 33);
    let scalar = Kernels::with(Isa::Scalar).expect("always there");
    for kind in [Kind::Flat, Kind::Summary, Kind::Graph] {
        let index = data.build_with(&scalar, kind);
        for k in Isa::available().into_iter().filter_map(Kernels::with) {
            let (mut same, mut all) = (0, 0);
            for q in data.fresh_queries(8, 34).chunks(GROUP * DIM) {
                let (_, expected, _) = step(&scalar, &data, &index, q, (false, true));
                let (_, found, _) = step(&k, &data, &index, q, (false, true));
                for (expected, found) in expected.iter().zip(&found) {
                    same += found.iter().filter(|id| expected.contains(id)).count();
                    all += expected.len();
                }
            }
            assert!(same * 200 >= all * 199, "{kind} {k:?}: {same} of {all}");
        }
    }
}
