//! `recollect snapshot` of real shards over real sockets.

mod damage;
mod decoded;
mod gate;
mod interrupted;
mod pool;

#[path = "../common/daemon.rs"]
mod daemon;

use client::Cluster;
use daemon::Daemon;
use pool::*;
use std::path::Path;
use tokio::runtime::Runtime;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// One shard to two, and those two to three: the same rows, samples, spans, indexes and answers, to the bit.
#[test]
fn a_session_moves_between_pools_and_nothing_changes() {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start();
    let (id, want, replies) = runtime.block_on(async {
        let cluster = Cluster::connect(&[&daemon.address]).await.unwrap();
        let id = filled(&cluster).await.leave();
        let (want, replies) = (contents(&cluster, &id).await, answers(&cluster, &id).await);
        (id, want, replies)
    });
    let spans = &want[0].3;
    assert!(
        spans.len() == 2 && spans[1].contains("5500 Summary Some"),
        "an index with an estimate: {spans:?}"
    );
    let first = folder.path().join("first");
    let session = wire::convert::hex(&id);
    let saved = told(&["snapshot", "save", "--shard", &daemon.address, &session, "--out", text(&first)]);
    for (field, value) in [("record", "summary"), ("verb", "save"), ("session", &session)] {
        assert_eq!(saved[field], value);
    }
    let heads = u64::from(LAYERS) * KV_HEADS as u64;
    let samples: u64 = want.iter().map(|head| head.2.pos.len() as u64).sum();
    let kv_bytes = TOKENS * heads * 2 * (KEY_DIM + VALUE_DIM) as u64;
    for (field, value) in [
        ("tokens", TOKENS),
        ("spans", 2 * heads),
        ("samples", samples),
        ("kv_bytes", kv_bytes),
        ("format", 1),
    ] {
        assert_eq!(saved[field], value, "{field}");
    }
    drop(daemon);
    let mut from = first;
    for shards in [2, 3] {
        let (daemons, restored) = spread(shards, text(&from));
        let id = id_of(&restored);
        runtime.block_on(async {
            let cluster = connect(&daemons).await;
            assert!(contents(&cluster, &id).await == want, "{shards} shards: contents");
            assert!(answers(&cluster, &id).await == replies, "{shards} shards: answers");
        });
        let addresses: Vec<&str> = daemons.iter().map(|daemon| daemon.address.as_str()).collect();
        from = folder.path().join(format!("of-{shards}"));
        let session = wire::convert::hex(&id);
        told(&["snapshot", "save", "--shard", &addresses.join(","), &session, "--out", text(&from)]);
        let (code, line) = refused(&[
            "snapshot",
            "save",
            "--shard",
            addresses[0],
            &session,
            "--out",
            text(&folder.path().join("part")),
        ]);
        assert!(code == 1 && line.contains("is on none of the shards given"), "{code}: {line}");
    }
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "nothing is left of what failed: {names:?}");
}

/// A durable session goes on as one; `--durable` and `--lease` override; spilled and archived rows are read.
#[test]
fn terms_are_kept_or_overridden_and_rows_come_from_every_tier() {
    let runtime = Runtime::new().unwrap();
    let (data, archive) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let url = format!("file://{}", archive.path().display());
    let set = [("RECOLLECT__STORAGE__PATH", text(data.path())), ("RECOLLECT__ARCHIVE__URL", &url)];
    let daemon = Daemon::start_with(&set);
    let shard = daemon.address.as_str();
    let (id, want) = runtime.block_on(async {
        let cluster = Cluster::connect(&[shard]).await.unwrap();
        let lease = std::time::Duration::from_secs(700);
        let session =
            cluster.open(client::SessionSpec { durable: true, lease, ..spec(TOKENS) }).await.unwrap();
        fill(&session, &PARTS, 40, 64).await;
        let id = session.leave();
        let want = contents(&cluster, &id).await;
        (id, want)
    });
    let session = wire::convert::hex(&id);
    let folder = tempfile::tempdir().unwrap();
    for tier in ["spill", "int8", "sketch", "archive"] {
        let evict = recollect(&["evict", "--shard", shard, "--session", &session, "--tier", tier]);
        assert!(evict.status.success(), "{}", String::from_utf8_lossy(&evict.stderr));
        let out = folder.path().join(tier);
        let saved = told(&["snapshot", "save", "--shard", shard, &session, "--out", text(&out)]);
        assert_eq!((&saved["durable"], &saved["lease_ms"]), (&true.into(), &700_000.into()));
        let restored = told(&["snapshot", "restore", "--shard", shard, "--from", text(&out)]);
        assert_eq!((&restored["durable"], &restored["lease_ms"]), (&true.into(), &700_000.into()));
        assert_eq!(restored["saved_session"], session);
        runtime.block_on(async {
            let cluster = Cluster::connect(&[shard]).await.unwrap();
            let id = id_of(&restored);
            assert!(contents(&cluster, &id).await == want, "{tier}");
            let held = cluster.held(&id).await.unwrap();
            assert!(held.durable() && held.terms().lease_ms == 700_000);
        });
    }
    let plain = Daemon::start();
    let out = folder.path().join("spill");
    let restore = ["snapshot", "restore", "--shard", plain.address.as_str(), "--from", text(&out)];
    let (code, line) = refused(&restore);
    assert!(code == 1 && line.contains("durable is asked for"), "{code}: {line}");
    let restored = told(&[&restore[..], &["--durable", "false", "--lease", "30"]].concat());
    assert_eq!((&restored["durable"], &restored["lease_ms"]), (&false.into(), &30_000.into()));
}
