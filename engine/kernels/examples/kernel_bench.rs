//! Prints what the kernels cost on this machine: `cargo run --release -p kernels --example kernel_bench [path]`.
//! CPU time of one thread, the best of several rounds; on a shared machine caches and memory are still shared.

use std::hint::black_box;
use std::time::Instant;

use kernels::topk::TopK;
use kernels::{Isa, Kernels, f16};

/// CPU time of this thread in ns (coarse: a few ms), so that a busy machine does not count; wall time where the system
/// does not say.
fn now(start: Instant) -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let cpu = stat.and_then(|s| s.split(' ').next()?.parse::<f64>().ok());
    cpu.unwrap_or_else(|| start.elapsed().as_nanos() as f64)
}

/// Best time of a call, in ns per item.
fn best(items: usize, mut call: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        let (before, mut calls) = (now(start), 0);
        while start.elapsed().as_millis() < 100 {
            call();
            calls += 1;
        }
        best = best.min((now(start) - before) / (calls * items) as f64);
    }
    best
}

fn rows(k: Kernels, g: usize, dim: usize, n: usize) {
    let q = vec![0.5f32; g * dim];
    let rows = vec![f16::from_f32(0.25); n * dim];
    let mut scores = vec![0.0; g * n];
    let mut acc = vec![0.0; g * dim];
    let dot = best(n, || k.dot_rows(black_box(&q), dim, &rows, &mut scores));
    let axpy = best(n, || k.axpy_rows(black_box(&scores), dim, &rows, &mut acc));
    // A fixed scattered order over the same rows.
    let order: Vec<usize> = (0..n).map(|i| (i * 7919 + 13) % n).collect();
    let scattered = || order.iter().map(|&i| &rows[i * dim..(i + 1) * dim]);
    let gather = best(n, || k.dot_gather(black_box(&q), dim, scattered(), &mut scores));
    let sums = best(n, || k.axpy_gather(black_box(&scores), dim, scattered(), &mut acc));
    println!(
        "g {g} dim {dim:3} rows {n:7}: dot_rows {dot:6.2}  axpy_rows {axpy:6.2}  dot_gather {gather:6.2}  axpy_gather {sums:6.2} ns/row"
    );
}

fn main() {
    let named = std::env::args().nth(1).map(|name| name.parse::<Isa>());
    let k = match named {
        Some(Ok(isa)) => Kernels::with(isa),
        Some(Err(error)) => {
            eprintln!("error: {error}");
            None
        }
        None => Some(Kernels::native()),
    };
    let Some(k) = k else {
        eprintln!("error: that kernel path is not available here");
        std::process::exit(64);
    };
    println!("{k:?}");
    for (g, dim) in [(1, 64), (3, 64), (4, 64), (7, 128), (1, 128), (3, 80)] {
        rows(k, g, dim, 128);
    }
    rows(k, 3, 64, 1 << 20);

    let z: Vec<f32> = (0..384).map(|i| -(i as f32) / 10.0).collect();
    let mut e = z.clone();
    let exp = best(z.len(), || {
        e.copy_from_slice(&z);
        black_box(k.exp_sum(&mut e, 0.0));
    });
    let max = best(z.len(), || {
        black_box(k.max(black_box(&z)));
    });
    println!("exp_sum {exp:.3} ns/score  max {max:.3} ns/score");

    for (m, n, dim) in [(192, 256, 64), (1024, 4096, 64), (1024, 4096, 128)] {
        let (a, b) = (vec![0.5f32; m * dim], vec![0.25f32; n * dim]);
        let mut c = vec![0.0; m * n];
        let ns = best(m * n * dim, || k.gemm_nt(black_box(&a), &b, dim, m, n, &mut c));
        println!("gemm_nt {m} x {n} x {dim}: {:.1} GFLOP/s", 2.0 / ns);
    }
    let (m, n, depth) = (192, 64, 256);
    let (a, b) = (vec![0.5f32; m * depth], vec![0.25f32; n * depth]);
    let mut c = vec![0.0; m * n];
    let ns = best(m * n * depth, || k.gemm_nn_add(black_box(&a), &b, depth, m, n, &mut c));
    println!("gemm_nn_add {m} x {n} x {depth}: {:.1} GFLOP/s", 2.0 / ns);

    let mut state = 1u64;
    let scores: Vec<f32> = (0..4000)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32
        })
        .collect();
    let (mut top, mut out) = (TopK::new(100), Vec::new());
    let ns = best(scores.len(), || {
        out.clear();
        top.push_run(black_box(&scores), 0);
        top.drain(&mut out);
    });
    println!("top 100 of {}: {:.2} us, {ns:.2} ns/score", scores.len(), ns * scores.len() as f64 / 1000.0);
}
