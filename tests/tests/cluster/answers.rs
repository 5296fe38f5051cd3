//! What comes back is right, wherever the heads lie.

use crate::{cluster, filled};
use client::{Budget, RowAsk, Session};
use e2e::replay::{Replay, SMALL, bits, difference};

const TOKENS: usize = 3000;
const SEALED: usize = 2500;

fn asks(replay: &Replay, budget: Budget, estimate: bool) -> Vec<RowAsk> {
    let ends = [1, 128, 129, 1000, SEALED as u64, TOKENS as u64];
    let layers = 0..replay.geometry.layers;
    let ranges = ends.into_iter().flat_map(|end| [0..end, end / 3..end]);
    ranges
        .flat_map(|range| layers.clone().map(move |layer| (layer, range.clone())))
        .map(|(layer, range)| replay.ask(layer, range, budget, estimate))
        .collect()
}

async fn answer(session: &Session, asks: &[RowAsk]) -> Vec<client::RowAnswer> {
    let answers = session.attend(asks.to_vec()).await.expect("attend");
    assert!(answers.iter().all(|a| a.missing_tokens == 0 && !a.stats.deadline_hit));
    answers
}

/// Budget all over two shards is dense attention, and so it is over one and over three.
#[tokio::test]
async fn any_placement_is_dense_attention_at_budget_all() {
    let replay = Replay::new(SMALL, TOKENS, 11);
    for shards in [1, 2, 3] {
        let (_daemons, cluster) = cluster(shards).await;
        let session = filled(&cluster, &replay, TOKENS, SEALED).await;
        let asks = asks(&replay, Budget::All, false);
        for (ask, answer) in asks.iter().zip(answer(&session, &asks).await) {
            let error = replay.error(ask, &answer.partials);
            assert!(
                error < 1e-5,
                "{shards} shards, layer {}, [{}, {}): {error}",
                ask.layer,
                ask.begin,
                ask.end
            );
        }
        assert_eq!(session.shard_names().count(), shards, "every shard holds some of it");
        assert!(session.close().await.expect("close") > 0);
    }
}

/// The same spans give the same selections wherever they lie: outputs agree to rounding, the counts exactly.
#[tokio::test]
async fn any_placement_selects_the_same_tokens() {
    let replay = Replay::new(SMALL, TOKENS, 12);
    let (_one, single) = cluster(1).await;
    let (_two, pair) = cluster(2).await;
    let alone = filled(&single, &replay, TOKENS, SEALED).await;
    let split = filled(&pair, &replay, TOKENS, SEALED).await;
    for (budget, estimate) in
        [(Budget::TopK(64), true), (Budget::TopK(64), false), (Budget::Coverage(0.8), true)]
    {
        let asks = asks(&replay, budget, estimate);
        let (a, b) = (answer(&alone, &asks).await, answer(&split, &asks).await);
        for ((ask, a), b) in asks.iter().zip(&a).zip(&b) {
            let off = difference(&a.partials, &b.partials);
            assert!(off < 1e-5, "{budget:?}, layer {}, [{}, {}): {off}", ask.layer, ask.begin, ask.end);
            assert!(
                (a.stats.exact_tokens - b.stats.exact_tokens).abs() < 1e-6,
                "{:?} {:?}",
                a.stats,
                b.stats
            );
        }
    }
}

/// Two runs on new processes: the same bits.
#[tokio::test]
async fn deterministic_runs_give_the_same_bits() {
    let replay = Replay::new(SMALL, TOKENS, 13);
    let mut runs = Vec::new();
    for _ in 0..2 {
        let (_daemons, cluster) = cluster(2).await;
        let session = filled(&cluster, &replay, TOKENS - 40, SEALED).await;
        let mut seen = Vec::new();
        for position in TOKENS as u64 - 40..TOKENS as u64 {
            for layer in 0..SMALL.layers {
                let ask = replay.decode(layer, position, 0..position + 1, Budget::TopK(50));
                seen.extend(bits(&answer(&session, &[ask]).await[0].partials));
            }
        }
        assert_eq!(session.watermark(), TOKENS as u64);
        runs.push(seen);
    }
    assert!(runs[0] == runs[1], "the second run differs");
}

/// A top-k answer with the remainder estimated is close to dense attention, and a range is not left.
#[tokio::test]
async fn a_small_budget_is_close_and_stays_in_its_range() {
    let replay = Replay::new(SMALL, TOKENS, 14);
    let (_daemons, cluster) = cluster(2).await;
    let session = filled(&cluster, &replay, TOKENS, SEALED).await;
    let ready = session.wait_ready(std::time::Duration::from_secs(30)).await.expect("wait");
    assert!(ready.is_ready() && ready.spans == 2 * 6, "two spans for each of six heads: {ready:?}");
    let asks = asks(&replay, Budget::TopK(100), true);
    for (ask, answer) in asks.iter().zip(answer(&session, &asks).await) {
        let error = replay.error(ask, &answer.partials);
        assert!(error < 0.6, "layer {}, [{}, {}): {error}", ask.layer, ask.begin, ask.end);
        let fresh = ask.end.saturating_sub(SEALED as u64) as f64;
        assert!(answer.stats.exact_tokens <= 100.0 + fresh, "{:?}", answer.stats);
    }
}
