//! `recollect inspect FILE`: the fixture of format 1, and files that are none.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kvstore/tests/fixtures/extent-1.kv");

fn inspect(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_recollect")).arg("inspect").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn an_extent_file_tells_what_it_holds() {
    let output = inspect(&[FIXTURE, "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let row: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (field, value) in [
        ("format", 1),
        ("layer", 3),
        ("kv_head", 1),
        ("begin", 128),
        ("end", 168),
        ("key_dim", 8),
        ("value_dim", 6),
        ("kv_bytes", 40 * 14 * 2),
    ] {
        assert_eq!(row[field], value, "{field}");
    }
    assert_eq!(row["file_bytes"], std::fs::metadata(FIXTURE).unwrap().len());
    let plain = text(&inspect(&[FIXTURE]).stdout);
    assert!(plain.contains("tokens 128..168 of layer 3, KV head 1"), "{plain}");
}

#[test]
fn a_damaged_file_is_an_error_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let hurt = folder.path().join("hurt.kv");
    let mut bytes = std::fs::read(FIXTURE).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&hurt, bytes).unwrap();
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let output = inspect(arguments);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{err}");
        assert!(err.contains(words) && err.trim_end().lines().count() == 1, "{err}");
    };
    let name = |path: &Path| path.to_str().unwrap().to_owned();
    refused(&[&name(&hurt)], 1, "block 0 of values does not match its checksum");
    refused(&[&name(&folder.path().join("none.kv"))], 64, "none.kv");
    refused(&[&name(folder.path())], 64, "is no snapshot");
    refused(&[FIXTURE, "--shard", "127.0.0.1:1"], 64, "--shard");
}
