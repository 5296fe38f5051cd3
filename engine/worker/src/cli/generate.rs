//! `recollect generate`: a continuation of a prompt, decoded over shards.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use crate::cli::model::ModelArgs;
use crate::cli::service::ServiceArgs;
use crate::cli::spending::SpendingArgs;
use crate::cli::{input, print, usage};
use crate::compare::argmax;
use crate::inventory::Inventory;
use crate::progress::Progress;
use crate::sequence::Sequence;

/// Text from a prompt.
#[derive(Args, Debug)]
pub struct GenerateArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    service: ServiceArgs,
    /// The prompt
    #[arg(long, conflicts_with = "prompt_file")]
    prompt: Option<String>,
    /// A file with the prompt; `-` reads standard input
    #[arg(long)]
    prompt_file: Option<PathBuf>,
    /// Continue the text as it is instead of answering it as a chat message
    #[arg(long)]
    raw: bool,
    /// Most tokens to generate
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..))]
    max_new: u64,
    #[command(flatten)]
    spending: SpendingArgs,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// One token, as it comes.
#[derive(Serialize)]
struct Token<'a> {
    token_id: u32,
    text: &'a str,
}

#[derive(Serialize)]
struct Summary {
    prompt_tokens: usize,
    new_tokens: usize,
    token_ids: Vec<u32>,
    text: String,
    finish_reason: &'static str,
    coverage_mean: Option<f64>,
    missing_mass_max: Option<f32>,
    ms_per_token: Option<f64>,
    worker_kv_tokens: u64,
    worker_kv_bytes: u64,
    prefill_kv_bytes: usize,
    #[serde(flatten)]
    inventory: Inventory,
}

/// Runs the verb.
pub fn run(args: &GenerateArgs) -> anyhow::Result<()> {
    let prompt = args.prompt_text()?;
    args.service.set_threads()?;
    let loaded = args.model.load_unsized()?;
    let prompt =
        if args.raw { loaded.tokenizer.encode(&prompt)? } else { loaded.tokenizer.encode_chat(&prompt)? };
    let (have, more) = (prompt.len() as u64, args.max_new);
    let loaded = loaded
        .for_context(have.saturating_add(more))
        .with_context(|| format!("{have} prompt tokens + --max-new {more}"))?;
    let service = args.service.connect()?;
    let spec = args.service.sequence(args.spending.spending(), args.max_new, 64);
    let progress = Progress::new("prefill", loaded.llama.shape().layers as u64);
    let (mut sequence, mut logits) =
        Sequence::start(&loaded.llama, (service.handle(), &service.cluster), &prompt, &spec, |_| {
            progress.step()
        })?;
    progress.finish();

    let mut stream = loaded.tokenizer.stream();
    let mut token_ids = Vec::new();
    let mut text = String::new();
    let mut finish_reason = "length";
    let clock = Instant::now();
    loop {
        let token = argmax(&logits.flatten_all()?.to_vec1::<f32>()?);
        if loaded.tokenizer.is_end(token) {
            finish_reason = "stop";
            break;
        }
        token_ids.push(token);
        let piece = stream.push(token)?;
        text.push_str(&piece);
        args.show(token, &piece)?;
        if token_ids.len() as u64 == args.max_new {
            break;
        }
        logits = sequence.extend(&[token])?;
    }
    let steps = sequence.take_report();
    let elapsed = clock.elapsed().as_secs_f64() * 1e3;
    let attention = steps.attention;
    let (worker_kv_tokens, worker_kv_bytes) = sequence.worker_kv();
    let prefill_kv_bytes = sequence.prefill_kv_bytes;
    let inventory = service.held(sequence.session())?.inventory;
    sequence.close()?;
    let summary = Summary {
        prompt_tokens: prompt.len(),
        new_tokens: token_ids.len(),
        token_ids,
        text,
        finish_reason,
        coverage_mean: attention.coverage.mean(),
        missing_mass_max: attention.coverage.missing_mass_max(),
        ms_per_token: (steps.tokens > 0).then(|| elapsed / steps.tokens as f64),
        worker_kv_tokens,
        worker_kv_bytes,
        prefill_kv_bytes,
        inventory,
    };
    if args.json {
        return print::json(&summary);
    }
    print::line(format_args!(""))?;
    eprintln!(
        "{} prompt tokens, {} new ({finish_reason}); {:.1} ms per token; worker held {} tokens of KV ({} bytes)",
        summary.prompt_tokens,
        summary.new_tokens,
        summary.ms_per_token.unwrap_or(0.0),
        worker_kv_tokens,
        worker_kv_bytes
    );
    eprintln!("spans: {}", summary.inventory.line());
    Ok(())
}

impl GenerateArgs {
    fn prompt_text(&self) -> anyhow::Result<String> {
        let text = match (&self.prompt, &self.prompt_file) {
            (Some(text), _) => text.clone(),
            (None, Some(file)) if file.as_os_str() == "-" => {
                let mut text = String::new();
                let read = std::io::stdin().read_to_string(&mut text);
                read.map_err(|error| input::refused("--prompt-file", file, &error))?;
                text
            }
            (None, Some(file)) => input::text("--prompt-file", file)?,
            (None, None) => return Err(usage("--prompt or --prompt-file is needed")),
        };
        if text.is_empty() {
            let flag = if self.prompt.is_some() { "--prompt" } else { "--prompt-file" };
            return Err(usage(format!("{flag}: is empty; at least 1 token is needed")));
        }
        Ok(text)
    }

    fn show(&self, token_id: u32, text: &str) -> anyhow::Result<()> {
        if self.json {
            return print::json(&Token { token_id, text });
        }
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(())
    }
}
