//! Flags that choose a model; shared by every verb that runs one.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::model::{self, Loaded, ModelError, Precision, RopeScaling};

/// Weights in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Weights {
    /// 16-bit: half the memory, half the time per token.
    F16,
    /// 32-bit.
    F32,
}

/// Which model, and for which context.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// A .gguf file, a directory with config.json, tokenizer.json and *.safetensors, or hub:OWNER/NAME[@REVISION] in
    /// builds with the feature hub (default: SmolLM2-135M-Instruct, fetched once)
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// NTK scaling of the RoPE base: auto (by context / trained context), none, or a factor
    #[arg(long, value_name = "auto|none|FACTOR", default_value = "auto")]
    rope_scale: RopeScaling,
    /// Weights in memory
    #[arg(long, value_enum, default_value = "f16")]
    weights: Weights,
}

impl ModelArgs {
    /// Loads the model for `context` tokens in all, prompt and answer.
    ///
    /// # Errors
    /// See [`ModelError`].
    pub fn load(&self, context: u64) -> Result<Loaded, ModelError> {
        self.load_unsized()?.for_context(context)
    }

    /// Loads the model when the context is not known yet: call [`Loaded::for_context`] before the first token.
    ///
    /// # Errors
    /// See [`ModelError`].
    pub fn load_unsized(&self) -> Result<Loaded, ModelError> {
        let precision = match self.weights {
            Weights::F16 => Precision::Half,
            Weights::F32 => Precision::Single,
        };
        let path = self.model.as_deref().map(model::resolve).transpose()?;
        Loaded::load(path.as_deref(), precision, self.rope_scale)
    }
}
