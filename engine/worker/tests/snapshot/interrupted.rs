//! What changes or ends in the middle: nothing half-made is left, on a disk or on a shard.

use crate::daemon::Daemon;
use crate::gate::Gate;
use crate::pool::*;
use crate::text;
use client::Cluster;
use std::process::{Child, Command, Stdio};
use tokio::runtime::Runtime;

/// Of some 4 MB that a session has.
const SOME: usize = 1 << 20;

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_recollect"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn terminate(child: &Child) {
    assert!(Command::new("kill").arg("-TERM").arg(child.id().to_string()).status().unwrap().success());
}

#[test]
fn a_session_that_is_truncated_meanwhile_is_not_saved_and_one_that_grows_is() {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start();
    let cluster = runtime.block_on(Cluster::connect(&[&daemon.address])).unwrap();
    let session = runtime.block_on(filled(&cluster));
    let id = wire::convert::hex(session.id());
    let save = |gate: &Gate, out: &str| {
        let out = folder.path().join(out);
        start(&["snapshot", "save", "--shard", &gate.address, &id, "--out", text(&out), "--json"])
    };
    // Behind what is saved: the tail of a decode that is taken back and goes on.
    let gate = Gate::before(&daemon.address, SOME);
    let grows = save(&gate, "grows");
    gate.wait();
    runtime.block_on(async {
        let before = TOKENS;
        let chunk = [half::f16::ONE; KV_HEADS * KEY_DIM];
        for layer in 0..LAYERS {
            let (k, v) = (&chunk[..], &chunk[..KV_HEADS * VALUE_DIM]);
            let more = client::LayerChunk {
                layer,
                begin: before,
                k,
                v,
                q: &[],
                q_pos: &[],
                q_window: 0,
                seal_to: None,
            };
            session.append(more).await.unwrap();
        }
        session.truncate(before).await.unwrap();
    });
    gate.open();
    let output = grows.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let saved: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(saved["tokens"], TOKENS);
    // Of what is saved.
    let gate = Gate::before(&daemon.address, SOME);
    let cut = save(&gate, "cut");
    gate.wait();
    runtime.block_on(async {
        session.truncate(TOKENS - 1).await.unwrap();
        let chunk = [half::f16::ONE; KV_HEADS * KEY_DIM];
        for layer in 0..LAYERS {
            let (k, v) = (&chunk[..], &chunk[..KV_HEADS * VALUE_DIM]);
            let begin = TOKENS - 1;
            let again =
                client::LayerChunk { layer, begin, k, v, q: &[], q_pos: &[], q_window: 0, seal_to: None };
            session.append(again).await.unwrap();
        }
    });
    gate.open();
    let output = cut.wait_with_output().unwrap();
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(line.contains("truncated while it was read: to 6199 tokens, of 6200"), "{line}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["grows"]);
}

#[test]
fn a_signal_ends_a_save_without_a_trace() {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start();
    let cluster = runtime.block_on(Cluster::connect(&[&daemon.address])).unwrap();
    let session = runtime.block_on(filled(&cluster));
    let id = wire::convert::hex(session.id());
    let gate = Gate::before(&daemon.address, SOME);
    let out = folder.path().join("out");
    let child = start(&["snapshot", "save", "--shard", &gate.address, &id, "--out", text(&out)]);
    gate.wait();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "it is under way");
    terminate(&child);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(128 + 15));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_restore_that_is_stopped_or_refused_leaves_no_session() {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    {
        let daemon = Daemon::start();
        let cluster = runtime.block_on(Cluster::connect(&[&daemon.address])).unwrap();
        let id = wire::convert::hex(&runtime.block_on(filled(&cluster)).leave());
        told(&["snapshot", "save", "--shard", &daemon.address, &id, "--out", text(&out)]);
    }
    let daemon = Daemon::start();
    let cluster = runtime.block_on(Cluster::connect(&[&daemon.address])).unwrap();
    let gate = Gate::before(&daemon.address, SOME);
    let child =
        start(&["snapshot", "restore", "--shard", &gate.address, "--from", text(&out), "--lease", "86400"]);
    gate.wait();
    assert_eq!(runtime.block_on(sessions(&cluster)), 1, "it is under way");
    terminate(&child);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(128 + 15));
    assert_eq!(runtime.block_on(sessions(&cluster)), 0);

    let small = Daemon::start_with(&[("RECOLLECT__MEMORY__BUDGET", "1MiB")]);
    let (code, line) = refused(&["snapshot", "restore", "--shard", &small.address, "--from", text(&out)]);
    assert!(code == 1 && line.contains("memory"), "{code}: {line}");
}
