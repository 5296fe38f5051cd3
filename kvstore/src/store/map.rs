//! Read-only maps of whole files: with [`crate::allocator`] the places of this crate with `unsafe`.

use memmap2::{Mmap, UncheckedAdvice};
use std::fs::File;
use std::io;
use std::path::Path;

/// Maps a file as it is now.
pub fn map(path: &Path) -> io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: a map is sound while nobody changes or cuts the file under it. Files of a data directory are published by
    // rename and never written again, a log is mapped only before it is written to, and the directory is locked against
    // other servers. What is mapped is only ever read as plain numbers, of which every bit pattern is valid.
    unsafe { Mmap::map(&file) }
}

/// Lets the process forget the pages of a map; they stay in the page cache for as long as the kernel likes.
pub fn let_go(map: &Mmap) -> io::Result<()> {
    // SAFETY: the map is read-only and of a file, so that a page that is let go is read again from there when it is next
    // touched, with the same bytes; see above for why they do not change.
    unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) }
}
