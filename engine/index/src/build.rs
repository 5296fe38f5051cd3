//! Building the index of a span.

use std::time::Instant;

use attention::Rows;
use kernels::Kernels;

use crate::auto;
use crate::calibrate::{Trials, split};
use crate::error::BuildError;
use crate::graph::Graph;
use crate::hnsw::Hnsw;
use crate::lift;
use crate::params::{BuildParams, BuildQueries, Kind};
use crate::rows::QueryRows;
use crate::span::{BuildStats, Finder, SpanIndex};
use crate::summary::Summary;

/// Ids within a span have 31 bits.
const MOST_TOKENS: usize = 1 << 31;

/// Below this many tokens `Auto` scans: a walk scores about as many keys.
const SHORT: usize = 1024;

/// Builds the index of a span on the current rayon pool. The same input gives the same index whatever the number of
/// threads. `queries` None (or too few): the graph has only the edges between near keys, and the width is a default.
pub fn build(
    keys: &Rows<'_>,
    values: &Rows<'_>,
    queries: Option<&BuildQueries>,
    params: &BuildParams,
) -> Result<SpanIndex, BuildError> {
    build_with(&Kernels::native(), keys, values, queries, params)
}

/// [`build`] on a chosen kernel path.
pub fn build_with(
    k: &Kernels,
    keys: &Rows<'_>,
    values: &Rows<'_>,
    queries: Option<&BuildQueries>,
    params: &BuildParams,
) -> Result<SpanIndex, BuildError> {
    check(keys, values, queries, params)?;
    let none = BuildQueries { group: 1, ..BuildQueries::default() };
    let queries = queries.unwrap_or(&none);
    let mut stats = BuildStats::default();
    let start = Instant::now();
    let summary = Summary::build(k, keys, values, params.keys_per_mean);
    stats.summary = start.elapsed();

    let split = split(queries);
    let kind = match params.kind {
        // Without held-back queries nothing could tell whether an index meets the target.
        Kind::Auto if keys.len() < SHORT || split.held_back.is_empty() => Kind::Flat,
        kind => kind,
    };
    let mut index = SpanIndex::new(keys.len(), summary, Finder::Flat, params.calibrate_k);
    if kind != Kind::Flat {
        let start = Instant::now();
        let truth = QueryRows::exact(k, keys, queries, split.held_back.clone(), params.calibrate_k);
        (stats.rows, stats.rows_held_back) = (start.elapsed(), truth.len());
        let trials = Trials::new(k, keys, queries, split.held_back, (&truth, params.calibrate_k));
        let graph = |index: &SpanIndex, stats: &mut BuildStats| {
            let start = Instant::now();
            let rows = QueryRows::exact(k, keys, queries, split.used.clone(), params.row_length);
            (stats.rows, stats.rows_used) = (stats.rows + start.elapsed(), rows.len());
            let start = Instant::now();
            let graph = Graph::build(k, keys, &index.summary, &rows, params);
            stats.graph = start.elapsed();
            Finder::Graph(graph)
        };
        let start = Instant::now();
        match kind {
            Kind::Auto => {
                auto::choose((k, &mut index, keys), &trials, params.target_recall, |i| graph(i, &mut stats))
            }
            Kind::Graph => index.set_finder(graph(&index, &mut stats)),
            Kind::Hnsw => index.set_finder(Finder::Hnsw(Box::new(Hnsw::build(k, keys)))),
            Kind::Summary | Kind::Flat => index.set_finder(Finder::Summary(index.summary.code(k, keys))),
        }
        if kind != Kind::Auto && truth.len() > 0 {
            let trial = trials.narrowest(&index, params.target_recall);
            (index.width, index.recall) = (trial.width, Some(trial.recall));
        }
        index.lift = lift::fit(&index, &trials, &params.description);
        stats.search = start.elapsed();
    }
    tracing::debug!(tokens = keys.len(), kind = %index.kind(), width = index.width, ?stats, "index built");
    index.stats = stats;
    Ok(index)
}

fn check(
    keys: &Rows<'_>,
    values: &Rows<'_>,
    queries: Option<&BuildQueries>,
    params: &BuildParams,
) -> Result<(), BuildError> {
    if keys.is_empty() {
        return Err(BuildError::Empty);
    }
    if keys.len() >= MOST_TOKENS {
        return Err(BuildError::TooLong { tokens: keys.len(), limit: MOST_TOKENS - 1 });
    }
    if keys.len() != values.len() {
        return Err(BuildError::ValueCount { keys: keys.len(), values: values.len() });
    }
    if !(0.0..=1.0).contains(&params.target_recall) {
        return Err(BuildError::TargetRecall(params.target_recall.to_string()));
    }
    let Some(queries) = queries else { return Ok(()) };
    let (elements, rows, group, dim) = (queries.q.len(), queries.visible.len(), queries.group, keys.dim());
    if group == 0 || elements != rows * group * dim {
        return Err(BuildError::QueryShape { elements, rows, group, dim });
    }
    for (at, pair) in queries.visible.windows(2).enumerate() {
        if pair[1] < pair[0] {
            return Err(BuildError::QueryOrder { at: at + 1, end: pair[1] });
        }
    }
    match queries.visible.last() {
        Some(&end) if end as usize > keys.len() => Err(BuildError::QueryEnd { end, tokens: keys.len() }),
        _ => Ok(()),
    }
}
