//! What an extent file says, for operators.

use super::error::FileError;
use super::extent_file::{ExtentFile, VERSION};
use std::path::Path;

/// What an extent file says about itself, all of it checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredExtent {
    /// Of the file.
    pub format: u32,
    /// BLAKE3-256 of the session's fingerprint message.
    pub fingerprint: [u8; 32],
    /// Unique in its data directory.
    pub id: u64,
    /// Of the model.
    pub layer: u32,
    /// Of the layer.
    pub kv_head: u32,
    /// Position of the first row.
    pub begin: u64,
    /// Position after the last.
    pub end: u64,
    /// Elements of a key.
    pub key_dim: u32,
    /// Elements of a value.
    pub value_dim: u32,
    /// Bytes under one checksum.
    pub block_bytes: u64,
    /// Blocks of keys and values.
    pub blocks: u64,
    /// Bytes before the keys.
    pub header_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
}

/// Reads an extent file and checks every byte of it. The error is one line that names the file.
pub fn inspect_extent(path: &Path) -> Result<StoredExtent, String> {
    let file = ExtentFile::open(path).map_err(|e: FileError| format!("{}: {e}", path.display()))?;
    let (e, layout) = (&file.extent, file.layout());
    let blocks = layout.keys.len().div_ceil(layout.block) + layout.values.len().div_ceil(layout.block);
    Ok(StoredExtent {
        format: VERSION,
        fingerprint: e.fingerprint,
        id: e.id,
        layer: e.layer,
        kv_head: e.kv_head,
        begin: e.first,
        end: e.first + u64::from(e.tokens),
        key_dim: e.key_dim,
        value_dim: e.value_dim,
        block_bytes: layout.block as u64,
        blocks: blocks as u64,
        header_bytes: layout.header as u64,
        file_bytes: layout.values.end as u64,
    })
}
