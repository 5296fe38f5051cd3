//! Output on stdout: one JSON object a line for machines, plain lines for people. `println!` would panic on a closed pipe.

use std::io::Write;

use serde::Serialize;

/// Writes one object. A closed pipe is an error like any other.
pub fn json(row: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, row)?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}

/// Writes one line for people. A closed pipe is an error like any other.
pub fn line(text: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(())
}
