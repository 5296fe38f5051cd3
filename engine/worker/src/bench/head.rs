//! One KV head of a capture: building its spans, copying them for a working set beyond the caches, asking its decode
//! queries.

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
use crate::capture_file::Capture;

/// What is built.
pub struct Setup {
    pub kernels: Kernels,
    pub kind: Kind,
    pub spans: usize,
    /// How many times KV and index are held, each in memory of its own; the queries take them in turn.
    pub copies: usize,
    /// Timed passes over the decode queries, the fastest of which counts; before them there is one that also tells which
    /// tokens were attended to. 0: none, and no times.
    pub passes: usize,
    /// Whether the calibrated width will be asked for.
    pub calibrated: bool,
    pub seed: u64,
}

/// How a built head is asked.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub budget: Budget,
    pub estimate: bool,
    /// None: as calibrated.
    pub width: Option<usize>,
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
    /// The spans, copy by copy; the first copy is what was built.
    copies: Vec<Vec<Span>>,
    /// Time spent on copying, before the builds and after.
    pub preparation: Duration,
    /// All tokens: [tokens, dim].
    pub keys: Vec<f16>,
    /// All tokens: [tokens, value_dim].
    pub values: Vec<f16>,
    /// All positions: [m, group, dim].
    pub queries: Vec<f16>,
}

/// The answers to all decode queries at one setting.
pub struct Asked {
    /// Query by query.
    pub answers: Vec<Answers>,
    /// Wall time of the fastest timed pass, all threads at work.
    pub wall: Duration,
}

/// What one call answered for all heads of the group.
pub struct Answers {
    pub partials: Vec<Partial>,
    pub ids: index::Chosen,
    pub stats: Stats,
    /// Of the call, in the fastest timed pass.
    pub time: Duration,
}

impl Head {
    /// Divides the indexed range, builds every span, copies them.
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
            let index = build_index(capture, &span_keys, &span_values, &build_queries, setup)?;
            spans.push(Span { begin, keys: span_keys, values: span_values, index });
        }
        let start = Instant::now();
        let copy = |span: &Span| copy_span(capture, &queries, span, setup);
        let more: Vec<Vec<Span>> = (1..setup.copies)
            .into_par_iter()
            .map(|_| spans.iter().map(copy).collect())
            .collect::<Result<_>>()?;
        let copies = std::iter::once(spans).chain(more).collect();
        Ok(Head { copies, preparation: preparation + start.elapsed(), keys, values, queries })
    }

    /// The spans as they were built.
    pub fn spans(&self) -> &[Span] {
        &self.copies[0]
    }

    /// Asks every decode query (`decode` numbers them among all queries) for all heads of the group. Every thread has
    /// a share of the queries and memory of its own; a query asks the copy whose turn it is. Timed calls are those that a
    /// shard makes: they do not list what they attended to.
    pub fn ask_all(&self, capture: &Capture, setup: &Setup, setting: &Setting, decode: &[usize]) -> Asked {
        let views: Vec<Vec<SpanView<'_>>> =
            self.copies.iter().map(|spans| spans.iter().map(|span| view(capture, span)).collect()).collect();
        let outside = match setting.budget {
            Budget::Coverage(_) => {
                decode.par_iter().map(|&j| Some(self.mass_beside(capture, setup, j))).collect()
            }
            _ => vec![None; decode.len()],
        };
        let width = capture.group() * capture.dim;
        let queries: Vec<Query> = decode
            .iter()
            .zip(outside)
            .map(|(&j, outside)| Query { q: widen(&self.queries[j * width..(j + 1) * width]), outside })
            .collect();
        let share = queries.len().div_ceil(rayon::current_num_threads()).max(1);
        let mut memory = vec![Scratch::new(); queries.len().div_ceil(share)];
        let mut pass = |number: usize, list: bool| -> (Vec<Answers>, Duration) {
            let start = Instant::now();
            let answers = queries
                .par_chunks(share)
                .zip(memory.par_iter_mut())
                .enumerate()
                .flat_map_iter(|(chunk, (queries, scratch))| {
                    let turns = queries.iter().zip(number * decode.len() + chunk * share..);
                    let views = &views;
                    turns.map(move |(query, turn)| {
                        query.ask(capture, (setup, setting), &views[turn % views.len()], scratch, list)
                    })
                })
                .collect();
            (answers, start.elapsed())
        };
        let (mut answers, _) = pass(0, true);
        let (mut fastest, mut wall) = (Duration::MAX, Duration::MAX);
        for number in 1..=setup.passes {
            let (timed, took) = pass(number, false);
            wall = wall.min(took);
            let total = timed.iter().map(|a| a.time).sum();
            if total < fastest {
                fastest = total;
                answers.iter_mut().zip(timed).for_each(|(answer, timed)| answer.time = timed.time);
            }
        }
        Asked { answers, wall }
    }

    /// The final partials of query `j`: the answers with exact attention over every visible token outside the index.
    pub fn merged(&self, capture: &Capture, setup: &Setup, j: usize, answers: &Answers) -> Vec<Partial> {
        let mut merged = answers.partials.clone();
        self.attend_beside(capture, setup, j, &mut merged);
        merged
    }

    /// Merges exact attention of query `j` over every visible token outside the indexed range into `out`.
    fn attend_beside(&self, capture: &Capture, setup: &Setup, j: usize, out: &mut [Partial]) {
        let (dim, width) = (capture.dim, capture.group() * capture.dim);
        let indexed = capture.indexed();
        let q = widen(&self.queries[j * width..(j + 1) * width]);
        let d = Description::scaled(capture.meta.scale);
        let (keys, values) =
            (Rows::contiguous(&self.keys, dim), Rows::contiguous(&self.values, capture.value_dim));
        let mut scratch = attention::Scratch::new();
        for range in [0..indexed.start, indexed.end..capture.q_pos[j] as usize + 1] {
            attention::attend_range(&setup.kernels, &d, &q, &keys, &values, range, &mut scratch, out);
        }
    }

    /// Log of the mass outside the indexed range for query `j`, per head: a worker that asks for a coverage attends to
    /// its own tokens first and says what they weigh.
    fn mass_beside(&self, capture: &Capture, setup: &Setup, j: usize) -> Vec<f32> {
        let mut out = vec![Partial::neutral(capture.value_dim); capture.group()];
        self.attend_beside(capture, setup, j, &mut out);
        out.iter().map(Partial::log_sum_exp).collect()
    }
}

/// One decode query, ready to be asked.
struct Query {
    /// [group, dim]
    q: Vec<f32>,
    /// [group]
    outside: Option<Vec<f32>>,
}

impl Query {
    /// Asks; `list` which tokens were attended to.
    fn ask(
        &self,
        capture: &Capture,
        (setup, setting): (&Setup, &Setting),
        views: &[SpanView<'_>],
        scratch: &mut Scratch,
        list: bool,
    ) -> Answers {
        let group = capture.group();
        let ask = Ask {
            q: &self.q,
            group,
            description: Description::scaled(capture.meta.scale),
            budget: setting.budget,
            estimate: setting.estimate,
            width: setting.width,
            deadline: None,
            outside: self.outside.as_deref(),
        };
        let mut partials = vec![Partial::neutral(capture.value_dim); group];
        let mut ids = Vec::new();
        let start = Instant::now();
        let ids_to = list.then_some(&mut ids);
        let stats = attend_spans(&setup.kernels, views, &[], &ask, scratch, &mut partials, ids_to);
        Answers { partials, ids, stats, time: start.elapsed() }
    }
}

fn view<'a>(capture: &Capture, span: &'a Span) -> SpanView<'a> {
    SpanView {
        keys: Rows::contiguous(&span.keys, capture.dim),
        values: Rows::contiguous(&span.values, capture.value_dim),
        index: Some(&span.index),
        compact: None,
        visible: 0..span.index.tokens(),
    }
}

fn build_index(
    capture: &Capture,
    keys: &[f16],
    values: &[f16],
    queries: &BuildQueries,
    setup: &Setup,
) -> Result<SpanIndex> {
    let mut params = BuildParams {
        kind: setup.kind,
        description: Description::scaled(capture.meta.scale),
        seed: setup.seed,
        ..BuildParams::default()
    };
    if setup.kind == Kind::Hnsw && !setup.calibrated {
        // The baseline's build time is that of the graph: the widths are given, and its trials are long.
        params.target_recall = 0.0;
    }
    let keys = Rows::contiguous(keys, capture.dim);
    let values = Rows::contiguous(values, capture.value_dim);
    Ok(index::build(&keys, &values, Some(queries), &params)?)
}

/// The same span in memory of its own; an index that cannot be copied is built again.
fn copy_span(capture: &Capture, queries: &[f16], span: &Span, setup: &Setup) -> Result<Span> {
    let (keys, values) = (span.keys.clone(), span.values.clone());
    let index = match span.index.copied() {
        Some(index) => index,
        None => {
            let queries = build_queries(capture, queries, span.begin, span.begin + span.index.tokens());
            build_index(capture, &keys, &values, &queries, setup)?
        }
    };
    Ok(Span { begin: span.begin, keys, values, index })
}

/// The queries before the evaluation, seeing what a decode step at their position would ask the index for: the tokens
/// of [begin, end) before their window.
pub(super) fn build_queries(capture: &Capture, queries: &[f16], begin: usize, end: usize) -> BuildQueries {
    let m = capture.decode_queries().start;
    let width = capture.group() * capture.dim;
    let visible = capture.q_pos[..m]
        .iter()
        .map(|&p| (p as usize + 1).saturating_sub(capture.meta.window).clamp(begin, end) - begin)
        .map(|n| n as u32)
        .collect();
    BuildQueries { q: queries[..m * width].to_vec(), visible, group: capture.group() }
}
