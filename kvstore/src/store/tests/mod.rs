//! A node on a directory, before and after its end.

mod archive;
mod compact;
mod crash;
mod damage;
mod indexes;
mod restart;
mod tiers;

use crate::shard::tests::told;
use crate::store::directory::{Directory, DirectoryError};
use crate::testing::*;
use crate::{Node, NodeConfig, NodeError};
use half::f16;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{tensor, v1};

/// Two layers, two query heads on each of two KV heads, value dim other than key dim.
fn model() -> v1::Fingerprint {
    fingerprint(2, 4, 2, 16, 12)
}

/// A node on a directory. One that this process has just let go of may take a moment to be free.
fn on(path: &Path, change: impl Fn(&mut NodeConfig)) -> Arc<Node> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let mut config = NodeConfig { threads: Some(2), index_threads: Some(1), ..NodeConfig::default() };
        config.index_min_tokens = 256;
        config.storage = Some(path.to_owned());
        change(&mut config);
        match Node::new(config) {
            Ok(node) => return node,
            Err(NodeError::Directory(DirectoryError::Locked(_))) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(e) => panic!("{e}"),
        }
    }
}

/// Waits until the threads of a node that was let go have left its directory: only then does nothing move there.
fn left(path: &Path) {
    let until = Instant::now() + Duration::from_secs(20);
    while let Err(e) = Directory::open(path) {
        assert!(matches!(e, DirectoryError::Locked(_)) && Instant::now() < until, "{e}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A request for a deterministic session with a summary index.
fn stored(id: u8, durable: bool) -> v1::OpenRequest {
    v1::OpenRequest {
        durable,
        deterministic: true,
        index: v1::IndexKind::Summary as i32,
        seed: 11,
        ..open(id, &model())
    }
}

/// A chunk with the queries of every eighth position.
fn sampled(id: u8, layer: u32, begin: u64, tokens: u64) -> v1::AppendChunk {
    let f = model();
    let mut c = chunk(id, &f, layer, begin, tokens);
    c.q_pos = (begin..begin + tokens).step_by(8).collect();
    let width = (f.q_heads * f.key_dim) as u64;
    let q: Vec<f16> = c
        .q_pos
        .iter()
        .flat_map(|p| (0..width).map(move |i| f16::from_f32(((p * 13 + i * 7) % 97) as f32 / 97.0 - 0.5)))
        .collect();
    c.q = Some(tensor::from_f16(&[c.q_pos.len(), f.q_heads as usize, f.key_dim as usize], &q));
    c
}

/// Appends tokens to every layer, sealing after those that `seal` names.
async fn prefill(node: &Arc<Node>, id: u8, ends: &[u64], seal: &[u64]) {
    for layer in 0..model().layers {
        let mut begin = 0;
        for &end in ends {
            let mut c = sampled(id, layer, begin, end - begin);
            c.seal_to = seal.contains(&end).then_some(end);
            node.append(c).await.unwrap();
            begin = end;
        }
    }
}

/// Decodes tokens with a question in every row; returns the watermark of the last answer.
async fn decode(node: &Arc<Node>, id: u8, range: std::ops::Range<u64>) -> u64 {
    let f = model();
    let mut watermark = 0;
    for position in range {
        for layer in 0..f.layers {
            let mut r = row(id, &f, layer, 0, position + 1, false);
            r.token = Some(token(&f, layer, position));
            let answer = node.attend(message(node, vec![r])).await.unwrap().rows.remove(0);
            assert_eq!(answer.error, None);
            watermark = answer.watermark;
        }
    }
    watermark
}

/// Every row of every head up to a length is what [`element`] says.
async fn assert_rows(node: &Arc<Node>, id: u8, tokens: u64) {
    let f = model();
    for layer in 0..f.layers {
        for kv_head in 0..f.kv_heads {
            let request =
                v1::ReadRowsRequest { session: vec![id; 16], layer, kv_head, begin: 0, end: tokens };
            let rows = node.read_rows(request).await.unwrap();
            for (t, dim, value) in [(rows.k, f.key_dim, false), (rows.v, f.value_dim, true)] {
                let want: Vec<f16> = (0..tokens)
                    .flat_map(|p| (0..dim).map(move |d| element(layer, kv_head, p, d, value)))
                    .collect();
                let want = tensor::from_f16(&[tokens as usize, dim as usize], &want);
                assert!(t == Some(want), "layer {layer}, KV head {kv_head}, values {value}");
            }
        }
    }
}

/// Answers of all layers over the first tokens with a budget that the indexes decide about, statistics of time apart.
async fn answers(node: &Arc<Node>, id: u8, tokens: u64) -> Vec<v1::AttendResult> {
    let f = model();
    let mut all = Vec::new();
    for layer in 0..f.layers {
        for k in [5, 60] {
            let mut r = row(id, &f, layer, 0, tokens, false);
            r.budget = Some(wire::convert::Budget::TopK(k).write());
            r.estimate = true;
            let mut answer = node.attend(message(node, vec![r])).await.unwrap().rows.remove(0);
            assert_eq!(answer.error, None);
            if let Some(stats) = &mut answer.stats {
                stats.compute_us = 0;
            }
            all.push(answer);
        }
    }
    all
}

async fn watermark(node: &Arc<Node>, id: u8) -> Result<u64, tonic::Status> {
    let request = v1::RenewRequest { session: vec![id; 16], lease_ms: 0 };
    node.renew(request).await.map(|r| r.watermark)
}

async fn truncate(node: &Arc<Node>, id: u8, length: u64) -> u64 {
    let request = v1::TruncateRequest { session: vec![id; 16], length };
    node.truncate(request).await.unwrap().watermark
}

async fn close(node: &Arc<Node>, id: u8) -> Result<(), tonic::Status> {
    node.close(v1::CloseRequest { session: vec![id; 16] }).await.map(drop)
}

async fn all_stored(node: &Node) {
    assert!(node.stored_within(Duration::from_secs(30)).await, "the keeper is done");
}

/// Files in a folder of the directory.
fn files(path: &Path, folder: &str) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> =
        std::fs::read_dir(path.join(folder)).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}
