//! The verbs through a node, as a worker would use them.

mod boundaries;
pub mod life;
mod merges;
mod model;
mod refusals;
mod samples;

use crate::testing::*;
use crate::{Node, NodeConfig};
use std::sync::Arc;
use tonic::{Code, Status};
use wire::v1;

/// Opens session 1 and fills every layer with `tokens` tokens, sealed below each of `seals`.
pub async fn filled(
    node: &Arc<Node>,
    f: &v1::Fingerprint,
    open: v1::OpenRequest,
    tokens: u64,
    seals: &[u64],
) {
    let id = open.session[0];
    node.open(open).await.unwrap();
    for layer in 0..f.layers {
        let mut begin = 0;
        for &end in seals.iter().chain([&tokens]) {
            if end > begin {
                let mut c = chunk(id, f, layer, begin, end - begin);
                c.seal_to = seals.contains(&end).then_some(end);
                node.append(c).await.unwrap();
                begin = end;
            }
        }
    }
}

/// The one row's answer.
pub async fn ask(node: &Arc<Node>, row: v1::AttendRow) -> v1::AttendResult {
    let mut answer = node.attend(message(node, vec![row])).await.unwrap();
    assert_eq!(answer.rows.len(), 1);
    answer.rows.remove(0)
}

/// The one row's error.
pub async fn refused(node: &Arc<Node>, row: v1::AttendRow) -> Status {
    ask(node, row).await.error.expect("an error").into()
}

/// Exact attention over `[begin, end)` in f64: (m, l, o) of each query head.
pub fn exact(f: &v1::Fingerprint, layer: u32, begin: u64, end: u64) -> Vec<(f64, f64, Vec<f64>)> {
    let q = query(f, false);
    let group = f.q_heads / f.kv_heads;
    (0..f.q_heads)
        .map(|h| {
            let kv = h / group;
            let q = &q[(h * f.key_dim) as usize..((h + 1) * f.key_dim) as usize];
            let z: Vec<f64> = (begin..end)
                .map(|t| {
                    let k = |d: usize| element(layer, kv, t, d as u32, false).to_f64();
                    q.iter().enumerate().map(|(d, &x)| f64::from(x) * k(d)).sum::<f64>() * f64::from(f.scale)
                })
                .collect();
            let m = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let l: f64 = z.iter().map(|z| (z - m).exp()).sum();
            let o = (0..f.value_dim)
                .map(|d| {
                    let terms = z
                        .iter()
                        .zip(begin..end)
                        .map(|(z, t)| (z - m).exp() * element(layer, kv, t, d, true).to_f64());
                    terms.sum::<f64>() / l
                })
                .collect();
            (m, l, o)
        })
        .collect()
}

/// Compares a result with [`exact`].
pub fn assert_exact(f: &v1::Fingerprint, r: &v1::AttendResult, layer: u32, begin: u64, end: u64) {
    assert_eq!(r.error, None);
    let (m, l, o) = (floats(&r.m), mass(r), floats(&r.o));
    for (h, (want_m, want_l, want_o)) in exact(f, layer, begin, end).into_iter().enumerate() {
        assert!((f64::from(m[h]) - want_m).abs() < 1e-4, "m of head {h}: {} {want_m}", m[h]);
        assert!((f64::from(l[h]) / want_l - 1.0).abs() < 1e-4, "l of head {h}: {} {want_l}", l[h]);
        for (d, want) in want_o.iter().enumerate() {
            let got = f64::from(o[h * f.value_dim as usize + d]);
            assert!((got - want).abs() < 1e-4, "o[{h}, {d}]: {got} {want}");
        }
    }
}

/// The session's tokens and spans as the shard tells them.
pub async fn told(node: &Arc<Node>, id: u8) -> v1::SessionInfo {
    let request = v1::InspectRequest { session: vec![id; 16] };
    node.inspect(request).await.unwrap().sessions.remove(0)
}
