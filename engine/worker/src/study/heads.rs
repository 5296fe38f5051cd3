//! `recollect study heads`: for every layer and KV head of a model, how much of the attention an index recovers at each
//! budget, how far the output is from full attention, and how many tokens the head needs.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use index::{Budget, Kind};
use serde::Serialize;

use super::diffuse::{AtBudget, Diffuse, Limits, by_budget, diffuse};
use super::head_plots::{self, Caption};
use super::head_rows::{HeadFigures, Row};
use super::measure::measure;
use crate::capture_file::{Capture, CaptureMeta};
use crate::cli::model::ModelArgs;
use crate::cli::service::MOST_LOCAL;
use crate::cli::spending::parse_index_budget;
use crate::cli::{input, print, usage};
use crate::forward::LayerBlock;
use crate::model::Loaded;
use crate::progress::Progress;
use crate::recording::{self, of_head};
use crate::texts;

/// Recovery and output error of every head.
#[derive(Args, Debug)]
pub struct HeadsArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Text files; without it, sources of Python's own standard library
    #[arg(long, value_name = "FILE")]
    text: Vec<PathBuf>,
    /// Texts taken from the standard library when no --text is given
    #[arg(long, default_value_t = 1)]
    texts: usize,
    /// Tokens of context
    #[arg(long, default_value_t = 8192)]
    context: usize,
    /// Layers to measure, from 0 (default: all)
    #[arg(long, value_delimiter = ',')]
    layers: Vec<usize>,
    /// Exactly attended tokens per query head beside sink and window: counts, or all
    #[arg(long, value_delimiter = ',', value_parser = parse_count, default_values = ["20", "50", "100", "200", "500", "1000"])]
    budgets: Vec<Budget>,
    /// Index of every head
    #[arg(long, default_value = "auto")]
    index: Kind,
    /// Last tokens of the context whose queries serve for evaluation only
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..))]
    eval: u64,
    /// Positions evaluated, evenly spread over the last --eval tokens
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    positions: u64,
    /// First tokens outside the index
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(..=MOST_LOCAL))]
    sink: u64,
    /// Last tokens before the evaluation outside the index
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=MOST_LOCAL))]
    window: u64,
    /// Call a head diffuse when it needs more tokens than this, on average, for 0.95 of its mass
    #[arg(long, value_name = "TOKENS", default_value_t = 500)]
    diffuse: u32,
    /// Mean output error that a budget must reach to be called enough for a head
    #[arg(long, value_name = "ERROR", default_value_t = 0.05, value_parser = parse_tolerance)]
    tolerance: f64,
    /// Seed of the sample of query positions and of index builds
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads (default: all cores)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Write pictures (SVG) into this folder
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// One JSON object a line: a head at a budget each, the summary last
    #[arg(long)]
    json: bool,
}

fn parse_count(text: &str) -> Result<Budget, String> {
    match parse_index_budget(text)? {
        Budget::Coverage(_) => Err(format!("{text}: a count or all is needed")),
        budget => Ok(budget),
    }
}

fn parse_tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(error) if error > 0.0 && error <= 1.0 => Ok(error),
        _ => Err(format!("{text}: an error in (0, 1] is needed")),
    }
}

#[derive(Serialize)]
struct Summary {
    record: &'static str,
    model: String,
    context: usize,
    texts: Vec<String>,
    heads: usize,
    positions: usize,
    tolerance: f64,
    diffuse_above: u32,
    by_budget: Vec<AtBudget>,
    diffuse_heads: Vec<Diffuse>,
    plots: Vec<&'static str>,
}

/// Runs the command.
pub fn run(args: &HeadsArgs) -> anyhow::Result<()> {
    let budgets = args.check()?;
    if let Some(threads) = args.threads {
        rayon::ThreadPoolBuilder::new().num_threads(threads.into()).build_global()?;
    }
    if let Some(folder) = &args.plots {
        std::fs::create_dir_all(folder).map_err(|error| input::refused("--plots", folder, &error))?;
    }
    let loaded = args
        .model
        .load_unsized()?
        .for_context(args.context as u64)
        .with_context(|| format!("--context {}", args.context))?;
    let shape = loaded.llama.shape();
    if let Some(over) = args.layers.iter().find(|&&layer| layer >= shape.layers) {
        return Err(usage(format!("--layers {over}: the model has {}, counted from 0", shape.layers)));
    }
    let encode = |text: &str| Ok(loaded.tokenizer.encode_plain(text)?);
    let texts = texts::gather(&args.text, args.texts, encode, args.context)?;
    let mut layers = if args.layers.is_empty() { (0..shape.layers).collect() } else { args.layers.clone() };
    layers.sort_unstable();
    layers.dedup();
    let heads = measure_all(args, &loaded, &texts, &layers, &budgets)?;
    report(args, &loaded, &texts, &heads, &budgets)
}

fn measure_all(
    args: &HeadsArgs,
    loaded: &Loaded,
    texts: &[texts::Text],
    layers: &[usize],
    budgets: &[Budget],
) -> anyhow::Result<Vec<HeadFigures>> {
    let shape = loaded.llama.shape();
    let each = layers.iter().flat_map(|&layer| (0..shape.kv_heads).map(move |kv_head| (layer, kv_head)));
    let mut heads: Vec<HeadFigures> =
        each.map(|(layer, kv_head)| HeadFigures { layer, kv_head, texts: Vec::new() }).collect();
    let last = layers.last().copied().unwrap_or(0);
    let progress = Progress::new("layers", (last as u64 + 1) * texts.len() as u64);
    for text in texts {
        recording::layers(&loaded.llama, &text.tokens, last, |block| {
            for head in heads.iter_mut().filter(|head| head.layer == block.layer) {
                let capture = args.capture(loaded, text, block, head.kv_head)?;
                head.texts.push(measure(&capture, budgets, (args.index, args.seed))?);
            }
            progress.step();
            Ok(())
        })?;
    }
    progress.finish();
    Ok(heads)
}

impl HeadsArgs {
    /// The budgets, ascending, each once.
    fn check(&self) -> anyhow::Result<Vec<Budget>> {
        let taken = self.sink.saturating_add(self.window).saturating_add(self.eval);
        if self.context as u64 <= taken {
            return Err(usage(format!(
                "--context {}: leaves nothing to index; more than sink + window + eval = {taken} are needed",
                self.context
            )));
        }
        if self.positions > self.eval {
            return Err(usage(format!("--positions {}: --eval has {}", self.positions, self.eval)));
        }
        let mut budgets = self.budgets.clone();
        let count = |budget: &Budget| match budget {
            Budget::TopK(k) => *k,
            Budget::All | Budget::Coverage(_) => usize::MAX,
        };
        budgets.sort_by_key(count);
        budgets.dedup();
        Ok(budgets)
    }

    /// One KV head of a layer as a capture: sampled queries to build from, then those to evaluate.
    fn capture(
        &self,
        loaded: &Loaded,
        text: &texts::Text,
        block: &LayerBlock,
        kv_head: usize,
    ) -> anyhow::Result<Capture> {
        let shape = loaded.llama.shape();
        let (eval, wanted) = (self.eval as usize, self.positions as usize);
        let eval_from = self.context - eval;
        let mut positions = recording::sample(eval_from, self.seed);
        // The last of every stretch, so that the last position of the context is among them.
        positions.extend((0..wanted).map(|i| eval_from + (i + 1) * eval / wanted - 1));
        Ok(Capture {
            k: of_head(&block.k, shape, kv_head),
            v: of_head(&block.v, shape, kv_head),
            q: recording::queries(block, shape, kv_head, &positions)?,
            q_pos: positions.iter().map(|&position| position as u32).collect(),
            tokens: block.tokens,
            kv_heads: 1,
            q_heads: shape.group(),
            dim: shape.dim,
            value_dim: shape.dim,
            meta: CaptureMeta {
                model: loaded.llama.config().name.clone(),
                layer: block.layer.to_string(),
                scale: loaded.llama.scale(),
                rope_theta: loaded.llama.rope_base(),
                sink: self.sink as usize,
                window: self.window as usize,
                eval_from,
                text: text.name.clone(),
            },
        })
    }
}

fn report(
    args: &HeadsArgs,
    loaded: &Loaded,
    texts: &[texts::Text],
    heads: &[HeadFigures],
    budgets: &[Budget],
) -> anyhow::Result<()> {
    let rows: Vec<Vec<Row>> = heads.iter().map(|head| head.rows(budgets)).collect();
    anyhow::ensure!(rows.iter().all(|rows| rows.len() == budgets.len()), "no position was evaluated");
    let model = loaded.llama.config().name.clone();
    let caption = Caption {
        run: format!(
            "{model}; {} tokens; {} positions x {} query heads, {}",
            args.context,
            args.positions,
            loaded.llama.shape().group(),
            if texts.len() == 1 { file_name(&texts[0].name) } else { format!("{} texts", texts.len()) }
        ),
        mapped: budgets.iter().position(|b| *b == Budget::TopK(100)).unwrap_or(budgets.len() / 2),
    };
    let plots = match &args.plots {
        Some(folder) => head_plots::draw(folder, &rows, &caption)?,
        None => Vec::new(),
    };
    let limits = Limits { diffuse: args.diffuse.into(), tolerance: args.tolerance };
    let summary = Summary {
        record: "summary",
        model,
        context: args.context,
        texts: texts.iter().map(|text| file_name(&text.name)).collect(),
        heads: rows.len(),
        positions: args.positions as usize,
        tolerance: args.tolerance,
        diffuse_above: args.diffuse,
        by_budget: by_budget(&rows, limits),
        diffuse_heads: diffuse(&rows, limits),
        plots,
    };
    if args.json {
        for row in rows.iter().flatten() {
            print::json(row)?;
        }
        return print::json(&summary);
    }
    print::line(format_args!("{}", caption.run))?;
    print_heads(&rows)?;
    summary.print()
}

/// Of a path.
fn file_name(path: &str) -> String {
    Path::new(path).file_name().map_or_else(|| path.into(), |name| name.to_string_lossy().into_owned())
}

fn print_heads(heads: &[Vec<Row>]) -> anyhow::Result<()> {
    let budgets = heads.first().into_iter().flatten();
    let columns: String = budgets.map(|row| format!("  {:>6}", row.budget)).collect();
    print::line(format_args!(
        "{:>5}  {:>4}  {:<8}  {:>6}  {:>6}  {:>6}  {:>6}  {:>6}  output error with the estimate at K ={columns}",
        "layer", "head", "index", "recall", "local", "t 0.90", "t 0.95", "t 0.99"
    ))?;
    for rows in heads {
        let row = &rows[0];
        let errors: String =
            rows.iter().map(|row| format!("  {:>6.4}", row.output_error_estimate_mean)).collect();
        print::line(format_args!(
            "{:>5}  {:>4}  {:<8}  {:>6}  {:>6.3}  {:>6.0}  {:>6.0}  {:>6.0}  {:>35}{errors}",
            row.layer,
            row.kv_head,
            row.index,
            row.recall_estimate.map_or("-".into(), |recall| format!("{recall:.3}")),
            row.local_share,
            row.tokens_for_90,
            row.tokens_for_95,
            row.tokens_for_99,
            ""
        ))?;
    }
    Ok(())
}

impl Summary {
    fn print(&self) -> anyhow::Result<()> {
        print::line(format_args!(""))?;
        print::line(format_args!(
            "{:>6}  {:>23}  {:>23}  {:>23}  heads within {}",
            "K", "with estimate", "without", "exact top K", self.tolerance
        ))?;
        for at in &self.by_budget {
            let spread = |s: super::spread::Spread| format!("{:.4} ({:.4}-{:.4})", s.median, s.p10, s.p90);
            print::line(format_args!(
                "{:>6}  {:>23}  {:>23}  {:>23}  {} of {} (exact top K {})",
                at.budget,
                spread(at.output_error_estimate),
                spread(at.output_error),
                spread(at.oracle_topk_error),
                at.heads_within_tolerance,
                self.heads,
                at.heads_within_tolerance_oracle
            ))?;
        }
        print::line(format_args!(
            "output error: median over heads (p10-p90). Diffuse heads, over {} tokens for 0.95 of the mass: {}",
            self.diffuse_above,
            self.diffuse_heads.len()
        ))?;
        for head in &self.diffuse_heads {
            let needed = |budget: &Option<String>| budget.clone().unwrap_or("more than was measured".into());
            print::line(format_args!(
                "  layer {}, KV head {}: {:.0} tokens; error within {} from K = {} on (exact top K: {})",
                head.layer,
                head.kv_head,
                head.tokens_for_95,
                self.tolerance,
                needed(&head.budget_needed),
                needed(&head.budget_needed_oracle)
            ))?;
        }
        if !self.plots.is_empty() {
            print::line(format_args!("pictures: {}", self.plots.join(", ")))?;
        }
        Ok(())
    }
}
