//! Recall and visited counts on the scalar path, against golden numbers. `RECOLLECT_GOLDEN=write` rewrites them.

use std::fmt::Write;
use std::path::PathBuf;

use index::{Budget, Kind, Scratch, SpanView, attend_spans};
use kernels::{Isa, Kernels};

use crate::data::{Data, ask, neutral};

#[test]
fn recall_and_visited_counts() {
    let (group, dim) = (2, 64);
    let data = Data::new(8000, 1000, (dim, 32, group), 21);
    let scalar = Kernels::with(Isa::Scalar).expect("always there");
    let queries = data.fresh_queries(24, 22);
    let find = |kind: Option<Kind>| {
        let index = kind.map(|kind| data.build_with(&scalar, kind));
        let view = SpanView {
            keys: data.keys(),
            values: data.values(),
            index: index.as_ref(),
            compact: None,
            visible: 0..data.n,
        };
        let mut scratch = Scratch::new();
        let (mut scored, mut chosen) = (0.0, Vec::new());
        for q in queries.chunks(group * dim) {
            let (mut out, mut ids) = (neutral(group, 32), Vec::new());
            let ask = ask(q, group, Budget::TopK(100), false);
            let views = std::slice::from_ref(&view);
            scored +=
                attend_spans(&scalar, views, &[], &ask, &mut scratch, &mut out, Some(&mut ids)).keys_scored;
            chosen.extend(ids);
        }
        (scored / 24.0, chosen, index.map_or(0, |i| i.width()))
    };
    let (_, truth, _) = find(None);
    let mut text = String::new();
    for kind in [Kind::Graph, Kind::Summary] {
        let (scored, chosen, width) = find(Some(kind));
        let found: usize =
            chosen.iter().zip(&truth).map(|(c, t)| t.iter().filter(|id| c.contains(id)).count()).sum();
        let recall = found as f64 / (100 * truth.len()) as f64;
        assert!(recall > 0.9, "{kind}: {recall}");
        assert!(scored < 4000.0, "{kind}: {scored}");
        writeln!(text, "{kind} recall {recall:.2} scored {scored:.0} width {width}").expect("a string");
    }
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/laws/golden.txt");
    if std::env::var("RECOLLECT_GOLDEN").is_ok_and(|v| v == "write") {
        std::fs::write(&path, &text).expect("the source tree is writable");
    }
    let golden = std::fs::read_to_string(&path).expect("the golden file is there");
    assert_eq!(text, golden);
}
