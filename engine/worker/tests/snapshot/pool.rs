//! Sessions of made-up rows on real shards, and what can be asked of them.

use crate::daemon::Daemon;
use client::{Cluster, HeldSession, LayerChunk, Session, SessionSpec};
use half::f16;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use std::process::{Command, Output};
use std::time::Duration;
use wire::v1;

pub const LAYERS: u32 = 2;
pub const KV_HEADS: usize = 3;
pub const Q_HEADS: usize = 6;
pub const KEY_DIM: usize = 32;
pub const VALUE_DIM: usize = 24;

pub fn spec(tokens: u64) -> SessionSpec {
    let fingerprint = v1::Fingerprint {
        model: "noise".into(),
        weight_revision: "0123456789abcdef".into(),
        layers: LAYERS,
        q_heads: Q_HEADS as u32,
        kv_heads: KV_HEADS as u32,
        key_dim: KEY_DIM as u32,
        value_dim: VALUE_DIM as u32,
        kv_dtype: v1::DType::F16.into(),
        rope_base: 1e4 / 3.0,
        scale: 0.18,
        provenance: v1::Provenance::Budget.into(),
        ..v1::Fingerprint::default()
    };
    SessionSpec {
        index: v1::IndexKind::Summary,
        deterministic: true,
        seed: 11,
        ..SessionSpec::new(fingerprint, tokens)
    }
}

fn halves(rng: &mut StdRng, n: usize, waves: f32) -> Vec<f16> {
    (0..n).map(|i| f16::from_f32((i as f32 * waves).sin() + rng.random_range(-1.0f32..1.0))).collect()
}

/// Fills every layer with chunks, (where it ends, what it seals), and a sample every `every` tokens.
pub async fn fill(session: &Session, parts: &[(u64, u64)], every: usize, window: u64) {
    for layer in 0..LAYERS {
        let mut rng = StdRng::seed_from_u64(u64::from(layer));
        let mut begin = 0;
        for &(end, seal_to) in parts {
            let tokens = (end - begin) as usize;
            let k = halves(&mut rng, tokens * KV_HEADS * KEY_DIM, 0.013);
            let v = halves(&mut rng, tokens * KV_HEADS * VALUE_DIM, 0.37);
            let q_pos: Vec<u64> = (begin..end).step_by(every).collect();
            let q = halves(&mut rng, q_pos.len() * Q_HEADS * KEY_DIM, 0.02);
            let seal_to = (seal_to > 0).then_some(seal_to);
            let chunk =
                LayerChunk { layer, begin, k: &k, v: &v, q: &q, q_pos: &q_pos, q_window: window, seal_to };
            session.append(chunk).await.unwrap();
            begin = end;
        }
    }
    let ready = session.wait_ready(Duration::from_secs(120)).await.unwrap();
    assert!(ready.is_ready());
}

/// Two spans and a tail: the sink, and a prefill with an index.
pub const PARTS: [(u64, u64); 2] = [(16, 16), (6200, 5500)];
pub const TOKENS: u64 = 6200;

/// A session of [`PARTS`].
pub async fn filled(cluster: &Cluster) -> Session {
    let session = cluster.open(spec(TOKENS)).await.unwrap();
    fill(&session, &PARTS, 40, 64).await;
    session
}

pub async fn connect(daemons: &[Daemon]) -> Cluster {
    let addresses: Vec<&str> = daemons.iter().map(|daemon| daemon.address.as_str()).collect();
    Cluster::connect(&addresses).await.unwrap()
}

/// Every head's answers to the same questions, as bytes: exact and estimated, from the middle and from the end.
pub async fn answers(cluster: &Cluster, id: &[u8]) -> Vec<Vec<u8>> {
    let held = cluster.held(id).await.unwrap();
    let mut answers = Vec::new();
    for (layer, kv_head) in heads() {
        let mut rng = StdRng::seed_from_u64(u64::from(layer * 100 + kv_head));
        let mut rows = Vec::new();
        for (begin, end) in [(0, held.tokens()), (16, held.tokens() / 2), (held.tokens() / 3, held.tokens())]
        {
            for budget in [client::Budget::TopK(50), client::Budget::Coverage(0.7), client::Budget::All] {
                let group = Q_HEADS / KV_HEADS;
                let q: Vec<f32> = (0..group * KEY_DIM).map(|_| rng.random_range(-1.0f32..1.0)).collect();
                rows.push(v1::AttendRow {
                    session: id.to_vec(),
                    layer,
                    kv_head_begin: kv_head,
                    kv_head_count: 1,
                    begin,
                    end,
                    budget: Some(budget.write()),
                    estimate: true,
                    attention: Some(v1::AttentionDesc { scale: 0.18, ..Default::default() }),
                    q: Some(wire::tensor::from_f32(&[group, KEY_DIM], &q)),
                    ..Default::default()
                });
            }
        }
        answers.extend(ask(cluster, rows).await);
    }
    answers
}

/// The rows' answers from the one shard that holds their head.
async fn ask(cluster: &Cluster, rows: Vec<v1::AttendRow>) -> Vec<Vec<u8>> {
    for shard in cluster.shards() {
        let described = shard.describe(v1::DescribeRequest { protocol: wire::PROTOCOL }).await.unwrap();
        let request =
            v1::AttendRequest { instance: described.instance, rows: rows.clone(), ..Default::default() };
        let answer = shard.attend(request).await.unwrap();
        if answer.rows.iter().any(|row| row.error.is_some()) {
            continue;
        }
        let bytes = |t: &Option<v1::Tensor>| t.as_ref().unwrap().data.to_vec();
        let of = |row: &v1::AttendResult| {
            [&row.o, &row.m, &row.l_exact, &row.l_quant, &row.l_est].map(bytes).concat()
        };
        return answer.rows.iter().map(of).collect();
    }
    panic!("no shard answers for the head");
}

pub fn heads() -> impl Iterator<Item = (u32, u32)> {
    (0..LAYERS).flat_map(|layer| (0..KV_HEADS as u32).map(move |head| (layer, head)))
}

/// Rows, samples and spans of every head, whichever shard holds it. Of a span: its end, kind of index, recall, width.
pub async fn contents(
    cluster: &Cluster,
    id: &[u8],
) -> Vec<(Vec<f16>, Vec<f16>, wire::samples::Samples, Vec<String>)> {
    let held: HeldSession = cluster.held(id).await.unwrap();
    held.wait_ready(Duration::from_secs(120)).await.unwrap();
    let mut infos: Vec<v1::SpanInfo> = Vec::new();
    for shard in cluster.shards() {
        let request = v1::InspectRequest { session: id.to_vec() };
        if let Ok(answer) = shard.inspect(request).await {
            infos.extend(answer.sessions.into_iter().flat_map(|session| session.spans));
        }
    }
    let mut all = Vec::new();
    for (layer, kv_head) in heads() {
        let (k, v) = held.rows((layer, kv_head), 0..held.tokens()).await.unwrap();
        let limit = Duration::from_secs(60);
        let samples = held.samples((layer, kv_head), 0..held.tokens(), limit).await.unwrap();
        let mine = infos.iter().filter(|s| (s.layer, s.kv_head) == (layer, kv_head));
        let of = |s: &v1::SpanInfo| format!("{} {:?} {:?} {}", s.end, s.index(), s.recall, s.width);
        all.push((k, v, samples, mine.map(of).collect()));
    }
    all
}

/// Runs `recollect snapshot`.
pub fn recollect(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_recollect")).args(arguments).output().unwrap()
}

/// The one line of JSON that a verb prints.
pub fn told(arguments: &[&str]) -> Value {
    let output = recollect(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Exit code and the single line on stderr.
pub fn refused(arguments: &[&str]) -> (i32, String) {
    let output = recollect(arguments);
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(output.stdout.is_empty() && line.starts_with("error: "), "{line}");
    assert_eq!(line.trim_end().lines().count(), 1, "one line wanted: {line}");
    (output.status.code().unwrap(), line)
}

/// Sessions that shards hold.
pub async fn sessions(cluster: &Cluster) -> usize {
    cluster.inspect(None).await.unwrap().iter().map(|answer| answer.sessions.len()).sum()
}

/// Restores onto new daemons until their random addresses spread the heads over all of them.
pub fn spread(shards: usize, directory: &str) -> (Vec<Daemon>, Value) {
    for _ in 0..16 {
        let daemons: Vec<Daemon> = (0..shards).map(|_| Daemon::start()).collect();
        let addresses: Vec<&str> = daemons.iter().map(|daemon| daemon.address.as_str()).collect();
        let summary = told(&["snapshot", "restore", "--shard", &addresses.join(","), "--from", directory]);
        if summary["shards"].as_array().unwrap().len() == shards {
            return (daemons, summary);
        }
    }
    panic!("16 pools and none uses every shard");
}

pub fn id_of(summary: &Value) -> Vec<u8> {
    let text = summary["session"].as_str().unwrap();
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}
