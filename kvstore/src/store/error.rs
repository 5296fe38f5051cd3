//! What can be wrong with a stored file, one line each; the caller adds the path.

use std::io;

/// Why a file is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Nothing in it.
    #[error("the file is empty")]
    Empty,
    /// Not of this kind.
    #[error("the first bytes are not those of {0}")]
    Foreign(&'static str),
    /// Written by a newer program.
    #[error("format version {found}, this program reads up to {known}")]
    Version {
        /// In the file.
        found: u32,
        /// The newest that is read here.
        known: u32,
    },
    /// Shorter or longer than it says.
    #[error("{found} bytes, must be {want}")]
    Length {
        /// Of the file.
        found: u64,
        /// As the header says, or the least that a header takes.
        want: u64,
    },
    /// The header does not match its checksum.
    #[error("the header does not match its checksum")]
    Header,
    /// A field of the header is out of range or contradicts another.
    #[error("{field} is {found}, must be {want}")]
    Field {
        /// Its name.
        field: &'static str,
        /// As stored.
        found: u64,
        /// What would do.
        want: String,
    },
    /// Data do not match their checksum.
    #[error("block {block} of {part} does not match its checksum")]
    Block {
        /// Keys, values, queries, a record.
        part: &'static str,
        /// From 0.
        block: usize,
    },
    /// Bytes between the parts that are not zero.
    #[error("byte {0}, between header and data, is not zero")]
    Padding(usize),
    /// Bytes that are as they were written, but no index.
    #[error("{0}")]
    Index(#[from] index::SavedError),
    /// KV of another model.
    #[error("the fingerprint is another one: these rows mean something else")]
    Fingerprint,
}

impl FileError {
    /// A field out of its range.
    pub fn field(field: &'static str, found: u64, want: impl ToString) -> Self {
        FileError::Field { field, found, want: want.to_string() }
    }
}
