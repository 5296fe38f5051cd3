//! Shards and workers that end in the middle, and stop signals.

use crate::{cluster, connect, filled};
use client::{Budget, Cluster, Config, Kind, SessionSpec};
use e2e::daemon::Daemon;
use e2e::http;
use e2e::replay::{Replay, SMALL};
use std::time::{Duration, Instant};
use wire::v1;
use wire::v1::kv_client::KvClient;

/// SIGKILL of one shard of two: the next step fails and names it; the other shard is not blamed.
#[tokio::test]
async fn a_killed_shard_is_named() {
    let replay = Replay::new(SMALL, 600, 31);
    let (mut daemons, cluster) = cluster(2).await;
    let session = filled(&cluster, &replay, 500, 400).await;
    let address = daemons[1].grpc.clone();
    daemons.remove(1).kill().expect("kill");
    let started = Instant::now();
    let asks = (0..SMALL.layers).map(|layer| replay.decode(layer, 500, 0..501, Budget::TopK(10)));
    let error = session.attend(asks.collect()).await.expect_err("a shard is gone");
    assert!(error.to_string().starts_with(&format!("shard {address}: unavailable: ")), "{error}");
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(started.elapsed() < Duration::from_secs(30), "long before the deadline of the session");
    let asks = (0..SMALL.layers).map(|layer| replay.ask(layer, 0..500, Budget::All, false));
    let error = session.attend(asks.collect()).await.expect_err("still gone");
    assert_eq!(error.shard(), Some(address.as_str()), "{error}");
}

/// Another process on the same port: refused as restarted, by every call.
#[tokio::test]
async fn a_restarted_shard_is_refused() {
    let replay = Replay::new(SMALL, 600, 32);
    let (mut daemons, cluster) = cluster(2).await;
    let session = filled(&cluster, &replay, 500, 400).await;
    let address = daemons[0].grpc.clone();
    daemons.remove(0).kill().expect("kill");
    let _new = Daemon::start_at(&address, &["--memory", "256MiB"], "").expect("a new one");
    let line = format!("shard {address}: restarted, the session's tokens there are lost");
    // The first call may still see the end of the old connection.
    let asks: Vec<_> = (0..SMALL.layers).map(|layer| replay.ask(layer, 0..500, Budget::All, false)).collect();
    let first = session.attend(asks.clone()).await.expect_err("restarted");
    assert_eq!((first.kind(), first.shard()), (Kind::Unavailable, Some(address.as_str())), "{first}");
    assert_eq!(session.attend(asks).await.expect_err("restarted").to_string(), line);
    assert_eq!(replay.append(&session, 500..510, None).await.expect_err("restarted").to_string(), line);
    assert_eq!(session.truncate(10).await.expect_err("restarted").to_string(), line);
}

/// SIGTERM with an idle stream, a stream that nobody reads, a half-open connection and a half-sent request.
#[tokio::test]
async fn sigterm_ends_it_inside_the_grace_period() {
    let replay = Replay::new(SMALL, 600, 33);
    let (mut daemons, cluster) = cluster(1).await;
    let session = filled(&cluster, &replay, 500, 400).await;
    session.attend(vec![replay.ask(0, 0..500, Budget::All, false)]).await.expect("attend");
    let _half_open = std::net::TcpStream::connect(&daemons[0].grpc).expect("connect");
    let mut half_sent = std::net::TcpStream::connect(&daemons[0].http).expect("connect");
    std::io::Write::write_all(&mut half_sent, b"GET /met").expect("write");
    let mut stalled = KvClient::connect(format!("http://{}", daemons[0].grpc)).await.expect("connect");
    let (requests, outgoing) = tokio::sync::mpsc::channel(4);
    let _unread =
        stalled.attend(tokio_stream::wrappers::ReceiverStream::new(outgoing)).await.expect("stream");
    requests.send(v1::AttendRequest { id: 1, ..Default::default() }).await.expect("send");
    daemons[0].terminate().expect("SIGTERM");
    let status = daemons[0].wait(Duration::from_secs(20)).expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", daemons[0].log());
    let error = session.attend(vec![replay.ask(0, 0..500, Budget::All, false)]).await.expect_err("stopped");
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
}

/// A worker that dies without a word: its lease runs out and all memory comes back; others see nothing of it.
#[tokio::test]
async fn leases_return_to_zero_after_a_worker_died() {
    let replay = Replay::new(SMALL, 600, 34);
    let (daemons, cluster) = cluster(2).await;
    let other = filled(&cluster, &replay, 300, 200).await;
    let memory =
        |daemon: &Daemon| http::metric(&daemon.http, wire::names::MEMORY_BYTES, &[]).expect("metric");
    let before: Vec<f64> = daemons.iter().map(memory).collect();
    let addresses: Vec<String> = daemons.iter().map(|daemon| daemon.grpc.clone()).collect();
    let spec = SessionSpec { lease: Duration::from_millis(700), ..replay.spec() };
    // A runtime of its own ends with every connection of the client, in the middle of a stream, and with no farewell.
    let worker = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().expect("runtime");
        let session = runtime.block_on(async {
            let cluster = Cluster::connect(&addresses).await.expect("connect");
            let session = cluster.open(spec).await.expect("open");
            let replay = Replay::new(SMALL, 600, 34);
            replay.append(&session, 0..600, Some(500)).await.expect("append");
            session
        });
        runtime.shutdown_background();
        std::mem::forget(session);
    });
    worker.join().expect("the worker");
    let sessions = |daemon: &Daemon| http::metric(&daemon.http, wire::names::SESSIONS, &[]).expect("metric");
    assert!(daemons.iter().map(sessions).sum::<f64>() >= 3.0, "the lease still holds it");
    let until = Instant::now() + Duration::from_secs(15);
    while daemons.iter().map(memory).collect::<Vec<_>>() != before {
        assert!(Instant::now() < until, "memory did not come back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let ask = replay.ask(0, 0..300, Budget::All, false);
    let answers = other.attend(vec![ask.clone()]).await.expect("attend");
    assert!(replay.error(&ask, &answers[0].partials) < 1e-5);
    other.close().await.expect("close");
    for daemon in &daemons {
        assert_eq!((sessions(daemon), memory(daemon)), (0.0, 0.0), "nothing is left");
    }
}

/// A renewed lease outlives its length; an unknown session is an error, not an empty answer.
#[tokio::test]
async fn a_live_session_outlives_its_lease() {
    let replay = Replay::new(SMALL, 200, 35);
    let (daemons, cluster) = cluster(1).await;
    let spec = SessionSpec { lease: Duration::from_millis(600), ..replay.spec() };
    let session = cluster.open(spec).await.expect("open");
    replay.append(&session, 0..100, None).await.expect("append");
    tokio::time::sleep(Duration::from_millis(2000)).await;
    let ask = replay.ask(0, 0..100, Budget::All, false);
    let answers = session.attend(vec![ask.clone()]).await.expect("attend");
    assert!(replay.error(&ask, &answers[0].partials) < 1e-5);
    let mut raw = KvClient::connect(format!("http://{}", daemons[0].grpc)).await.expect("connect");
    raw.close(v1::CloseRequest { session: session.id().to_vec() }).await.expect("close behind its back");
    let error = session.attend(vec![ask]).await.expect_err("closed");
    assert!(error.to_string().contains("does not hold the session any more"), "{error}");
    assert_eq!(error.kind(), Kind::Unavailable);
}

/// A reservation that does not fit is refused by name and amount, and leaves nothing behind on the other shard.
#[tokio::test]
async fn a_budget_too_small_is_refused_whole() {
    let replay = Replay::new(SMALL, 200, 36);
    let small = Daemon::start(&["--memory", "64MiB"]).expect("a daemon");
    let large = Daemon::start(&["--memory", "1GiB"]).expect("a daemon");
    let (small, large) = ([small], large);
    let cluster =
        Cluster::connect_with(&[&small[0].grpc, &large.grpc], &Config::default()).await.expect("connect");
    // Every head costs 32 + 24 halves a token.
    let spec = SessionSpec { reserve_tokens: 4 << 20, ..replay.spec() };
    let error = cluster.open(spec).await.map(|_| ()).expect_err("too small");
    assert!(error.to_string().contains("resource exhausted"), "{error}");
    for daemon in small.iter().chain([&large]) {
        assert_eq!(http::metric(&daemon.http, wire::names::SESSIONS, &[]).expect("metric"), 0.0);
    }
    let cluster = connect(&small).await;
    cluster.open(replay.spec()).await.expect("what fits is taken").close().await.expect("close");
}
