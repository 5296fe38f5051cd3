//! What is on disk and what it belongs to: small records in tables, changed in atomic batches.
//!
//! * [`Catalogue`]: the trait; [`Table`]: the tables
//! * `sled`: on disk; `memory`: its twin in RAM, for tests
//! * `records`: what a value says

#[cfg(test)]
pub mod memory;
pub mod records;
pub mod sled;

/// The tables. A session here is one `Open`, numbered, so that an id that is used again meets nothing of its old life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Table {
    /// Session number: [`records::SessionRecord`].
    Sessions = b's',
    /// Session number, layer, KV head: [`records::HeadRecord`], the spans of a head with their versions.
    Spans = b'h',
    /// Extent id: [`records::ExtentRecord`].
    Extents = b'e',
    /// Session number: [`records::LeaseRecord`].
    Leases = b'l',
    /// Names: [`records::VersionRecord`]: the format, and how many batches were applied; [`records::NameRecord`]: what this
    /// directory is called in an archive.
    Versions = b'v',
}

/// One change of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Sets a value.
    Put(Table, Vec<u8>, Vec<u8>),
    /// Removes one, if it is there.
    Remove(Table, Vec<u8>),
}

/// Why the catalogue did not do it; one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueError {
    /// The backend failed; what it holds may be as it should be.
    #[error("the catalogue: {0}")]
    Backend(String),
    /// It holds something else than was written.
    #[error("the catalogue is damaged: {0}")]
    Damaged(String),
    /// A value is not what was written.
    #[error("the catalogue: {what}: {why}")]
    Value {
        /// Of which record.
        what: String,
        /// What is wrong.
        why: String,
    },
}

/// Key and value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// A catalogue.
pub trait Catalogue: Send + Sync {
    /// A value.
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, CatalogueError>;
    /// All entries of a table whose keys begin with `prefix`, in order of the keys.
    fn scan(&self, table: Table, prefix: &[u8]) -> Result<Vec<Entry>, CatalogueError>;
    /// All of the changes or none; durable when it returns.
    fn apply(&self, changes: &[Change]) -> Result<(), CatalogueError>;
}

#[cfg(test)]
mod tests;
