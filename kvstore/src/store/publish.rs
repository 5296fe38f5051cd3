//! Files that appear whole or not at all: written under another name, synced, renamed, and the folder synced.

use crate::store::fail;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Ending of a file that is not published yet; what is left of them is removed at the next start.
pub const TEMPORARY: &str = "tmp";

/// Writes `folder/name`. After an error there is no such file, unless only the last sync failed: then it may be there.
pub fn publish(
    folder: &Path,
    name: &str,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = folder.join(format!("{name}.{TEMPORARY}"));
    let written = write_synced(&temporary, write).and_then(|()| {
        std::fs::rename(&temporary, folder.join(name))?;
        fail::point("renamed");
        Ok(())
    });
    if written.is_err() {
        // Of no use to anybody; if it cannot be removed now, the next start does it.
        let _ = std::fs::remove_file(&temporary);
    }
    written?;
    sync_folder(folder)?;
    fail::point("directory synced");
    Ok(())
}

fn write_synced(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    write(&mut out)?;
    out.flush()?;
    fail::point("temp written");
    out.get_ref().sync_all()?;
    fail::point("temp synced");
    Ok(())
}

/// Makes the names in a folder durable.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        publish(folder.path(), "a", |out| {
            out.write_all(b"half")?;
            Err(io::Error::other("no more"))
        })
        .unwrap_err();
        assert_eq!(names(), 0);
        publish(folder.path(), "a", |out| out.write_all(b"whole")).unwrap();
        assert_eq!((names(), std::fs::read(folder.path().join("a")).unwrap()), (1, b"whole".to_vec()));
    }
}
