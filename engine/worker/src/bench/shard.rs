//! A capture on an in-process shard: its first tokens arrive as a prefill, the others token by token as at decode.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use index::Kind;
use kvstore::{Node, NodeConfig, Selection};
use tokio::runtime::Runtime;
use wire::tensor::{from_f16, from_f32};
use wire::{convert, v1};

use super::retrieval::widen;
use crate::capture_file::Capture;

/// Tokens of one append message, as a worker's prefill sends them.
const CHUNK: usize = 1024;
/// The only session.
const SESSION: [u8; 16] = [1; 16];
/// How long builds and merges may take.
const READY_MS: u64 = 3_600_000;

/// A shard with one session that holds a part of a capture.
pub struct Shard<'a> {
    capture: &'a Capture,
    runtime: Runtime,
    node: Arc<Node>,
}

/// Wall times of single messages.
#[derive(Default)]
pub struct Times {
    /// Of steps that only append.
    pub append: Vec<Duration>,
    /// Of steps that append and attend.
    pub answer: Vec<Duration>,
}

impl<'a> Shard<'a> {
    /// An empty session whose spans get this kind of index.
    pub fn open(capture: &'a Capture, kind: Kind, config: NodeConfig) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shard = Self { capture, runtime, node: Node::new(config)? };
        let fingerprint = v1::Fingerprint {
            model: capture.meta.model.clone(),
            layers: 1,
            q_heads: capture.q_heads as u32,
            kv_heads: capture.kv_heads as u32,
            key_dim: capture.dim as u32,
            value_dim: capture.value_dim as u32,
            kv_dtype: v1::DType::F16 as i32,
            scale: capture.meta.scale,
            provenance: v1::Provenance::Exact as i32,
            ..Default::default()
        };
        let heads = v1::HeadRange {
            layer_begin: 0,
            layer_end: 1,
            kv_head_begin: 0,
            kv_head_end: capture.kv_heads as u32,
        };
        let open = v1::OpenRequest {
            session: SESSION.to_vec(),
            fingerprint: Some(fingerprint),
            owned: vec![heads],
            index: kvstore::wire_kind(kind) as i32,
            lease_ms: READY_MS,
            protocol: wire::PROTOCOL,
            ..Default::default()
        };
        shard.runtime.block_on(shard.node.open(open))?;
        Ok(shard)
    }

    /// The first `tokens`, with the captured queries among them; the sink and what lies before the window are sealed.
    pub fn prefill(&self, tokens: usize) -> Result<()> {
        let (sink, window) = (self.capture.meta.sink, self.capture.meta.window);
        let mut begin = 0;
        while begin < tokens {
            let end = if begin < sink { sink } else { (begin + CHUNK).min(tokens) };
            let seal_to = if end == sink { Some(sink) } else { (end == tokens).then_some(tokens - window) };
            self.runtime.block_on(self.node.append(self.chunk(begin..end, seal_to)))?;
            begin = end;
        }
        Ok(())
    }

    fn chunk(&self, range: Range<usize>, seal_to: Option<usize>) -> v1::AppendChunk {
        let c = self.capture;
        let of = |data: &[half::f16], dim: usize| {
            let row = c.kv_heads * dim;
            Some(from_f16(&[range.len(), c.kv_heads, dim], &data[range.start * row..range.end * row]))
        };
        let at = |p: usize| c.q_pos.partition_point(|&q| (q as usize) < p);
        let queries = at(range.start)..at(range.end);
        let row = c.q_heads * c.dim;
        let q = &c.q[queries.start * row..queries.end * row];
        v1::AppendChunk {
            session: SESSION.to_vec(),
            begin: range.start as u64,
            k: of(&c.k, c.dim),
            v: of(&c.v, c.value_dim),
            q: (!queries.is_empty()).then(|| from_f16(&[queries.len(), c.q_heads, c.dim], q)),
            q_pos: c.q_pos[queries].iter().map(|&p| u64::from(p)).collect(),
            q_window: c.meta.window as u64,
            seal_to: seal_to.map(|to| to as u64),
            ..Default::default()
        }
    }

    /// One message for each token of `range`. Where the capture has the query of a position, it asks for the best `k` of
    /// what lies before its window.
    pub fn decode(&self, range: Range<usize>, k: u32) -> Result<Times> {
        let mut times = Times::default();
        for position in range {
            let row = self.step(position, k);
            let asks = row.q.is_some();
            let message = v1::AttendRequest {
                id: position as u64,
                deadline_us: 0,
                instance: self.node.instance().to_vec(),
                rows: vec![row],
            };
            let start = Instant::now();
            let answer = self.runtime.block_on(self.node.attend(message))?;
            let took = start.elapsed();
            if let Some(error) = answer.rows.into_iter().next().and_then(|r| r.error) {
                anyhow::bail!("position {position}: {}", error.message);
            }
            if asks { times.answer.push(took) } else { times.append.push(took) }
        }
        Ok(times)
    }

    fn step(&self, position: usize, k: u32) -> v1::AttendRow {
        let c = self.capture;
        let of = |data: &[half::f16], dim: usize| {
            let row = c.kv_heads * dim;
            Some(from_f16(&[c.kv_heads, dim], &data[position * row..(position + 1) * row]))
        };
        let row = c.q_heads * c.dim;
        let asked = c.q_pos.binary_search(&(position as u32)).ok();
        let end = (position + 1).saturating_sub(c.meta.window).max(c.meta.sink);
        v1::AttendRow {
            session: SESSION.to_vec(),
            kv_head_count: c.kv_heads as u32,
            begin: c.meta.sink as u64,
            end: end as u64,
            budget: Some(convert::Budget::TopK(k).write()),
            estimate: true,
            attention: Some(v1::AttentionDesc { scale: c.meta.scale, ..Default::default() }),
            q: asked.map(|j| from_f32(&[c.q_heads, c.dim], &widen(&c.q[j * row..(j + 1) * row]))),
            token: Some(v1::NewToken {
                position: position as u64,
                k: of(&c.k, c.dim),
                v: of(&c.v, c.value_dim),
            }),
            ..Default::default()
        }
    }

    /// Waits for all builds and merges and tells what is held.
    pub fn ready(&self) -> Result<v1::SessionInfo> {
        let wait = v1::WaitReadyRequest { session: SESSION.to_vec(), timeout_ms: READY_MS };
        let ready = self.runtime.block_on(self.node.wait_ready(wait))?;
        ensure!(ready.ready == ready.spans, "{} of {} spans are ready", ready.ready, ready.spans);
        let inspect = v1::InspectRequest { session: SESSION.to_vec() };
        let told = self.runtime.block_on(self.node.inspect(inspect))?;
        told.sessions.into_iter().next().context("the shard tells of no session")
    }

    /// The best `k` of `range` for captured query `j` of a KV head: [group, dim].
    pub fn select(&self, kv_head: usize, range: Range<u64>, q: &[half::f16], k: usize) -> Result<Selection> {
        Ok(self.node.select(&SESSION, (0, kv_head), range, &widen(q), k)?)
    }

    /// Count and sum in seconds of a histogram of the shard.
    pub fn seconds(&self, name: &str) -> Result<(u64, f64)> {
        let text = self.node.render_metrics();
        let value = |suffix: &str| {
            let name = format!("{name}_{suffix} ");
            let line = text.lines().find_map(|l| l.strip_prefix(&name));
            line.and_then(|v| v.parse::<f64>().ok()).with_context(|| format!("the shard has no {name}"))
        };
        Ok((value("count")? as u64, value("sum")?))
    }
}
