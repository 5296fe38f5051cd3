//! Captures of noise that tests write to disk.

use std::path::Path;

use half::f16;
use worker::capture_file::{Capture, CaptureMeta};

const DIM: usize = 16;

/// A capture of `tokens`, evaluated from a position on, with so many KV heads and query heads each.
pub fn write_capture(path: &Path, (tokens, eval_from): (usize, usize), (kv_heads, group): (usize, usize)) {
    let mut state = 7u64;
    let mut noise = |count: usize| -> Vec<f16> {
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            f16::from_f32((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5)
        };
        (0..count).map(|_| next()).collect()
    };
    let q_pos: Vec<u32> = (100..tokens as u32).step_by(4).collect();
    let capture = Capture {
        k: noise(tokens * kv_heads * DIM),
        v: noise(tokens * kv_heads * DIM),
        q: noise(q_pos.len() * kv_heads * group * DIM),
        q_pos,
        tokens,
        kv_heads,
        q_heads: kv_heads * group,
        dim: DIM,
        value_dim: DIM,
        meta: CaptureMeta { scale: 1.0, sink: 16, window: 64, eval_from, ..CaptureMeta::default() },
    };
    capture.write(path).unwrap();
}
