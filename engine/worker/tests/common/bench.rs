//! Running `recollect bench VERB --json` on a capture.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The whole output.
pub fn bench(verb: &str, capture: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_recollect"));
    command.args(["bench", verb, "--json", "--capture"]).arg(capture);
    command.args(more).output().unwrap()
}

/// The rows of a run that went well, without these times, each of which must be `right`.
pub fn timeless_rows(output: &Output, times: &[&str], right: impl Fn(f64) -> bool) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let timeless = |line: &[u8]| {
        let mut row: Value = serde_json::from_slice(line).unwrap();
        for time in times {
            assert!(right(row.as_object_mut().unwrap().remove(*time).unwrap().as_f64().unwrap()));
        }
        row
    };
    lines.map(timeless).collect()
}
