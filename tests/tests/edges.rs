//! The tiers of the workspace, from `cargo metadata`: lower crates may not see higher ones, and some outside crates have
//! one user. `kernels -> attention -> {index, wire} -> {kvstore, client} -> worker -> e2e`.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A crate and those of the workspace that it may depend on, tests and build scripts included.
const MAY_SEE: [(&str, &[&str]); 8] = [
    ("kernels", &[]),
    ("attention", &["kernels"]),
    ("index", &["kernels", "attention"]),
    ("wire", &["kernels", "attention"]),
    ("kvstore", &["kernels", "attention", "index", "wire"]),
    ("client", &["kernels", "attention", "index", "wire"]),
    ("worker", &["kernels", "attention", "index", "wire", "kvstore", "client"]),
    ("e2e", &["kernels", "attention", "index", "wire", "kvstore", "client", "worker"]),
];

/// Outside crates (by the beginning of their name) that only one crate may use, and why.
const ONE_USER: [(&str, &str, &str); 6] = [
    ("candle", "worker", "only the worker has a model"),
    ("cudarc", "worker", "only the worker has a GPU"),
    ("hf-hub", "worker", "only the worker fetches models"),
    ("object_store", "kvstore", "only a shard has an archive"),
    ("sled", "kvstore", "it is the catalogue's backend and may be replaced"),
    ("hnsw_rs", "index", "it is the conventional baseline, nothing else"),
];

/// What the engine may not use: it has no sockets and, up to attention, no threads.
const ENGINE_WITHOUT: [(&str, &[&str]); 3] = [
    ("kernels", &["tokio", "tonic", "rayon"]),
    ("attention", &["tokio", "tonic", "rayon"]),
    ("index", &["tokio", "tonic"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

/// Every member with the names of its direct dependencies of every kind.
fn members() -> BTreeMap<String, BTreeSet<String>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let name = |value: &Value| value["name"].as_str().expect("a name").to_owned();
    let packages = metadata["packages"].as_array().expect("packages");
    let dependencies = |package: &Value| {
        package["dependencies"].as_array().expect("dependencies").iter().map(name).collect()
    };
    packages.iter().map(|package| (name(package), dependencies(package))).collect()
}

#[test]
fn lower_crates_do_not_see_higher_ones() {
    let members = members();
    let listed: BTreeSet<&str> = MAY_SEE.iter().map(|(name, _)| *name).collect();
    let found: BTreeSet<&str> = members.keys().map(String::as_str).collect();
    assert_eq!(found, listed, "every crate has its line above");
    for (name, allowed) in MAY_SEE {
        for dependency in members[name].iter().filter(|d| listed.contains(d.as_str())) {
            assert!(allowed.contains(&dependency.as_str()), "{name} may not depend on {dependency}");
        }
    }
}

#[test]
fn outside_crates_stay_where_they_belong() {
    for (name, dependencies) in members() {
        for dependency in &dependencies {
            for (outside, user, why) in ONE_USER {
                assert!(
                    !dependency.starts_with(outside) || name == user,
                    "{name} uses {dependency}, but {why}"
                );
            }
            let barred =
                ENGINE_WITHOUT.iter().find(|(engine, _)| *engine == name).map_or(&[][..], |(_, list)| list);
            assert!(!barred.contains(&dependency.as_str()), "{name} may not use {dependency}");
        }
    }
}

/// `unsafe` lives in kernels, in one file that maps memory and in one that talks to CUDA.
#[test]
fn unsafe_code_stays_in_kernels() {
    let mut files = Vec::new();
    for folder in ["engine/attention", "engine/index", "engine/worker", "proto", "kvstore", "client", "tests"]
    {
        rust_files(&root().join(folder), &mut files);
    }
    assert!(files.len() > 30, "the sources are where this test looks");
    let blocks = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"];
    let is_unsafe = |file: &&PathBuf| {
        let text = std::fs::read_to_string(file).expect("a source file");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        code.filter(|line| !line.contains('"')).any(|line| blocks.iter().any(|block| line.contains(block)))
    };
    let found: Vec<&PathBuf> = files.iter().filter(is_unsafe).collect();
    assert!(found.len() <= 2, "more than one file for memory maps and one for CUDA: {found:?}");
}

fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the workspace").flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}
