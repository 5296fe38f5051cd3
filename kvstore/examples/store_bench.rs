//! What durability costs and how long a restart takes, on this machine:
//! `cargo run --release -p kvstore --example store_bench -- DIR [GIB]`
//!
//! DIR must not exist yet; it is left behind with GIB (default 2) of extents. The last lines are of sessions with indexes, which
//! are filled in DIR.indexed: a restart that reads them, and one that has to build them.

use half::f16;
use kvstore::{Node, NodeConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{convert, tensor, v1};

/// A model with four layers of two KV heads.
const LAYERS: u32 = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 128;
/// Bytes of a token in all layers and heads.
const TOKEN_BYTES: u64 = LAYERS as u64 * KV_HEADS as u64 * DIM as u64 * 4;
const CHUNK: u64 = 2048;

type Failure = Box<dyn std::error::Error>;

fn node(storage: Option<PathBuf>, memory: u64) -> Result<Arc<Node>, Failure> {
    Ok(Node::new(NodeConfig { memory_bytes: memory, storage, ..NodeConfig::default() })?)
}

fn open(id: u8, durable: bool, index: v1::IndexKind) -> v1::OpenRequest {
    v1::OpenRequest {
        session: vec![id; 16],
        fingerprint: Some(v1::Fingerprint {
            model: "bench".into(),
            layers: LAYERS,
            q_heads: KV_HEADS as u32,
            kv_heads: KV_HEADS as u32,
            key_dim: DIM as u32,
            value_dim: DIM as u32,
            kv_dtype: v1::DType::F16 as i32,
            scale: 1.0,
            provenance: v1::Provenance::Exact as i32,
            ..Default::default()
        }),
        owned: vec![v1::HeadRange {
            layer_begin: 0,
            layer_end: LAYERS,
            kv_head_begin: 0,
            kv_head_end: KV_HEADS as u32,
        }],
        index: index as i32,
        lease_ms: 3_600_000,
        protocol: wire::PROTOCOL,
        durable,
        ..Default::default()
    }
}

/// Rows that differ.
fn rows(shape: &[usize], begin: u64) -> v1::Tensor {
    let n: usize = shape.iter().product();
    let rows: Vec<f16> =
        (0..n).map(|i| f16::from_f32(((begin as usize + i * 7) % 2039) as f32 / 64.0)).collect();
    tensor::from_f16(shape, &rows)
}

/// Appends to every layer in chunks and seals at the end.
async fn prefill(node: &Arc<Node>, id: u8, tokens: u64) -> Result<Duration, Failure> {
    let shape = [CHUNK as usize, KV_HEADS, DIM];
    let tensor = rows(&shape, 0);
    let started = Instant::now();
    for layer in 0..LAYERS {
        for begin in (0..tokens).step_by(CHUNK as usize) {
            node.append(v1::AppendChunk {
                session: vec![id; 16],
                layer,
                begin,
                k: Some(tensor.clone()),
                v: Some(tensor.clone()),
                seal_to: (begin + CHUNK == tokens).then_some(tokens),
                ..Default::default()
            })
            .await?;
        }
    }
    Ok(started.elapsed())
}

/// Decodes tokens, a row a layer; microseconds a token.
async fn decode(node: &Arc<Node>, id: u8, from: u64, tokens: u64) -> Result<f64, Failure> {
    let row = rows(&[KV_HEADS, DIM], from);
    let started = Instant::now();
    for position in from..from + tokens {
        for layer in 0..LAYERS {
            let row = v1::AttendRow {
                session: vec![id; 16],
                layer,
                kv_head_begin: 0,
                kv_head_count: KV_HEADS as u32,
                begin: position,
                end: position + 1,
                budget: Some(convert::Budget::All.write()),
                attention: Some(v1::AttentionDesc { scale: 1.0, ..Default::default() }),
                q: Some(tensor::from_f32(&[KV_HEADS, DIM], &[0.1; KV_HEADS * DIM])),
                token: Some(v1::NewToken { position, k: Some(row.clone()), v: Some(row.clone()) }),
                ..Default::default()
            };
            let request = v1::AttendRequest {
                id: 1,
                deadline_us: 0,
                instance: node.instance().to_vec(),
                rows: vec![row],
            };
            if let Some(error) = node.attend(request).await?.rows.remove(0).error {
                return Err(error.message.into());
            }
        }
    }
    Ok(started.elapsed().as_secs_f64() * 1e6 / tokens as f64)
}

/// A restart can begin once the last thread of the node before has let go of the directory.
async fn again(data: &Path, memory: u64) -> Result<(Arc<Node>, Duration), Failure> {
    loop {
        let started = Instant::now();
        match node(Some(data.to_owned()), memory) {
            Ok(node) => return Ok((node, started.elapsed())),
            Err(e) if e.to_string().contains("another process") => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(e) => return Err(e),
        }
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let data: PathBuf = arguments.next().ok_or("DIR is needed")?.into();
    let gib: u64 = arguments.next().map_or(Ok(2), |g| g.parse())?;
    let memory = (gib + 4) << 30;
    let tokens = 32_768;
    let mib = (tokens * TOKEN_BYTES) as f64 / (1 << 20) as f64;
    for (name, storage, durable) in [
        ("memory only", None, false),
        ("stored, acknowledged in memory", Some(data.clone()), false),
        ("stored, acknowledged on disk", Some(data.clone()), true),
    ] {
        let kept = storage.is_some();
        let node = match storage {
            None => node(None, memory)?,
            Some(data) => again(&data, memory).await?.0,
        };
        let mut best = Duration::MAX;
        for id in 1..=3 {
            node.open(open(id, durable, v1::IndexKind::Flat)).await?;
            best = best.min(prefill(&node, id, tokens).await?);
            if id < 3 {
                node.stored_within(Duration::from_secs(600)).await;
                node.close(v1::CloseRequest { session: vec![id; 16] }).await?;
            }
        }
        let stored = Instant::now();
        node.stored_within(Duration::from_secs(600)).await;
        let stored = stored.elapsed();
        let step = decode(&node, 3, tokens, 500).await?;
        println!(
            "{name}: append {:.0} MiB/s (best of 3, {mib:.0} MiB), decode {step:.0} us a token over {LAYERS} layers{}",
            mib / best.as_secs_f64(),
            if kept {
                format!(", all extents on disk {:.2} s later", stored.as_secs_f64())
            } else {
                String::new()
            },
        );
        node.close(v1::CloseRequest { session: vec![3; 16] }).await?;
    }
    let (filled, _) = again(&data, memory).await?;
    let each = 16 * 16_384;
    let sessions = (gib << 30).div_ceil(each * TOKEN_BYTES) as u8;
    for id in 1..=sessions {
        filled.open(open(id, false, v1::IndexKind::Flat)).await?;
        prefill(&filled, id, each).await?;
    }
    let started = Instant::now();
    filled.stored_within(Duration::from_secs(600)).await;
    println!(
        "{sessions} sessions, {gib} GiB, on disk {:.2} s after the last append",
        started.elapsed().as_secs_f64()
    );
    drop(filled);
    let (node, took) = again(&data, memory).await?;
    let held = node.snapshot().spilled_bytes as f64 / f64::from(1 << 30);
    println!(
        "restart: {} sessions, {held:.2} GiB mapped and checked in {:.2} s",
        node.snapshot().sessions,
        took.as_secs_f64()
    );
    drop(node);
    indexed(&data.with_extension("indexed"), gib, memory).await
}

/// Restarts on sessions with indexes, with and without their files.
async fn indexed(data: &Path, gib: u64, memory: u64) -> Result<(), Failure> {
    let each = 8 * 16_384;
    let sessions = (gib << 30).div_ceil(each * TOKEN_BYTES) as u8;
    {
        let (filled, _) = again(data, memory).await?;
        for id in 1..=sessions {
            filled.open(open(id, false, v1::IndexKind::Summary)).await?;
            prefill_with_queries(&filled, id, each).await?;
        }
        let ready = Instant::now();
        all_ready(&filled, sessions).await?;
        println!(
            "{sessions} sessions with indexes, {gib} GiB: built {:.1} s after the last append",
            ready.elapsed().as_secs_f64()
        );
        filled.stored_within(Duration::from_secs(600)).await;
    }
    for name in ["with index files", "without"] {
        let (node, up) = again(data, memory).await?;
        let started = Instant::now();
        all_ready(&node, sessions).await?;
        println!(
            "restart {name}: up in {:.2} s, {:.0} MiB of indexes ready {:.2} s later",
            up.as_secs_f64(),
            node.snapshot().index_bytes as f64 / f64::from(1 << 20),
            started.elapsed().as_secs_f64()
        );
        node.stored_within(Duration::from_secs(600)).await;
        // They are in RAM now, and nobody reads them again before the next start.
        for file in std::fs::read_dir(data.join("extents"))? {
            let path = file?.path();
            if path.extension().is_some_and(|e| e == "ix") {
                std::fs::remove_file(path)?;
            }
        }
    }
    Ok(())
}

async fn all_ready(node: &Arc<Node>, sessions: u8) -> Result<(), Failure> {
    for id in 1..=sessions {
        let wait = v1::WaitReadyRequest { session: vec![id; 16], timeout_ms: 3_600_000 };
        let ready = node.wait_ready(wait).await?;
        if ready.spans != ready.ready {
            return Err(format!("session {id}: {} of {} spans are ready", ready.ready, ready.spans).into());
        }
    }
    Ok(())
}

/// Elements between -1 and 1, all different (splitmix64 of their number).
fn noise(shape: &[usize], seed: u64) -> v1::Tensor {
    let n: usize = shape.iter().product();
    let element = |i: u64| {
        let mut z = ((seed << 32) | i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        f16::from_f32((z >> 40) as f32 / (1 << 23) as f32 - 1.0)
    };
    tensor::from_f16(shape, &(0..n as u64).map(element).collect::<Vec<_>>())
}

/// As [`prefill`], with a query every eighth position.
async fn prefill_with_queries(node: &Arc<Node>, id: u8, tokens: u64) -> Result<(), Failure> {
    for layer in 0..LAYERS {
        for begin in (0..tokens).step_by(CHUNK as usize) {
            let seed = (u64::from(layer) << 24) | (begin / CHUNK);
            let rows = noise(&[CHUNK as usize, KV_HEADS, DIM], seed);
            let q_pos: Vec<u64> = (begin..begin + CHUNK).step_by(8).collect();
            node.append(v1::AppendChunk {
                session: vec![id; 16],
                layer,
                begin,
                k: Some(rows.clone()),
                v: Some(rows),
                q: Some(noise(&[q_pos.len(), KV_HEADS, DIM], seed | (1 << 23))),
                q_pos,
                seal_to: (begin + CHUNK == tokens).then_some(tokens),
                ..Default::default()
            })
            .await?;
        }
    }
    Ok(())
}
