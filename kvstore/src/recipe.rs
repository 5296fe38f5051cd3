//! How the index of a span is built, and what the build may use.

use crate::admission::{Kind, Purse, Short};
use crate::pool::panic_text;
use crate::session::extent::SealedRows;
use crate::session::geometry::Geometry;
use crate::session::samples::{self, Samples};
use crate::session::span::{Indexed, Queries};
use crate::store::Store;
use crate::telemetry::Metrics;
use index::{BuildParams, BuildQueries};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// Up to this many tokens a span gets no graph.
const SHORT_SPAN: u64 = 1024;

/// What builds for one head have in common.
pub struct Recipe {
    /// What the session asked for.
    pub index: index::Kind,
    /// Of its logits.
    pub scale: f32,
    /// Of its builds.
    pub seed: u64,
    /// Recall that search widths are calibrated for.
    pub recall: f32,
    /// Shape of the rows.
    pub geometry: Geometry,
    /// Layer and KV head.
    pub at: (usize, usize),
    /// Pays for the index and the working memory.
    pub purse: Arc<Purse>,
    /// Where spans are stored, if anywhere.
    pub store: Option<Arc<Store>>,
}

/// Why there is no index.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The purse has no room.
    #[error("{0}")]
    Memory(String),
    /// The build refused its input or panicked.
    #[error("{0}")]
    Build(String),
}

impl From<Short> for Failure {
    fn from(short: Short) -> Self {
        Failure::Memory(short.status("the index").message().to_owned())
    }
}

impl Recipe {
    /// Builds the index of rows that begin at a position, counted in the metrics. Returns it with the queries that the
    /// span keeps.
    pub fn build(
        &self,
        pool: &rayon::ThreadPool,
        rows: &SealedRows,
        (begin, queries): (u64, Queries),
        metrics: &Metrics,
    ) -> Result<(Indexed, Option<Samples>), Failure> {
        let started = Instant::now();
        let built = self.try_build(pool, rows, (begin, queries));
        let took = started.elapsed();
        match built {
            Ok((indexed, kept)) => {
                metrics.builds_ok.increment(1);
                metrics.build_seconds.record(took.as_secs_f64());
                let build_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
                Ok((Indexed { build_us, ..indexed }, kept))
            }
            Err(failure) => {
                metrics.builds_failed.increment(1);
                Err(failure)
            }
        }
    }

    fn try_build(
        &self,
        pool: &rayon::ThreadPool,
        rows: &SealedRows,
        (begin, queries): (u64, Queries),
    ) -> Result<(Indexed, Option<Samples>), Failure> {
        let (keys, values) = (rows.keys(), rows.values());
        let (tokens, group) = (keys.len() as u64, self.geometry.group);
        let (mut kept, queries) = match queries.own {
            None => (None, None),
            Some(own) => {
                let sizes = (group, samples::kept(tokens, group));
                let (kept, queries) = own.divide(queries.later, begin..begin + tokens, sizes);
                (Some(kept), queries)
            }
        };
        let params = self.params(begin, tokens, queries.is_some());
        let build_positions = queries.as_ref().map_or(0, |q: &BuildQueries| q.visible.len());
        let scratch = self.working_memory(&params, tokens, build_positions, pool.current_num_threads());
        let _scratch = self.purse.charge(Kind::Scratch, scratch)?;
        let built = catch_unwind(AssertUnwindSafe(|| {
            pool.install(|| index::build(&keys, &values, queries.as_ref(), &params))
        }));
        let index = match built {
            Ok(built) => built.map_err(|e| Failure::Build(e.to_string()))?,
            Err(panic) => {
                return Err(Failure::Build(format!("the build panicked: {}", panic_text(panic.as_ref()))));
            }
        };
        drop(queries);
        kept.iter_mut().for_each(Samples::settle);
        let charge = self.purse.charge(Kind::Index, index.bytes() as u64)?;
        let recall_target = params.target_recall;
        Ok((Indexed { index, recall_target, build_us: 0, charge }, kept))
    }

    /// Bytes that a build works in on so many threads, the queries to keep among them.
    pub fn working_memory(&self, params: &BuildParams, tokens: u64, positions: usize, threads: usize) -> u64 {
        let (group, g) = (self.geometry.group, &self.geometry);
        let dims = (g.key_dim as u64, g.value_dim as u64);
        let kept = samples::bytes(positions.min(samples::kept(tokens, group)), group * g.key_dim);
        index::working_bytes(params, tokens, dims, ((positions * group) as u64, threads as u64)) + kept
    }

    /// How a span is built; `queries`: whether there are any for it.
    pub fn params(&self, begin: u64, tokens: u64, queries: bool) -> BuildParams {
        // A walk over a short span scores as many keys as a scan, and a graph without queries finds little: there the
        // index is a scan with a summary for the estimate.
        let kind = match self.index {
            index::Kind::Auto if !queries => index::Kind::Flat,
            index::Kind::Auto | index::Kind::Graph if tokens <= SHORT_SPAN => index::Kind::Flat,
            kind => kind,
        };
        // Another seed for every head and first position, the same in every run.
        let (layer, kv_head) = self.at;
        let at = (layer as u64) << 40 | (kv_head as u64) << 28;
        BuildParams {
            kind,
            description: attention::Description { scale: self.scale, softcap: None },
            seed: self.seed ^ at ^ begin.rotate_left(20),
            target_recall: self.recall,
            ..BuildParams::default()
        }
    }
}
