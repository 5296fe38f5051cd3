//! `recollect inspect` of a real shard over a real socket: what it prints is what the shard holds.

mod common;

use std::net::TcpListener;
use std::process::{Command, Output};
use std::time::Duration;

use client::{Cluster, LayerChunk, Session, SessionSpec};
use common::daemon::Daemon;
use half::f16;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tokio::runtime::Runtime;
use wire::v1;

const LAYERS: u32 = 2;
const KV_HEADS: usize = 2;
const Q_HEADS: usize = 4;
const DIM: usize = 64;
const TOKENS: usize = 2600;
const SINK: u64 = 16;
const SEALED: u64 = 2500;

fn inspect(shard: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_recollect"));
    command.args(["inspect", "--shard", shard]).args(more).output().unwrap()
}

fn lines(shard: &str, more: &[&str]) -> Vec<Value> {
    let output = inspect(shard, &[&["--json"][..], more].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn spec(index: v1::IndexKind) -> SessionSpec {
    let fingerprint = v1::Fingerprint {
        model: "noise".into(),
        weight_revision: "0123456789abcdef".into(),
        layers: LAYERS,
        q_heads: Q_HEADS as u32,
        kv_heads: KV_HEADS as u32,
        key_dim: DIM as u32,
        value_dim: DIM as u32,
        kv_dtype: v1::DType::F16.into(),
        rope_base: 1e4,
        scale: 0.125,
        provenance: v1::Provenance::Exact.into(),
        ..v1::Fingerprint::default()
    };
    SessionSpec { index, ..SessionSpec::new(fingerprint, TOKENS as u64) }
}

/// A session of noise: the sink sealed, then `SEALED` tokens; the rest stays fresh.
async fn filled(cluster: &Cluster, index: v1::IndexKind) -> Session {
    let session = cluster.open(spec(index)).await.unwrap();
    let mut rng = StdRng::seed_from_u64(1);
    let mut noise =
        |n: usize| -> Vec<f16> { (0..n).map(|_| f16::from_f32(rng.random_range(-1.0f32..1.0))).collect() };
    for layer in 0..LAYERS {
        for (begin, end, seal_to) in [(0, SINK, SINK), (SINK, TOKENS as u64, SEALED)] {
            let tokens = (end - begin) as usize;
            let (k, v) = (noise(tokens * KV_HEADS * DIM), noise(tokens * KV_HEADS * DIM));
            let q_pos: Vec<u64> = (begin..end).step_by(4).collect();
            let q = noise(q_pos.len() * Q_HEADS * DIM);
            let chunk = LayerChunk {
                layer,
                begin,
                k: &k,
                v: &v,
                q: &q,
                q_pos: &q_pos,
                q_window: 64,
                seal_to: Some(seal_to),
            };
            session.append(chunk).await.unwrap();
        }
    }
    let readiness = session.wait_ready(Duration::from_secs(60)).await.unwrap();
    assert!(readiness.is_ready());
    session
}

#[test]
fn every_span_of_every_head_is_there_and_those_below_target_are_marked() {
    // No walk over noise finds all of the best 100 for every query.
    let daemon = Daemon::start_with(&[("RECOLLECT__INDEX__RECALL", "1.0")]);
    let runtime = Runtime::new().unwrap();
    let (first, second) = runtime.block_on(async {
        let cluster = Cluster::connect(&[&daemon.address]).await.unwrap();
        (filled(&cluster, v1::IndexKind::Graph).await, filled(&cluster, v1::IndexKind::Flat).await)
    });
    let id = wire::convert::hex(first.id());
    let rows = lines(&daemon.address, &["--session", &id]);
    let held = runtime.block_on(first.inspect()).unwrap().remove(0);
    let held = &held.sessions[0];
    let heads = LAYERS as usize * KV_HEADS;
    assert_eq!(rows.len(), 2 * heads + 2, "two spans a head, the session, the summary");
    let mut below = std::collections::BTreeSet::new();
    for (row, span) in rows.iter().zip(&held.spans) {
        assert_eq!((&row["record"], &row["session"]), (&"span".into(), &id.as_str().into()));
        for (field, value) in [
            ("layer", u64::from(span.layer)),
            ("kv_head", span.kv_head.into()),
            ("begin", span.begin),
            ("end", span.end),
            ("version", span.version),
            ("index_bytes", span.index_bytes),
            ("build_us", span.build_us),
            ("kv_bytes", (span.end - span.begin) * 4 * DIM as u64),
        ] {
            assert_eq!(row[field], value, "{field} in {row}");
        }
        if span.begin == 0 {
            assert_eq!((&row["index"], &row["verdict"]), (&"flat".into(), &"exact".into()), "{row}");
            assert!(row["recall_estimate"].is_null() && row["width"].is_null(), "{row}");
            continue;
        }
        assert_eq!((span.begin, span.end), (SINK, SEALED));
        assert_eq!((&row["index"], &row["recall_target"]), (&"graph".into(), &1.0.into()), "{row}");
        assert!(row["width"].as_u64().unwrap() > 0 && span.index_bytes > 0);
        let is_below = row["recall_estimate"].as_f64().unwrap() < 1.0;
        assert_eq!(row["verdict"], if is_below { "below" } else { "met" }, "{row}");
        if is_below {
            below.insert((span.layer, span.kv_head));
        }
    }
    assert!(!below.is_empty(), "{rows:#?}");
    let (session, summary) = (&rows[2 * heads], &rows[2 * heads + 1]);
    assert_eq!(session["fingerprint"]["model"], "noise");
    assert_eq!(session["fingerprint"]["kv_dtype"], "f16");
    assert_eq!(session["watermark"], TOKENS);
    assert_eq!(session["fresh_tokens"], TOKENS as u64 - SEALED);
    for row in [session, summary] {
        assert_eq!(row["spans"], 2 * heads);
        assert_eq!(row["heads_below_target"], below.len());
        assert_eq!(row["index_kinds"]["graph"]["spans"], heads);
        assert_eq!(row["index_kinds"]["flat"]["head_tokens"], heads as u64 * SINK);
    }
    assert_eq!(summary["record"], "summary");
    assert!(
        summary["memory_used_bytes"].as_u64().unwrap() <= summary["memory_budget_bytes"].as_u64().unwrap()
    );

    let plain = inspect(&daemon.address, &["--session", &id]);
    let text = String::from_utf8(plain.stdout).unwrap();
    assert!(plain.status.success() && text.contains(&format!("session {id}: noise")), "{text}");
    assert_eq!(text.lines().filter(|line| line.ends_with("  BELOW TARGET")).count(), below.len(), "{text}");
    assert!(text.trim_end().ends_with(&format!("{} heads BELOW TARGET", below.len())), "{text}");

    let all = lines(&daemon.address, &[]);
    assert_eq!(all.last().unwrap()["sessions"], 2);
    runtime.block_on(async {
        first.close().await.unwrap();
        second.close().await.unwrap();
    });
    let nothing = lines(&daemon.address, &[]);
    assert_eq!((nothing.len(), &nothing[0]["spans"], &nothing[0]["kv_bytes"]), (1, &0.into(), &0.into()));

    let (code, line) = refused(&daemon.address, &["--session", &id]);
    assert!(code == 64 && line.contains(&id) && line.contains("unknown here"), "{code}: {line}");
    let (code, line) = refused(&daemon.http, &[]);
    assert!(code == 69 && line.contains("is no gRPC port of recollectd"), "{code}: {line}");
}

/// Exit code and the single line on stderr.
fn refused(shard: &str, more: &[&str]) -> (i32, String) {
    let output = inspect(shard, more);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(line.trim_end().lines().count(), 1, "one line wanted: {line}");
    assert!(output.stdout.is_empty() && line.starts_with("error: "), "{line}");
    (output.status.code().unwrap(), line)
}

#[test]
fn what_cannot_be_inspected_is_one_line_with_the_right_code() {
    let absent = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (shard, more, code, names) in [
        (absent.as_str(), &[][..], 69, absent.as_str()),
        ("unix:/x", &[], 64, "unix sockets"),
        ("::1:7420", &[], 64, "needs brackets"),
        ("127.0.0.1:0", &[], 64, "from 1 to 65535"),
        (&absent, &["--session", "12"], 64, "32 hexadecimal digits"),
    ] {
        let (got, line) = refused(shard, more);
        assert!(got == code && line.contains(names), "{shard} {more:?}: {got}, {line}");
    }
}

/// The rows of a verb about tiers.
fn moved(verb: &str, shard: &str, more: &[&str]) -> Vec<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_recollect"));
    let output = command.args([verb, "--json", "--shard", shard]).args(more).output().unwrap();
    assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn rows_leave_ram_come_back_and_are_pinned() {
    let data = tempfile::tempdir().unwrap();
    let archive = tempfile::tempdir().unwrap();
    let url = format!("file://{}", archive.path().display());
    let set =
        [("RECOLLECT__STORAGE__PATH", data.path().to_str().unwrap()), ("RECOLLECT__ARCHIVE__URL", &url)];
    let daemon = Daemon::start_with(&set);
    let shard = &daemon.address;
    let runtime = Runtime::new().unwrap();
    let _session = runtime.block_on(async {
        let cluster = Cluster::connect(&[shard]).await.unwrap();
        filled(&cluster, v1::IndexKind::Summary).await
    });
    let bytes = SEALED * LAYERS as u64 * KV_HEADS as u64 * 4 * DIM as u64;
    let pinned = moved("pin", shard, &[]);
    assert_eq!((pinned.len(), &pinned[0]["record"], &pinned[0]["bytes"]), (2, &"session".into(), &0.into()));
    let id = pinned[0]["session"].as_str().unwrap().to_owned();
    assert_eq!(moved("evict", shard, &[])[1]["bytes"], 0);
    let mut command = Command::new(env!("CARGO_BIN_EXE_recollect"));
    let refused = command.args(["evict", "--shard", shard, "--session", &id]).output().unwrap();
    let line = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && line.contains(&format!("session {id} is pinned")), "{line}");
    assert_eq!(moved("unpin", shard, &["--session", &id])[0]["verb"], "unpin");
    let evicted = moved("evict", shard, &["--session", &id]);
    assert_eq!((&evicted[0]["session"], &evicted[1]["bytes"]), (&id.as_str().into(), &bytes.into()));
    let rows = lines(shard, &[]);
    let (spans, session) = rows.split_at(rows.len() - 2);
    assert!(spans.iter().all(|span| span["tier"] == "spilled" && span["spilled_bytes"] == span["kv_bytes"]));
    assert_eq!((&session[0]["spilled_bytes"], &session[0]["pinned"]), (&bytes.into(), &false.into()));
    let plain = String::from_utf8(inspect(shard, &[]).stdout).unwrap();
    assert!(plain.contains("spilled"), "{plain}");
    assert_eq!(moved("promote", shard, &[]).last().unwrap()["bytes"], bytes);
    assert!(lines(shard, &[])[..spans.len()].iter().all(|span| span["tier"] == "full"));
    let archived = moved("evict", shard, &["--tier", "archive"]);
    assert_eq!((&archived[0]["verb"], &archived[1]["bytes"]), (&"archive".into(), &bytes.into()));
    let rows = lines(shard, &[]);
    let (spans, session) = rows.split_at(rows.len() - 2);
    assert!(spans.iter().all(|s| s["tier"] == "archived" && s["archived_bytes"] == s["kv_bytes"]));
    assert_eq!(
        (&session[0]["archived_bytes"], &session[1]["archived_bytes"]),
        (&bytes.into(), &bytes.into())
    );
    let plain = String::from_utf8(inspect(shard, &[]).stdout).unwrap();
    assert!(plain.contains("archived"), "{plain}");
    assert_eq!(moved("promote", shard, &["--session", &id])[1]["bytes"], bytes);
    assert!(lines(shard, &[])[..spans.len()].iter().all(|span| span["tier"] == "full"));
    for (flag, tier, more) in [("int8", "int8", &[][..]), ("sketch", "sketch", &["--percent", "30"][..])] {
        let rows = moved("evict", shard, &[&["--tier", flag][..], more].concat());
        assert!(rows[0]["verb"] == flag && rows[1]["bytes"].as_u64().unwrap() > 0, "{rows:?}");
        let rows = lines(shard, &[]);
        let (spans, session) = rows.split_at(rows.len() - 2);
        assert!(spans.iter().any(|s| s["tier"] == tier));
        for span in spans.iter().filter(|s| !s["recall_estimate"].is_null()) {
            let compact = span["compact_bytes"].as_u64().unwrap();
            assert!(span["tier"] == tier && compact > 0 && span["index_bytes"] == 0, "{span}");
            assert!(compact < span["kv_bytes"].as_u64().unwrap(), "{span}");
        }
        assert_eq!(session[0]["compact_bytes"], session[1]["compact_bytes"]);
        let plain = String::from_utf8(inspect(shard, &[]).stdout).unwrap();
        assert!(
            plain.contains(&format!(" {tier} ")) && plain.contains("MiB of int8 and sketches"),
            "{plain}"
        );
    }
    for (more, named) in [
        (["--percent", "30"], "--percent is for --tier sketch"),
        (["--percent", "60"], "60"),
        (["--tier", "int4"], "int4"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_recollect"));
        let refused = command.args(["evict", "--shard", shard]).args(more).output().unwrap();
        let line = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(64) && line.contains(named), "{line}");
    }
}
