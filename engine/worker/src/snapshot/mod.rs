//! A session in a directory: taken out of one pool of shards, brought into another of any placement.
//!
//! * [`manifest`]: the file `manifest`: which session, its terms, what every head file must be
//! * [`head_file`]: one file for each (layer, KV head): rows and sampled queries in checked blocks
//! * [`directory`]: the files together: written beside, synced and renamed; opened with every file checked
//! * [`plan`]: in which pieces a head is appended, so that its spans and samples become what they were
//! * [`save`], [`restore`]: between shards and a directory
//! * [`fields`], [`error`]: fixed little-endian fields; what is wrong with a file
//! * [`decoders`]: the readers of bytes, for the fuzz tests

pub mod decoders;
pub mod directory;
pub mod error;
pub mod fields;
pub mod head_file;
pub mod manifest;
pub mod plan;
pub mod restore;
pub mod save;

/// The newest format, which is written. Every one from 1 on is read.
pub const FORMAT: u32 = 1;
/// Bytes of a checksum: BLAKE3-256.
pub const SUM: usize = 32;
