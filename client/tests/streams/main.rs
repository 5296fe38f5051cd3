//! The client over real sockets against a small fake shard: order, correlation, bounds, and faults.

mod fake;

use attention::{Description, HeadRows, oracle};
use client::{Budget, Cluster, Config, Error, Kind, LayerChunk, RowAsk, Session, SessionSpec};
use fake::{Fake, Faults};
use half::f16;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use wire::v1;

const LAYERS: u32 = 3;
const HEADS: (usize, usize) = (6, 3);
const DIMS: (usize, usize) = (8, 5);

fn spec() -> SessionSpec {
    let fingerprint = v1::Fingerprint {
        model: "fake".into(),
        layers: LAYERS,
        q_heads: HEADS.0 as u32,
        kv_heads: HEADS.1 as u32,
        key_dim: DIMS.0 as u32,
        value_dim: DIMS.1 as u32,
        kv_dtype: v1::DType::F16 as i32,
        scale: 0.5,
        ..Default::default()
    };
    SessionSpec::new(fingerprint, 1 << 10)
}

/// Distinct values in about [-1, 1].
fn values(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + seed * 101) as f32 * 0.618).sin()).collect()
}

fn halves(n: usize, seed: usize) -> Vec<f16> {
    values(n, seed).into_iter().map(f16::from_f32).collect()
}

fn kv(tokens: usize) -> (Vec<f16>, Vec<f16>) {
    (halves(tokens * HEADS.1 * DIMS.0, 1), halves(tokens * HEADS.1 * DIMS.1, 2))
}

async fn append(session: &Session, tokens: usize) -> Result<u64, Error> {
    let (k, v) = kv(tokens);
    for layer in 0..LAYERS {
        session
            .append(LayerChunk {
                layer,
                begin: 0,
                k: &k,
                v: &v,
                q: &[],
                q_pos: &[],
                q_window: 0,
                seal_to: None,
            })
            .await?;
    }
    Ok(session.watermark())
}

fn ask(layer: u32, begin: u64, end: u64) -> RowAsk {
    let q = values(HEADS.0 * DIMS.0, 7 + layer as usize + begin as usize);
    RowAsk { layer, begin, end, budget: Budget::All, estimate: false, q, beside: Vec::new(), token: None }
}

async fn fakes(n: usize, faults: &Faults) -> (Vec<Fake>, Cluster) {
    let mut fakes = Vec::new();
    for _ in 0..n {
        fakes.push(Fake::start(faults.clone()));
    }
    let addresses: Vec<&str> = fakes.iter().map(|fake| fake.address.as_str()).collect();
    let cluster = Cluster::connect(&addresses).await.expect("connect");
    (fakes, cluster)
}

/// The port of a fake that just ended may take a moment to come free.
async fn restart(address: &str) -> Fake {
    while std::net::TcpListener::bind(address).is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Fake::on(address, 2, Faults::default())
}

#[tokio::test]
async fn three_shards_answer_as_one() {
    let (fakes, cluster) = fakes(3, &Faults { max_message_bytes: Some(4096), ..Faults::default() }).await;
    let session = cluster.open(spec()).await.expect("open");
    assert_eq!(append(&session, 200).await.expect("append"), 200);
    assert!(
        fakes.iter().map(|f| f.shared.chunks.load(Ordering::SeqCst)).sum::<usize>() > 9,
        "chunks were cut"
    );
    let asks = vec![ask(0, 0, 200), ask(1, 3, 150), ask(2, 10, 10)];
    let answers = session.attend(asks.clone()).await.expect("attend");
    let (k, v) = kv(200);
    let d = Description { scale: 0.5, softcap: None };
    for (ask, answer) in asks.iter().zip(&answers) {
        assert_eq!((answer.partials.len(), answer.missing_tokens), (HEADS.0, 0));
        assert!((answer.stats.exact_tokens - (ask.end - ask.begin) as f64).abs() < 1e-9);
        for (h, partial) in answer.partials.iter().enumerate() {
            let kv_head = h / (HEADS.0 / HEADS.1);
            let keys = HeadRows::new(&k, HEADS.1, kv_head, DIMS.0);
            let rows = HeadRows::new(&v, HEADS.1, kv_head, DIMS.1);
            let q = &ask.q[h * DIMS.0..][..DIMS.0];
            let want = oracle::attend(&d, q, &keys, &rows, ask.begin as usize..ask.end as usize);
            assert!(
                want.output_error(&partial.o) < 1e-5 && want.mass_error(partial) < 1e-5,
                "layer {} head {h}",
                ask.layer
            );
        }
    }
    assert_eq!(session.truncate(100).await.expect("truncate"), 100);
    let holders = session.shard_names().count() as u64;
    assert_eq!(session.close().await.expect("close"), 5 * holders);
}

#[tokio::test]
async fn many_in_flight_come_back_to_who_asked() {
    let (_fakes, cluster) = fakes(1, &Faults { reverse: 32, ..Faults::default() }).await;
    let session = cluster.open(spec()).await.expect("open");
    append(&session, 64).await.expect("append");
    let calls = (0..32u64).map(|i| session.attend(vec![ask(0, i, i + 1)]));
    let answers = futures::future::join_all(calls).await;
    let (_, v) = kv(64);
    for (i, answer) in answers.into_iter().enumerate() {
        let partial = &answer.expect("attend")[0].partials[0];
        // Of one token the output is its value.
        let want = v[i * HEADS.1 * DIMS.1].to_f32();
        assert!((partial.o[0] - want).abs() < 1e-6, "answer {i} went to another caller");
    }
}

#[tokio::test]
async fn chunks_without_acknowledgement_are_bounded() {
    let fake = Fake::start(Faults { hold_acks: true, max_message_bytes: Some(4096), ..Faults::default() });
    let config = Config { append_in_flight_bytes: 3 * 4096, ..Config::default() };
    let cluster = Cluster::connect_with(&[&fake.address], &config).await.expect("connect");
    let session = cluster.open(spec()).await.expect("open");
    let (k, v) = kv(2000);
    let chunk =
        LayerChunk { layer: 0, begin: 0, k: &k, v: &v, q: &[], q_pos: &[], q_window: 0, seal_to: None };
    let append = session.append(chunk);
    tokio::pin!(append);
    assert!(
        tokio::time::timeout(Duration::from_millis(300), &mut append).await.is_err(),
        "it waits for room"
    );
    assert!(
        fake.shared.chunks.load(Ordering::SeqCst) <= 1,
        "a fake that holds its acknowledgement reads no further"
    );
    let done = loop {
        fake.shared.acks.notify_one();
        if let Ok(done) = tokio::time::timeout(Duration::from_millis(5), &mut append).await {
            break done;
        }
    };
    done.expect("append");
}

#[tokio::test]
async fn a_silent_shard_costs_no_more_than_the_deadline() {
    // Accepts at the level of the kernel, never reads.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address").to_string();
    let limits = Duration::from_millis(200);
    let config = Config { call_timeout: limits, connect_timeout: limits, ..Config::default() };
    let error = Cluster::connect_with(&[&address], &config).await.map(|_| ()).expect_err("silent");
    assert_eq!((error.kind(), error.shard()), (Kind::Unavailable, Some(address.as_str())));
    // Answers everything but the rows.
    let (_fakes, cluster) = fakes(1, &Faults { mute: true, ..Faults::default() }).await;
    let deadline = Duration::from_millis(250);
    let session = cluster.open(SessionSpec { deadline, ..spec() }).await.expect("open");
    append(&session, 4).await.expect("append");
    let started = Instant::now();
    let error = session.attend(vec![ask(0, 0, 4)]).await.expect_err("mute");
    assert!(started.elapsed() >= deadline * 9 / 10);
    assert!(error.to_string().contains("unavailable: no answer within 250ms"), "{error}");
}

#[tokio::test]
async fn absent_foreign_and_doubled_shards_are_named() {
    let error = Cluster::connect(&["127.0.0.1:1"]).await.map(|_| ()).expect_err("absent");
    assert!(error.to_string().starts_with("shard 127.0.0.1:1: unavailable: Connection refused"), "{error}");
    assert_eq!(error.kind(), Kind::Unavailable);
    let fake = Fake::start(Faults { protocol: Some(9), ..Faults::default() });
    let error = Cluster::connect(&[&fake.address]).await.map(|_| ()).expect_err("foreign");
    assert!(matches!(error, Error::Protocol { theirs: 9, .. }), "{error}");
    let fake = Fake::start(Faults::default());
    let error = Cluster::connect(&[&fake.address, &fake.address]).await.map(|_| ()).expect_err("doubled");
    assert_eq!(
        (error.kind(), error.to_string()),
        (Kind::Usage, format!("shards: shard {} is in the map twice", fake.address))
    );
    let port = fake.address.rsplit(':').next().expect("port");
    let twice = [fake.address.clone(), format!("localhost:{port}")];
    let error = Cluster::connect(&twice).await.map(|_| ()).expect_err("one server under two names");
    assert_eq!(
        (error.kind(), error.to_string()),
        (Kind::Usage, format!("shards: {} and localhost:{port} are the same server", fake.address))
    );
    let error = Cluster::connect(&[] as &[&str]).await.map(|_| ()).expect_err("none");
    assert_eq!(error.to_string(), "shards: the shard map is empty");
}

#[tokio::test]
async fn lost_and_restarted_shards_are_told_apart() {
    let (mut fakes, cluster) = fakes(1, &Faults::default()).await;
    let session = cluster.open(spec()).await.expect("open");
    append(&session, 8).await.expect("append");
    session.attend(vec![ask(0, 0, 8)]).await.expect("attend");
    let fake = fakes.remove(0);
    let address = fake.address.clone();
    drop(fake);
    let error = session.attend(vec![ask(0, 0, 8)]).await.expect_err("lost");
    assert!(error.to_string().starts_with(&format!("shard {address}: unavailable: ")), "{error}");
    let _new = restart(&address).await;
    let line = format!("shard {address}: restarted, the session's tokens there are lost");
    let error = session.attend(vec![ask(0, 0, 8)]).await.expect_err("restarted");
    assert_eq!((error.kind(), error.to_string()), (Kind::Unavailable, line.clone()));
    assert_eq!(append(&session, 8).await.expect_err("restarted").to_string(), line);
}

#[tokio::test]
async fn an_answer_to_another_question_is_refused() {
    let (_fakes, cluster) = fakes(1, &Faults { drop_row: true, ..Faults::default() }).await;
    let session = cluster.open(spec()).await.expect("open");
    append(&session, 8).await.expect("append");
    let error = session.attend(vec![ask(0, 0, 8), ask(1, 0, 8)]).await.expect_err("short");
    assert!(matches!(&error, Error::Answer { what, .. } if what == "1 rows for 2"), "{error}");
}

#[tokio::test]
async fn bad_input_is_refused_before_it_is_sent() {
    let (fakes, cluster) = fakes(1, &Faults::default()).await;
    let session = cluster.open(spec()).await.expect("open");
    let (k, v) = kv(4);
    let good =
        LayerChunk { layer: 0, begin: 0, k: &k, v: &v, q: &[], q_pos: &[], q_window: 0, seal_to: None };
    let q = halves(2 * HEADS.0 * DIMS.0, 3);
    for (bad, what) in [
        (LayerChunk { layer: LAYERS, ..good }, "the session has 3 layers"),
        (LayerChunk { k: &[], v: &[], ..good }, "no tokens"),
        (LayerChunk { v: &v[1..], ..good }, "v has 59 elements, must have 60"),
        (LayerChunk { q: &q, ..good }, "q has 96 elements, must have 0"),
        (LayerChunk { q: &q, q_pos: &[2, 1], ..good }, "q_pos must ascend inside [0, 4)"),
        (LayerChunk { q: &q, q_pos: &[2, 4], ..good }, "q_pos must ascend inside [0, 4)"),
        (LayerChunk { seal_to: Some(5), ..good }, "seal_to is beyond its end 4"),
        (LayerChunk { begin: u64::MAX, ..good }, "positions do not fit 64 bits"),
    ] {
        let error = session.append(bad).await.expect_err(what).to_string();
        assert!(error.ends_with(what), "{error}");
    }
    for (bad, what) in [
        (RowAsk { layer: 9, ..ask(0, 0, 1) }, "row 0: layer 9 of 3"),
        (RowAsk { begin: 2, ..ask(0, 0, 1) }, "row 0: range [2, 1) ends before it begins"),
        (RowAsk { q: vec![0.0; 5], ..ask(0, 0, 1) }, "row 0: q has 5 elements, must have 48"),
        (RowAsk { q: vec![], ..ask(0, 0, 1) }, "row 0: neither queries nor a token"),
    ] {
        assert_eq!(session.attend(vec![bad]).await.expect_err(what).to_string(), what);
    }
    assert_eq!(fakes[0].shared.chunks.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_renewed_and_a_dropped_session_says_goodbye() {
    let (fakes, cluster) = fakes(2, &Faults::default()).await;
    let session =
        cluster.open(SessionSpec { lease: Duration::from_millis(200), ..spec() }).await.expect("open");
    let holders = session.shard_names().count();
    let sum = |of: fn(&fake::Shared) -> usize| fakes.iter().map(|f| of(&f.shared)).sum::<usize>();
    let wait = |done: &dyn Fn() -> bool| {
        let until = Instant::now() + Duration::from_secs(10);
        while !done() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(done(), "not within ten seconds");
    };
    tokio::task::block_in_place(|| wait(&|| sum(|s| s.renewals.load(Ordering::SeqCst)) >= 2 * holders));
    drop(session);
    tokio::task::block_in_place(|| wait(&|| sum(|s| s.closes.load(Ordering::SeqCst)) == holders));
}
