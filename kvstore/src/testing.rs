//! Fixtures of the unit tests: small models, messages, an exact reference.

use crate::{Node, NodeConfig};
use half::f16;
use std::sync::Arc;
use wire::{PROTOCOL, convert, tensor, v1};

/// A fingerprint with these dimensions and scale 1.
pub fn fingerprint(
    layers: u32,
    q_heads: u32,
    kv_heads: u32,
    key_dim: u32,
    value_dim: u32,
) -> v1::Fingerprint {
    v1::Fingerprint {
        model: "test".into(),
        layers,
        q_heads,
        kv_heads,
        key_dim,
        value_dim,
        kv_dtype: v1::DType::F16 as i32,
        scale: 1.0,
        provenance: v1::Provenance::Exact as i32,
        ..Default::default()
    }
}

/// A node with two attend threads.
pub fn node(change: impl FnOnce(&mut NodeConfig)) -> Arc<Node> {
    let mut config = NodeConfig { threads: Some(2), index_threads: Some(1), ..NodeConfig::default() };
    change(&mut config);
    Node::new(config).unwrap()
}

/// A request to open session `id` with all heads of a model.
pub fn open(id: u8, fingerprint: &v1::Fingerprint) -> v1::OpenRequest {
    v1::OpenRequest {
        session: vec![id; 16],
        fingerprint: Some(fingerprint.clone()),
        owned: vec![v1::HeadRange {
            layer_begin: 0,
            layer_end: fingerprint.layers,
            kv_head_begin: 0,
            kv_head_end: fingerprint.kv_heads,
        }],
        protocol: PROTOCOL,
        ..Default::default()
    }
}

/// Element `d` of the key (`value`: of the value) at a position: small, different everywhere.
pub fn element(layer: u32, head: u32, position: u64, d: u32, value: bool) -> f16 {
    let x = position * 31 + u64::from(d) * 7 + u64::from(head) * 1009 + u64::from(layer) * 5003;
    let x = (x * 2_654_435_761 + u64::from(value)) % 1999;
    f16::from_f32(x as f32 / 1999.0 - 0.5)
}

/// A chunk of all heads of a layer.
pub fn chunk(id: u8, f: &v1::Fingerprint, layer: u32, begin: u64, tokens: u64) -> v1::AppendChunk {
    let rows = |dim: u32, value: bool| {
        let data: Vec<f16> = (begin..begin + tokens)
            .flat_map(|t| (0..f.kv_heads).map(move |h| (t, h)))
            .flat_map(|(t, h)| (0..dim).map(move |d| element(layer, h, t, d, value)))
            .collect();
        Some(tensor::from_f16(&[tokens as usize, f.kv_heads as usize, dim as usize], &data))
    };
    v1::AppendChunk {
        session: vec![id; 16],
        layer,
        begin,
        k: rows(f.key_dim, false),
        v: rows(f.value_dim, true),
        ..Default::default()
    }
}

/// A query for all heads: head h, element d.
pub fn query(f: &v1::Fingerprint, zero: bool) -> Vec<f32> {
    let n = f.q_heads * f.key_dim;
    (0..n).map(|i| if zero { 0.0 } else { (i as f32 * 0.7).sin() }).collect()
}

/// A row over `[begin, end)`, budget all, exact.
pub fn row(id: u8, f: &v1::Fingerprint, layer: u32, begin: u64, end: u64, zero: bool) -> v1::AttendRow {
    v1::AttendRow {
        session: vec![id; 16],
        layer,
        kv_head_begin: 0,
        kv_head_count: f.kv_heads,
        begin,
        end,
        budget: Some(convert::Budget::All.write()),
        attention: Some(v1::AttentionDesc { scale: f.scale, ..Default::default() }),
        q: Some(tensor::from_f32(&[f.q_heads as usize, f.key_dim as usize], &query(f, zero))),
        ..Default::default()
    }
}

/// The token at a position, for all heads.
pub fn token(f: &v1::Fingerprint, layer: u32, position: u64) -> v1::NewToken {
    let c = chunk(0, f, layer, position, 1);
    let flat = |t: Option<v1::Tensor>| {
        t.map(|mut t| {
            t.shape.remove(0);
            t
        })
    };
    v1::NewToken { position, k: flat(c.k), v: flat(c.v) }
}

/// A message of rows for this node.
pub fn message(node: &Node, rows: Vec<v1::AttendRow>) -> v1::AttendRequest {
    v1::AttendRequest { id: 9, deadline_us: 0, instance: node.instance().to_vec(), rows }
}

/// An f32 tensor's elements.
pub fn floats(t: &Option<v1::Tensor>) -> Vec<f32> {
    let t = t.as_ref().unwrap();
    t.data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// l over all parts, for each query head.
pub fn mass(r: &v1::AttendResult) -> Vec<f32> {
    let (a, b, c) = (floats(&r.l_exact), floats(&r.l_quant), floats(&r.l_est));
    (0..a.len()).map(|i| a[i] + b[i] + c[i]).collect()
}
