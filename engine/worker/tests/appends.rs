//! `recollect bench appends`: three rows over the same tokens, and what it refuses.

#[path = "common/noise.rs"]
mod noise;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const TOKENS: usize = 6000;

fn write_capture(path: &Path) {
    noise::write_capture(path, (TOKENS, 5900), (2, 2));
}

fn bench(capture: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_recollect"));
    command.args(["bench", "appends", "--json", "--capture"]).arg(capture);
    command.args(more).output().unwrap()
}

#[test]
fn unmerged_merged_and_fresh_are_asked_for_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("c.safetensors");
    write_capture(&capture);
    let output = bench(&capture, &["--appended", "3500", "--budget", "20"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let rows: Vec<Value> = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
    let field = |name: &str| rows.iter().map(|row| row[name].clone()).collect::<Vec<_>>();
    assert_eq!(field("variant"), ["unmerged", "merged", "fresh"]);
    // 2,320 tokens sealed by the prefill, then 1,024 three times: the rest is fresh, and asked for by nobody.
    assert_eq!(field("tokens"), vec![Value::from(2320 + 3 * 1024); 3]);
    let sizes = |sizes: &[u64]| Value::from(sizes.to_vec());
    assert_eq!(field("span_tokens")[0], sizes(&[2320, 1024, 1024, 1024]));
    assert_eq!(field("span_tokens")[1], sizes(&[2320 + 3 * 1024]));
    assert_eq!(field("span_tokens")[2], sizes(&[5900 - 64 - 16]));
    assert_eq!(field("spans"), [8, 2, 2]);
    assert_eq!((&field("merges")[0], &field("merges")[2]), (&Value::from(0), &Value::from(0)));
    for recall in field("recall_at_k") {
        assert!((0.85..=1.0).contains(&recall.as_f64().unwrap()), "{recall}");
    }
    assert!(rows[1]["append_us"]["max"].as_f64().unwrap() >= rows[1]["append_us"]["p50"].as_f64().unwrap());
    assert_eq!((&rows[2]["append_us"], &rows[2]["appended"]), (&Value::Null, &Value::from(0)));
}

#[test]
fn wrong_flags_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("c.safetensors");
    write_capture(&capture);
    for (flags, named) in [
        (["--appended", "0"], "--appended 0"),
        (["--appended", "5820"], "1 to 5819"),
        (["--method", "flat"], "--method flat"),
        (["--budget", "0"], "--budget"),
        (["--threads", "0"], "--threads 0"),
    ] {
        let output = bench(&capture, &flags);
        assert_eq!(output.status.code(), Some(64), "{flags:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(named), "{flags:?}");
    }
}
