//! `recollect bench tiers`: bytes against error and time, for every tier and variant, on captures.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use attention::quant::Precision;
use attention::{Description, Partial, Rows};
use clap::Args;
use half::f16;
use index::sketch::{SketchKind, Watched, WatchedRow, watch};
use kernels::{Kernels, topk::TopK};
use rayon::prelude::*;

use super::retrieval::{check_threads, widen};
use super::tier_rows::{self, Row};
use super::truth::{Reference, Truth, error};
use crate::capture_file::Capture;
use crate::cli::{print, usage};
use crate::tier::{Span, Tier, TierScratch, Variant, parse_percent};

/// What each tier loses for the bytes it saves.
#[derive(Args, Clone, Debug)]
pub struct TiersArgs {
    /// Captures: safetensors with k, v, q, q_pos.
    #[arg(long, value_name = "FILE", value_delimiter = ',', required = true)]
    pub capture: Vec<PathBuf>,
    /// Percent of the bytes that sketches and eviction get.
    #[arg(long, value_delimiter = ',', default_values = ["25", "10"], value_parser = parse_percent)]
    pub percent: Vec<f64>,
    /// Tokens whose recall is measured.
    #[arg(long, value_name = "K", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub recall: u32,
    /// Decode queries that are asked, evenly spread; all by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub queries: Option<u32>,
    /// Threads; times are those of single calls while all threads work.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Seed of the published sketch's hashes.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Write the table into this Markdown file, between its marks, and pictures (SVG) beside it.
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// One JSON object a line on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Positions that stationary attention is watched at: the last before the evaluation.
const STATIONARY: usize = 512;
/// Most positions that shifted attention is watched at, evenly spread over those before half of the context.
const SHIFTED: usize = 1024;

/// Runs the command.
pub fn run(args: &TiersArgs) -> Result<()> {
    check_threads(args.threads)?;
    if let Some(path) = &args.write {
        tier_rows::check(path)?;
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads).build().context("thread pool")?;
    let captures: Vec<(&PathBuf, Capture)> =
        args.capture.iter().map(|path| Ok((path, Capture::read(path)?))).collect::<Result<_>>()?;
    let mut rows = Vec::new();
    for (path, capture) in &captures {
        if capture.decode_queries().is_empty() {
            let from = capture.meta.eval_from;
            return Err(usage(format!("--capture {}: no query from eval_from {from} on", path.display())));
        }
        if !args.json {
            print::line(format_args!("{}", tier_rows::heading(path, capture.indexed().len())))?;
        }
        let measured = pool.install(|| measure(args, path, capture));
        for row in measured.with_context(|| format!("--capture {}", path.display()))? {
            if args.json {
                print::json(&row)?;
            } else {
                print::line(format_args!("{}", row.line()))?;
            }
            rows.push(row);
        }
    }
    match &args.write {
        Some(path) => tier_rows::write(path, &rows),
        None => Ok(()),
    }
}

impl TiersArgs {
    fn variants(&self) -> Vec<Variant> {
        let quantised = [Precision::Int8, Precision::Int8Plain, Precision::Int4].map(Variant::Quantised);
        let at = |&share: &f64| {
            let sketched = SketchKind::ALL.map(|kind| Variant::Sketched(kind, share));
            std::iter::once(Variant::Evicted(share)).chain(sketched)
        };
        std::iter::once(Variant::Full).chain(quantised).chain(self.percent.iter().flat_map(at)).collect()
    }
}

/// What one variant gave, over KV heads.
#[derive(Default)]
struct Outcome {
    errors: Vec<f64>,
    recalls: Vec<f64>,
    shifted: Vec<f64>,
    exact: Vec<f64>,
    /// Times of calls, over the query heads they served.
    times: Vec<f64>,
    built: Duration,
    bytes: (usize, usize),
}

impl Outcome {
    fn add(&mut self, answer: Answer) {
        self.times.push(answer.took.as_secs_f64() * 1e6 / answer.errors.len() as f64);
        self.errors.extend(answer.errors);
        self.recalls.extend(answer.recalls);
        self.exact.extend(answer.exact);
    }

    fn row(mut self, variant: Variant, path: &Path, capture: &Capture) -> Row {
        let tokens = (capture.indexed().len() * capture.kv_heads) as f64;
        let queries = self.errors.len();
        let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
        self.errors.sort_unstable_by(f64::total_cmp);
        self.times.sort_unstable_by(f64::total_cmp);
        Row {
            variant: variant.name(),
            capture: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            bytes_per_token: (self.bytes.0 + self.bytes.1) as f64 / tokens,
            bytes_per_token_to_reconstruct: self.bytes.1 as f64 / tokens,
            output_error_mean: mean(&self.errors),
            output_error_p90: self.errors[(queries * 9 / 10).min(queries - 1)],
            recall_at_k: mean(&self.recalls),
            shifted_error_mean: variant.learns().then(|| mean(&self.shifted)),
            us_per_query: self.times[self.times.len() / 2],
            exact_share_of_mass: mean(&self.exact),
            build_us_per_token: self.built.as_secs_f64() * 1e6 / tokens,
            kv_bytes_per_token: 2.0 * (capture.dim + capture.value_dim) as f64,
            queries,
        }
    }
}

/// A row for every variant.
fn measure(args: &TiersArgs, path: &Path, capture: &Capture) -> Result<Vec<Row>> {
    let variants = args.variants();
    let mut outcomes: Vec<Outcome> = variants.iter().map(|_| Outcome::default()).collect();
    for kv_head in 0..capture.kv_heads {
        Head::new(capture, kv_head).measure(args, &variants, &mut outcomes)?;
    }
    Ok(variants.into_iter().zip(outcomes).map(|(variant, o)| o.row(variant, path, capture)).collect())
}

/// One KV head of a capture.
struct Head<'a> {
    capture: &'a Capture,
    k: Kernels,
    d: Description,
    /// All tokens: [tokens, dim], [tokens, value_dim].
    keys: Vec<f16>,
    values: Vec<f16>,
    /// All positions: [m, group, dim].
    queries: Vec<f16>,
}

impl Head<'_> {
    fn new(capture: &Capture, kv_head: usize) -> Head<'_> {
        Head {
            capture,
            k: Kernels::native(),
            d: Description::scaled(capture.meta.scale),
            keys: capture.keys(kv_head),
            values: capture.values(kv_head),
            queries: capture.queries(kv_head),
        }
    }

    /// Builds every tier, then asks each query of all of them.
    fn measure(&self, args: &TiersArgs, variants: &[Variant], outcomes: &mut [Outcome]) -> Result<()> {
        let capture = self.capture;
        let (indexed, dim, value_dim) = (capture.indexed(), capture.dim, capture.value_dim);
        let span = Span {
            keys: Rows::contiguous(&self.keys[indexed.start * dim..indexed.end * dim], dim),
            values: Rows::contiguous(
                &self.values[indexed.start * value_dim..indexed.end * value_dim],
                value_dim,
            ),
            description: self.d,
        };
        let before = capture.decode_queries().start;
        let stationary = self.watch(before.saturating_sub(STATIONARY)..before)?;
        let half = capture.q_pos.partition_point(|&p| (p as usize) < capture.meta.eval_from / 2);
        let shown = SHIFTED.min(half);
        let shifted = self.watch((0..shown).map(|i| i * half / shown))?;
        let mut tiers = Vec::new();
        for (&variant, outcome) in variants.iter().zip(outcomes.iter_mut()) {
            let start = Instant::now();
            let build = |watched: &Watched| {
                let built = Tier::build(&span, variant, watched, args.seed);
                built.map_err(|error| usage(format!("{}: {error}", variant.name())))
            };
            let tier = build(&stationary)?;
            outcome.built += start.elapsed();
            let (attention, places) = tier.bytes(&span);
            outcome.bytes = (outcome.bytes.0 + attention, outcome.bytes.1 + places);
            let other = variant.learns().then(|| build(&shifted)).transpose()?;
            tiers.push((tier, other));
        }
        let reference =
            Reference::new(&self.keys, &self.values, (dim, value_dim), capture.meta.scale, indexed);
        let decode: Vec<usize> = capture.decode_queries().collect();
        let wanted = args.queries.map_or(decode.len(), |n| (n as usize).min(decode.len()));
        let asked: Vec<usize> = (0..wanted).map(|i| decode[i * decode.len() / wanted]).collect();
        let answers: Vec<Vec<(Answer, Option<Answer>)>> = asked
            .par_iter()
            .map_init(TierScratch::default, |scratch, &j| {
                let question = self.question(&reference, j, args.recall as usize);
                let each = tiers.iter().map(|(tier, shifted)| {
                    let answer = self.ask((tier, &span), &question, scratch);
                    (answer, shifted.as_ref().map(|tier| self.ask((tier, &span), &question, scratch)))
                });
                each.collect()
            })
            .collect();
        for of_query in answers {
            for ((answer, shifted), outcome) in of_query.into_iter().zip(outcomes.iter_mut()) {
                outcome.add(answer);
                outcome.shifted.extend(shifted.into_iter().flat_map(|answer| answer.errors));
            }
        }
        Ok(())
    }

    /// The attention that the queries at these positions (numbers among all queries) paid to indexed tokens.
    fn watch(&self, positions: impl Iterator<Item = usize>) -> Result<Watched> {
        let width = self.capture.group() * self.capture.dim;
        let rows: Vec<WatchedRow> = positions
            .map(|j| WatchedRow {
                q: widen(&self.queries[j * width..(j + 1) * width]),
                visible: self.capture.q_pos[j] as usize + 1,
            })
            .collect();
        let keys = (0, Rows::contiguous(&self.keys, self.capture.dim));
        Ok(watch((&self.k, &self.d), (&[keys], self.capture.dim), self.capture.indexed(), &rows)?)
    }

    fn question(&self, reference: &Reference, j: usize, recall: usize) -> Question {
        let width = self.capture.group() * self.capture.dim;
        let q = &self.queries[j * width..(j + 1) * width];
        let truth = |q: &[f16]| reference.attend(q, self.capture.q_pos[j] as usize);
        Question { j, q: widen(q), truths: q.chunks_exact(self.capture.dim).map(truth).collect(), recall }
    }

    fn ask(
        &self,
        (tier, span): (&Tier, &Span<'_>),
        question: &Question,
        scratch: &mut TierScratch,
    ) -> Answer {
        let Question { j, q, truths, recall } = question;
        let (indexed, recall) = (self.capture.indexed(), *recall);
        let start = Instant::now();
        let partials = tier.attend(&self.k, span, q, scratch);
        let took = start.elapsed();
        let exact = partials.iter().map(|p| f64::from(p.l_exact) / f64::from(p.l()).max(1e-300)).collect();
        let merged = self.with_outside(*j, q, partials);
        let error_of = |(partial, truth): (&Partial, &Truth)| {
            error(&partial.o.iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), &truth.output)
        };
        let recall_of = |(products, truth): (&[f32], &Truth)| {
            let mut top = TopK::new(recall);
            top.push_run(products, indexed.start as u32);
            let mut best = Vec::new();
            top.drain_sorted(&mut best);
            let ids: Vec<u32> = best.iter().map(|b| b.1).collect();
            truth.found(&ids, recall) as f64 / recall.min(products.len()) as f64
        };
        let products = tier.products(&self.k, span, q, scratch);
        Answer {
            errors: merged.iter().zip(truths).map(error_of).collect(),
            recalls: products.chunks_exact(indexed.len()).zip(truths).map(recall_of).collect(),
            exact,
            took,
        }
    }

    /// Merges exact attention over every visible token outside the indexed range.
    fn with_outside(&self, j: usize, q: &[f32], mut out: Vec<Partial>) -> Vec<Partial> {
        let capture = self.capture;
        let indexed = capture.indexed();
        let keys = Rows::contiguous(&self.keys, capture.dim);
        let values = Rows::contiguous(&self.values, capture.value_dim);
        let mut scratch = attention::Scratch::new();
        for range in [0..indexed.start, indexed.end..capture.q_pos[j] as usize + 1] {
            attention::attend_range(&self.k, &self.d, q, &keys, &values, range, &mut scratch, &mut out);
        }
        out
    }
}

/// A query of all heads of the group, with the truth.
struct Question {
    /// Its number among all queries.
    j: usize,
    /// [group, dim]
    q: Vec<f32>,
    /// By query head.
    truths: Vec<Truth>,
    recall: usize,
}

/// What one call gave, by query head.
struct Answer {
    errors: Vec<f64>,
    recalls: Vec<f64>,
    /// Share of the tier's own mass that is exact.
    exact: Vec<f64>,
    took: Duration,
}
