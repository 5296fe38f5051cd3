//! Random appends, seals, decode steps, truncations and waits against a plain list of what was written, while spans are
//! indexed and merged in the background.

use super::*;
use proptest::prelude::*;
use wire::convert::Budget;

#[derive(Debug, Clone)]
enum Op {
    /// Tokens, and how many of the newest stay fresh when sealing.
    Append(u64, Option<u64>),
    Decode,
    /// Keep this part, in 1/16.
    Truncate(u64),
    /// From and to, in 1/16.
    Ask(u64, u64, u32),
    /// Until all builds and merges have ended.
    Wait,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (1u64..20, proptest::option::of(0u64..6)).prop_map(|(n, s)| Op::Append(n, s)),
        Just(Op::Decode),
        Just(Op::Decode),
        (0u64..=16).prop_map(Op::Truncate),
        (0u64..=16, 0u64..=16, 1u32..30).prop_map(|(a, b, k)| Op::Ask(a.min(b), a.max(b), k)),
        Just(Op::Wait),
    ]
}

/// Every write is of another generation, which stands in for the layer in the numbers of [`element`].
fn written(generation: u32, begin: u64, tokens: u64) -> v1::AppendChunk {
    let numbers = fingerprint(1, 1, 1, 2, 2);
    v1::AppendChunk { layer: 0, ..chunk(1, &numbers, generation, begin, tokens) }
}

/// Attention over the tokens of these generations at `[begin, begin + list.len())` in f64: m, l and o.
fn oracle(list: &[u32], begin: u64, q: &[f32]) -> (f64, f64, Vec<f64>) {
    let row = |value| move |(&g, t): (&u32, u64)| [0, 1].map(|d| element(g, 0, t, d, value).to_f64());
    let logit = |k: [f64; 2]| q.iter().zip(k).map(|(&q, k)| f64::from(q) * k).sum::<f64>();
    let z: Vec<f64> = list.iter().zip(begin..).map(row(false)).map(logit).collect();
    let m = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let l: f64 = z.iter().map(|z| (z - m).exp()).sum();
    let mut o = vec![0.0; 2];
    for (z, v) in z.iter().zip(list.iter().zip(begin..).map(row(true))) {
        o.iter_mut().zip(v).for_each(|(o, v)| *o += (z - m).exp() / l * v);
    }
    (m, l, o)
}

/// Budget all is dense attention over what was written; a width that finds everything is too.
async fn assert_dense(n: &Arc<Node>, f: &v1::Fingerprint, list: &[u32], begin: u64, end: u64) {
    let r = ask(n, row(1, f, 0, begin, end, false)).await;
    let (m, l, o) = oracle(&list[begin as usize..end as usize], begin, &query(f, false));
    assert!((f64::from(floats(&r.m)[0]) - m).abs() < 1e-4 || begin == end);
    assert!((f64::from(mass(&r)[0]) - l).abs() <= 1e-4 * l, "{begin}..{end}: l {:?} {l}", mass(&r));
    for (got, want) in floats(&r.o).iter().zip(o) {
        assert!((f64::from(*got) - want).abs() < 1e-4, "{begin}..{end}: o {got} {want}");
    }
}

async fn waited(n: &Arc<Node>) {
    let wait = v1::WaitReadyRequest { session: vec![1; 16], timeout_ms: 60_000 };
    let ready = n.wait_ready(wait).await.unwrap();
    assert_eq!(ready.ready, ready.spans);
}

/// Runs the operations; returns the layout at the end of a deterministic session.
async fn run(ops: Vec<Op>, kind: v1::IndexKind, deterministic: bool) -> Vec<(u64, u64, u64)> {
    let f = fingerprint(1, 1, 1, 2, 2);
    let n = node(|c| {
        c.seal_tokens = 8;
        c.index_min_tokens = 6;
    });
    n.open(v1::OpenRequest { deterministic, index: kind as i32, ..open(1, &f) }).await.unwrap();
    let mut list: Vec<u32> = Vec::new();
    let mut fresh = 0;
    for (generation, op) in (1..).zip(ops) {
        let len = list.len() as u64;
        match op {
            Op::Append(tokens, stay) => {
                let mut c = written(generation, len, tokens);
                c.seal_to = stay.map(|s| (len + tokens).saturating_sub(s).max(fresh));
                fresh = c.seal_to.unwrap_or(fresh);
                assert_eq!(n.append(c).await.unwrap().watermark, len + tokens);
                list.extend(std::iter::repeat_n(generation, tokens as usize));
            }
            Op::Decode => {
                let mut r = row(1, &f, 0, 0, len + 1, true);
                r.token = Some(token(&f, generation, len));
                assert_eq!(mass(&ask(&n, r).await), [len as f32 + 1.0]);
                list.push(generation);
                if len + 1 - fresh >= 8 {
                    fresh = len + 1;
                }
            }
            Op::Truncate(part) => {
                let length = len * part / 16;
                let cut = v1::TruncateRequest { session: vec![1; 16], length };
                assert_eq!(n.truncate(cut).await.unwrap().watermark, length);
                list.truncate(length as usize);
                fresh = fresh.min(length);
            }
            Op::Ask(a, b, k) => {
                let (begin, end) = (len * a / 16, len * b / 16);
                for budget in [Budget::TopK(k), Budget::All, Budget::Coverage(0.5)] {
                    let mut r = row(1, &f, 0, begin, end, true);
                    (r.budget, r.estimate) = (Some(budget.write()), true);
                    let l = mass(&ask(&n, r).await)[0];
                    assert!((l - (end - begin) as f32).abs() < 1e-3, "{begin}..{end} {budget:?}: {l}");
                }
                assert_dense(&n, &f, &list, begin, end).await;
            }
            Op::Wait => waited(&n).await,
        }
        let told = told(&n, 1).await;
        assert_eq!((told.watermark, told.fresh_tokens), (list.len() as u64, list.len() as u64 - fresh));
    }
    if !list.is_empty() {
        let end = list.len() as u64;
        let all = v1::ReadRowsRequest { session: vec![1; 16], end, ..Default::default() };
        let rows = n.read_rows(all).await.unwrap();
        for (tensor, value) in [(rows.k, false), (rows.v, true)] {
            let numbered = list.iter().zip(0..);
            let want = numbered.flat_map(|(&g, t)| (0..2).map(move |d| element(g, 0, t, d, value)));
            let want: Vec<u8> = want.flat_map(half::f16::to_le_bytes).collect();
            assert!(tensor.unwrap().data == want, "rows differ");
        }
    }
    waited(&n).await;
    assert_dense(&n, &f, &list, 0, list.len() as u64).await;
    let layout = told(&n, 1).await.spans.iter().map(|s| (s.begin, s.end, s.version)).collect();
    n.close(v1::CloseRequest { session: vec![1; 16] }).await.unwrap();
    for _ in 0..1000 {
        if n.snapshot().granted_bytes == 0 {
            return layout;
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    panic!("memory did not return: {:?}", n.snapshot());
}

fn on_a_runtime<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_held_is_what_was_written(
        ops in proptest::collection::vec(op(), 1..60),
        kind in proptest::sample::select(vec![
            v1::IndexKind::Auto, v1::IndexKind::Graph, v1::IndexKind::Summary, v1::IndexKind::Flat,
        ]),
    ) {
        on_a_runtime(run(ops, kind, false));
    }

    #[test]
    fn a_deterministic_layout_depends_on_the_operations_alone(ops in proptest::collection::vec(op(), 1..40)) {
        let quick: Vec<Op> = ops.iter().filter(|op| !matches!(op, Op::Wait | Op::Ask(..))).cloned().collect();
        let waiting: Vec<Op> = quick.iter().flat_map(|op| [op.clone(), Op::Wait]).collect();
        let layout = on_a_runtime(run(quick, v1::IndexKind::Auto, true));
        prop_assert_eq!(&layout, &on_a_runtime(run(waiting, v1::IndexKind::Auto, true)));
    }
}
