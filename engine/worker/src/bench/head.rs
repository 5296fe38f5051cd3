//! One KV head of a capture: building its spans, asking its decode queries, judging the answers.

use std::time::{Duration, Instant};

use anyhow::Result;
use attention::{Description, Partial, Rows};
use half::f16;
use index::{
    Ask, Budget, BuildParams, BuildQueries, Kind, Scratch, SpanIndex, SpanView, Stats, attend_spans,
};
use kernels::Kernels;
use rayon::prelude::*;

use super::retrieval::widen;
use super::truth::{Reference, error};
use crate::capture_file::Capture;

/// Passes over the decode queries that are timed; the fastest counts.
const PASSES: usize = 3;

/// What is measured.
pub struct Setup {
    pub kernels: Kernels,
    pub kind: Kind,
    pub budget: Budget,
    pub estimate: bool,
    pub width: Option<usize>,
    pub spans: usize,
    pub seed: u64,
}

/// A part of the indexed range with its index.
pub struct Span {
    /// First token.
    pub begin: usize,
    pub keys: Vec<f16>,
    pub values: Vec<f16>,
    pub index: SpanIndex,
}

/// A KV head, ready to be asked.
pub struct Head {
    pub spans: Vec<Span>,
    /// Time spent before the builds, copying.
    pub preparation: Duration,
    keys: Vec<f16>,
    values: Vec<f16>,
    queries: Vec<f16>,
}

/// One decode query of one query head.
pub struct Outcome {
    /// Capture tokens attended to exactly within the indexed range, ascending.
    pub ids: Vec<u32>,
    /// The shard's partial.
    pub partial: Partial,
    pub stats: Stats,
    pub recall: Option<f64>,
    pub error: f64,
    pub oracle_error: Option<f64>,
    pub oracle_tokens: Option<f64>,
    pub coverage_true: f64,
    pub coverage_estimated: f64,
    pub search_us: f64,
}

impl Head {
    /// Divides the indexed range and builds every span.
    pub fn build(capture: &Capture, kv_head: usize, setup: &Setup) -> Result<Head> {
        let start = Instant::now();
        let (keys, values, queries) =
            (capture.keys(kv_head), capture.values(kv_head), capture.queries(kv_head));
        let mut preparation = start.elapsed();
        let indexed = capture.indexed();
        let mut spans = Vec::new();
        for s in 0..setup.spans {
            let start = Instant::now();
            let begin = indexed.start + indexed.len() * s / setup.spans;
            let end = indexed.start + indexed.len() * (s + 1) / setup.spans;
            let span_keys = keys[begin * capture.dim..end * capture.dim].to_vec();
            let span_values = values[begin * capture.value_dim..end * capture.value_dim].to_vec();
            let build_queries = build_queries(capture, &queries, begin, end);
            preparation += start.elapsed();
            let params = BuildParams {
                kind: setup.kind,
                description: Description::scaled(capture.meta.scale),
                seed: setup.seed,
                ..BuildParams::default()
            };
            let index = index::build(
                &Rows::contiguous(&span_keys, capture.dim),
                &Rows::contiguous(&span_values, capture.value_dim),
                Some(&build_queries),
                &params,
            )?;
            spans.push(Span { begin, keys: span_keys, values: span_values, index });
        }
        Ok(Head { spans, preparation, keys, values, queries })
    }

    /// Asks every decode query for all heads of the group: query by query, head by head.
    pub fn evaluate(&self, capture: &Capture, setup: &Setup) -> Vec<Outcome> {
        let (dim, value_dim) = (capture.dim, capture.value_dim);
        let views: Vec<SpanView<'_>> = self
            .spans
            .iter()
            .map(|span| SpanView {
                keys: Rows::contiguous(&span.keys, dim),
                values: Rows::contiguous(&span.values, value_dim),
                index: Some(&span.index),
                visible: 0..span.index.tokens(),
            })
            .collect();
        let first = capture.q_pos.partition_point(|&p| (p as usize) < capture.meta.eval_from);
        let decode: Vec<usize> = (first..capture.q_pos.len()).collect();
        let reference =
            Reference::new(&self.keys, &self.values, (dim, value_dim), capture.meta.scale, capture.indexed());
        let asked = self.ask_all(capture, setup, &views, &decode);
        asked
            .into_par_iter()
            .zip(decode)
            .flat_map_iter(|(answers, j)| self.judge(capture, setup, &reference, j, answers))
            .collect()
    }

    /// The answers, with the time of the fastest pass.
    fn ask_all(
        &self,
        capture: &Capture,
        setup: &Setup,
        views: &[SpanView<'_>],
        decode: &[usize],
    ) -> Vec<Answers> {
        let mut best: Vec<Answers> = Vec::new();
        let mut fastest = Duration::MAX;
        for _ in 0..PASSES {
            let pass: Vec<Answers> = decode
                .par_iter()
                .map_init(Scratch::new, |scratch, &j| self.ask(capture, setup, views, j, scratch))
                .collect();
            let total = pass.iter().map(|a| a.time).sum();
            if total < fastest {
                (fastest, best) = (total, pass);
            }
        }
        best
    }

    fn ask(
        &self,
        capture: &Capture,
        setup: &Setup,
        views: &[SpanView<'_>],
        j: usize,
        scratch: &mut Scratch,
    ) -> Answers {
        let (group, width) = (capture.group(), capture.group() * capture.dim);
        let q = widen(&self.queries[j * width..(j + 1) * width]);
        let ask = Ask {
            q: &q,
            group,
            description: Description::scaled(capture.meta.scale),
            budget: setup.budget,
            estimate: setup.estimate,
            width: setup.width,
            deadline: None,
            outside: None,
        };
        let mut partials = vec![Partial::neutral(capture.value_dim); group];
        let mut ids = Vec::new();
        let start = Instant::now();
        let stats = attend_spans(&setup.kernels, views, &[], &ask, scratch, &mut partials, Some(&mut ids));
        Answers { partials, ids, stats, time: start.elapsed() }
    }

    fn judge(
        &self,
        capture: &Capture,
        setup: &Setup,
        reference: &Reference,
        j: usize,
        answers: Answers,
    ) -> Vec<Outcome> {
        let (dim, group, position) = (capture.dim, capture.group(), capture.q_pos[j] as usize);
        let search_us = answers.time.as_secs_f64() * 1e6 / group as f64;
        let d = Description::scaled(capture.meta.scale);
        let mut merged = answers.partials.clone();
        let q = &self.queries[j * group * dim..(j + 1) * group * dim];
        let wide = widen(q);
        let indexed = capture.indexed();
        let (keys, values) =
            (Rows::contiguous(&self.keys, dim), Rows::contiguous(&self.values, capture.value_dim));
        let mut scratch = attention::Scratch::new();
        for range in [0..indexed.start, indexed.end..position + 1] {
            attention::attend_range(
                &setup.kernels,
                &d,
                &wide,
                &keys,
                &values,
                range,
                &mut scratch,
                &mut merged,
            );
        }
        let heads = answers.partials.into_iter().zip(answers.ids).zip(merged).zip(q.chunks(dim));
        heads
            .map(|(((partial, ids), merged), q)| {
                let truth = reference.attend(q, position);
                let ids: Vec<u32> =
                    ids.iter().map(|&(s, id)| self.spans[s as usize].begin as u32 + id).collect();
                let outside = reference.outside_share(&truth);
                let o: Vec<f64> = merged.o.iter().map(|&x| f64::from(x)).collect();
                let k = match setup.budget {
                    Budget::TopK(k) => Some(k.min(indexed.len())),
                    Budget::All => Some(indexed.len()),
                    Budget::Coverage(_) => None,
                };
                Outcome {
                    recall: k.map(|k| truth.found(&ids, k) as f64 / k as f64),
                    error: error(&o, &truth.output),
                    oracle_error: k.map(|k| error(&reference.top_k_output(&truth, k), &truth.output)),
                    oracle_tokens: match setup.budget {
                        Budget::Coverage(c) => Some(truth.tokens_for(f64::from(c), outside) as f64),
                        _ => None,
                    },
                    coverage_true: (truth.share(&ids) + outside).min(1.0),
                    coverage_estimated: f64::from(merged.coverage()),
                    search_us,
                    stats: answers.stats,
                    partial,
                    ids,
                }
            })
            .collect()
    }
}

/// What one call answered for all heads of the group.
struct Answers {
    partials: Vec<Partial>,
    ids: index::Chosen,
    stats: Stats,
    time: Duration,
}

/// The queries before the evaluation, seeing what a decode step at their position would ask the index for: the tokens
/// of [begin, end) before their window.
pub(super) fn build_queries(capture: &Capture, queries: &[f16], begin: usize, end: usize) -> BuildQueries {
    let m = capture.q_pos.partition_point(|&p| (p as usize) < capture.meta.eval_from);
    let width = capture.group() * capture.dim;
    let visible = capture.q_pos[..m]
        .iter()
        .map(|&p| (p as usize + 1).saturating_sub(capture.meta.window).clamp(begin, end) - begin)
        .map(|n| n as u32)
        .collect();
    BuildQueries { q: queries[..m * width].to_vec(), visible, group: capture.group() }
}
