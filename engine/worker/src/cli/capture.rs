//! `recollect capture`: real keys, values and queries of chosen layers and heads, for any text, as capture files.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use half::f16;
use safetensors::{Dtype, View};
use serde::Serialize;

use crate::cli::model::ModelArgs;
use crate::cli::service::MOST_LOCAL;
use crate::cli::{input, print, usage};
use crate::forward::LayerBlock;
use crate::model::Loaded;
use crate::progress::Progress;
use crate::recording::{self, of_head, queries};

/// Capture files of a text.
#[derive(Args, Debug)]
pub struct CaptureArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text to run through the model
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Layers to capture, from 0
    #[arg(long, value_delimiter = ',', required = true)]
    layers: Vec<usize>,
    /// KV heads to capture, from 0
    #[arg(long, value_delimiter = ',', required = true)]
    kv_heads: Vec<usize>,
    /// Tokens of the text to use
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    context: u64,
    /// Last tokens whose queries are kept for evaluation only, all of them
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..))]
    eval: u64,
    /// First tokens outside the index
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(..=MOST_LOCAL))]
    sink: u64,
    /// Last tokens before the evaluation outside the index
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(..=MOST_LOCAL))]
    window: u64,
    /// Seed of the sample of query positions
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Directory for the files, one per layer and KV head
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// One file written.
#[derive(Serialize)]
struct Written {
    file: String,
    layer: usize,
    kv_head: usize,
    tokens: usize,
    queries: usize,
    bytes: u64,
}

/// Runs the verb.
pub fn run(args: &CaptureArgs) -> anyhow::Result<()> {
    let context = args.context as usize;
    let taken = args.sink.saturating_add(args.window).saturating_add(args.eval);
    if taken >= args.context {
        return Err(usage(format!(
            "--context {context}: sink, window and evaluation alone take {taken} tokens"
        )));
    }
    let text = input::text("--text", &args.text)?;
    let loaded = args.model.load(args.context)?;
    let shape = loaded.llama.shape();
    for (flag, chosen, limit) in
        [("--layers", &args.layers, shape.layers), ("--kv-heads", &args.kv_heads, shape.kv_heads)]
    {
        if let Some(over) = chosen.iter().find(|&&i| i >= limit) {
            return Err(usage(format!("{flag} {over}: the model has {limit}, counted from 0")));
        }
    }
    let mut ids = loaded.tokenizer.encode_plain(&text)?;
    if ids.len() < context {
        let (file, has) = (args.text.display(), ids.len());
        return Err(usage(format!("--text {file}: has {has} tokens; --context {context} is asked for")));
    }
    ids.truncate(context);
    std::fs::create_dir_all(&args.out).map_err(|error| input::refused("--out", &args.out, &error))?;
    let eval_from = context - args.eval as usize;
    let mut positions = recording::sample(eval_from, args.seed);
    positions.extend(eval_from..context);
    capture(args, &loaded, &ids, &positions)
}

/// Runs the layers up to the last one that is asked for and writes a file at each that is.
fn capture(args: &CaptureArgs, loaded: &Loaded, ids: &[u32], positions: &[usize]) -> anyhow::Result<()> {
    let last = args.layers.iter().copied().max().unwrap_or(0);
    let progress = Progress::new("layers", last as u64 + 1);
    recording::layers(&loaded.llama, ids, last, |block| {
        if args.layers.contains(&block.layer) {
            for &head in &args.kv_heads {
                let written = write(args, loaded, block, head, positions)?;
                match args.json {
                    true => print::json(&written)?,
                    false => print::line(format_args!("{} ({} bytes)", written.file, written.bytes))?,
                }
            }
        }
        progress.step();
        Ok(())
    })?;
    progress.finish();
    Ok(())
}

/// Writes one head of one layer.
fn write(
    args: &CaptureArgs,
    loaded: &Loaded,
    block: &LayerBlock,
    head: usize,
    positions: &[usize],
) -> anyhow::Result<Written> {
    let shape = loaded.llama.shape();
    let (dim, group) = (shape.dim, shape.group());
    let layer = block.layer;
    let path = args.out.join(file_name(&loaded.llama.config().name, layer, head, block.tokens));
    let tensors = [
        ("k", Bytes::f16(vec![block.tokens, 1, dim], of_head(&block.k, shape, head))),
        ("v", Bytes::f16(vec![block.tokens, 1, dim], of_head(&block.v, shape, head))),
        ("q", Bytes::f16(vec![positions.len(), group, dim], queries(block, shape, head, positions)?)),
        ("q_pos", Bytes::i32(positions)),
    ];
    let metadata = [
        ("model", loaded.llama.config().name.clone()),
        ("layer", layer.to_string()),
        ("kv_head", head.to_string()),
        ("scale", loaded.llama.scale().to_string()),
        ("rope_theta", loaded.llama.rope_base().to_string()),
        ("sink", args.sink.to_string()),
        ("window", args.window.to_string()),
        ("eval_from", (args.context - args.eval).to_string()),
        ("text", args.text.file_name().unwrap_or_default().to_string_lossy().into_owned()),
    ];
    let metadata: HashMap<String, String> = metadata.map(|(key, value)| (key.to_string(), value)).into();
    safetensors::serialize_to_file(tensors, Some(metadata), &path)
        .with_context(|| format!("--out {}", path.display()))?;
    let bytes = std::fs::metadata(&path).with_context(|| path.display().to_string())?.len();
    let file = path.display().to_string();
    Ok(Written { file, layer, kv_head: head, tokens: block.tokens, queries: positions.len(), bytes })
}

fn file_name(model: &str, layer: usize, head: usize, tokens: usize) -> String {
    let first = model.split([' ', '/', '-']).find(|part| !part.is_empty()).unwrap_or("model").to_lowercase();
    let tokens = match tokens.is_multiple_of(1024) {
        true => format!("{}k", tokens / 1024),
        false => tokens.to_string(),
    };
    format!("{first}-l{layer:02}-h{head}-{tokens}.safetensors")
}

/// A tensor as the file stores it.
struct Bytes {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Bytes {
    fn f16(shape: Vec<usize>, values: Vec<f16>) -> Self {
        Self { dtype: Dtype::F16, shape, bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect() }
    }

    fn i32(values: &[usize]) -> Self {
        let bytes = values.iter().flat_map(|&v| (v as i32).to_le_bytes()).collect();
        Self { dtype: Dtype::I32, shape: vec![values.len()], bytes }
    }
}

impl View for Bytes {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_model_layer_head_and_length() {
        assert_eq!(file_name("SmolLM2 135M", 6, 1, 32_768), "smollm2-l06-h1-32k.safetensors");
        assert_eq!(file_name("", 12, 0, 1000), "model-l12-h0-1000.safetensors");
    }
}
