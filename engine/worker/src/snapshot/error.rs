//! What is wrong with a file of a snapshot: one line, to which the reader adds the file's name.

use std::io;

/// Why bytes are not taken.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// It cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It begins with something else.
    #[error("is no {0} of a snapshot")]
    Magic(&'static str),
    /// Written by a later program.
    #[error("format {found}, this program reads 1 to {}", super::FORMAT)]
    Format {
        /// As written.
        found: u32,
    },
    /// Cut short, or more than there should be.
    #[error("{found} bytes, must be {want}")]
    Length {
        /// Bytes that are there.
        found: u64,
        /// Bytes that must be.
        want: u64,
    },
    /// It ends inside a field.
    #[error("ends inside {0}")]
    Short(&'static str),
    /// Changed since it was written.
    #[error("{0} does not match its checksum")]
    Sum(String),
    /// A whole file, but not the one that the manifest tells of.
    #[error("is not the file that the manifest tells of")]
    Foreign,
    /// A number that cannot be.
    #[error("{field}: {got}, must be {want}")]
    Field {
        /// Its name.
        field: String,
        /// As written.
        got: String,
        /// As it has to be.
        want: String,
    },
}

impl FormatError {
    /// A number that cannot be.
    pub fn field(field: &str, got: impl ToString, want: impl ToString) -> Self {
        Self::Field { field: field.to_owned(), got: got.to_string(), want: want.to_string() }
    }
}

impl From<wire::WireError> for FormatError {
    fn from(e: wire::WireError) -> Self {
        match e {
            wire::WireError::Range { field, got, want } => Self::Field { field, got, want },
            other => Self::Field { field: "a message".into(), got: other.to_string(), want: "whole".into() },
        }
    }
}
