//! Time of one attend round trip over loopback, beside the shard's own compute time: what client, wire and service cost.
//! `cargo run --release -p e2e --example roundtrip`

use client::{Budget, Cluster};
use e2e::daemon::Daemon;
use e2e::replay::{Geometry, Replay};
use std::time::{Duration, Instant};

const GEOMETRY: Geometry = Geometry { layers: 1, q_heads: 9, kv_heads: 3, key_dim: 64, value_dim: 64 };
const STEPS: usize = 3000;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let replay = Replay::new(GEOMETRY, 256, 1);
    for shards in [1, 2] {
        let daemons =
            (0..shards).map(|_| Daemon::start(&["--memory", "256MiB"])).collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<&str> = daemons.iter().map(|daemon| daemon.grpc.as_str()).collect();
        let session = Cluster::connect(&addresses).await?.open(replay.spec()).await?;
        replay.append(&session, 0..256, None).await?;
        for tokens in [1, 256] {
            let mut whole = Vec::with_capacity(STEPS);
            let mut compute = Vec::with_capacity(STEPS);
            for _ in 0..STEPS {
                let ask = replay.ask(0, 0..tokens, Budget::All, false);
                let started = Instant::now();
                let answer = session.attend(vec![ask]).await?;
                whole.push(started.elapsed());
                compute.push(Duration::from_micros(answer[0].stats.compute_us));
            }
            whole.sort();
            compute.sort();
            let at = |sorted: &[Duration], share: f64| sorted[(share * (sorted.len() - 1) as f64) as usize];
            println!(
                "{} of {shards} shards used, {tokens} tokens: p50 {:?}, p99 {:?}; of it compute p50 {:?}",
                session.shard_names().count(),
                at(&whole, 0.5),
                at(&whole, 0.99),
                at(&compute, 0.5),
            );
        }
        session.close().await?;
    }
    Ok(())
}
