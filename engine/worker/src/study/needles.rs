//! `recollect study needles`: facts at every depth of contexts of several lengths, asked for over shards, with full
//! attention, and with sink and window alone.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::needle_document::{NeedleDocument, build};
use crate::baseline::Mode;
use crate::cli::model::ModelArgs;
use crate::cli::service::{Service, ServiceArgs};
use crate::cli::spending::{SpendingArgs, budget_name};
use crate::cli::{input, print, usage};
use crate::demo::{Fact, InProcess, OverShards, ask, facts};
use crate::inventory::Inventory;
use crate::model::Loaded;
use crate::plot;
use crate::plot::heat::{Heat, Panel, Scale};

/// Tokens of an answer.
const ANSWER_TOKENS: usize = 8;
/// Tokens of the context that are kept for a question and its answer.
const ROOM: usize = 64 + ANSWER_TOKENS;

/// Facts found by depth and context.
#[derive(Args, Debug)]
pub struct NeedlesArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    service: ServiceArgs,
    #[command(flatten)]
    spending: SpendingArgs,
    /// Tokens of context, question and answer included
    #[arg(long, value_delimiter = ',', default_values_t = [1024, 2048, 4096, 8192])]
    contexts: Vec<usize>,
    /// Where the facts stand, in percent of the document
    #[arg(long, value_delimiter = ',', default_values_t = [0, 25, 50, 75, 100], value_parser = clap::value_parser!(u8).range(..=100))]
    depths: Vec<u8>,
    /// Facts of a document, one after the other, each asked for alone
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=10))]
    facts: u8,
    /// Write a picture (SVG) into this folder
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// One JSON object a line: a cell of the grid each, the summary last
    #[arg(long)]
    json: bool,
}

/// Who holds the facts when the first question comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Holder {
    /// Sink or window.
    Worker,
    /// The shards alone.
    Shards,
    /// Some the worker too, some the shards alone.
    Both,
}

#[derive(Clone, Debug, Serialize)]
struct Cell {
    record: &'static str,
    context: usize,
    depth_percent: u8,
    document_tokens: usize,
    needle_begin: usize,
    needle_end: usize,
    held_by: Holder,
    facts: usize,
    found: usize,
    found_full: usize,
    found_window: usize,
    /// Found with full attention and not over shards.
    lost: usize,
    #[serde(flatten)]
    inventory: Inventory,
}

#[derive(Serialize)]
struct Summary {
    record: &'static str,
    model: String,
    budget: String,
    estimate: &'static str,
    cells: usize,
    facts: usize,
    found: usize,
    found_full: usize,
    found_window: usize,
    lost: usize,
    /// The same over the cells whose facts only the shards hold.
    shards_facts: usize,
    shards_found: usize,
    shards_found_full: usize,
    shards_found_window: usize,
}

/// Runs the command.
pub fn run(args: &NeedlesArgs) -> anyhow::Result<()> {
    let longest = args.check()?;
    args.service.set_threads()?;
    if let Some(folder) = &args.plots {
        std::fs::create_dir_all(folder).map_err(|error| input::refused("--plots", folder, &error))?;
    }
    let loaded = args
        .model
        .load_unsized()?
        .for_context(longest as u64)
        .with_context(|| format!("--contexts {longest}"))?;
    let facts = facts(args.facts.into(), args.service.seed);
    let places: Vec<(usize, u8)> =
        args.contexts.iter().flat_map(|&context| args.depths.iter().map(move |&d| (context, d))).collect();
    let encode = |text: &str| Ok(loaded.tokenizer.encode_plain(text)?);
    let documents = places
        .iter()
        .map(|&(context, depth)| {
            let share = f64::from(depth) / 100.0;
            build(&facts, context - ROOM, share, args.service.seed, encode)
                .with_context(|| format!("--contexts {context}, {ROOM} of them for question and answer"))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let service = args.service.connect()?;
    if !args.json {
        print::line(format_args!(
            "{:>7}  {:>5}  {:>8}  {:<7}  {:>6}  {:>6}  {:>6}  spans",
            "context", "depth", "document", "held by", "ours", "full", "window"
        ))?;
    }
    let mut cells = Vec::new();
    for (&place, document) in places.iter().zip(&documents) {
        let cell = one_cell(args, (&loaded, &service), &facts, place, document)
            .with_context(|| format!("context {}, depth {} %", place.0, place.1))?;
        match args.json {
            true => print::json(&cell)?,
            false => cell.print()?,
        }
        cells.push(cell);
    }
    let summary = Summary::of(args, &loaded, &cells);
    if let Some(folder) = &args.plots {
        draw(args, folder, &summary, &cells)?;
    }
    match args.json {
        true => print::json(&summary),
        false => summary.print(),
    }
}

impl NeedlesArgs {
    /// The longest context.
    fn check(&self) -> anyhow::Result<usize> {
        let (sink, window) = (self.service.sink as usize, self.service.window as usize);
        let least = sink.saturating_add(window).saturating_add(ROOM);
        if let Some(short) = self.contexts.iter().find(|&&context| context <= least) {
            return Err(usage(format!(
                "--contexts {short}: leaves nothing for the shards; more than sink + window + {ROOM} = {least} are needed"
            )));
        }
        self.contexts.iter().copied().max().context("--contexts: at least one is needed")
    }
}

fn one_cell(
    args: &NeedlesArgs,
    (loaded, service): (&Loaded, &Service),
    facts: &[Fact],
    (context, depth): (usize, u8),
    document: &NeedleDocument,
) -> anyhow::Result<Cell> {
    let tokens = document.ids.len();
    let spec = args.service.sequence(args.spending.spending(), ROOM as u64, 64);
    let doing = format!("{context} tokens, depth {depth} %");
    let (mut sequence, start, mut cache) = service.start(&loaded.llama, &document.ids, &spec, &doing)?;
    let (mut found, mut found_full, mut found_window, mut lost) = (0, 0, 0, 0);
    for fact in facts {
        let question = loaded.tokenizer.encode(&fact.question)?;
        anyhow::ensure!(question.len() + ANSWER_TOKENS <= ROOM, "a question of {} tokens", question.len());
        let told = |reply: crate::demo::Reply| reply.text.contains(&fact.answer);
        let mut over = OverShards::new(&mut sequence, &start);
        let ours = told(ask(loaded, &mut over, &question, ANSWER_TOKENS, |_| Ok(()))?);
        let mut baseline = |mode: Mode| -> anyhow::Result<bool> {
            cache.mode = mode;
            let mut asker = InProcess::new(&loaded.llama, &mut cache, tokens);
            Ok(told(ask(loaded, &mut asker, &question, ANSWER_TOKENS, |_| Ok(()))?))
        };
        let (full, window) = (baseline(Mode::Full)?, baseline(Mode::Window)?);
        found += usize::from(ours);
        found_full += usize::from(full);
        found_window += usize::from(window);
        lost += usize::from(full && !ours);
    }
    let inventory = service.held(sequence.session())?.inventory;
    sequence.close()?;
    Ok(Cell {
        record: "cell",
        context,
        depth_percent: depth,
        document_tokens: tokens,
        needle_begin: document.needle.start,
        needle_end: document.needle.end,
        held_by: holder(&document.needle, spec.window.remote(tokens as u64)),
        facts: facts.len(),
        found,
        found_full,
        found_window,
        lost,
        inventory,
    })
}

fn holder(needle: &std::ops::Range<usize>, remote: std::ops::Range<u64>) -> Holder {
    let (from, to) = (remote.start as usize, remote.end as usize);
    if needle.start >= from && needle.end <= to {
        Holder::Shards
    } else if needle.end <= from || needle.start >= to {
        Holder::Worker
    } else {
        Holder::Both
    }
}

impl Cell {
    fn print(&self) -> anyhow::Result<()> {
        let of = |found: usize| format!("{found}/{}", self.facts);
        let held_by = match self.held_by {
            Holder::Worker => "worker",
            Holder::Shards => "shards",
            Holder::Both => "both",
        };
        print::line(format_args!(
            "{:>7}  {:>4}%  {:>8}  {held_by:<7}  {:>6}  {:>6}  {:>6}  {}",
            self.context,
            self.depth_percent,
            self.document_tokens,
            of(self.found),
            of(self.found_full),
            of(self.found_window),
            self.inventory.line()
        ))
    }
}

impl Summary {
    fn of(args: &NeedlesArgs, loaded: &Loaded, cells: &[Cell]) -> Summary {
        let sum = |of: fn(&Cell) -> usize| cells.iter().map(of).sum();
        let apart =
            |of: fn(&Cell) -> usize| cells.iter().filter(|cell| cell.held_by == Holder::Shards).map(of).sum();
        Summary {
            record: "summary",
            model: loaded.llama.config().name.clone(),
            budget: budget_name(args.spending.budget),
            estimate: args.spending.estimate.name(),
            cells: cells.len(),
            facts: sum(|c| c.facts),
            found: sum(|c| c.found),
            found_full: sum(|c| c.found_full),
            found_window: sum(|c| c.found_window),
            lost: sum(|c| c.lost),
            shards_facts: apart(|c| c.facts),
            shards_found: apart(|c| c.found),
            shards_found_full: apart(|c| c.found_full),
            shards_found_window: apart(|c| c.found_window),
        }
    }

    fn print(&self) -> anyhow::Result<()> {
        print::line(format_args!(
            "found {} of {} (full attention {}, window only {}); of {} that only the shards hold {} ({}, {}); {} found by full attention alone",
            self.found,
            self.facts,
            self.found_full,
            self.found_window,
            self.shards_facts,
            self.shards_found,
            self.shards_found_full,
            self.shards_found_window,
            self.lost
        ))
    }
}

fn draw(args: &NeedlesArgs, folder: &Path, summary: &Summary, cells: &[Cell]) -> anyhow::Result<()> {
    let panel = |title: &str, found: fn(&Cell) -> usize| {
        let share = |depth: u8| {
            let of_depth = |context: &usize| {
                let cell = cells.iter().find(|c| (c.context, c.depth_percent) == (*context, depth))?;
                Some(found(cell) as f64 / cell.facts as f64)
            };
            args.contexts.iter().map(of_depth).collect()
        };
        Panel { title: title.into(), values: args.depths.iter().map(|&depth| share(depth)).collect() }
    };
    let over = format!("over shards, K = {}, estimate {}", summary.budget, summary.estimate);
    let heat = Heat {
        title: "Facts found by depth and context",
        subtitle: &format!("{}; {} facts a cell", summary.model, args.facts),
        columns: ("context, tokens", args.contexts.iter().map(usize::to_string).collect()),
        rows: ("depth", args.depths.iter().map(|depth| format!("{depth} %")).collect()),
        panels: vec![
            panel(&over, |c| c.found),
            panel("full attention", |c| c.found_full),
            panel("sink and window only", |c| c.found_window),
        ],
        scale: Scale::Linear(0.0, 1.0),
        legend: "share of the facts found",
        write: |share| format!("{:.0} %", share * 100.0),
        cell: (84.0, 26.0),
    };
    plot::write(folder, "needles.svg", &heat.draw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_follow_the_borders() {
        let remote = 128..500u64;
        assert_eq!(holder(&(12..128), remote.clone()), Holder::Worker);
        assert_eq!(holder(&(128..500), remote.clone()), Holder::Shards);
        assert_eq!(holder(&(100..140), remote.clone()), Holder::Both);
        assert_eq!(holder(&(499..510), remote.clone()), Holder::Both);
        assert_eq!(holder(&(500..510), remote), Holder::Worker);
    }
}
