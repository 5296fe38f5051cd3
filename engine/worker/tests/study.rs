//! `recollect study` on a tiny model: the laws that its figures must obey, and pictures that show every cell.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::TinyModel;
use serde_json::Value;

const LAYERS: usize = 3;
const KV_HEADS: usize = 2;

fn study(what: &str, model: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_recollect"));
    command.args(["study", what, "--model"]).arg(model).args(more).output().unwrap()
}

fn rows(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

fn tiny(folder: &Path) -> (PathBuf, PathBuf) {
    let model = TinyModel::small(LAYERS).write_directory(folder, 1);
    let text = folder.join("text.txt");
    let content: String = (0..600).map(|i| format!("line {} of {}. ", i * 7 % 311, i)).collect();
    std::fs::write(&text, content).unwrap();
    (model, text)
}

/// Every element is closed, in the order in which it was opened.
fn check_svg(path: &Path) -> String {
    let svg = std::fs::read_to_string(path).unwrap();
    let mut open = Vec::new();
    for part in svg.split('<').skip(1) {
        let (tag, _) = part.split_once('>').unwrap_or_else(|| panic!("an unclosed tag: {part}"));
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "in {}", path.display());
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes in {tag}");
    }
    assert!(svg.starts_with("<svg ") && open.is_empty() && !svg.contains("NaN"), "{}", path.display());
    svg
}

#[test]
fn heads_obey_the_laws_of_recovery_and_repeat_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let (model, text) = tiny(folder.path());
    let plots = folder.path().join("plots");
    let common = ["--text", text.to_str().unwrap(), "--context", "1800", "--eval", "64", "--positions", "8"];
    let flags = ["--sink", "8", "--window", "32", "--budgets", "5,40,400,all", "--diffuse", "300", "--json"];
    let drawn = ["--plots", plots.to_str().unwrap(), "--index", "summary"];
    let output = study("heads", &model, &[&common[..], &flags, &drawn].concat());
    let again = study("heads", &model, &[&common[..], &flags, &drawn, &["--threads", "1"]].concat());
    assert_eq!(output.stdout, again.stdout);

    let rows = rows(&output);
    let (summary, heads) = rows.split_last().unwrap();
    assert_eq!(heads.len(), LAYERS * KV_HEADS * 4);
    let mut diffuse = 0;
    for (i, of_head) in heads.chunks(4).enumerate() {
        let mut before = 0.0;
        for (row, budget) in of_head.iter().zip(["5", "40", "400", "all"]) {
            let of = |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field} in {row}"));
            assert_eq!((row["layer"].as_u64(), row["kv_head"].as_u64()), place(i), "{row}");
            assert_eq!((&row["budget"], &row["index"]), (&budget.into(), &"summary".into()));
            assert_eq!(row["queries"], 8 * 2);
            assert_eq!(row["indexed_tokens"], 1800 - 64 - 32 - 8);
            assert!(of("local_share") <= of("recovery") && of("recovery") <= of("recovery_oracle") + 1e-9);
            assert!(of("recovery_indexed") <= of("recovery_indexed_oracle") + 1e-9, "{row}");
            assert!(of("recovery_oracle") >= before, "more tokens hold no less: {row}");
            before = of("recovery_oracle");
            assert!(of("tokens_for_90") <= of("tokens_for_95") && of("tokens_for_95") <= of("tokens_for_99"));
            assert!(of("recall_at_k") > 0.5 && of("recall_at_k") <= 1.0, "{row}");
        }
        let last = &of_head[3];
        for field in ["recovery", "recovery_indexed", "recovery_oracle", "recall_at_k"] {
            assert!((last[field].as_f64().unwrap() - 1.0).abs() < 1e-9, "{field} in {last}");
        }
        for field in ["output_error_mean", "output_error_estimate_mean", "oracle_topk_error_mean"] {
            assert!(last[field].as_f64().unwrap() < 1e-5, "{field} in {last}");
        }
        diffuse += usize::from(last["tokens_for_95"].as_f64().unwrap() > 300.0);
    }
    assert_eq!((&summary["record"], &summary["heads"]), (&"summary".into(), &(LAYERS * KV_HEADS).into()));
    assert_eq!(summary["diffuse_heads"].as_array().unwrap().len(), diffuse);
    let by_budget = summary["by_budget"].as_array().unwrap();
    assert_eq!(by_budget.len(), 4);
    assert_eq!(by_budget[3]["heads_within_tolerance"], LAYERS * KV_HEADS);

    for (name, cells, bands) in [
        ("heads-error.svg", 4 * LAYERS * KV_HEADS, 0),
        ("heads-tokens.svg", 3 * LAYERS * KV_HEADS, 0),
        ("heads-error-by-budget.svg", 0, 2),
        ("heads-missed-by-budget.svg", 0, 1),
    ] {
        let svg = check_svg(&plots.join(name));
        assert_eq!(svg.matches("<rect class=\"cell\"").count(), cells, "{name}");
        assert_eq!(svg.matches("class=\"band\"").count(), bands, "{name}");
        assert!(summary["plots"].as_array().unwrap().contains(&name.into()));
    }
}

fn place(i: usize) -> (Option<u64>, Option<u64>) {
    (Some((i / KV_HEADS) as u64), Some((i % KV_HEADS) as u64))
}

#[test]
fn one_layer_is_what_it_is_among_all() {
    let folder = tempfile::tempdir().unwrap();
    let (model, text) = tiny(folder.path());
    let common = ["--text", text.to_str().unwrap(), "--context", "1500", "--eval", "32", "--positions", "4"];
    let flags = ["--sink", "8", "--window", "32", "--budgets", "20", "--json"];
    let all = rows(&study("heads", &model, &[&common[..], &flags].concat()));
    let one = rows(&study("heads", &model, &[&common[..], &flags, &["--layers", "1"]].concat()));
    assert_eq!(one[..KV_HEADS], all[KV_HEADS..2 * KV_HEADS]);
    assert_eq!(one.len(), KV_HEADS + 1);
}

#[test]
fn needles_add_up_and_budget_all_loses_none() {
    let folder = tempfile::tempdir().unwrap();
    let (model, _) = tiny(folder.path());
    let plots = folder.path().join("plots");
    let flags =
        ["--contexts", "900,1600", "--depths", "0,50,100", "--facts", "2", "--budget", "all", "--json"];
    let more = ["--sink", "200", "--window", "200", "--plots", plots.to_str().unwrap()];
    let rows = rows(&study("needles", &model, &[&flags[..], &more].concat()));
    let (summary, cells) = rows.split_last().unwrap();
    assert_eq!(cells.len(), 6);
    let grid = [900, 1600].into_iter().flat_map(|context| [0, 50, 100].map(|depth| (context, depth)));
    for (cell, (context, depth)) in cells.iter().zip(grid) {
        let of = |field: &str| cell[field].as_u64().unwrap_or_else(|| panic!("{field} in {cell}"));
        assert_eq!((of("context"), of("depth_percent"), of("facts")), (context, depth, 2));
        assert!(of("document_tokens") <= context && of("needle_end") <= of("document_tokens"), "{cell}");
        assert!(of("found_full") <= 2 && of("found_window") <= 2);
        assert_eq!((of("found"), of("lost")), (of("found_full"), 0), "{cell}");
        let held_by = ["worker", "shards", "worker"][depth as usize / 50];
        assert_eq!(cell["held_by"], held_by, "{cell}");
        if held_by == "worker" && depth == 100 {
            assert_eq!(of("needle_end"), of("document_tokens"));
        }
    }
    for field in ["facts", "found", "found_full", "found_window", "lost"] {
        let sum: u64 = cells.iter().map(|cell| cell[field].as_u64().unwrap()).sum();
        assert_eq!(summary[field], sum, "{field} in {summary}");
    }
    assert_eq!((&summary["cells"], &summary["shards_facts"]), (&6.into(), &4.into()));
    let svg = check_svg(&plots.join("needles.svg"));
    assert_eq!(svg.matches("<rect class=\"cell\"").count(), 3 * 6);
}

#[test]
fn bad_input_is_one_line_with_64() {
    let folder = tempfile::tempdir().unwrap();
    let (model, text) = tiny(folder.path());
    let text = text.to_str().unwrap();
    for (what, flags, names) in [
        ("heads", &["--text", text, "--context", "1500", "--layers", "3"][..], "--layers 3: the model has 3"),
        ("heads", &["--text", text, "--context", "896"], "sink + window + eval = 896"),
        ("heads", &["--text", text, "--context", "900000"], "900000"),
        ("heads", &["--text", text, "--budgets", "coverage=0.9"], "a count or all"),
        ("heads", &["--text", text, "--positions", "300"], "--positions 300: --eval has 256"),
        ("heads", &["--text", text, "--tolerance", "0"], "(0, 1]"),
        ("heads", &["--text", text, "--plots", text], "--plots"),
        ("heads", &["--text", "no/such/file"], "--text no/such/file"),
        ("needles", &["--contexts", "712"], "sink + window + 72 = 712"),
        ("needles", &["--depths", "101"], "--depths"),
        ("needles", &["--contexts", "200", "--sink", "8", "--window", "8", "--facts", "10"], "for 10 facts"),
    ] {
        let output = study(what, &model, flags);
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{flags:?}: {line}");
        assert_eq!(line.trim_end().lines().count(), 1, "{line}");
        assert!(line.starts_with("error: ") && line.contains(names), "{flags:?}: {line}");
    }
}
