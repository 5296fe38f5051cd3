//! `recollect bench retrieval` with several budgets, widths and copies: each row is what a run of its own says.

#[path = "common/bench.rs"]
mod common;
#[path = "common/noise.rs"]
mod noise;

use std::path::Path;
use std::process::Output;

use serde_json::Value;

const TOKENS: usize = 3000;

fn write_capture(path: &Path) {
    noise::write_capture(path, (TOKENS, 2800), (1, 2));
}

fn bench(capture: &Path, more: &[&str]) -> Output {
    common::bench("retrieval", capture, more)
}

/// The rows, without the times.
fn rows(capture: &Path, more: &[&str]) -> Vec<Value> {
    common::timeless_rows(
        &bench(capture, more),
        &["search_us_per_query", "wall_us_per_query", "build_us_per_token"],
        |t| t > 0.0,
    )
}

#[test]
fn budgets_widths_and_copies() {
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("c.safetensors");
    write_capture(&capture);
    let method = ["--method", "summary,graph"];
    let grid = rows(&capture, &[&method[..], &["--budget", "5,20", "--width", "calibrated,30"]].concat());
    let mut single = Vec::new();
    for method in ["summary", "graph"] {
        for budget in ["5", "20"] {
            for width in ["calibrated", "30"] {
                single.extend(rows(
                    &capture,
                    &["--method", method, "--budget", budget, "--width", width, "--threads", "1"],
                ));
            }
        }
    }
    assert_eq!(grid, single);

    for method in ["summary", "flat", "hnsw"] {
        let one = ["--method", method, "--budget", "20", "--width", "100"];
        let mut copied = rows(&capture, &[&one[..], &["--copies", "3", "--threads", "2"]].concat());
        assert_eq!(copied[0]["copies"], 3);
        (copied[0]["copies"], copied[0]["threads"]) = (1.into(), 1.into());
        assert_eq!(copied, rows(&capture, &one));
    }
}

#[test]
fn wrong_flags_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("c.safetensors");
    write_capture(&capture);
    for (flags, named) in [
        (vec!["--copies", "0"], "--copies 0"),
        (vec!["--width", "wide"], "wide"),
        (vec!["--dump", "x", "--budget", "5,6"], "--dump"),
    ] {
        let output = bench(&capture, &flags);
        assert_eq!(output.status.code(), Some(64), "{flags:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(named), "{flags:?}");
    }
}
