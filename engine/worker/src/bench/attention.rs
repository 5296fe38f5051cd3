//! `recollect bench attention`: attention time of one decode step, retrieval against dense, on replayed KV in the shape
//! of the default model, in one run.
//!
//! Every KV head has its own copy of a capture's keys and values and an index of its own, so that the working set is as
//! large as the real one. Both methods give one task per KV head to the same pool and take turns.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::ensure;
use attention::{Description, Partial, Rows, attend_range};
use clap::Args;
use half::f16;
use index::{Ask, Budget, BuildParams, Kind, Scratch, SpanIndex, SpanView, attend_spans};
use kernels::Kernels;
use rayon::prelude::*;
use serde::Serialize;

use super::head::build_queries;
use super::retrieval::{check_threads, parse_switch, widen};
use crate::capture_file::Capture;
use crate::cli::spending::parse_index_budget;
use crate::cli::{print, usage};
use crate::progress::Progress;

/// Most heads and steps of a run.
const MOST: usize = 65_536;

/// Decode-step attention, retrieval against dense.
#[derive(Args, Clone, Debug)]
pub struct AttentionArgs {
    /// Captures to replay, in turn over the heads
    #[arg(long, value_name = "FILE", value_delimiter = ',', required = true)]
    pub capture: Vec<PathBuf>,
    /// Tokens of context (default: all of the shortest capture before its decode queries)
    #[arg(long)]
    pub context: Option<usize>,
    /// KV heads of one step: layers x KV heads (default: the default model's 30 x 3)
    #[arg(long, default_value_t = 90)]
    pub heads: usize,
    /// Index of every head
    #[arg(long, default_value = "auto")]
    pub method: Kind,
    /// Tokens attended to exactly per query head: a number, coverage=C, or all
    #[arg(long, default_value = "100", value_parser = parse_index_budget)]
    pub budget: Budget,
    /// Whether the remainder is estimated from the summary: on or off
    #[arg(long, default_value = "on", value_parser = parse_switch, action = clap::ArgAction::Set)]
    pub estimate: bool,
    /// Steps of each method, taken in turn
    #[arg(long, default_value_t = 16)]
    pub steps: usize,
    /// Threads
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// One JSON object a line on stdout
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Row {
    context: usize,
    heads: usize,
    q_heads_per_kv_head: usize,
    head_dim: usize,
    threads: usize,
    method: String,
    /// How many heads ended with which kind.
    kinds: String,
    budget: String,
    estimate: bool,
    steps: usize,
    dense_ms_per_token: f64,
    ours_ms_per_token: f64,
    ratio: f64,
    keys_scored_per_query: f64,
    output_error_mean: f64,
    kv_bytes: usize,
    index_bytes: usize,
}

/// One KV head with KV and index of its own.
struct Head {
    keys: Vec<f16>,
    values: Vec<f16>,
    index: SpanIndex,
    /// `[steps, group, dim]`
    queries: Vec<f32>,
    dim: usize,
    value_dim: usize,
    group: usize,
    description: Description,
    /// The indexed tokens; sink before, window behind.
    indexed: Range<usize>,
}

#[derive(Default)]
struct Memory {
    exact: attention::Scratch,
    spans: Scratch,
}

/// Runs the command.
pub fn run(args: &AttentionArgs) -> anyhow::Result<()> {
    for (flag, count) in [("--heads", args.heads), ("--steps", args.steps)] {
        if !(1..=MOST).contains(&count) {
            return Err(usage(format!("{flag} {count}: 1 to {MOST} are possible")));
        }
    }
    check_threads(args.threads)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads).build()?;
    let captures = args.capture.iter().map(|path| Capture::read(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let longest = captures.iter().map(|c| c.meta.eval_from).min().unwrap_or(0);
    let context = args.context.unwrap_or(longest);
    if context > longest {
        return Err(usage(format!(
            "--context {context}: the shortest capture has {longest} tokens before its decode queries"
        )));
    }
    let local = captures.iter().map(|c| c.meta.sink + c.meta.window).max().unwrap_or(0);
    if context <= local {
        return Err(usage(format!(
            "--context {context}: leaves nothing between sink and window, {local} tokens"
        )));
    }
    let progress = Progress::new("building indexes", args.heads as u64);
    let mut heads = Vec::with_capacity(args.heads);
    for i in 0..args.heads {
        let capture = &captures[i % captures.len()];
        let kv_head = (i / captures.len()) % capture.kv_heads;
        heads.push(pool.install(|| Head::build(capture, kv_head, context, args))?);
        progress.step();
    }
    progress.finish();
    let row = pool.install(|| measure(args, context, &heads));
    if args.json {
        return print::json(&row);
    }
    print::line(format_args!(
        "{} KV heads x {} query heads, {} tokens, {} threads: dense {:.2} ms, ours {:.2} ms a token ({:.1}x); {} ({}), {:.0} keys scored, output error {:.4}",
        row.heads,
        row.q_heads_per_kv_head,
        row.context,
        row.threads,
        row.dense_ms_per_token,
        row.ours_ms_per_token,
        row.ratio,
        row.method,
        row.kinds,
        row.keys_scored_per_query,
        row.output_error_mean
    ))?;
    Ok(())
}

fn measure(args: &AttentionArgs, context: usize, heads: &[Head]) -> Row {
    let (mut dense_ms, mut ours_ms, mut errors, mut scored) = (Vec::new(), Vec::new(), Vec::new(), 0.0);
    for step in 0..args.steps {
        let clock = Instant::now();
        let dense: Vec<Vec<Partial>> =
            heads.par_iter().map_init(Memory::default, |memory, head| head.dense(step, memory)).collect();
        dense_ms.push(clock.elapsed().as_secs_f64() * 1e3);
        let clock = Instant::now();
        let ours: Vec<(Vec<Partial>, f64)> = heads
            .par_iter()
            .map_init(Memory::default, |memory, head| head.ours(args, step, memory))
            .collect();
        ours_ms.push(clock.elapsed().as_secs_f64() * 1e3);
        for (dense, (ours, keys)) in dense.iter().zip(&ours) {
            scored += keys / (args.steps * heads.len()) as f64;
            errors.extend(dense.iter().zip(ours).map(|(a, b)| relative_error(&a.o, &b.o)));
        }
    }
    let (dense_ms_per_token, ours_ms_per_token) = (median(&mut dense_ms), median(&mut ours_ms));
    Row {
        context,
        heads: heads.len(),
        q_heads_per_kv_head: heads[0].group,
        head_dim: heads[0].dim,
        threads: args.threads,
        method: args.method.to_string(),
        kinds: count_kinds(heads),
        budget: match args.budget {
            Budget::TopK(k) => k.to_string(),
            Budget::Coverage(share) => format!("coverage={share}"),
            Budget::All => "all".into(),
        },
        estimate: args.estimate,
        steps: args.steps,
        dense_ms_per_token,
        ours_ms_per_token,
        ratio: dense_ms_per_token / ours_ms_per_token,
        keys_scored_per_query: scored,
        output_error_mean: errors.iter().sum::<f64>() / errors.len() as f64,
        kv_bytes: heads.iter().map(|h| (h.keys.len() + h.values.len()) * size_of::<f16>()).sum(),
        index_bytes: heads.iter().map(|h| h.index.bytes()).sum(),
    }
}

impl Head {
    fn build(
        capture: &Capture,
        kv_head: usize,
        context: usize,
        args: &AttentionArgs,
    ) -> anyhow::Result<Head> {
        let mut capture = capture.clone();
        capture.meta.eval_from = context;
        let indexed = capture.indexed();
        let (dim, value_dim, group) = (capture.dim, capture.value_dim, capture.group());
        let mut keys = capture.keys(kv_head);
        let mut values = capture.values(kv_head);
        keys.truncate(context * dim);
        values.truncate(context * value_dim);
        let all = capture.queries(kv_head);
        let first = capture.q_pos.partition_point(|&p| (p as usize) < context);
        let available = capture.q_pos.len() - first;
        ensure!(available > 0, "--context {context}: the capture has no query after it");
        let width = group * dim;
        let queries = (0..args.steps).map(|s| first + s % available);
        let queries = queries.flat_map(|j| widen(&all[j * width..(j + 1) * width])).collect();
        let description = Description::scaled(capture.meta.scale);
        let params = BuildParams { kind: args.method, description, ..BuildParams::default() };
        let index = index::build(
            &Rows::contiguous(&keys[indexed.start * dim..indexed.end * dim], dim),
            &Rows::contiguous(&values[indexed.start * value_dim..indexed.end * value_dim], value_dim),
            Some(&build_queries(&capture, &all, indexed.start, indexed.end)),
            &params,
        )?;
        Ok(Head { keys, values, index, queries, dim, value_dim, group, description, indexed })
    }

    fn query(&self, step: usize) -> &[f32] {
        let width = self.group * self.dim;
        &self.queries[step * width..(step + 1) * width]
    }

    fn exact(&self, step: usize, range: Range<usize>, memory: &mut Memory, out: &mut [Partial]) {
        let (keys, values) =
            (Rows::contiguous(&self.keys, self.dim), Rows::contiguous(&self.values, self.value_dim));
        let kernels = Kernels::native();
        attend_range(
            &kernels,
            &self.description,
            self.query(step),
            &keys,
            &values,
            range,
            &mut memory.exact,
            out,
        );
    }

    /// Every token, each key loaded once for the group.
    fn dense(&self, step: usize, memory: &mut Memory) -> Vec<Partial> {
        let mut out = vec![Partial::neutral(self.value_dim); self.group];
        self.exact(step, 0..self.keys.len() / self.dim, memory, &mut out);
        out
    }

    /// What a shard answers, merged with the worker's sink and window; and the keys scored per query head.
    fn ours(&self, args: &AttentionArgs, step: usize, memory: &mut Memory) -> (Vec<Partial>, f64) {
        let mut out = vec![Partial::neutral(self.value_dim); self.group];
        let tokens = self.keys.len() / self.dim;
        self.exact(step, 0..self.indexed.start, memory, &mut out);
        self.exact(step, self.indexed.end..tokens, memory, &mut out);
        let (from, to) = (self.indexed.start, self.indexed.end);
        let span = SpanView {
            keys: Rows::contiguous(&self.keys[from * self.dim..to * self.dim], self.dim),
            values: Rows::contiguous(
                &self.values[from * self.value_dim..to * self.value_dim],
                self.value_dim,
            ),
            index: Some(&self.index),
            compact: None,
            visible: 0..to - from,
        };
        let ask = Ask {
            q: self.query(step),
            group: self.group,
            description: self.description,
            budget: args.budget,
            estimate: args.estimate,
            width: None,
            deadline: None,
            outside: None,
        };
        let stats = attend_spans(&Kernels::native(), &[span], &[], &ask, &mut memory.spans, &mut out, None);
        (out, stats.keys_scored + (tokens - (to - from)) as f64)
    }
}

fn relative_error(full: &[f32], other: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let norm: f64 = full.iter().map(|&x| square(x)).sum();
    let distance: f64 = full.iter().zip(other).map(|(&a, &b)| square(a - b)).sum();
    (distance / norm).sqrt()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn count_kinds(heads: &[Head]) -> String {
    let counted =
        Kind::ALL.into_iter().map(|kind| (kind, heads.iter().filter(|h| h.index.kind() == kind).count()));
    counted.filter(|&(_, n)| n > 0).map(|(kind, n)| format!("{n} {kind}")).collect::<Vec<_>>().join(", ")
}
