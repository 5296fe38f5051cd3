//! The binary `recollect` as people run it: over two `recollectd` processes and with shards inside it.

mod common;

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use common::TinyModel;
use common::daemon::Daemon;

fn recollect(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_recollect")).args(arguments).output().unwrap()
}

/// Generates with the given shards; the summary line.
fn generate(model: &Path, prompt: &Path, more: &[&str]) -> serde_json::Value {
    let (model, prompt) = (model.to_str().unwrap(), prompt.to_str().unwrap());
    let mut arguments = vec!["generate", "--model", model, "--raw", "--prompt-file", prompt, "--json"];
    arguments.extend(["--max-new", "24", "--deterministic", "--budget", "40"]);
    arguments.extend(more);
    let output = recollect(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<serde_json::Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = lines.last().unwrap().clone();
    assert_eq!(summary["new_tokens"].as_u64().unwrap() as usize, lines.len() - 1);
    summary
}

fn tiny(folder: &Path) -> (PathBuf, PathBuf) {
    let model = TinyModel { layers: 3, kv_heads: 4, ..TinyModel::small(3) }.write_directory(folder, 1);
    let prompt = folder.join("prompt.txt");
    let text: String = (0..600).map(|i| format!("line {} of {}. ", i * 7 % 311, i)).collect();
    std::fs::write(&prompt, &text[..6000]).unwrap();
    (model, prompt)
}

#[test]
fn two_daemons_give_the_tokens_of_embedded_shards_and_repeat_them() {
    let folder = tempfile::tempdir().unwrap();
    let (model, prompt) = tiny(folder.path());
    let embedded = generate(&model, &prompt, &[]);
    let two_inside = generate(&model, &prompt, &["--embedded", "2"]);
    let daemons = [Daemon::start(), Daemon::start()];
    let shards = format!("{},{}", daemons[0].address, daemons[1].address);
    let remote = generate(&model, &prompt, &["--shards", &shards]);
    let again = generate(&model, &prompt, &["--shards", &shards]);
    for other in [&two_inside, &remote, &again] {
        assert_eq!(embedded["token_ids"], other["token_ids"]);
        assert_eq!(embedded["prompt_tokens"], other["prompt_tokens"]);
    }
    for field in ["coverage_mean", "missing_mass_max"] {
        assert_eq!(remote[field], again[field], "{field} must have the same bits");
    }
}

#[test]
fn coverage_is_null_where_nobody_knows_it() {
    let folder = tempfile::tempdir().unwrap();
    let (model, prompt) = tiny(folder.path());
    for (more, known) in [
        (&["--max-new", "3"][..], true),
        (&["--max-new", "3", "--estimate", "off"], false),
        (&["--max-new", "3", "--estimate", "off", "--budget", "all"], true),
    ] {
        let mut arguments =
            vec!["generate", "--model", model.to_str().unwrap(), "--raw", "--json", "--prompt-file"];
        arguments.push(prompt.to_str().unwrap());
        arguments.extend(more);
        let output = recollect(&arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let stdout = String::from_utf8(output.stdout).unwrap();
        let summary: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
        for field in ["coverage_mean", "missing_mass_max"] {
            assert_eq!(summary[field].is_number(), known, "{more:?}: {field} in {summary}");
            assert_eq!(summary[field].is_null(), !known, "{more:?}: {field} in {summary}");
        }
    }

    let out = folder.path().join("captures");
    let mut arguments =
        vec!["capture", "--model", model.to_str().unwrap(), "--layers", "0", "--kv-heads", "0"];
    arguments.extend(["--context", "1500", "--sink", "8", "--window", "16", "--eval", "20"]);
    arguments.extend(["--text", prompt.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    let output = recollect(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let capture = std::fs::read_dir(&out).unwrap().next().unwrap().unwrap().path();
    for (more, known) in [
        (&["--estimate", "on"][..], true),
        (&["--estimate", "off"], false),
        (&["--estimate", "off", "--budget", "all"], true),
    ] {
        let mut arguments = vec!["bench", "retrieval", "--method", "summary", "--json", "--capture"];
        arguments.push(capture.to_str().unwrap());
        arguments.extend(more);
        let output = recollect(&arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let row: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(row["coverage_true"].is_number(), "{row}");
        assert_eq!(row["coverage_estimated"].is_number(), known, "{more:?}: {row}");
    }
}

/// Sessions that a daemon holds.
fn sessions(daemon: &Daemon) -> serde_json::Value {
    let output = recollect(&["inspect", "--shard", &daemon.address, "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).unwrap();
    let summary: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    summary["sessions"].clone()
}

/// A generation without an end that has written its first token.
fn running(model: &Path, prompt: &Path, shards: &str) -> (Child, BufReader<ChildStdout>) {
    let (model, prompt) = (model.to_str().unwrap(), prompt.to_str().unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_recollect"));
    command.args(["generate", "--model", model, "--raw", "--prompt-file", prompt, "--json"]);
    command.args(["--max-new", "50000", "--shards", shards]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(line.contains("token"), "{line}");
    (child, out)
}

#[test]
fn a_generation_that_is_stopped_or_fails_leaves_no_session_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (model, prompt) = tiny(folder.path());
    let daemon = Daemon::start();
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let (mut child, _out) = running(&model, &prompt, &daemon.address);
        assert_eq!(sessions(&daemon), 1);
        let kill = format!("kill -{signal} {}", child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(code), "{signal}");
        assert_eq!(sessions(&daemon), 0, "{signal}");
    }
    let other = Daemon::start();
    let shards = format!("{},{}", daemon.address, other.address);
    let (mut child, _out) = running(&model, &prompt, &shards);
    assert_eq!(sessions(&daemon), 1);
    drop(other);
    assert_eq!(child.wait().unwrap().code(), Some(69));
    assert_eq!(sessions(&daemon), 0);
}

/// Exit code and the single line on stderr.
fn refused(arguments: &[&str]) -> (i32, String) {
    let output = recollect(arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.trim_end().lines().count(), 1, "one line wanted: {stderr}");
    assert!(output.stdout.is_empty(), "no answer wanted: {}", String::from_utf8_lossy(&output.stdout));
    (output.status.code().unwrap(), stderr)
}

#[test]
fn bad_input_is_one_line_with_the_right_code() {
    let folder = tempfile::tempdir().unwrap();
    let (model, prompt) = tiny(folder.path());
    let (model, prompt) = (model.to_str().unwrap(), prompt.to_str().unwrap());
    let nothing = tempfile::tempdir().unwrap();
    let empty = nothing.path().to_str().unwrap();
    let daemon = Daemon::start();
    let absent = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let long = ["--model", model, "--prompt-file", prompt, "--raw"];
    let with = |more: &[&'static str]| -> Vec<String> {
        std::iter::once("generate").chain(long).chain(more.iter().copied()).map(str::to_owned).collect()
    };
    let plain = |words: &[&str]| -> Vec<String> { words.iter().map(|&word| word.to_owned()).collect() };
    let cases: Vec<(Vec<String>, i32, &str)> = vec![
        (
            vec!["generate".into(), "--model".into(), model.into(), "--prompt".into(), String::new()],
            64,
            "prompt",
        ),
        (
            with(&["--rope-scale", "none", "--max-new", "70000"]),
            64,
            "6000 prompt tokens + --max-new 70000: a context",
        ),
        (with(&["--memory", "1MiB"]), 1, "memory"),
        (with(&["--memory", "0"]), 64, "0, must be in 1048576..="),
        (with(&["--memory", "lots"]), 64, "--memory"),
        (with(&["--budget", "0"]), 64, "--budget"),
        (with(&["--index", "faiss"]), 64, "--index"),
        ([with(&["--shards"]), vec![absent.clone()]].concat(), 69, &absent),
        (with(&["--shards", "unix:/x"]), 64, "unix:"),
        (with(&["--shards", "::1:7420"]), 64, "needs brackets"),
        (with(&["--shards", "127.0.0.1:0"]), 64, "the default port is 7420"),
        (with(&["--shards", "127.0.0.1", "--embedded", "2"]), 64, "--embedded"),
        (with(&["--budget", "4294967296"]), 64, "K from 1 to 4294967295"),
        (with(&["--sink", "1048577"]), 64, "0..=1048576"),
        (with(&["--window", "1048577"]), 64, "1..=1048576"),
        (plain(&["demo", "--context", "0"]), 64, "--context 0: "),
        (
            plain(&["generate", "--prompt", "a", "--model", prompt]),
            64,
            "is not a GGUF file; a .gguf file or a directory",
        ),
        (
            plain(&["generate", "--prompt", "a", "--model", empty]),
            64,
            "holds no *.safetensors file; a .gguf file",
        ),
        (plain(&["generate", "--prompt-file", empty]), 64, "--prompt-file"),
        (
            plain(&[
                "capture",
                "--text",
                empty,
                "--layers",
                "0",
                "--kv-heads",
                "0",
                "--context",
                "2000",
                "--out",
                "x",
            ]),
            64,
            "--text",
        ),
        (plain(&["bench", "retrieval", "--capture", empty]), 64, "--capture"),
        (plain(&["bench", "retrieval", "--capture", prompt]), 64, "is no capture; a safetensors file"),
        (plain(&["bench", "retrieval", "--capture", prompt, "--width", "0"]), 64, "a number from 1 on"),
        (plain(&["bench", "retrieval", "--capture", prompt, "--budget", "coverage=0"]), 64, "(0, 1]"),
        (plain(&["bench", "retrieval", "--capture", prompt, "--dump", empty]), 64, "--dump"),
        ([with(&["--shards"]), vec![daemon.http.clone()]].concat(), 69, "is no gRPC port of recollectd"),
    ];
    for (arguments, code, names) in cases {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (got, line) = refused(&arguments);
        assert_eq!(got, code, "{arguments:?}: {line}");
        assert!(line.starts_with("error: ") && line.contains(names), "{arguments:?}: {line}");
    }
}

/// The product's promise, on the real default model (fetched once, 93 MB).
#[test]
fn the_demo_finds_over_shards_what_full_attention_finds() {
    let output = recollect(&["demo", "--json", "--deterministic"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).unwrap();
    let summary: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    let of = |field: &str| summary[field].as_f64().unwrap_or_else(|| panic!("{field} in {summary}"));
    assert!(of("context_tokens") >= 4096.0);
    assert!(of("answers_found") >= of("answers_found_full"), "{summary}");
    assert!(of("answers_found_full") >= of("answers_total") / 2.0, "{summary}");
    assert!(of("answers_found_window") <= 1.0, "{summary}");
    assert!(of("worker_kv_tokens") <= 128.0 + 512.0 + 64.0, "{summary}");
    assert!(of("kl_share_of_window") < 0.05, "{summary}");
    assert!(of("shard_kv_bytes") > of("worker_kv_bytes"), "{summary}");
}
