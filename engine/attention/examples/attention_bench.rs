//! Prints what exact attention costs on this machine: `cargo run --release -p attention --example attention_bench`.
//! CPU time of one thread, the best of several rounds; on a shared machine caches and memory are still shared.

use std::hint::black_box;
use std::time::Instant;

use attention::{
    BlockPartials, BlockScratch, CausalBlock, Description, Partial, Rows, Scratch, attend_block, attend_ids,
    attend_range,
};
use kernels::{Kernels, f16};

/// CPU time of this thread in ns (coarse: a few ms), so that a busy machine does not count; wall time where the system
/// does not say.
fn now(start: Instant) -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let cpu = stat.and_then(|s| s.split(' ').next()?.parse::<f64>().ok());
    cpu.unwrap_or_else(|| start.elapsed().as_nanos() as f64)
}

/// Best time of a call, in ns.
fn best(mut call: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..4 {
        let start = Instant::now();
        let (before, mut calls) = (now(start), 0);
        while start.elapsed().as_millis() < 150 {
            call();
            calls += 1;
        }
        best = best.min((now(start) - before) / f64::from(calls));
    }
    best
}

fn noise(n: usize) -> Vec<f16> {
    let mut state = 7u64;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            f16::from_f32((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
        })
        .collect()
}

fn main() {
    let k = Kernels::native();
    println!("{k:?}");
    for (g, dim, n) in [(3, 64, 2048), (3, 64, 32_768), (3, 64, 1 << 20), (7, 128, 32_768), (1, 80, 32_768)] {
        let (keys, values) = (noise(n * dim), noise(n * dim));
        let (keys, values) = (Rows::contiguous(&keys, dim), Rows::contiguous(&values, dim));
        let (q, d) = (vec![0.3; g * dim], Description::scaled(1.0 / (dim as f32).sqrt()));
        let (mut scratch, mut out) = (Scratch::new(), vec![Partial::neutral(dim); g]);
        let ns = best(|| {
            attend_range(&k, &d, black_box(&q), &keys, &values, 0..n, &mut scratch, &mut out);
        });
        println!("attend_range g {g} dim {dim} keys {n}: {:.2} ns/key, {:.1} us", ns / n as f64, ns / 1e3);
        let chosen: Vec<(u32, f32)> = (0..100).map(|i| (i * 7919 % n as u32, 1.0)).collect();
        let ns = best(|| attend_ids(&k, &d, black_box(&chosen), &values, &mut scratch, &mut out[0]));
        println!("attend_ids 100 of {n}, dim {dim}: {:.2} us", ns / 1e3);
    }

    for (g, dim, n) in [(3, 64, 8192), (7, 128, 4096)] {
        let (keys, values) = (noise(n * dim), noise(n * dim));
        let q = vec![0.3; n * g * dim];
        let d = Description::scaled(1.0 / (dim as f32).sqrt());
        let (keys, values) = (Rows::contiguous(&keys, dim), Rows::contiguous(&values, dim));
        let block = CausalBlock { q: &q, q_heads: g, heads: 0..g, first: 0, keys, values };
        let (mut scratch, mut out) = (BlockScratch::default(), BlockPartials::default());
        for rows in [32, 64, 128] {
            let rows = n - rows..n;
            let scores = (n * rows.len() * g) as f64;
            let ns = best(|| attend_block(&k, &d, &block, rows.clone(), &mut scratch, &mut out));
            println!(
                "attend_block g {g} dim {dim} keys {n} rows {}: {:.2} ns/score, {:.1} GFLOP/s",
                rows.len(),
                ns / scores,
                4.0 * dim as f64 * scores / ns
            );
        }
    }
}
