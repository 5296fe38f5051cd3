//! An index as bytes: the same answers to the bit, and no bytes that make a search fail.

use attention::Partial;
use index::{Budget, Chosen, Kind, SavedError, Scratch, Shape, SpanIndex, SpanView, Stats, attend_spans};
use kernels::Kernels;
use proptest::prelude::*;

use crate::data::{Data, ask, neutral};

const GROUP: usize = 2;
const DIMS: (usize, usize, usize) = (20, 12, GROUP);

fn answer(data: &Data, index: &SpanIndex, q: &[f32], budget: Budget) -> (Vec<Partial>, Chosen, Stats) {
    let view = SpanView {
        keys: data.keys(),
        values: data.values(),
        index: Some(index),
        compact: None,
        visible: 0..data.n,
    };
    let (mut out, mut ids) = (neutral(GROUP, DIMS.1), Vec::new());
    let ask = ask(q, GROUP, budget, true);
    let views = std::slice::from_ref(&view);
    let k = Kernels::native();
    let stats = attend_spans(&k, views, &[], &ask, &mut Scratch::new(), &mut out, Some(&mut ids));
    (out, ids, stats)
}

fn shape(data: &Data) -> Shape {
    Shape { tokens: data.n, key_dim: data.dim, value_dim: data.value_dim }
}

#[test]
fn a_saved_index_answers_as_before_to_the_bit() {
    // Two segments.
    let data = Data::new(17_000, 200, DIMS, 5);
    for kind in [Kind::Flat, Kind::Summary, Kind::Graph, Kind::Auto] {
        let index = data.build(kind);
        let bytes = index.save().unwrap();
        let again = SpanIndex::load(&bytes, shape(&data)).unwrap();
        assert_eq!(again.save().unwrap(), bytes, "{kind}");
        assert_eq!((again.kind(), again.width()), (index.kind(), index.width()));
        assert_eq!((again.recall_estimate(), again.bytes()), (index.recall_estimate(), index.bytes()));
        assert_eq!(again.build_stats(), index.build_stats());
        for q in data.fresh_queries(6, 3).chunks(GROUP * data.dim) {
            for budget in [Budget::TopK(30), Budget::Coverage(0.6), Budget::All] {
                assert_eq!(answer(&data, &again, q, budget), answer(&data, &index, q, budget), "{kind}");
            }
        }
    }
    let hnsw = Data::new(300, 40, DIMS, 5).build(Kind::Hnsw);
    assert!(hnsw.save().is_none());
}

#[test]
fn what_does_not_fit_is_refused_with_the_reason() {
    let data = Data::new(600, 60, DIMS, 7);
    let bytes = data.build(Kind::Summary).save().unwrap();
    let load = |bytes: &[u8], shape| SpanIndex::load(bytes, shape).map(drop);
    let fits = shape(&data);
    for at in [0, 3, 4, 5, 12, 21, 40, bytes.len() / 2, bytes.len() - 1] {
        assert_eq!(load(&bytes[..at], fits), Err(SavedError::Short), "{at}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert_eq!(load(&longer, fits), Err(SavedError::Beyond(1)));
    longer[0] = 2;
    assert_eq!(load(&longer, fits), Err(SavedError::Version(2)));
    for wrong in [
        Shape { tokens: 601, ..fits },
        Shape { key_dim: 21, ..fits },
        Shape { value_dim: 11, ..fits },
        Shape { tokens: usize::MAX, ..fits },
    ] {
        let error = load(&bytes, wrong).unwrap_err();
        assert!(matches!(error, SavedError::Length { .. }), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn damaged_bytes_are_refused_or_searched_without_harm(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..4), graph: bool,
    ) {
        let data = Data::new(600, 60, DIMS, 9);
        let mut bytes = data.build(if graph { Kind::Graph } else { Kind::Summary }).save().unwrap();
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        if let Ok(index) = SpanIndex::load(&bytes, shape(&data)) {
            let q = data.fresh_queries(1, 3);
            for budget in [Budget::TopK(30), Budget::Coverage(0.6), Budget::All] {
                let (partials, ids, _) = answer(&data, &index, &q, budget);
                prop_assert_eq!((partials.len(), ids.len()), (GROUP, GROUP));
            }
        }
    }
}
