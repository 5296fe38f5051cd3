//! The files of a snapshot together. A directory appears whole or not at all, and none is written over.

use super::error::FormatError;
use super::head_file;
use super::manifest::{Head, Manifest};
use crate::cli::usage;
use anyhow::{Context, anyhow, bail};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};

/// Name of the file that tells what the others must be.
pub const MANIFEST: &str = "manifest";
/// No manifest of a session that a shard takes is as large.
const MANIFEST_MOST: u64 = 1 << 30;

/// A directory that is being written, under another name beside its own; removed when dropped before it is published.
pub struct Draft {
    folder: PathBuf,
    out: PathBuf,
}

impl Draft {
    /// Begins one that will be `out`, which must not exist, in a folder that does.
    pub fn create(out: &Path) -> anyhow::Result<Self> {
        if fs::symlink_metadata(out).is_ok() {
            return Err(usage(format!(
                "{}: exists; a snapshot is never written over anything",
                out.display()
            )));
        }
        let name = out.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| usage(format!("{}: is no name of a directory", out.display())))?;
        let folder = out.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
        fs::create_dir(&folder).map_err(|e| usage(format!("{}: {e}", out.display())))?;
        Ok(Self { folder, out: out.to_owned() })
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes the manifest and gives the directory its name. The other files are written and synced.
    pub fn publish(self, manifest: &Manifest) -> anyhow::Result<()> {
        let write = || {
            let mut file = File::create(self.path(MANIFEST))?;
            file.write_all(&manifest.encode())?;
            file.sync_all()?;
            File::open(&self.folder)?.sync_all()?;
            // Onto a directory with anything in it this fails.
            fs::rename(&self.folder, &self.out)?;
            let parent = self.out.parent().filter(|p| !p.as_os_str().is_empty());
            File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
        };
        write().with_context(|| format!("{}", self.out.display()))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Once it is published there is nothing under this name; what cannot be removed is told by its name.
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// A snapshot on disk: its manifest is right, and its files are there.
pub struct Snapshot {
    folder: PathBuf,
    /// What it holds.
    pub manifest: Manifest,
}

impl Snapshot {
    /// Reads the manifest and looks for the files.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        let names = fs::read_dir(folder)
            .and_then(|entries| {
                entries.map(|entry| Ok(entry?.file_name())).collect::<Result<BTreeSet<_>, std::io::Error>>()
            })
            .map_err(|e| usage(format!("{}: {e}", folder.display())))?;
        let path = folder.join(MANIFEST);
        if !names.contains(MANIFEST.as_ref() as &std::ffi::OsStr) {
            return Err(usage(format!("{}: is no snapshot: it has no file {MANIFEST:?}", folder.display())));
        }
        let manifest = read_manifest(&path).map_err(|e| anyhow!("{}: {e}", path.display()))?;
        let wanted = manifest.each().map(|(layer, kv_head, _)| Manifest::file_name(layer, kv_head).into());
        let wanted: BTreeSet<std::ffi::OsString> = wanted.chain([MANIFEST.into()]).collect();
        if let Some(missing) = wanted.difference(&names).next() {
            bail!("{}: missing", folder.join(missing).display());
        }
        if let Some(surplus) = names.difference(&wanted).next() {
            bail!("{}: is no file of this snapshot", folder.join(surplus).display());
        }
        Ok(Self { folder: folder.to_owned(), manifest })
    }

    /// The path of a head's file.
    pub fn path(&self, layer: u32, kv_head: u32) -> PathBuf {
        self.folder.join(Manifest::file_name(layer, kv_head))
    }

    /// Reads every file and compares it with the manifest; returns their bytes. `done` is called after each.
    pub fn check(&self, mut done: impl FnMut()) -> anyhow::Result<u64> {
        let mut bytes = 0;
        for (layer, kv_head, head) in self.manifest.each() {
            let path = self.path(layer, kv_head);
            bytes +=
                self.check_head((layer, kv_head), head).map_err(|e| anyhow!("{}: {e}", path.display()))?;
            done();
        }
        Ok(bytes)
    }

    fn check_head(&self, (layer, kv_head): (u32, u32), head: &Head) -> Result<u64, FormatError> {
        let file = File::open(self.path(layer, kv_head))?;
        let bytes = file.metadata()?.len();
        let (shape, root) = head_file::check(BufReader::with_capacity(1 << 20, file), bytes)?;
        if shape != self.manifest.shape(layer, kv_head, head) || root != head.root {
            return Err(FormatError::Foreign);
        }
        Ok(bytes)
    }
}

fn read_manifest(path: &Path) -> Result<Manifest, FormatError> {
    let found = fs::metadata(path)?.len();
    if found > MANIFEST_MOST {
        return Err(FormatError::field("bytes", found, format!("at most {MANIFEST_MOST}")));
    }
    Manifest::decode(&fs::read(path)?)
}
