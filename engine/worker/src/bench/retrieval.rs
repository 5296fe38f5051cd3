//! `recollect bench retrieval`: recall, output error, cost of one way of searching on a capture.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use half::f16;
use index::{Budget, Kind};
use kernels::Kernels;
use serde::Serialize;

use super::dump;
use super::head::{Head, Setting, Setup};
use super::judge::{Outcome, evaluate};
use crate::capture_file::Capture;
use crate::cli::spending::parse_index_budget;
use crate::cli::usage;

/// How well, and at what cost, an index finds what the queries of a capture attend to.
#[derive(Args, Clone, Debug)]
pub struct RetrievalArgs {
    /// The capture: safetensors with k, v, q, q_pos.
    #[arg(long, value_name = "FILE")]
    pub capture: PathBuf,
    /// One or several of graph, flat, summary, hnsw, auto.
    #[arg(long, value_delimiter = ',', default_value = "graph")]
    pub method: Vec<Kind>,
    /// Tokens attended to exactly per query head: a number, coverage=C, or all; several are asked of one build.
    #[arg(long, value_delimiter = ',', default_value = "100", value_parser = parse_index_budget)]
    pub budget: Vec<Budget>,
    /// Whether the remainder is estimated from the summary: on or off.
    #[arg(long, default_value = "on", value_parser = parse_switch, action = clap::ArgAction::Set)]
    pub estimate: bool,
    /// Search widths, each a number or 'calibrated' (on held-back build queries); several are asked of one build.
    #[arg(long, value_delimiter = ',', default_value = "calibrated", value_parser = parse_width)]
    pub width: Vec<Width>,
    /// Hold KV and index N times in memory of their own and ask them in turn: a working set beyond the caches.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub copies: usize,
    /// Divide the indexed range into this many spans, each with its own index.
    #[arg(long, default_value_t = 1)]
    pub spans: usize,
    /// Cut the capture to its first N tokens; decode queries are then the last ones before N.
    #[arg(long, value_name = "N")]
    pub limit_tokens: Option<usize>,
    /// Threads, for building and for searching.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Seed of the build.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Write selections and partials for another program to check: ids (capture tokens), o, m, l_exact, l_est.
    #[arg(long, value_name = "FILE")]
    pub dump: Option<PathBuf>,
    /// One JSON object a line on stdout.
    #[arg(long)]
    pub json: bool,
}

/// A search width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// What the build found on held-back queries.
    Calibrated,
    /// This one.
    Fixed(usize),
}

fn parse_width(text: &str) -> Result<Width, String> {
    match text {
        "calibrated" => Ok(Width::Calibrated),
        _ => match text.parse() {
            Ok(width) if width > 0 => Ok(Width::Fixed(width)),
            _ => Err(format!("width '{text}' is neither calibrated nor a number from 1 on")),
        },
    }
}

pub(super) fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("'{text}' is neither on nor off")),
    }
}

/// More threads than any machine of one process has would only be waited for.
pub(super) fn check_threads(threads: usize) -> Result<()> {
    match threads {
        1..=1024 => Ok(()),
        _ => Err(usage(format!("--threads {threads}: 1 to 1024 are possible"))),
    }
}

/// Passes over the decode queries that are timed.
const PASSES: usize = 4;

/// Most copies of KV and index.
const MOST_COPIES: usize = 65_536;

/// One line of output. Means over decode queries and query heads; what does not apply is null.
#[derive(Clone, Debug, Serialize)]
struct Row {
    method: String,
    /// What `auto` chose, per KV head; otherwise the method.
    kind: String,
    tokens: usize,
    head_dim: usize,
    q_heads: usize,
    kv_heads: usize,
    budget: String,
    estimate: &'static str,
    width: Option<usize>,
    spans: usize,
    copies: usize,
    exact_tokens: f64,
    recall_at_k: Option<f64>,
    scanned_fraction: f64,
    summary_fraction: f64,
    bytes_read_per_query: f64,
    coverage_true: f64,
    coverage_estimated: Option<f64>,
    coverage_abs_error_mean: Option<f64>,
    coverage_reached_share: Option<f64>,
    output_error_mean: f64,
    output_error_p90: f64,
    oracle_topk_error_mean: Option<f64>,
    oracle_tokens_for_coverage: Option<f64>,
    search_us_per_query: f64,
    /// Wall time of a pass over all queries and heads, divided by their number: what the threads do together.
    wall_us_per_query: f64,
    build_us_per_token: f64,
    index_bytes_per_token: f64,
    kv_bytes_per_token: f64,
    recall_calibrated: Option<f64>,
    kernels: String,
    threads: usize,
}

/// Runs the command.
pub fn run(args: &RetrievalArgs) -> Result<()> {
    check_threads(args.threads)?;
    if !(1..=MOST_COPIES).contains(&args.copies) {
        return Err(usage(format!("--copies {}: 1 to {MOST_COPIES} are possible", args.copies)));
    }
    let rows = args.method.len() * args.budget.len() * args.width.len();
    if args.dump.is_some() && rows != 1 {
        return Err(usage(format!("--dump writes one method, budget and width, {rows} were given")));
    }
    if let Some(path) = &args.dump {
        dump::check(path)?;
    }
    let mut capture = Capture::read(&args.capture)?;
    if let Some(limit) = args.limit_tokens {
        capture = capture.limited(limit).map_err(|error| usage(format!("--limit-tokens: {error}")))?;
    }
    let indexed = capture.indexed().len();
    if !(1..=indexed).contains(&args.spans) {
        return Err(usage(format!(
            "--spans {}: the {indexed} indexed tokens divide into 1 to {indexed}",
            args.spans
        )));
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads).build().context("thread pool")?;
    let out = std::io::stdout();
    if !args.json {
        writeln!(out.lock(), "{}", heading(&capture, args))?;
    }
    for &kind in &args.method {
        for row in pool.install(|| measure(&capture, args, kind))? {
            if args.json {
                writeln!(out.lock(), "{}", serde_json::to_string(&row)?)?;
            } else {
                writeln!(out.lock(), "{}", line(&row))?;
            }
        }
    }
    Ok(())
}

/// What the builds of all KV heads came to.
#[derive(Default)]
struct Built {
    kinds: Vec<&'static str>,
    widths: Vec<usize>,
    recalls: Vec<f32>,
    seconds: f64,
    bytes: usize,
}

impl Built {
    fn add(&mut self, head: &Head, took: Duration) {
        self.seconds += took.as_secs_f64() - head.preparation.as_secs_f64();
        for span in head.spans() {
            self.kinds.push(span.index.kind().name());
            self.widths.push(span.index.width());
            self.recalls.extend(span.index.recall_estimate());
            self.bytes += span.index.bytes();
        }
    }
}

/// A row for every budget and width, from one build of every KV head.
fn measure(capture: &Capture, args: &RetrievalArgs, kind: Kind) -> Result<Vec<Row>> {
    let setup = Setup {
        kernels: Kernels::from_env()?,
        kind,
        spans: args.spans,
        copies: args.copies,
        passes: PASSES,
        calibrated: args.width.contains(&Width::Calibrated),
        seed: args.seed,
    };
    let settings: Vec<Setting> = args
        .budget
        .iter()
        .flat_map(|&budget| args.width.iter().map(move |&width| (budget, width)))
        .map(|(budget, width)| Setting {
            budget,
            estimate: args.estimate,
            width: match width {
                Width::Calibrated => None,
                Width::Fixed(width) => Some(width),
            },
        })
        .collect();
    let mut built = Built::default();
    let mut outcomes: Vec<(Vec<Outcome>, f64)> = settings.iter().map(|_| (Vec::new(), 0.0)).collect();
    for kv_head in 0..capture.kv_heads {
        let start = Instant::now();
        let head = Head::build(capture, kv_head, &setup)?;
        built.add(&head, start.elapsed());
        for (all, judged) in outcomes.iter_mut().zip(evaluate(capture, &setup, &head, &settings)) {
            all.0.extend(judged.outcomes);
            all.1 += judged.wall_us / capture.kv_heads as f64;
        }
    }
    if setup.kind == Kind::Hnsw && !setup.calibrated {
        built.recalls.clear();
    }
    built.kinds.dedup();
    ensure!(
        outcomes.iter().all(|o| !o.0.is_empty()),
        "the capture has no query from eval_from {} on",
        capture.meta.eval_from
    );
    if let (Some(path), [(outcomes, _)]) = (&args.dump, outcomes.as_slice()) {
        write_dump(path, capture, outcomes)?;
    }
    let each = settings.iter().zip(&outcomes);
    Ok(each.map(|(setting, o)| row(capture, (args, &setup), &built, setting, o)).collect())
}

fn row(
    capture: &Capture,
    (args, setup): (&RetrievalArgs, &Setup),
    built: &Built,
    setting: &Setting,
    (outcomes, wall_us): &(Vec<Outcome>, f64),
) -> Row {
    let n = capture.indexed().len();
    let mean = |f: &dyn Fn(&Outcome) -> f64| outcomes.iter().map(f).sum::<f64>() / outcomes.len() as f64;
    let optional = |f: &dyn Fn(&Outcome) -> Option<f64>| {
        outcomes.iter().map(f).sum::<Option<f64>>().map(|sum| sum / outcomes.len() as f64)
    };
    let mut errors: Vec<f64> = outcomes.iter().map(|o| o.error).collect();
    errors.sort_unstable_by(f64::total_cmp);
    // Without an estimate nobody knows the mass of what was not selected.
    let estimated = args.estimate || setting.budget == Budget::All;
    let heads_tokens = (n * capture.kv_heads) as f64;
    let calibrated = built.widths.iter().sum::<usize>() / built.widths.len().max(1);
    Row {
        method: setup.kind.to_string(),
        kind: built.kinds.join("+"),
        tokens: n,
        head_dim: capture.dim,
        q_heads: capture.q_heads,
        kv_heads: capture.kv_heads,
        budget: budget_text(setting.budget),
        estimate: if setting.estimate { "on" } else { "off" },
        width: (setting.budget != Budget::All).then(|| setting.width.unwrap_or(calibrated)),
        spans: args.spans,
        copies: args.copies,
        exact_tokens: mean(&|o| o.ids.len() as f64),
        recall_at_k: optional(&|o| o.recall),
        scanned_fraction: mean(&|o| o.stats.keys_scored) / n as f64,
        summary_fraction: mean(&|o| o.stats.summary_scored) / n as f64,
        bytes_read_per_query: mean(&|o| o.stats.bytes_read),
        coverage_true: mean(&|o| o.coverage_true),
        coverage_estimated: estimated.then(|| mean(&|o| o.coverage_estimated)),
        coverage_abs_error_mean: estimated.then(|| mean(&|o| (o.coverage_true - o.coverage_estimated).abs())),
        coverage_reached_share: match setting.budget {
            Budget::Coverage(c) => Some(mean(&|o| f64::from(o.coverage_true >= f64::from(c) - 1e-6))),
            _ => None,
        },
        output_error_mean: mean(&|o| o.error),
        output_error_p90: errors[(errors.len() * 9 / 10).min(errors.len() - 1)],
        oracle_topk_error_mean: optional(&|o| o.oracle_error),
        oracle_tokens_for_coverage: optional(&|o| o.oracle_tokens),
        search_us_per_query: mean(&|o| o.search_us),
        wall_us_per_query: *wall_us,
        build_us_per_token: built.seconds * 1e6 / heads_tokens,
        index_bytes_per_token: built.bytes as f64 / heads_tokens,
        kv_bytes_per_token: 2.0 * (capture.dim + capture.value_dim) as f64,
        recall_calibrated: match built.recalls.len() {
            0 => None,
            some => Some(f64::from(built.recalls.iter().sum::<f32>()) / some as f64),
        },
        kernels: setup.kernels.isa().to_string(),
        threads: args.threads,
    }
}

fn write_dump(path: &Path, capture: &Capture, outcomes: &[Outcome]) -> Result<()> {
    let per_head = outcomes.len() / capture.q_heads;
    // Outcomes come KV head by KV head, query by query, head by head of the group.
    let group = capture.group();
    let ordered: Vec<&Outcome> = (0..per_head)
        .flat_map(|j| (0..capture.q_heads).map(move |h| (j, h)))
        .map(|(j, h)| &outcomes[(h / group * per_head + j) * group + h % group])
        .collect();
    dump::write(path, &ordered, capture.q_heads, capture.value_dim)
}

fn budget_text(budget: Budget) -> String {
    match budget {
        Budget::TopK(k) => k.to_string(),
        Budget::Coverage(c) => format!("coverage={c}"),
        Budget::All => "all".to_owned(),
    }
}

fn heading(capture: &Capture, args: &RetrievalArgs) -> String {
    let meta = &capture.meta;
    format!(
        "{}: {} layer {}, {} tokens indexed, {} query / {} KV heads, dim {}; budget {}, estimate {}\n{:<8} {:<8} {:>6} {:>7} {:>8} {:>8} {:>8} {:>9} {:>9} {:>8} {:>9} {:>10} {:>8}",
        args.capture.file_name().unwrap_or_default().to_string_lossy(),
        meta.model,
        meta.layer,
        capture.indexed().len(),
        capture.q_heads,
        capture.kv_heads,
        capture.dim,
        args.budget.iter().map(|&b| budget_text(b)).collect::<Vec<_>>().join(","),
        if args.estimate { "on" } else { "off" },
        "method",
        "kind",
        "width",
        "recall",
        "scanned",
        "summary",
        "exact",
        "error",
        "oracle",
        "coverage",
        "us/query",
        "build us/t",
        "bytes/t",
    )
}

fn line(row: &Row) -> String {
    let optional = |x: Option<f64>, digits: usize| x.map_or("-".to_owned(), |x| format!("{x:.digits$}"));
    format!(
        "{:<8} {:<8} {:>6} {:>7} {:>7.2}% {:>7.2}% {:>8.1} {:>9.5} {:>9} {:>8.4} {:>9.1} {:>10.2} {:>8.1}",
        row.method,
        row.kind,
        row.width.map_or("-".to_owned(), |w| w.to_string()),
        optional(row.recall_at_k, 4),
        row.scanned_fraction * 100.0,
        row.summary_fraction * 100.0,
        row.exact_tokens,
        row.output_error_mean,
        optional(row.oracle_topk_error_mean, 5),
        row.coverage_true,
        row.search_us_per_query,
        row.build_us_per_token,
        row.index_bytes_per_token,
    )
}

/// Rounds a query to what the capture holds; a helper of the parts of this bench.
pub(super) fn widen(row: &[f16]) -> Vec<f32> {
    row.iter().map(|x| x.to_f32()).collect()
}
