//! `recollect bench appends`: the end of a capture appended as decode would, against a fresh build over all of it.

use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use index::Kind;
use kvstore::NodeConfig;
use rayon::prelude::*;
use serde::Serialize;
use wire::{names, v1};

use super::retrieval::check_threads;
use super::shard::Shard;
use super::truth::{Reference, Truth};
use crate::capture_file::Capture;
use crate::cli::usage;

/// How well tokens are found that decode has appended, and how long an append takes while spans merge.
#[derive(Args, Clone, Debug)]
pub struct AppendsArgs {
    /// The capture: safetensors with k, v, q, q_pos.
    #[arg(long, value_name = "FILE")]
    pub capture: PathBuf,
    /// Tokens before the decode queries that are appended one at a time; those before them are the prefill.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub appended: usize,
    /// What indexes to build: graph, summary, hnsw or auto.
    #[arg(long, default_value = "auto")]
    pub method: Kind,
    /// Tokens selected per query head.
    #[arg(long, value_name = "K", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub budget: u32,
    /// Threads that attend, and as many that build.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// One JSON object a line on stdout.
    #[arg(long)]
    pub json: bool,
}

/// One line of output. Recall and shares are means over decode queries and query heads.
#[derive(Clone, Debug, Serialize)]
struct Row {
    /// `unmerged`: appended, spans left as sealed; `merged`: appended, merges waited for; `fresh`: one prefill.
    variant: &'static str,
    method: String,
    budget: u32,
    /// Tokens that are asked for.
    tokens: u64,
    prefilled: usize,
    appended: usize,
    /// Over all KV heads, without the sink.
    spans: usize,
    /// Of the first KV head, in order, without the sink.
    span_tokens: Vec<u64>,
    recall_at_k: f64,
    scanned_fraction: f64,
    search_us_per_query: f64,
    /// Messages that append one token.
    append_us: Option<Spread>,
    /// Messages that append one token and attend.
    answer_us: Option<Spread>,
    merges: u64,
    merge_ms_mean: Option<f64>,
    /// Index builds, those of merges included.
    builds: u64,
    build_ms_total: f64,
    threads: usize,
}

/// Of wall times, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Spread {
    p50: f64,
    p99: f64,
    max: f64,
}

/// Runs the command.
pub fn run(args: &AppendsArgs) -> Result<()> {
    check_threads(args.threads)?;
    if args.method == Kind::Flat {
        return Err(usage("--method flat: without an index there is nothing to merge"));
    }
    let capture = Capture::read(&args.capture)?;
    let indexed = capture.indexed();
    if !(1..indexed.len()).contains(&args.appended) {
        return Err(usage(format!(
            "--appended {}: 1 to {} of the {} indexed tokens are possible",
            args.appended,
            indexed.len() - 1,
            indexed.len()
        )));
    }
    let bench = Bench { capture: &capture, args };
    let decode = capture.decode_queries();
    ensure!(!decode.is_empty(), "the capture has no query from eval_from {} on", capture.meta.eval_from);
    let prefilled = capture.meta.eval_from - args.appended;
    let mut truths = None;
    for (variant, merge, prefilled) in
        [("unmerged", false, prefilled), ("merged", true, prefilled), ("fresh", true, capture.meta.eval_from)]
    {
        let row = bench.measure((variant, merge, prefilled), &decode, &mut truths)?;
        let mut out = std::io::stdout().lock();
        match args.json {
            true => writeln!(out, "{}", serde_json::to_string(&row)?)?,
            false => writeln!(out, "{}", line(&row))?,
        }
    }
    Ok(())
}

struct Bench<'a> {
    capture: &'a Capture,
    args: &'a AppendsArgs,
}

/// The full softmax by KV head, decode query and head of the group, over a range that is asked for.
type Truths = (Range<u64>, Vec<Vec<Vec<Truth>>>);

impl Bench<'_> {
    fn measure(
        &self,
        (variant, merge, prefilled): (&'static str, bool, usize),
        decode: &Range<usize>,
        truths: &mut Option<Truths>,
    ) -> Result<Row> {
        let (capture, args) = (self.capture, self.args);
        let config = NodeConfig {
            memory_bytes: 1 << 44,
            threads: Some(args.threads),
            index_threads: Some(args.threads),
            merge,
            ..NodeConfig::default()
        };
        let shard = Shard::open(capture, args.method, config)?;
        shard.prefill(prefilled)?;
        shard.ready()?;
        let times = shard.decode(prefilled..capture.meta.eval_from, args.budget)?;
        let told = shard.ready()?;
        // Fresh tokens come on top of the budget: only what is in spans is asked for.
        let sealed = told.watermark - told.fresh_tokens;
        let range = capture.meta.sink as u64..sealed.min(capture.indexed().end as u64);
        // The variants are asked for the same tokens.
        let range = truths.as_ref().map_or(range, |(range, _)| range.clone());
        let (range, truths) = truths.get_or_insert_with(|| (range.clone(), self.truths(&range, decode)));
        let (mut found, mut scored, mut asked) = (0.0, 0.0, 0.0);
        let mut searching = Duration::ZERO;
        let k = (args.budget as usize).min((range.end - range.start) as usize);
        for (kv_head, truths) in truths.iter().enumerate() {
            let width = capture.group() * capture.dim;
            let queries = capture.queries(kv_head);
            for (j, truths) in decode.clone().zip(truths) {
                let q = &queries[j * width..(j + 1) * width];
                let start = Instant::now();
                let selection = shard.select(kv_head, range.clone(), q, k)?;
                searching += start.elapsed();
                for (truth, positions) in truths.iter().zip(&selection.positions) {
                    let ids: Vec<u32> = positions.iter().map(|&p| p as u32).collect();
                    found += truth.found(&ids, k) as f64 / k as f64;
                    scored += selection.stats.keys_scored;
                    asked += 1.0;
                }
            }
        }
        let first = range.start;
        let sizes = |head: u32| {
            let spans = told.spans.iter().filter(move |s| s.kv_head == head && s.begin >= first);
            spans.map(|s: &v1::SpanInfo| s.end - s.begin)
        };
        let (merges, merge_seconds) = shard.seconds(names::SPAN_MERGE_SECONDS)?;
        let (builds, build_seconds) = shard.seconds(names::INDEX_BUILD_SECONDS)?;
        Ok(Row {
            variant,
            method: args.method.to_string(),
            budget: args.budget,
            tokens: range.end - range.start,
            prefilled,
            appended: capture.meta.eval_from - prefilled,
            spans: (0..capture.kv_heads as u32).map(|head| sizes(head).count()).sum(),
            span_tokens: sizes(0).collect(),
            recall_at_k: found / asked,
            scanned_fraction: scored / asked / (range.end - range.start) as f64,
            search_us_per_query: searching.as_secs_f64() * 1e6 / asked,
            append_us: spread(&times.append),
            answer_us: spread(&times.answer),
            merges,
            merge_ms_mean: (merges > 0).then(|| merge_seconds * 1e3 / merges as f64),
            builds,
            build_ms_total: build_seconds * 1e3,
            threads: args.threads,
        })
    }

    fn truths(&self, range: &Range<u64>, decode: &Range<usize>) -> Vec<Vec<Vec<Truth>>> {
        let c = self.capture;
        let (dims, width) = ((c.dim, c.value_dim), c.group() * c.dim);
        let of_head = |kv_head: usize| {
            let range = range.start as usize..range.end as usize;
            let reference = Reference::new(&c.keys(kv_head), &c.values(kv_head), dims, c.meta.scale, range);
            let queries = c.queries(kv_head);
            let of_query = |j: usize| {
                let q = queries[j * width..(j + 1) * width].chunks(c.dim);
                q.map(|q| reference.attend(q, c.q_pos[j] as usize)).collect()
            };
            decode.clone().into_par_iter().map(of_query).collect()
        };
        (0..c.kv_heads).map(of_head).collect()
    }
}

fn spread(times: &[Duration]) -> Option<Spread> {
    let mut us: Vec<f64> = times.iter().map(|t| t.as_secs_f64() * 1e6).collect();
    us.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| us[((us.len() - 1) as f64 * share).round() as usize];
    (!us.is_empty()).then(|| Spread { p50: at(0.5), p99: at(0.99), max: at(1.0) })
}

fn line(row: &Row) -> String {
    let times = |s: Option<Spread>| {
        s.map_or("-".to_owned(), |s| format!("{:.0} / {:.0} / {:.0}", s.p50, s.p99, s.max))
    };
    format!(
        "{:<9} {:<7} recall {:.4}, scanned {:.2} %, {:.1} us a query, {} spans {:?}, append {} us, answer {} us \
         (p50 / p99 / max), {} merges of {} ms",
        row.variant,
        row.method,
        row.recall_at_k,
        row.scanned_fraction * 100.0,
        row.search_us_per_query,
        row.spans,
        row.span_tokens,
        times(row.append_us),
        times(row.answer_us),
        row.merges,
        row.merge_ms_mean.map_or("-".to_owned(), |ms| format!("{ms:.1}")),
    )
}
