//! Merges in the background: copy, index, swap. Until the swap the parts answer; what goes wrong leaves them as they are.

use crate::admission::{Kind, Short};
use crate::recipe::{Failure, Recipe};
use crate::session::Session;
use crate::session::extent::{self, SealedRows};
use crate::session::merge::Part;
use crate::session::samples::{self, Samples};
use crate::session::span::{Queries, Span};
use crate::spill::policy::History;
use crate::telemetry::Metrics;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Instant;
use wire::names;

/// A merge that a seal has planned.
pub struct Merge {
    /// Whose; gone when it was closed.
    pub session: Weak<Session>,
    /// Of the span to make.
    pub version: u64,
}

/// How a merge that made nothing ended.
enum Void {
    /// The session, or a part of the run, is gone, or a larger merge is planned.
    Cancelled,
    /// No memory, or rows that do not come back from the archive.
    Refused(String),
    /// The index could not be built.
    Failed(String),
}

/// Runs one merge and counts how it ended.
pub fn run(pool: &rayon::ThreadPool, merge: &Merge, recipe: &Recipe, metrics: &Metrics) {
    let (layer, kv_head) = recipe.at;
    let _span = tracing::debug_span!(names::SPAN_MERGE, layer, kv_head, version = merge.version).entered();
    let started = Instant::now();
    let ended = try_merge(pool, merge, recipe, metrics);
    let void = match ended {
        Ok((spans, tokens)) => {
            let took = started.elapsed();
            tracing::debug!(spans, tokens, took_ms = took.as_millis(), "spans merged");
            metrics.merges_ok.increment(1);
            metrics.merge_seconds.record(took.as_secs_f64());
            return;
        }
        Err(void) => void,
    };
    if let Some(session) = merge.session.upgrade()
        && let Ok(head) = session.head(layer, kv_head)
    {
        head.unplan(merge.version);
    }
    match void {
        Void::Cancelled => metrics.merges_cancelled.increment(1),
        Void::Refused(reason) => {
            tracing::debug!(reason, "spans cannot be merged now; they stay as they are");
            metrics.merges_refused.increment(1);
        }
        Void::Failed(reason) => {
            tracing::warn!(reason, "spans do not merge; they stay as they are");
            metrics.merges_failed.increment(1);
        }
    }
}

/// Returns how many spans became one of how many tokens.
fn try_merge(
    pool: &rayon::ThreadPool,
    merge: &Merge,
    recipe: &Recipe,
    metrics: &Metrics,
) -> Result<(usize, u64), Void> {
    // The session is not held across the build: closing it must return its memory.
    bring_back(merge, recipe, metrics)?;
    let parts = parts(merge, recipe)?;
    // A planned span is not archived, so that they stay at hand.
    let [(first, _), _, ..] = &parts[..] else { return Err(Void::Cancelled) };
    let begin = first.begin;
    // Lets go after the parts: only then is the memory of one copy left.
    let _extension =
        recipe.purse.extend(needed(&parts, recipe, pool.current_num_threads())).map_err(Void::refused)?;
    let parts = parts;
    let rows = copy(&parts, recipe).map_err(Void::refused)?;
    let queries = queries(&parts, recipe).map_err(Void::refused)?;
    let queries = Queries { own: Some(queries), ..Queries::default() };
    // For the disk; the build takes them.
    let stored = recipe.store.as_ref().and_then(|_| queries.stored());
    let (indexed, kept) = recipe.build(pool, &rows, (begin, queries), metrics).map_err(|f| match f {
        Failure::Memory(reason) => Void::Refused(reason),
        Failure::Build(reason) => Void::Failed(reason),
    })?;
    let merged = Arc::new(Span::merged(begin, merge.version, rows, kept, indexed));
    merged.save_queries(stored);
    *merged.history() =
        parts.iter().map(|(span, _)| *span.history()).fold(History::default(), History::joined);
    let tokens = merged.len();
    let session = merge.session.upgrade().ok_or(Void::Cancelled)?;
    let head = session.head(recipe.at.0, recipe.at.1).map_err(|_| Void::Cancelled)?;
    let started = Instant::now();
    let swapped = head.replace(&parts, merged);
    tracing::debug!(swapped, took_us = started.elapsed().as_micros(), "swap, its wait for readers included");
    if let Some(store) = recipe.store.as_ref().filter(|_| swapped) {
        store.keeper().submit(&session, recipe.at);
    }
    if swapped { Ok((parts.len(), tokens)) } else { Err(Void::Cancelled) }
}

impl Void {
    fn refused(short: Short) -> Self {
        Void::Refused(short.status("merging spans").message().to_owned())
    }
}

/// Parts that only the archive holds come back first.
fn bring_back(merge: &Merge, recipe: &Recipe, metrics: &Metrics) -> Result<(), Void> {
    let Some(store) = &recipe.store else { return Ok(()) };
    let session = merge.session.upgrade().ok_or(Void::Cancelled)?;
    let _one = session.moving.lock().unwrap_or_else(PoisonError::into_inner);
    for (span, _) in parts(merge, recipe)?.iter().filter(|(span, _)| span.rows.archived() > 0) {
        let bytes = store.revive(&session, recipe.at, span).map_err(|e| {
            metrics.archive_errors.increment(1);
            Void::Refused(e.to_string())
        })?;
        metrics.revivals.increment(u64::from(bytes > 0));
    }
    Ok(())
}

fn parts(merge: &Merge, recipe: &Recipe) -> Result<Vec<Part>, Void> {
    let session = merge.session.upgrade().ok_or(Void::Cancelled)?;
    let head = session.head(recipe.at.0, recipe.at.1).map_err(|_| Void::Cancelled)?;
    Ok(head.parts(merge.version))
}

fn pieces(parts: &[Part]) -> Vec<extent::Part<'_>> {
    parts.iter().map(|(span, end)| (&span.rows, (end - span.begin) as usize)).collect()
}

/// Bytes of rows that are not shared.
fn copied_bytes(parts: &[Part], recipe: &Recipe) -> u64 {
    SealedRows::copied(&pieces(parts)) * recipe.geometry.row_bytes()
}

/// Positions of the queries that the parts kept.
fn kept(parts: &[Part]) -> usize {
    parts.iter().map(|(span, _)| span.queries().own.as_ref().map_or(0, Samples::len)).sum()
}

/// Bytes until the parts can go: the second copy, the queries, the working memory, and an index as large as theirs.
fn needed(parts: &[Part], recipe: &Recipe, threads: usize) -> u64 {
    let begin = parts.first().map_or(0, |(span, _)| span.begin);
    let tokens = parts.iter().map(|(span, end)| end - span.begin).sum();
    let working = recipe.working_memory(&recipe.params(begin, tokens, true), tokens, kept(parts), threads);
    let queries = samples::bytes(kept(parts), recipe.geometry.group * recipe.geometry.key_dim);
    let indexes: u64 = parts.iter().map(|p| p.0.index_bytes()).sum();
    copied_bytes(parts, recipe) + queries + working + indexes
}

/// The visible rows of the parts; those that are not shared are paid for first.
fn copy(parts: &[Part], recipe: &Recipe) -> Result<SealedRows, Short> {
    let charge = recipe.purse.charge(Kind::Kv, copied_bytes(parts, recipe))?;
    Ok(SealedRows::join(&pieces(parts), charge))
}

/// Copies of the queries that the parts kept, without those of positions that were cut off.
fn queries(parts: &[Part], recipe: &Recipe) -> Result<Samples, Short> {
    let width = recipe.geometry.group * recipe.geometry.key_dim;
    let charge = recipe.purse.charge(Kind::Scratch, samples::bytes(kept(parts), width))?;
    let mut all = Samples::new(width, charge);
    for (span, end) in parts {
        if let Some(own) = &span.queries().own {
            all.extend_below(own, *end);
        }
    }
    Ok(all)
}
