//! What an index and its build take, told before they are built: for callers that reserve memory. `tests/memory.rs`
//! holds builds to it.

use crate::params::{BuildParams, Kind};
use crate::summary::SEGMENT;

/// Edges of a graph per key, with room: 22 were measured on real keys.
const EDGES: u64 = 40;
/// Bytes of hnsw_rs's links and records per key.
const LINKS: u64 = 1536;
/// Bytes that a thread works in however short the span is.
const THREAD: u64 = 1 << 20;

/// Most bytes of an index over `tokens` keys; [`SpanIndex::bytes`](crate::SpanIndex::bytes) says what one takes.
pub fn index_bytes(params: &BuildParams, tokens: u64, (key_dim, value_dim): (u64, u64)) -> u64 {
    let groups = groups(params, tokens);
    let cells = groups / 12 + 16;
    // Two ids a token; a coded mean, a mean value and counts a group; both means a cell.
    let summary =
        8 * tokens + groups * (key_dim + 2 * value_dim + 32) + cells * (2 * (key_dim + value_dim) + 32);
    let codes = tokens * (key_dim + 8);
    let edges = tokens * 4 * EDGES;
    summary
        + match params.kind {
            Kind::Flat => 0,
            Kind::Summary => codes,
            Kind::Graph => edges,
            Kind::Auto => codes.max(edges),
            Kind::Hnsw => tokens * (2 * key_dim + LINKS),
        }
}

/// Most bytes that a build on `threads` threads holds beside the index: the keys of a segment in f32 with their nearest
/// centres for every thread, the groups on the way, the decoded means, the lists of a graph, and for each of `rows` query
/// rows (positions x query heads) its nearest keys.
pub fn working_bytes(
    params: &BuildParams,
    tokens: u64,
    (key_dim, value_dim): (u64, u64),
    (rows, threads): (u64, u64),
) -> u64 {
    let clustered = (SEGMENT as u64).min(tokens) * (5 * key_dim + 48);
    let groups = groups(params, tokens) * (8 * key_dim + 4 * value_dim + 192) + 16 * tokens;
    let nearest = rows * (16 * params.row_length.max(params.calibrate_k) as u64 + 8 * key_dim);
    // Sixteen cells in f32, and the distances of a block of keys to them.
    let probed = tokens.min(8192) * (4 * key_dim + 4 * 128);
    let finder = match params.kind {
        // Codes, which the trials compare the graph with; the lists of projected and of near edges.
        Kind::Auto | Kind::Graph => tokens * (key_dim + 16 * EDGES) + nearest + threads * probed,
        Kind::Hnsw => tokens * 4 * key_dim,
        Kind::Flat | Kind::Summary => 0,
    };
    threads * (clustered + THREAD + tokens / 4) + groups + nearest + finder
}

fn groups(params: &BuildParams, tokens: u64) -> u64 {
    tokens / params.keys_per_mean.max(1) as u64 * 5 / 4 + 16
}
