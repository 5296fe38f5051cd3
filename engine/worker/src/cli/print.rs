//! Machine-readable output: one JSON object a line on stdout.

use std::io::Write;

use serde::Serialize;

/// Writes one line. A closed pipe is an error like any other.
pub fn json(row: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, row)?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}
