//! `recollect demo`: the main job on a document of the project's own making, in a few minutes.

use std::io::Write;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use crate::baseline::{FullCache, Mode};
use crate::cli::model::ModelArgs;
use crate::cli::print;
use crate::cli::service::{Service, ServiceArgs};
use crate::cli::spending::{SpendingArgs, budget_name};
use crate::compare::Comparison;
use crate::coverage::CoverageTally;
use crate::demo::{Fact, InProcess, OverShards, Reply, ask, build_document, check_context, facts};
use crate::inventory::Inventory;
use crate::model::Loaded;
use crate::sequence::{Checkpoint, Sequence, StepReport};

/// Tokens of an answer.
const ANSWER_TOKENS: usize = 8;

/// A long document, hidden facts, answers over shards.
#[derive(Args, Debug)]
pub struct DemoArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    service: ServiceArgs,
    /// Tokens of the document, at least
    #[arg(long, default_value_t = 4096)]
    context: usize,
    /// Facts hidden in it
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=10))]
    facts: u8,
    #[command(flatten)]
    spending: SpendingArgs,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// One question, three answers.
#[derive(Serialize)]
struct Answer {
    question: String,
    expected: String,
    ours: String,
    full: String,
    window: String,
    found: bool,
    found_full: bool,
    found_window: bool,
}

#[derive(Serialize)]
struct Summary {
    context_tokens: usize,
    worker_kv_tokens: u64,
    worker_kv_bytes: u64,
    prefill_kv_bytes: usize,
    shard_kv_bytes: u64,
    shard_index_bytes: u64,
    #[serde(flatten)]
    inventory: Inventory,
    keys_scored_per_query: f64,
    exact_tokens_per_query: f64,
    coverage_mean: Option<f64>,
    ms_per_token_model: f64,
    ms_per_token_local: f64,
    ms_per_token_remote: f64,
    answers_found: usize,
    answers_found_full: usize,
    answers_found_window: usize,
    answers_total: usize,
    top1_agreement: f64,
    kl_mean: f64,
    kl_share_of_window: Option<f64>,
}

/// Runs the verb.
pub fn run(args: &DemoArgs) -> anyhow::Result<()> {
    args.service.set_threads()?;
    let sizes = (args.service.sink as usize, args.service.window as usize);
    check_context(args.context, sizes)?;
    let room = 64 + ANSWER_TOKENS;
    let more = 256 + room as u64;
    let loaded = args
        .model
        .load_unsized()?
        .for_context((args.context as u64).saturating_add(more))
        .with_context(|| format!("--context {} + {more} for questions and answers", args.context))?;
    let facts = facts(args.facts.into(), args.service.seed);
    let document = build_document(&facts, sizes, args.context, args.service.seed, |t| {
        Ok(loaded.tokenizer.encode_plain(t)?)
    })?;
    let service = args.service.connect()?;
    args.say(&format!(
        "document: {} tokens with {} hidden facts; shards: {}; budget {}, estimate {}",
        document.len(),
        facts.len(),
        service.names.join(", "),
        budget_name(args.spending.budget),
        args.spending.estimate.name()
    ))?;

    let spec = args.service.sequence(args.spending.spending(), room as u64, 64);
    let (mut sequence, start, mut cache) = service.start(&loaded.llama, &document, &spec, "prefill")?;

    let (answers, comparisons, steps) = ask_all(args, &loaded, &facts, &mut sequence, &start, &mut cache)?;
    let summary = summarise(&document, &sequence, &service, &answers, (comparisons, &steps))?;
    sequence.close()?;
    if args.json {
        for answer in &answers {
            print::json(answer)?;
        }
        return print::json(&summary);
    }
    summary.print()
}

/// Two comparisons with full attention over the tokens of the questions: ours, window only.
type Comparisons = (Comparison, Comparison);

fn ask_all(
    args: &DemoArgs,
    loaded: &Loaded,
    facts: &[Fact],
    sequence: &mut Sequence<'_>,
    start: &Checkpoint,
    cache: &mut FullCache,
) -> anyhow::Result<(Vec<Answer>, Comparisons, Vec<StepReport>)> {
    let document = sequence.tokens() as usize;
    let mut shards = OverShards::new(sequence, start);
    let (mut answers, mut ours_by, mut window_by) =
        (Vec::new(), Comparison::default(), Comparison::default());
    for fact in facts {
        let question = loaded.tokenizer.encode(&fact.question)?;
        args.say_part(&format!("{} ...", fact.question.trim()))?;
        let ours = ask(loaded, &mut shards, &question, ANSWER_TOKENS, |piece| args.say_part(piece))?;
        let mut baseline = |mode: Mode| -> anyhow::Result<Reply> {
            cache.mode = mode;
            let mut asker = InProcess::new(&loaded.llama, cache, document);
            ask(loaded, &mut asker, &question, ANSWER_TOKENS, |_| Ok(()))
        };
        let (full, window) = (baseline(Mode::Full)?, baseline(Mode::Window)?);
        let vocab = full.question_logits.len() / question.len();
        ours_by.add(&full.question_logits, &ours.question_logits, vocab, &question[1..]);
        window_by.add(&full.question_logits, &window.question_logits, vocab, &question[1..]);
        let found = |reply: &Reply| reply.text.contains(&fact.answer);
        args.say(&format!(
            "   [{}; full attention {}; window only {}]",
            if found(&ours) { "found" } else { "not found" },
            if found(&full) { "found" } else { "not found" },
            if found(&window) { "found" } else { "not found" },
        ))?;
        answers.push(Answer {
            question: fact.question.trim().to_owned(),
            expected: fact.answer.clone(),
            found: found(&ours),
            found_full: found(&full),
            found_window: found(&window),
            ours: ours.text,
            full: full.text,
            window: window.text,
        });
    }
    Ok((answers, (ours_by, window_by), shards.steps))
}

fn summarise(
    document: &[u32],
    sequence: &Sequence<'_>,
    service: &Service,
    answers: &[Answer],
    (comparisons, steps): (Comparisons, &[StepReport]),
) -> anyhow::Result<Summary> {
    let held = service.held(sequence.session())?;
    let (worker_kv_tokens, worker_kv_bytes) = sequence.worker_kv();
    let count = |found: fn(&Answer) -> bool| answers.iter().filter(|a| found(a)).count();
    let sum = |term: &dyn Fn(&StepReport) -> f64| steps.iter().map(term).sum::<f64>();
    let tokens = sum(&|s| s.tokens as f64);
    let rows = sum(&|s| s.attention.rows as f64);
    let mut coverage = CoverageTally::default();
    steps.iter().for_each(|s| coverage.add(&s.attention.coverage));
    let figures = |c: Comparison| c.figures().context("no question was asked");
    let (ours, window) = (figures(comparisons.0)?, figures(comparisons.1)?);
    Ok(Summary {
        context_tokens: document.len(),
        worker_kv_tokens,
        worker_kv_bytes,
        prefill_kv_bytes: sequence.prefill_kv_bytes,
        shard_kv_bytes: held.kv_bytes,
        shard_index_bytes: held.index_bytes,
        inventory: held.inventory,
        keys_scored_per_query: sum(&|s| s.attention.keys_scored) / rows,
        exact_tokens_per_query: sum(&|s| s.attention.exact_tokens) / rows,
        coverage_mean: coverage.mean(),
        ms_per_token_model: sum(&|s| s.model.as_secs_f64()) * 1e3 / tokens,
        ms_per_token_local: sum(&|s| s.attention.local.as_secs_f64()) * 1e3 / tokens,
        ms_per_token_remote: sum(&|s| s.attention.remote_wait.as_secs_f64()) * 1e3 / tokens,
        answers_found: count(|a| a.found),
        answers_found_full: count(|a| a.found_full),
        answers_found_window: count(|a| a.found_window),
        answers_total: answers.len(),
        top1_agreement: ours.top1_agreement,
        kl_mean: ours.kl_mean,
        kl_share_of_window: (window.kl_mean > 0.0).then(|| ours.kl_mean / window.kl_mean),
    })
}

impl DemoArgs {
    /// A line for people; nothing in JSON mode.
    fn say(&self, text: &str) -> anyhow::Result<()> {
        match self.json {
            true => Ok(()),
            false => print::line(format_args!("{text}")),
        }
    }

    /// Part of a line for people, shown at once.
    fn say_part(&self, text: &str) -> anyhow::Result<()> {
        if !self.json {
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    }
}

impl Summary {
    fn print(&self) -> anyhow::Result<()> {
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        print::line(format_args!(""))?;
        print::line(format_args!(
            "facts found        {} of {} (full attention {}, window only {})",
            self.answers_found, self.answers_total, self.answers_found_full, self.answers_found_window
        ))?;
        print::line(format_args!(
            "worker held        {} tokens of KV, {:.1} MiB",
            self.worker_kv_tokens,
            mib(self.worker_kv_bytes)
        ))?;
        print::line(format_args!(
            "shards held        {} tokens of KV, {:.1} MiB, and {:.1} MiB of indexes",
            self.context_tokens,
            mib(self.shard_kv_bytes),
            mib(self.shard_index_bytes)
        ))?;
        print::line(format_args!("spans              {}", self.inventory.line()))?;
        print::line(format_args!(
            "per query head     {:.0} keys scored, {:.0} attended exactly; coverage of the softmax mass {}",
            self.keys_scored_per_query,
            self.exact_tokens_per_query,
            self.coverage_mean
                .map_or("unknown without the estimate".into(), |c| format!("{:.1} %", c * 100.0))
        ))?;
        print::line(format_args!(
            "time per token     {:.1} ms model + {:.1} ms local attention + {:.1} ms waiting for shards",
            self.ms_per_token_model, self.ms_per_token_local, self.ms_per_token_remote
        ))?;
        print::line(format_args!(
            "fidelity           top-1 agreement {:.1} %, mean KL {:.2e} nats{}",
            self.top1_agreement * 100.0,
            self.kl_mean,
            self.kl_share_of_window
                .map_or(String::new(), |s| format!(" ({:.1} % of window only)", s * 100.0))
        ))
    }
}
