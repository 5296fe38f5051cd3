//! Every token is counted once, at every length around every boundary, from the moment it is acknowledged.

use crate::{cluster, filled};
use client::{Budget, RowAsk};
use e2e::replay::{Replay, SMALL};
use half::f16;

const BUDGETS: [Budget; 5] =
    [Budget::TopK(1), Budget::TopK(17), Budget::TopK(100_000), Budget::Coverage(0.5), Budget::All];

/// With every logit equal, l counts: around the sink, the seals and the visible end, at every budget.
#[tokio::test]
async fn uniform_keys_count_exactly() {
    let replay = Replay::uniform(SMALL, 1700, 21);
    let (_daemons, cluster) = cluster(2).await;
    let session = filled(&cluster, &replay, 1500, 1400).await;
    let around = |n: u64| [n - 1, n, n + 1];
    let ends: Vec<u64> = [around(1), around(128), around(256), around(1400)]
        .concat()
        .into_iter()
        .chain([700, 1499, 1500])
        .collect();
    for budget in BUDGETS {
        let mut asks = Vec::new();
        for begin in [0, 1, 127, 128, 129, 1399, 1400, 1450] {
            let ends = ends.iter().filter(|&&end| end >= begin);
            asks.extend(ends.map(|&end| replay.ask(0, begin..end, budget, true)));
        }
        let answers = session.attend(asks.clone()).await.expect("attend");
        for (ask, answer) in asks.iter().zip(answers) {
            let visible = (ask.end - ask.begin) as f32;
            for (h, p) in answer.partials.iter().enumerate() {
                assert_eq!(p.l(), visible, "{budget:?}, head {h}, [{}, {})", ask.begin, ask.end);
                assert_eq!(p.m, if visible == 0.0 { f32::NEG_INFINITY } else { 0.0 });
            }
        }
    }
}

/// Decode growth past the automatic seal: after each token the count is one more.
#[tokio::test]
async fn decode_grows_by_one_across_the_automatic_seal() {
    let replay = Replay::uniform(SMALL, 1300, 22);
    let (_daemons, cluster) = cluster(2).await;
    let session = filled(&cluster, &replay, 200, 128).await;
    for position in 200..1300u64 {
        let asks: Vec<RowAsk> = (0..SMALL.layers)
            .map(|layer| replay.decode(layer, position, 0..position + 1, Budget::TopK(5)))
            .collect();
        let answers = session.attend(asks).await.expect("attend");
        for partial in answers.iter().flat_map(|answer| &answer.partials) {
            assert_eq!(partial.l(), (position + 1) as f32, "after token {position}");
        }
        assert_eq!(session.watermark(), position + 1);
    }
    let inspected = session.inspect().await.expect("inspect");
    let spans = inspected.iter().flat_map(|shard| &shard.sessions).flat_map(|session| &session.spans);
    assert!(spans.filter(|span| span.end > 1024).count() >= 6, "each head sealed what was decoded");
}

/// The query right after the acknowledgement sees the chunk, under load by another session.
#[tokio::test]
async fn an_acknowledged_chunk_is_seen_at_once() {
    let replay = Replay::uniform(SMALL, 1200, 23);
    let (_daemons, cluster) = cluster(2).await;
    let session = cluster.open(replay.spec()).await.expect("open");
    let other = cluster.open(replay.spec()).await.expect("open");
    let load = async {
        for step in 0..24 {
            replay.append(&other, step * 50..step * 50 + 50, None).await.expect("append");
        }
    };
    let check = async {
        for step in 0..24 {
            let end = (step * 50 + 50) as u64;
            assert_eq!(replay.append(&session, step * 50..step * 50 + 50, None).await.expect("append"), end);
            let answers =
                session.attend(vec![replay.ask(1, 0..end, Budget::All, false)]).await.expect("attend");
            assert!(answers[0].partials.iter().all(|p| p.l_exact == end as f32), "after {end}");
        }
    };
    tokio::join!(load, check);
}

/// A dropped token has no weight, its position can be written again, and a range beyond the end is refused.
#[tokio::test]
async fn truncated_tokens_have_no_weight() {
    let replay = Replay::new(SMALL, 1500, 24);
    let other = Replay::new(SMALL, 1500, 25);
    let (_daemons, cluster) = cluster(2).await;
    let session = filled(&cluster, &replay, 1500, 1400).await;
    for length in [1450u64, 1400, 1000, 64] {
        assert_eq!(session.truncate(length).await.expect("truncate"), length);
        let beyond = session.attend(vec![replay.ask(0, 0..length + 1, Budget::All, false)]).await;
        let line = beyond.expect_err("beyond what is held").to_string();
        assert!(line.contains("out of range") && line.contains(&format!("holds {length} tokens")), "{line}");
        let ask = replay.ask(0, 0..length, Budget::All, false);
        let answers = session.attend(vec![ask.clone()]).await.expect("attend");
        assert!(replay.error(&ask, &answers[0].partials) < 1e-5, "at {length}");
    }
    other.append(&session, 64..900, Some(800)).await.expect("append again");
    let ask = other.ask(1, 64..900, Budget::All, false);
    let answers = session.attend(vec![ask.clone()]).await.expect("attend");
    assert!(other.error(&ask, &answers[0].partials) < 1e-5, "what was written last");
}

/// A chunk that leaves a gap or overlaps is refused whole, and a number that is none is refused with its position.
#[tokio::test]
async fn refused_chunks_store_nothing() {
    let replay = Replay::new(SMALL, 400, 26);
    let (_daemons, cluster) = cluster(2).await;
    let session = cluster.open(replay.spec()).await.expect("open");
    replay.append(&session, 0..100, None).await.expect("append");
    for range in [101..110, 99..110] {
        let line = replay.append(&session, range, None).await.expect_err("a gap").to_string();
        assert!(line.contains("begin") && line.contains("100 tokens"), "{line}");
    }
    let g = &SMALL;
    let (mut k, v) = (vec![f16::ONE; g.kv_heads * g.key_dim], vec![f16::ONE; g.kv_heads * g.value_dim]);
    k[g.key_dim + 3] = f16::NAN;
    let chunk = client::LayerChunk {
        layer: 1,
        begin: 100,
        k: &k,
        v: &v,
        q: &[],
        q_pos: &[],
        q_window: 0,
        seal_to: None,
    };
    let line = session.append(chunk).await.expect_err("NaN").to_string();
    assert!(line.contains("k[0, 1, 3]: NaN"), "{line}");
    let mut ask = replay.ask(0, 0..100, Budget::All, false);
    ask.q[5] = f32::INFINITY;
    let line = session.attend(vec![ask]).await.expect_err("inf").to_string();
    assert!(line.contains("q[0, 5]: inf"), "{line}");
    assert_eq!(replay.append(&session, 100..200, None).await.expect("append"), 200);
}
