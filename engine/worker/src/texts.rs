//! Real text for measurements: files that the caller names, or Python's own standard library, which any machine that
//! can fetch the default model has.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cli::{input, usage};

/// Sources of prose-like comments and code, long enough each, in the order of use.
const STDLIB: [&str; 8] = [
    "argparse.py",
    "_pydecimal.py",
    "typing.py",
    "tarfile.py",
    "subprocess.py",
    "turtle.py",
    "inspect.py",
    "doctest.py",
];

/// One text, tokenised and cut.
pub struct Text {
    /// File name.
    pub name: String,
    /// Token ids.
    pub tokens: Vec<u32>,
}

/// Reads `files`, or `count` files of the standard library, and cuts each to `tokens` tokens.
///
/// # Errors
/// A file that cannot be read or is too short is named with what is needed.
pub fn gather(
    files: &[PathBuf],
    count: usize,
    encode: impl Fn(&str) -> anyhow::Result<Vec<u32>>,
    tokens: usize,
) -> anyhow::Result<Vec<Text>> {
    if !files.is_empty() {
        return files.iter().map(|file| read(file, &encode, tokens)).collect();
    }
    if count == 0 || count > STDLIB.len() {
        return Err(usage(format!(
            "--texts {count}: 1 to {} are there; name files with --text",
            STDLIB.len()
        )));
    }
    let dir = stdlib()?;
    let mut texts = Vec::new();
    for name in STDLIB {
        // Python versions differ in the length of a file: one that is too short is passed over for the next.
        if texts.len() < count
            && let Ok(text) = read(&dir.join(name), &encode, tokens)
        {
            texts.push(text);
        }
    }
    anyhow::ensure!(
        texts.len() == count,
        "{}: only {} of {count} texts of {tokens} tokens found; name files with --text",
        dir.display(),
        texts.len()
    );
    Ok(texts)
}

fn read(
    file: &Path,
    encode: &impl Fn(&str) -> anyhow::Result<Vec<u32>>,
    tokens: usize,
) -> anyhow::Result<Text> {
    let text = input::text("--text", file)?;
    let mut ids = encode(&text)?;
    if ids.len() < tokens {
        return Err(usage(format!("{}: has {} tokens; {tokens} are needed", file.display(), ids.len())));
    }
    ids.truncate(tokens);
    Ok(Text { name: file.display().to_string(), tokens: ids })
}

fn stdlib() -> anyhow::Result<PathBuf> {
    let out = Command::new("python3")
        .args(["-c", "import sysconfig; print(sysconfig.get_paths()['stdlib'])"])
        .output()
        .map_err(|error| {
            usage(format!("python3 is needed to find default texts ({error}); name files with --text"))
        })?;
    if !out.status.success() {
        return Err(usage("python3 could not name its standard library; name files with --text"));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&out.stdout).trim()))
}
