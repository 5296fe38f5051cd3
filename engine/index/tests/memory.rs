//! A build stays within the memory that was told before it, and so does the index.

use attention::{Description, Rows};
use half::f16;
use index::{BuildParams, BuildQueries, Kind, build, index_bytes, working_bytes};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const GROUP: usize = 2;

fn noise(n: usize, seed: u64) -> Vec<f16> {
    let mut x = seed | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        f16::from_f32((x >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
    };
    (0..n).map(|_| next()).collect()
}

#[test]
fn builds_and_indexes_stay_within_what_was_told() {
    // The pool's threads are there before anything is counted.
    let threads = rayon::broadcast(|_| ()).len() as u64;
    for (tokens, dim) in [(200, 64), (3_000, 128), (20_000, 64)] {
        let (keys, values) = (noise(tokens * dim, 1), noise(tokens * dim, 2));
        let m = tokens / 20;
        let queries = BuildQueries {
            q: noise(m * GROUP * dim, 3),
            visible: (0..m).map(|j| ((j + 1) * tokens / m) as u32).collect(),
            group: GROUP,
        };
        for kind in [Kind::Auto, Kind::Flat, Kind::Summary, Kind::Graph] {
            let description = Description::scaled(0.1);
            let params = BuildParams { kind, description, ..BuildParams::default() };
            let dims = (dim as u64, dim as u64);
            let before = ALLOCATOR.current_usage();
            ALLOCATOR.reset_peak_usage();
            let (k, v) = (Rows::contiguous(&keys, dim), Rows::contiguous(&values, dim));
            let index = build(&k, &v, Some(&queries), &params).expect("the input is right");
            let peak = (ALLOCATOR.peak_usage() - before) as u64;
            let told = index_bytes(&params, tokens as u64, dims);
            let bytes = index.bytes() as u64;
            assert!(bytes <= told, "{kind} of {tokens}: {bytes} bytes, told {told}");
            let limit = bytes + working_bytes(&params, tokens as u64, dims, ((m * GROUP) as u64, threads));
            assert!(peak <= limit, "{kind} of {tokens}: {peak} at the peak, told {limit}");
            eprintln!("{kind} of {tokens} x {dim}: index {bytes} of {told}, peak {peak} of {limit}");
        }
    }
}
