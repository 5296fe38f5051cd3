//! `recollect fidelity`: teacher-forced over the last positions of a context, against full attention on the same KV.

use anyhow::Context;
use attention::quant::Precision;
use clap::Args;
use client::Budget;
use index::sketch::SketchKind;
use serde::Serialize;
use wire::v1;

use crate::baseline::{FullCache, Mode};
use crate::cli::model::ModelArgs;
use crate::cli::service::{Service, ServiceArgs};
use crate::cli::spending::{Switch, budget_name, parse_budget};
use crate::cli::{print, usage};
use crate::compare::{Comparison, Figures};
use crate::decode::Spending;
use crate::forward::forward;
use crate::model::Loaded;
use crate::progress::Progress;
use crate::sequence::{Checkpoint, Sequence};
use crate::texts;
use crate::tier::Variant;

/// Fidelity to full attention.
#[derive(Args, Debug)]
pub struct FidelityArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    service: ServiceArgs,
    /// Tokens of context
    #[arg(long, default_value_t = 8192)]
    context: usize,
    /// Last positions of the context that are compared
    #[arg(long, default_value_t = 256)]
    positions: usize,
    /// Text files; without it, sources of Python's own standard library
    #[arg(long)]
    text: Vec<std::path::PathBuf>,
    /// Texts taken from the standard library when no --text is given
    #[arg(long, default_value_t = 4)]
    texts: usize,
    /// Budgets of the shards: counts, coverage=C or all
    #[arg(long, value_delimiter = ',', value_parser = parse_budget, default_values = ["all", "100"])]
    budget: Vec<Budget>,
    /// Whether the shards estimate what they did not select; both when not given
    #[arg(long, value_enum)]
    estimate: Option<Switch>,
    /// Tiers that what the shards hold of the context is brought into: int8, coded-25 (the default sketch at 25 % of the bytes).
    /// Others, which no shard has, in this process, all of it attended to: int4, means-10, published-10, evict-25
    #[arg(long, value_delimiter = ',')]
    tiers: Vec<Variant>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// One line of the table.
#[derive(Serialize)]
struct Row {
    method: &'static str,
    budget: Option<String>,
    estimate: Option<bool>,
    tier: Option<String>,
    context: usize,
    positions: usize,
    texts: usize,
    #[serde(flatten)]
    figures: Figures,
    kl_share_of_window: Option<f64>,
    exact_tokens: Option<f64>,
    keys_scored: Option<f64>,
}

/// What is asked of spans in a tier: they are attended to whole, so the number does not matter, but everything exactly is not
/// asked for.
const COMPACT: Spending = Spending { budget: Budget::TopK(100), estimate: true };

/// What is compared: a baseline in this process, or the shards.
#[derive(Clone, Copy)]
enum Method {
    Window,
    ExactTopK(u32),
    Ours(Spending),
    /// A tier of the shards.
    Shards(Variant, (v1::Tier, u32)),
    Tier(Variant),
}

struct Tally {
    method: Method,
    comparison: Comparison,
    rows: u64,
    exact_tokens: f64,
    keys_scored: f64,
}

/// Runs the verb.
pub fn run(args: &FidelityArgs) -> anyhow::Result<()> {
    if args.positions == 0 {
        return Err(usage("--positions 0: at least 1 is needed"));
    }
    let local = (args.positions as u64).saturating_add(args.service.sink).saturating_add(args.service.window);
    if args.context as u64 <= local {
        return Err(usage(format!(
            "--context {}: leaves nothing for the shards; more than positions + sink + window = {local} are needed",
            args.context
        )));
    }
    args.service.set_threads()?;
    let loaded = args
        .model
        .load_unsized()?
        .for_context((args.context as u64).saturating_add(1))
        .with_context(|| format!("--context {} + 1 token to predict", args.context))?;
    let texts = texts::gather(
        &args.text,
        args.texts,
        |text| Ok(loaded.tokenizer.encode_plain(text)?),
        args.context + 1,
    )?;
    let stored = args.tiers.iter().any(|variant| of_shards(*variant).is_some());
    let service = args.service.connect_stored(stored)?;
    let mut tallies = methods(args);
    for (i, text) in texts.iter().enumerate() {
        let label = format!("text {}/{}", i + 1, texts.len());
        one_text(args, &loaded, &service, text, &mut tallies, &label).with_context(|| text.name.clone())?;
    }
    report(args, texts.len(), &tallies)
}

/// The tier of a shard that a variant is.
fn of_shards(variant: Variant) -> Option<(v1::Tier, u32)> {
    match variant {
        Variant::Quantised(Precision::Int8) => Some((v1::Tier::Quantised, 0)),
        Variant::Sketched(SketchKind::Coded, share) => {
            let percent = (share * 1000.0).round() / 10.0;
            let whole = percent.fract() == 0.0 && (1.0..=50.0).contains(&percent);
            whole.then_some((v1::Tier::Sketched, percent as u32))
        }
        _ => None,
    }
}

fn methods(args: &FidelityArgs) -> Vec<Tally> {
    let mut methods = vec![Method::Window];
    for &budget in &args.budget {
        if let Budget::TopK(k) = budget {
            methods.push(Method::ExactTopK(k));
        }
    }
    for &budget in &args.budget {
        for estimate in [false, true] {
            let wanted = args.estimate.is_none_or(|s| (s == Switch::On) == estimate);
            // With every token attended exactly there is nothing to estimate.
            if wanted && !(budget == Budget::All && estimate) {
                methods.push(Method::Ours(Spending { budget, estimate }));
            }
        }
        if budget == Budget::All && args.estimate == Some(Switch::On) {
            methods.push(Method::Ours(Spending { budget, estimate: true }));
        }
    }
    methods.extend(args.tiers.iter().map(|&variant| match of_shards(variant) {
        Some(tier) => Method::Shards(variant, tier),
        None => Method::Tier(variant),
    }));
    methods
        .into_iter()
        .map(|method| Tally {
            method,
            comparison: Comparison::default(),
            rows: 0,
            exact_tokens: 0.0,
            keys_scored: 0.0,
        })
        .collect()
}

fn one_text(
    args: &FidelityArgs,
    loaded: &Loaded,
    service: &Service,
    text: &texts::Text,
    tallies: &mut [Tally],
    label: &str,
) -> anyhow::Result<()> {
    let model = &loaded.llama;
    let split = args.context - args.positions;
    let (prefix, forced) = (&text.tokens[..split], &text.tokens[split..args.context]);
    let next = &text.tokens[split + 1..text.tokens.len().min(args.context + 1)];
    let first = Spending { budget: Budget::All, estimate: false };
    let spec = args.service.sequence(first, args.positions as u64, args.positions as u64);

    let (mut sequence, start, mut cache) =
        service.start(model, prefix, &spec, &format!("{label}: prefill"))?;

    let progress = Progress::new(&format!("{label}: methods"), tallies.len() as u64 + 1);
    // In the blocks of `Sequence::extend`: products of many rows round differently from those of few.
    let chunk = spec.window.chunk as usize;
    let local = |cache: &mut FullCache, mode: Mode| -> anyhow::Result<Vec<f32>> {
        cache.mode = mode;
        let mut logits = Vec::new();
        for (i, block) in forced.chunks(chunk).enumerate() {
            let (hidden, _) = forward(model, block, (split + i * chunk) as u64, cache)?;
            logits.extend(model.head(&hidden)?.flatten_all()?.to_vec1::<f32>()?);
        }
        cache.truncate(split);
        Ok(logits)
    };
    let full = local(&mut cache, Mode::Full)?;
    progress.step();
    let vocab = full.len() / forced.len();
    for tally in tallies.iter_mut() {
        let logits = match tally.method {
            Method::Window => local(&mut cache, Mode::Window)?,
            Method::ExactTopK(k) => local(&mut cache, Mode::ExactTopK(k as usize))?,
            Method::Tier(variant) => {
                cache.bring(variant, 0)?;
                local(&mut cache, Mode::Tiered)?
            }
            Method::Ours(spending) => ours(&mut sequence, &start, forced, (spending, tally))?,
            Method::Shards(_, tier) => {
                service.bring(sequence.session(), tier)?;
                let logits = ours(&mut sequence, &start, forced, (COMPACT, tally))?;
                anyhow::ensure!(
                    service.lies_in(sequence.session(), tier.0)?,
                    "the shards have brought spans back meanwhile; start them with tiers.bring_back = false"
                );
                service.promote(sequence.session())?;
                logits
            }
        };
        tally.comparison.add(&full, &logits, vocab, next);
        progress.step();
    }
    progress.finish();
    sequence.close()
}

/// What the shards answer, teacher-forced.
fn ours(
    sequence: &mut Sequence<'_>,
    start: &Checkpoint,
    forced: &[u32],
    (spending, tally): (Spending, &mut Tally),
) -> anyhow::Result<Vec<f32>> {
    sequence.set_spending(spending);
    let logits = sequence.extend(forced)?.flatten_all()?.to_vec1()?;
    let report = sequence.take_report();
    tally.rows += report.attention.rows;
    tally.exact_tokens += report.attention.exact_tokens;
    tally.keys_scored += report.attention.keys_scored;
    sequence.rewind(start)?;
    Ok(logits)
}

fn report(args: &FidelityArgs, texts: usize, tallies: &[Tally]) -> anyhow::Result<()> {
    let figures = |tally: &Tally| tally.comparison.figures().context("no position was compared");
    let window_kl = figures(&tallies[0])?.kl_mean;
    let mut rows = vec![Row {
        method: "full",
        budget: None,
        estimate: None,
        tier: None,
        context: args.context,
        positions: args.positions,
        texts,
        figures: Figures {
            top1_agreement: 1.0,
            kl_mean: 0.0,
            kl_p90: 0.0,
            max_logit_diff: 0.0,
            nll_delta: Some(0.0),
        },
        kl_share_of_window: Some(0.0),
        exact_tokens: None,
        keys_scored: None,
    }];
    for tally in tallies {
        let figures = figures(tally)?;
        let (method, budget, estimate, tier) = match tally.method {
            Method::Window => ("window", None, None, None),
            Method::ExactTopK(k) => ("exact-topk", Some(k.to_string()), Some(false), None),
            Method::Ours(spending) => {
                ("ours", Some(budget_name(spending.budget)), Some(spending.estimate), None)
            }
            Method::Shards(variant, _) => {
                ("ours", Some(budget_name(COMPACT.budget)), Some(COMPACT.estimate), Some(variant.name()))
            }
            Method::Tier(variant) => ("ours", Some(budget_name(Budget::All)), None, Some(variant.name())),
        };
        let mean = |sum: f64| (tally.rows > 0).then(|| sum / tally.rows as f64);
        rows.push(Row {
            method,
            budget,
            estimate,
            tier,
            context: args.context,
            positions: args.positions,
            texts,
            kl_share_of_window: (window_kl > 0.0).then(|| figures.kl_mean / window_kl),
            figures,
            exact_tokens: mean(tally.exact_tokens),
            keys_scored: mean(tally.keys_scored),
        });
    }
    if args.json {
        for row in &rows {
            print::json(row)?;
        }
        return Ok(());
    }
    print::line(format_args!(
        "fidelity to full attention: {} texts, context {}, last {} positions",
        texts, args.context, args.positions
    ))?;
    print::line(format_args!(
        "method      budget        estimate  tier          top-1    KL mean    KL p90     of window  nll delta   exact tokens"
    ))?;
    for row in &rows {
        print::line(format_args!(
            "{:<11} {:<13} {:<9} {:<13} {:>6.2}%  {:<10.3e} {:<10.3e} {:>8}  {:>+10.5}  {:>12}",
            row.method,
            row.budget.as_deref().unwrap_or("-"),
            row.estimate.map_or("-", |on| if on { "on" } else { "off" }),
            row.tier.as_deref().unwrap_or("-"),
            row.figures.top1_agreement * 100.0,
            row.figures.kl_mean,
            row.figures.kl_p90,
            row.kl_share_of_window.map_or("-".into(), |share| format!("{:.2}%", share * 100.0)),
            row.figures.nll_delta.unwrap_or(f64::NAN),
            row.exact_tokens.map_or("-".into(), |n| format!("{n:.0}")),
        ))?;
    }
    Ok(())
}
