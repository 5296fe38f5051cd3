//! Random appends, seals, decode steps and truncations against a plain list of what was written.

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
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (1u64..20, proptest::option::of(0u64..6)).prop_map(|(n, s)| Op::Append(n, s)),
        Just(Op::Decode),
        Just(Op::Decode),
        (0u64..=16).prop_map(Op::Truncate),
        (0u64..=16, 0u64..=16, 1u32..30).prop_map(|(a, b, k)| Op::Ask(a.min(b), a.max(b), k)),
    ]
}

/// Every write is of another generation, which stands in for the layer in the numbers of [`element`].
fn written(generation: u32, begin: u64, tokens: u64) -> v1::AppendChunk {
    let numbers = fingerprint(1, 1, 1, 2, 2);
    v1::AppendChunk { layer: 0, ..chunk(1, &numbers, generation, begin, tokens) }
}

async fn run(ops: Vec<Op>) {
    let f = fingerprint(1, 1, 1, 2, 2);
    let n = node(|c| {
        c.seal_tokens = 8;
        c.index_min_tokens = 6;
    });
    n.open(open(1, &f)).await.unwrap();
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
            }
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
    n.close(v1::CloseRequest { session: vec![1; 16] }).await.unwrap();
    for _ in 0..1000 {
        if n.snapshot().granted_bytes == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    panic!("memory did not return: {:?}", n.snapshot());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_held_is_what_was_written(ops in proptest::collection::vec(op(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(ops));
    }
}
