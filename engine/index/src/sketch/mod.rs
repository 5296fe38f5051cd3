//! Sketches: the reversible compressed form of cold tokens.
//!
//! - [`Reviver`]: KVReviver as published: `hash` and `table` are its count sketch.
//! - `part`: attention over rows that were read back.

mod error;
mod hash;
mod part;
#[cfg(test)]
mod random;
mod reviver;
mod table;

pub use error::SketchError;
pub use reviver::{Reviver, Shape};
pub use table::CountTable;
