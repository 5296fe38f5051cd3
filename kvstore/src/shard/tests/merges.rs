//! Merges through the verbs: decode appends while the builder works, memory that is short, truncation, closing.

use super::life::{metric, until};
use super::*;
use wire::convert::Budget;

const SEAL: u64 = 64;

/// A node that seals every [`SEAL`] decoded tokens and indexes from there on.
fn small_seals(change: impl FnOnce(&mut NodeConfig)) -> Arc<Node> {
    node(|c| {
        (c.seal_tokens, c.index_min_tokens) = (SEAL, SEAL);
        change(c);
    })
}

/// Decodes tokens of layer 0 up to `end`; each asks for what lies 16 tokens back.
async fn decoded(n: &Arc<Node>, f: &v1::Fingerprint, begin: u64, end: u64) {
    for position in begin..end {
        let mut r = row(1, f, 0, 8, (position + 1).saturating_sub(16).max(8), false);
        r.budget = Some(Budget::TopK(20).write());
        r.token = Some(token(f, 0, position));
        let answer = ask(n, r).await;
        assert_eq!(answer.error, None);
    }
}

async fn waited(n: &Arc<Node>) -> v1::SessionInfo {
    n.wait_ready(v1::WaitReadyRequest { session: vec![1; 16], timeout_ms: 60_000 }).await.unwrap();
    told(n, 1).await
}

fn layout(told: &v1::SessionInfo) -> Vec<(u64, u64, u64)> {
    told.spans.iter().map(|s| (s.begin, s.end, s.version)).collect()
}

fn merges(n: &Node, result: &str) -> f64 {
    metric(&n.render_metrics(), &format!("recollect_span_merges_total{{result=\"{result}\"}}"))
}

#[tokio::test]
async fn spans_of_decode_become_few_and_are_found_by_their_versions() {
    for deterministic in [false, true] {
        let f = fingerprint(1, 2, 1, 16, 16);
        let n = small_seals(|_| {});
        filled(&n, &f, v1::OpenRequest { deterministic, ..open(1, &f) }, 200, &[8, 168]).await;
        decoded(&n, &f, 200, 168 + 7 * SEAL).await;
        let told = waited(&n).await;
        if deterministic {
            // 160, then 64 seven times: 64 + 64; 160 + that + 64; 64 + 64; that + 64 + 64.
            let (middle, end) = (168 + 3 * SEAL, 168 + 7 * SEAL);
            assert_eq!(layout(&told), [(0, 8, 1), (8, middle, 3), (middle, end, 5)]);
            assert_eq!(merges(&n, "ok"), 4.0);
        }
        assert!(told.spans.len() <= 4 && told.spans.iter().all(|s| s.ready), "{:?}", layout(&told));
        assert!(told.spans.iter().skip(1).all(|s| s.index_bytes > 0));
        let text = n.render_metrics();
        let seconds = metric(&text, "recollect_span_merge_seconds_count");
        assert_eq!(seconds, merges(&n, "ok"));
        assert_eq!(merges(&n, "ok") + merges(&n, "cancelled"), 4.0);
        assert_eq!(metric(&text, "recollect_index_builds_total{result=\"ok\"}"), 8.0 + seconds);
        // One copy of every row, and the queries kept for the next merge.
        let snapshot = n.snapshot();
        assert_eq!(snapshot.kv_bytes, told.watermark * 64);
        assert!(snapshot.scratch_bytes > 0);
        assert_exact(&f, &ask(&n, row(1, &f, 0, 0, told.watermark, false)).await, 0, 0, told.watermark);
        n.close(v1::CloseRequest { session: vec![1; 16] }).await.unwrap();
        until("memory returns", || n.snapshot().granted_bytes == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uniform_keys_count_at_every_budget_while_merges_are_in_flight() {
    let f = fingerprint(1, 2, 1, 8, 8);
    let n = small_seals(|_| {});
    filled(&n, &f, open(1, &f), 700, &[8, 668]).await;
    let mut in_flight = 0;
    for position in 700..700 + 12 * SEAL {
        let mut r = row(1, &f, 0, 0, position + 1, true);
        r.token = Some(token(&f, 0, position));
        assert!(mass(&ask(&n, r).await).iter().all(|&l| l == position as f32 + 1.0));
        in_flight += usize::from(n.snapshot().builds_pending > 0);
        if position % 13 == 0 {
            for (i, budget) in
                [Budget::TopK(1), Budget::TopK(50), Budget::Coverage(0.5), Budget::All].iter().enumerate()
            {
                for end in [position + 1, position - 40 * i as u64, 669, 640] {
                    let mut r = row(1, &f, 0, 3 * i as u64, end, true);
                    (r.budget, r.estimate) = (Some(budget.write()), true);
                    let (l, count) = (mass(&ask(&n, r).await), (end - 3 * i as u64) as f32);
                    assert!(
                        l.iter().all(|l| (l - count).abs() <= 1e-5 * count),
                        "{budget:?} {end}: {l:?} {count}"
                    );
                }
            }
        }
    }
    assert!(in_flight > 0, "nothing was ever in flight");
    assert!(waited(&n).await.spans.len() <= 6);
    assert!(merges(&n, "ok") >= 4.0);
}

#[tokio::test]
async fn without_memory_nothing_merges_and_answers_go_on() {
    let f = fingerprint(1, 1, 1, 32, 32);
    // KV and indexes of all tokens fit, a second copy of the long run with the memory to index it does not.
    let n = small_seals(|c| c.memory_bytes = 190_000);
    filled(&n, &f, open(1, &f), 400, &[8, 328, 392]).await;
    let before = waited(&n).await;
    assert_eq!(before.spans.len(), 3);
    decoded(&n, &f, 400, 392 + 5 * SEAL).await;
    let told = waited(&n).await;
    assert!(merges(&n, "refused") >= 1.0, "{}", n.render_metrics());
    assert_eq!(told.spans[1].version, 1, "{:?}", layout(&told));
    let end = told.watermark;
    assert_eq!(end, 392 + 5 * SEAL);
    assert_exact(&f, &ask(&n, row(1, &f, 0, 0, end, false)).await, 0, 0, end);
    assert_eq!(n.snapshot().kv_bytes, (8 + 320 + 6 * SEAL) * 128);
}

#[tokio::test]
async fn a_truncation_or_a_close_while_merging_leaves_nothing_behind() {
    let f = fingerprint(1, 1, 1, 16, 16);
    for cut in [100, 300, 8 + 4 * SEAL, 9] {
        let n = small_seals(|_| {});
        filled(&n, &f, open(1, &f), 8 + SEAL, &[8, 8 + SEAL]).await;
        decoded(&n, &f, 8 + SEAL, 8 + 6 * SEAL).await;
        n.truncate(v1::TruncateRequest { session: vec![1; 16], length: cut }).await.unwrap();
        assert_exact(&f, &ask(&n, row(1, &f, 0, 0, cut, false)).await, 0, 0, cut);
        decoded(&n, &f, cut, cut + 2 * SEAL).await;
        let end = cut + 2 * SEAL;
        assert_exact(&f, &ask(&n, row(1, &f, 0, 0, end, false)).await, 0, 0, end);
        waited(&n).await;
        assert_exact(&f, &ask(&n, row(1, &f, 0, 0, end, false)).await, 0, 0, end);
        decoded(&n, &f, end, end + 3 * SEAL).await;
        n.close(v1::CloseRequest { session: vec![1; 16] }).await.unwrap();
        until("memory returns", || n.snapshot().granted_bytes == 0).await;
    }
}

#[tokio::test]
async fn merging_can_be_switched_off() {
    let f = fingerprint(1, 1, 1, 16, 16);
    let n = small_seals(|c| c.merge = false);
    filled(&n, &f, open(1, &f), 8 + SEAL, &[8, 8 + SEAL]).await;
    decoded(&n, &f, 8 + SEAL, 8 + 5 * SEAL).await;
    assert_eq!(waited(&n).await.spans.len(), 6);
    assert_eq!(metric(&n.render_metrics(), "recollect_span_merge_seconds_count"), 0.0);
}
