//! What indexes and their builds take, before they are built: for callers that reserve memory.

use crate::params::{BuildParams, Kind};

/// Edges of a graph per key, with room: 22 were measured on real keys.
const EDGES: u64 = 40;
/// Bytes of hnsw_rs's links and records per key.
const LINKS: u64 = 1536;

/// Bytes of an index per token that hold for every span of some hundred keys and more; [`SpanIndex::bytes`] says what one
/// takes. `keys_per_mean` is that of [`BuildParams`].
///
/// [`SpanIndex::bytes`]: crate::SpanIndex::bytes
pub fn index_bytes(kind: Kind, tokens: u64, (key_dim, value_dim): (u64, u64), keys_per_mean: u64) -> u64 {
    let groups = tokens.div_ceil(keys_per_mean.max(1)).saturating_mul(5) / 4 + 16;
    let cells = groups / 12 + 16;
    // Two ids a token; a coded mean, a mean value, counts a group; both means a cell.
    let summary = 8 * tokens + groups * (key_dim + 2 * value_dim + 32) + cells * (2 * (key_dim + value_dim) + 32);
    let codes = tokens * (key_dim + 8);
    let edges = tokens * 4 * EDGES;
    summary
        + match kind {
            Kind::Flat => 0,
            Kind::Summary => codes,
            Kind::Graph => edges,
            Kind::Auto => codes.max(edges),
            Kind::Hnsw => tokens * (2 * key_dim + LINKS),
        }
}

/// Bytes that a build needs at its peak, the index included: clustering holds a segment's keys in f32 for every thread;
/// a graph holds its lists of edges twice; the trials hold `rows` query rows with their nearest keys.
pub fn build_bytes(
    params: &BuildParams,
    tokens: u64,
    (key_dim, value_dim): (u64, u64),
    rows: u64,
    threads: u64,
) -> u64 {
    let index = index_bytes(params.kind, tokens, (key_dim, value_dim), params.keys_per_mean as u64);
    let segment = (crate::summary::SEGMENT as u64).min(tokens);
    let clustering = threads * segment * (8 * key_dim + 4 * value_dim / 16 + 64) + threads * (1 << 20);
    // The groups on the way, and the decoded means.
    let groups = tokens * (12 + (6 * key_dim + 4 * value_dim + 128) / params.keys_per_mean.max(1) as u64);
    let walked = match params.kind {
        Kind::Auto | Kind::Graph => tokens * 4 * (4 * EDGES) + rows * params.row_length as u64 * 16,
        Kind::Hnsw => tokens * 4 * key_dim,
        Kind::Flat | Kind::Summary => 0,
    };
    let trials = rows * (8 * key_dim + 16 * params.calibrate_k as u64) + threads * (4 << 20) + (tokens << 1);
    index + clustering + groups + walked + trials
}
