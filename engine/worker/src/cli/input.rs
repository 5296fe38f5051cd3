//! Input files that the caller names. One that cannot be used is bad usage (64), whatever the system's reason.

use std::io::ErrorKind;
use std::path::Path;

use crate::cli::usage;

/// The text of the file after `flag`, which must be UTF-8.
///
/// # Errors
/// One line that names the flag, the file and the reason; exit code 64.
pub(crate) fn text(flag: &str, path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).map_err(|error| refused(flag, path, &error))
}

/// The refusal of a file that could not be read.
pub(crate) fn refused(flag: &str, path: &Path, error: &std::io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::InvalidData => usage(format!("{flag} {}: is not UTF-8 text", path.display())),
        _ => usage(format!("{flag} {}: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_usage_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = folder.path().join("bytes");
        std::fs::write(&bytes, [0xff, 0xfe]).unwrap();
        for (path, reason) in [
            (folder.path().join("absent"), "No such file"),
            (folder.path().to_path_buf(), "directory"),
            (bytes, "is not UTF-8 text"),
        ] {
            let error = text("--text", &path).unwrap_err();
            let line = error.to_string();
            assert!(line.starts_with(&format!("--text {}: ", path.display())), "{line}");
            assert!(line.contains(reason), "{line}");
            assert_eq!(crate::cli::exit_code(&error), 64);
        }
    }
}
