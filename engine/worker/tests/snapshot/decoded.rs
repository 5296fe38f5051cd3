//! What decode leaves behind: spans of many lengths, merged ones, windows that move, a tail that was taken back.

use crate::daemon::Daemon;
use crate::pool::*;
use crate::text;
use client::{Budget, Cluster, NewTokenKv, RowAsk, Session};
use half::f16;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::runtime::Runtime;

/// Decodes positions `from..to`. What a query does not ask for grows and shrinks, up to all of it.
async fn decode(session: &Session, from: u64, to: u64) {
    let mut rng = StdRng::seed_from_u64(from);
    let mut noise = |n: usize| -> Vec<f32> { (0..n).map(|_| rng.random_range(-1.0f32..1.0)).collect() };
    for position in from..to {
        let rows = (0..LAYERS).map(|layer| {
            let mut halves = |n: usize| noise(n).into_iter().map(f16::from_f32).collect();
            let (k, v) = (halves(KV_HEADS * KEY_DIM), halves(KV_HEADS * VALUE_DIM));
            let end = if position % 16 == 0 { 1 } else { position - position % 48 };
            RowAsk {
                layer,
                begin: 0,
                end,
                budget: Budget::TopK(4),
                estimate: false,
                q: noise(Q_HEADS * KEY_DIM),
                beside: Vec::new(),
                token: Some(NewTokenKv { position, k, v }),
            }
        });
        let answers = session.attend(rows.collect()).await.unwrap();
        assert_eq!(answers.len(), LAYERS as usize);
    }
}

#[test]
fn a_session_that_decoded_merged_and_took_tokens_back_comes_back_the_same() {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_with(&[("RECOLLECT__INDEX__SEAL_TOKENS", "128")]);
    for (tokens, cut) in [(1500, 1500), (1500, 1340)] {
        let (id, want) = runtime.block_on(async {
            let cluster = Cluster::connect(&[&daemon.address]).await.unwrap();
            let session = cluster.open(spec(tokens)).await.unwrap();
            fill(&session, &[(16, 16), (400, 300)], 4, 32).await;
            decode(&session, 400, tokens).await;
            session.truncate(cut).await.unwrap();
            let id = session.leave();
            let want = contents(&cluster, &id).await;
            (wire::convert::hex(&id), want)
        });
        let ends = &want[0].3;
        assert!(ends.len() > 3, "the sink, the prefill, some of decode: {ends:?}");
        let out = folder.path().join(format!("cut-{cut}"));
        told(&["snapshot", "save", "--shard", &daemon.address, &id, "--out", text(&out)]);
        let (daemons, restored) = spread(2, text(&out));
        let got = runtime.block_on(async { contents(&connect(&daemons).await, &id_of(&restored)).await });
        for (head, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got.0.len(), cut as usize * KEY_DIM);
            assert!(got.0 == want.0 && got.1 == want.1, "head {head}: rows");
            assert!(got.2 == want.2, "head {head}: samples: {:?}, were {:?}", got.2.pos, want.2.pos);
            let end = |spans: &[String]| -> Vec<String> {
                spans.iter().map(|span| span.split(' ').next().unwrap().to_owned()).collect()
            };
            assert_eq!(end(&got.3), end(&want.3), "head {head}");
        }
    }
}
