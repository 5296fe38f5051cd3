//! Resident memory under a workload of four times the budget, and the time of a search on spilled rows, on this machine:
//! `cargo run --release -p kvstore --example spill_bench -- DIR [BUDGET_MIB]`
//!
//! DIR must not exist yet; it is left behind with four times the budget (default 256 MiB) of extents. Cold means that the
//! page cache was asked to drop the extent files before (`vm.drop_caches`, which needs root; left out where it is refused).

use half::f16;
use kvstore::{Node, NodeConfig};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{convert, tensor, v1};

const LAYERS: u32 = 2;
const KV_HEADS: usize = 2;
const GROUP: usize = 2;
const DIM: usize = 64;
const TOKENS: u64 = 16_384;
/// Bytes of a session's rows.
const SESSION: u64 = TOKENS * LAYERS as u64 * (KV_HEADS * DIM * 4) as u64;

type Failure = Box<dyn std::error::Error>;

fn open(id: u8) -> v1::OpenRequest {
    v1::OpenRequest {
        session: vec![id; 16],
        fingerprint: Some(v1::Fingerprint {
            model: "bench".into(),
            layers: LAYERS,
            q_heads: (KV_HEADS * GROUP) as u32,
            kv_heads: KV_HEADS as u32,
            key_dim: DIM as u32,
            value_dim: DIM as u32,
            kv_dtype: v1::DType::F16 as i32,
            scale: 0.125,
            provenance: v1::Provenance::Exact as i32,
            ..Default::default()
        }),
        owned: vec![v1::HeadRange {
            layer_begin: 0,
            layer_end: LAYERS,
            kv_head_begin: 0,
            kv_head_end: KV_HEADS as u32,
        }],
        index: v1::IndexKind::Flat as i32,
        lease_ms: 3_600_000,
        protocol: wire::PROTOCOL,
        ..Default::default()
    }
}

/// Numbers that differ, about normal.
fn noise(shape: &[usize], seed: u64) -> v1::Tensor {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut unit = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    let n: usize = shape.iter().product();
    let rows: Vec<f16> = (0..n).map(|_| f16::from_f32(unit() + unit() + unit())).collect();
    tensor::from_f16(shape, &rows)
}

async fn fill(node: &Arc<Node>, id: u8) -> Result<(), Failure> {
    node.open(open(id)).await?;
    let chunk = 4096;
    for layer in 0..LAYERS {
        for begin in (0..TOKENS).step_by(chunk) {
            let shape = [chunk, KV_HEADS, DIM];
            let seed = u64::from(id) << 32 | u64::from(layer) << 24 | begin;
            node.append(v1::AppendChunk {
                session: vec![id; 16],
                layer,
                begin,
                k: Some(noise(&shape, seed)),
                v: Some(noise(&shape, seed + 1)),
                seal_to: (begin + chunk as u64 == TOKENS).then_some(TOKENS),
                ..Default::default()
            })
            .await?;
        }
    }
    Ok(())
}

/// Attends to all layers of a session; microseconds.
async fn attend(node: &Arc<Node>, id: u8, budget: convert::Budget) -> Result<f64, Failure> {
    let started = Instant::now();
    for layer in 0..LAYERS {
        let heads = KV_HEADS * GROUP;
        let q: Vec<f32> = (0..heads * DIM).map(|i| (i as f32 * 0.7).sin()).collect();
        let row = v1::AttendRow {
            session: vec![id; 16],
            layer,
            kv_head_count: KV_HEADS as u32,
            end: TOKENS,
            budget: Some(budget.write()),
            attention: Some(v1::AttentionDesc { scale: 0.125, ..Default::default() }),
            q: Some(tensor::from_f32(&[heads, DIM], &q)),
            ..Default::default()
        };
        let request =
            v1::AttendRequest { id: 1, deadline_us: 0, instance: node.instance().to_vec(), rows: vec![row] };
        if let Some(error) = node.attend(request).await?.rows.remove(0).error {
            return Err(error.message.into());
        }
    }
    Ok(started.elapsed().as_secs_f64() * 1e6)
}

async fn best(node: &Arc<Node>, id: u8, budget: convert::Budget) -> Result<f64, Failure> {
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        best = best.min(attend(node, id, budget).await?);
    }
    Ok(best)
}

/// A line of /proc/self/status, in MiB.
fn resident(key: &str) -> Result<f64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix(key)).ok_or("no such line")?;
    let kib: f64 = line.trim_matches(|c: char| !c.is_ascii_digit()).parse()?;
    Ok(kib / 1024.0)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    kvstore::allocator::return_freed_rows();
    let mut arguments = std::env::args().skip(1);
    let data: PathBuf = arguments.next().ok_or("DIR is needed")?.into();
    let budget: u64 = arguments.next().map_or(Ok(256), |mib| mib.parse::<u64>())? << 20;
    let config = NodeConfig { memory_bytes: budget, storage: Some(data), ..NodeConfig::default() };
    let node = Node::new(config)?;
    println!("before: RssAnon {:.0} MiB", resident("RssAnon:")?);
    let sessions = u8::try_from((4 * budget).div_ceil(SESSION))?;
    let mut peak = 0f64;
    for id in 1..=sessions {
        fill(&node, id).await?;
        peak = peak.max(resident("RssAnon:")?);
    }
    // Each in turn, so that what was spilled is searched while others are in RAM.
    for id in 1..=sessions {
        attend(&node, id, convert::Budget::TopK(100)).await?;
        peak = peak.max(resident("RssAnon:")?);
    }
    node.stored_within(Duration::from_secs(600)).await;
    let s = node.snapshot();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{sessions} sessions, {:.0} MiB of rows in a budget of {:.0} MiB: granted {:.0}, spilled {:.0}, peak RssAnon {peak:.0}, RssFile {:.0} MiB",
        mib(u64::from(sessions) * SESSION),
        mib(budget),
        mib(s.granted_bytes),
        mib(s.spilled_bytes),
        resident("RssFile:")?
    );
    for (name, ask) in [("scan, K = 100", convert::Budget::TopK(100)), ("budget all", convert::Budget::All)] {
        node.evict(v1::EvictRequest::default()).await?;
        node.promote(v1::PromoteRequest { session: vec![1; 16] }).await?;
        let ram = best(&node, 1, ask).await?;
        node.evict(v1::EvictRequest { session: vec![1; 16], ..Default::default() }).await?;
        let first = attend(&node, 1, ask).await?;
        let warm = best(&node, 1, ask).await?;
        print!(
            "{name}: RAM {ram:.0} us, spilled: first after the spill {first:.0}, page cache warm {warm:.0} ({:.2}x)",
            warm / ram
        );
        node.promote(v1::PromoteRequest { session: vec![1; 16] }).await?;
        node.evict(v1::EvictRequest { session: vec![1; 16], ..Default::default() }).await?;
        match std::fs::write("/proc/sys/vm/drop_caches", "1") {
            Ok(()) => println!(", cold {:.0} us", attend(&node, 1, ask).await?),
            Err(e) => println!(", cold not measured: {e}"),
        }
    }
    Ok(())
}
