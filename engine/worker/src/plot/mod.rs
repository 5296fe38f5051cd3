//! Pictures of measurements as SVG, written by hand so that the same figures give the same bytes everywhere.
//!
//! - `svg`: a page: lines, rectangles, text
//! - [`heat`]: tables of cells under one colour scale
//! - [`lines`]: curves over two logarithmic axes, with bands

pub mod heat;
pub mod lines;
mod svg;

use std::path::Path;

use anyhow::Context;

/// Writes a picture into a folder.
///
/// # Errors
/// The path, and the system's reason.
pub fn write(folder: &Path, name: &str, picture: &str) -> anyhow::Result<()> {
    let path = folder.join(name);
    std::fs::write(&path, picture).with_context(|| path.display().to_string())
}
