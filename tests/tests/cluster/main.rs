//! Real shard processes, real sockets: answers, boundaries, faults, limits, the life of the process, telemetry.

mod answers;
mod boundaries;
mod faults;
mod limits;
mod process;
mod telemetry;

use client::{Cluster, Session, SessionSpec};
use e2e::daemon::Daemon;
use e2e::replay::Replay;

/// Daemons of a small budget, and the cluster they form.
async fn cluster(shards: usize) -> (Vec<Daemon>, Cluster) {
    let start = || Daemon::start(&["--memory", "256MiB"]).expect("a daemon");
    let daemons: Vec<Daemon> = (0..shards).map(|_| start()).collect();
    let cluster = connect(&daemons).await;
    (daemons, cluster)
}

async fn connect(daemons: &[Daemon]) -> Cluster {
    let addresses: Vec<&str> = daemons.iter().map(|daemon| daemon.grpc.as_str()).collect();
    Cluster::connect(&addresses).await.expect("connect")
}

/// A session that holds the first `tokens` of the replay: the sink sealed as its own span, then up to `seal_to`.
async fn filled(cluster: &Cluster, replay: &Replay, tokens: usize, seal_to: usize) -> Session {
    let session = spread(cluster, replay).await;
    let sink = 128.min(seal_to);
    replay.append(&session, 0..sink, Some(sink as u64)).await.expect("append the sink");
    let watermark =
        replay.append(&session, sink..tokens, Some(seal_to as u64)).await.expect("append the rest");
    assert_eq!(watermark, tokens as u64);
    session
}

/// An empty session that has heads on every shard. Placement hashes the addresses, which differ from run to run, so that
/// a few heads may all fall on one shard; another lineage then places them anew.
async fn spread(cluster: &Cluster, replay: &Replay) -> Session {
    for lineage in 0..64u8 {
        let spec = SessionSpec { lineage: Some(vec![lineage]), ..replay.spec() };
        let session = cluster.open(spec).await.expect("open");
        if session.shard_names().count() == cluster.shards().count() {
            return session;
        }
        session.close().await.expect("close");
    }
    panic!("64 lineages and none uses every shard");
}
