//! Files that are not what was saved, and the fixture of format 1.

use crate::daemon::Daemon;
use crate::pool::*;
use crate::text;
use client::{Cluster, SessionSpec};
use std::fs;
use std::path::Path;
use tokio::runtime::Runtime;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/snapshot-1");
const SHORT: [(u64, u64); 2] = [(8, 8), (40, 30)];

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// A short session in `out`.
fn saved(daemon: &Daemon, out: &Path, change: impl FnOnce(&mut SessionSpec)) -> String {
    let runtime = Runtime::new().unwrap();
    let id = runtime.block_on(async {
        let cluster = Cluster::connect(&[&daemon.address]).await.unwrap();
        let mut spec = spec(40);
        change(&mut spec);
        let session = cluster.open(spec).await.unwrap();
        fill(&session, &SHORT, 8, 4).await;
        session.leave()
    });
    let id = wire::convert::hex(&id);
    told(&["snapshot", "save", "--shard", &daemon.address, &id, "--out", text(out)]);
    id
}

#[test]
fn every_damage_is_one_line_that_names_the_file_and_nothing_is_restored() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("good");
    let id = saved(&daemon, &good, |_| ());
    let other = folder.path().join("other");
    saved(&daemon, &other, |spec| spec.seed = 12);
    let target = Daemon::start();
    let head = "layer-0001-head-0002";
    type Hurt<'a> = Box<dyn Fn(&Path) + 'a>;
    let edit = |name: &'static str, change: fn(&mut Vec<u8>)| -> Hurt<'_> {
        Box::new(move |dir: &Path| {
            let mut bytes = fs::read(dir.join(name)).unwrap();
            change(&mut bytes);
            fs::write(dir.join(name), bytes).unwrap();
        })
    };
    let swapped = |dir: &Path| {
        let bytes = fs::read(dir.join("layer-0000-head-0002")).unwrap();
        fs::write(dir.join(head), bytes).unwrap();
    };
    let cases: Vec<(&str, &str, Hurt<'_>)> = vec![
        (head, "block 0 of the rows does not match its checksum", edit(head, |b| b[90] ^= 1)),
        (head, "block 0 of the samples does not match", edit(head, |b| *b.last_mut().unwrap() ^= 1)),
        (head, "the header does not match its checksum", edit(head, |b| b[50] ^= 1)),
        (head, "bytes, must be", edit(head, |b| b.truncate(200))),
        (head, "bytes, must be", edit(head, |b| b.push(0))),
        (head, "bytes, must be", edit(head, |b| b.clear())),
        (head, "format 2, this program reads 1 to 1", edit(head, |b| b[8] = 2)),
        (head, "is no head of a snapshot", edit(head, |b| b[0] = 0)),
        (head, "missing", Box::new(|dir| fs::remove_file(dir.join(head)).unwrap())),
        (head, "is not the file that the manifest tells of", Box::new(swapped)),
        (
            "stranger",
            "is no file of this snapshot",
            Box::new(|dir| fs::write(dir.join("stranger"), "x").unwrap()),
        ),
        ("manifest", "the manifest does not match its checksum", edit("manifest", |b| b[40] ^= 1)),
        ("manifest", "format 9, this program reads 1 to 1", edit("manifest", |b| b[8] = 9)),
        ("manifest", "is no manifest of a snapshot", edit("manifest", |b| b[0] = 0)),
        ("manifest", "bytes, must be", edit("manifest", |b| b.truncate(99))),
        ("manifest", "is no manifest of a snapshot", edit("manifest", |b| b.clear())),
    ];
    for (i, (name, words, hurt)) in cases.iter().enumerate() {
        let dir = folder.path().join(format!("hurt-{i}"));
        copy(&good, &dir);
        hurt(&dir);
        for verb in [&["snapshot", "restore", "--shard", &target.address, "--from"][..], &["inspect"]] {
            let (code, line) = refused(&[verb, &[text(&dir)]].concat());
            let path = dir.join(name);
            assert!(code == 1 && line.contains(text(&path)) && line.contains(words), "{i}: {code}: {line}");
        }
    }
    let runtime = Runtime::new().unwrap();
    let left =
        runtime.block_on(async { sessions(&Cluster::connect(&[&target.address]).await.unwrap()).await });
    assert_eq!(left, 0);

    let absent = folder.path().join("absent");
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let shard = &target.address;
    for (arguments, words) in [
        (&["restore", "--shard", shard, "--from", text(&absent)][..], "absent"),
        (&["restore", "--shard", shard, "--from", text(&empty)], "has no file \"manifest\""),
        (&["save", "--shard", &daemon.address, &id, "--out", text(&good)], "exists"),
        (&["save", "--shard", &daemon.address, &"00".repeat(16), "--out", text(&absent)], "not on shard"),
        (&["save", "--shard", &daemon.address, "12", "--out", text(&absent)], "32 hexadecimal digits"),
        (&["save", &id, "--out", text(&absent)], "--shard"),
    ] {
        let (code, line) = refused(&[&["snapshot"], arguments].concat());
        assert!(code == 64 && line.contains(words), "{code}: {line}");
    }
    assert!(!absent.exists());
}

/// Written by the first release of this format; every later one restores it to the same rows.
#[test]
fn the_fixture_of_format_1_is_restored() {
    let told_of = told(&["inspect", FIXTURE]);
    for (field, value) in
        [("format", 1), ("tokens", 40), ("spans", 12), ("samples", 24), ("lease_ms", 120_000)]
    {
        assert_eq!(told_of[field], value, "{field}");
    }
    assert_eq!(told_of["record"], "snapshot");
    let runtime = Runtime::new().unwrap();
    let daemon = Daemon::start();
    let restored = told(&["snapshot", "restore", "--shard", &daemon.address, "--from", FIXTURE]);
    runtime.block_on(async {
        let cluster = Cluster::connect(&[&daemon.address]).await.unwrap();
        // The same session, made now.
        let session = cluster.open(spec(40)).await.unwrap();
        fill(&session, &SHORT, 8, 4).await;
        let id = id_of(&restored);
        assert!(contents(&cluster, &id).await == contents(&cluster, session.id()).await);
        let held = cluster.held(&id).await.unwrap();
        assert_eq!(held.fingerprint(), &spec(40).fingerprint);
        assert_eq!((held.terms().seed, held.terms().deterministic, held.durable()), (11, true, false));
    });
}
