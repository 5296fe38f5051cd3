//! `recollect inspect FILE`: what an extent file of a data directory says, after a check of every byte.

use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use crate::cli::{print, usage};

#[derive(Serialize)]
struct ExtentRow<'a> {
    record: &'static str,
    file: &'a str,
    format: u32,
    id: String,
    fingerprint: String,
    layer: u32,
    kv_head: u32,
    begin: u64,
    end: u64,
    dtype: &'static str,
    key_dim: u32,
    value_dim: u32,
    kv_bytes: u64,
    block_bytes: u64,
    blocks: u64,
    header_bytes: u64,
    file_bytes: u64,
}

/// Runs the verb for a file.
pub fn run(path: &Path, json: bool) -> anyhow::Result<()> {
    // Whether it is there and can be read is a matter of usage; what is in it is not.
    if let Err(e) = std::fs::File::open(path).and_then(|f| f.metadata()).and_then(|m| match m.is_file() {
        true => Ok(()),
        false => Err(std::io::Error::other("not a file")),
    }) {
        return Err(usage(format!("{}: {e}", path.display())));
    }
    let e = kvstore::inspect_extent(path).map_err(anyhow::Error::msg)?;
    let file = path.to_str().context("the file's name is not UTF-8")?;
    let kv_bytes = (e.end - e.begin) * u64::from(e.key_dim + e.value_dim) * size_of::<half::f16>() as u64;
    let row = ExtentRow {
        record: "extent",
        file,
        format: e.format,
        id: format!("{:016x}", e.id),
        fingerprint: wire::convert::hex(&e.fingerprint),
        layer: e.layer,
        kv_head: e.kv_head,
        begin: e.begin,
        end: e.end,
        dtype: "F16",
        key_dim: e.key_dim,
        value_dim: e.value_dim,
        kv_bytes,
        block_bytes: e.block_bytes,
        blocks: e.blocks,
        header_bytes: e.header_bytes,
        file_bytes: e.file_bytes,
    };
    if json {
        return print::json(&row);
    }
    print::line(format_args!(
        "{file}: extent {}, format {}: tokens {}..{} of layer {}, KV head {}",
        row.id, row.format, row.begin, row.end, row.layer, row.kv_head
    ))?;
    print::line(format_args!(
        "keys of {}, values of {} {}; {} bytes, {} of them KV; {} blocks of {} bytes, every checksum right",
        row.key_dim, row.value_dim, row.dtype, row.file_bytes, row.kv_bytes, row.blocks, row.block_bytes
    ))?;
    print::line(format_args!("fingerprint {}", row.fingerprint))
}
