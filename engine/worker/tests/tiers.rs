//! `recollect bench tiers` on a small capture of noise: the laws that its figures obey.

#[path = "common/bench.rs"]
mod common;
#[path = "common/noise.rs"]
mod noise;

use std::path::Path;
use std::process::Output;

use serde_json::Value;

fn bench(capture: &Path, more: &[&str]) -> Output {
    common::bench("tiers", capture, more)
}

/// The rows, without the times.
fn rows(capture: &Path, more: &[&str]) -> Vec<Value> {
    common::timeless_rows(&bench(capture, more), &["us_per_query", "build_us_per_token"], |t| t >= 0.0)
}

#[test]
fn every_tier_has_its_row_and_repeats_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("small.safetensors");
    noise::write_capture(&capture, (3000, 2800), (2, 2));
    let document = folder.path().join("TIERS.md");
    let flags = ["--percent", "30,12.5", "--queries", "20", "--recall", "50"];
    let written = ["--threads", "2", "--write", document.to_str().unwrap()];
    let all = rows(&capture, &[&flags[..], &written].concat());
    assert_eq!(all, rows(&capture, &flags));

    let names: Vec<&str> = all.iter().map(|row| row["variant"].as_str().unwrap()).collect();
    let sketched = |p: &str| ["evict", "coded", "means", "published"].map(|kind| format!("{kind}-{p}"));
    let wanted = ["full", "int8", "int8-plain", "int4"].map(String::from).to_vec();
    assert_eq!(names, [wanted, sketched("30").to_vec(), sketched("12.5").to_vec()].concat());

    let of = |name: &str, field: &str| {
        let row = all.iter().find(|row| row["variant"] == name).unwrap();
        row[field].as_f64().unwrap_or_else(|| panic!("{field} in {row}"))
    };
    assert!(of("full", "output_error_mean") < 1e-5 && of("full", "recall_at_k") == 1.0);
    assert_eq!((of("full", "bytes_per_token"), of("full", "kv_bytes_per_token")), (64.0, 64.0));
    for (finer, coarser) in [("full", "int8"), ("int8", "int8-plain"), ("int8-plain", "int4")] {
        assert!(of(finer, "output_error_mean") <= of(coarser, "output_error_mean"), "{finer} {coarser}");
        assert!(of(finer, "recall_at_k") >= of(coarser, "recall_at_k"), "{finer} {coarser}");
    }
    for row in &all {
        let of = |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field} in {row}"));
        let name = row["variant"].as_str().unwrap();
        let learns = !["full", "int8", "int8-plain", "int4"].contains(&name);
        assert_eq!(row["shifted_error_mean"].is_null(), !learns, "{row}");
        assert_eq!((row["queries"].as_u64(), &row["capture"]), (Some(20 * 4), &"small".into()));
        assert!(of("output_error_p90") >= of("output_error_mean") * 0.5 && of("recall_at_k") <= 1.0, "{row}");
        assert!((0.0..=1.0).contains(&of("exact_share_of_mass")), "{row}");
        if let Some((_, percent)) = name.split_once('-').filter(|_| learns) {
            let share = percent.parse::<f64>().unwrap() / 100.0 * 64.0;
            let read = of("bytes_per_token") - of("bytes_per_token_to_reconstruct");
            assert!(read <= share + 1e-9 && read > 0.85 * share, "{row}");
        }
    }
    let text = std::fs::read_to_string(&document).unwrap();
    assert!(text.contains("| coded-12.5 |") && folder.path().join("tiers-small-shifted.svg").exists());
}

#[test]
fn wrong_flags_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("c.safetensors");
    noise::write_capture(&capture, (1200, 1000), (1, 1));
    for (flags, named) in [
        (vec!["--percent", "0"], "--percent"),
        (vec!["--percent", "120"], "120"),
        (vec!["--threads", "0"], "--threads 0"),
        (vec!["--write", "no/such/folder/x.md"], "no/such/folder"),
        (vec!["--capture", "no/such/file"], "no/such/file"),
    ] {
        let output = bench(&capture, &flags);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{flags:?}: {line}");
        assert!(line.contains(named) && line.trim_end().lines().count() == 1, "{flags:?}: {line}");
    }
}
