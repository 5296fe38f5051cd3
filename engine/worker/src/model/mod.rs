//! The language model: what it is made of, where it comes from, and its arithmetic with attention left outside.
//!
//! - [`config`]: geometry, checked field by field
//! - [`gguf`], [`safetensors`]: the two checkpoint formats, over [`parts`], the list of tensors
//! - [`matrix`]: weights in memory and their products
//! - [`rope`]: position embedding and its scaling
//! - [`llama`]: the block: embed, qkv, finish, head
//! - [`tokenizer`]: text, ids, chat turns
//! - [`fetch`]: the default model; [`hub`]: models by their name on the hub

use std::path::Path;

mod config;
mod error;
mod fetch;
mod gguf;
mod hub;
mod llama;
mod matrix;
mod parts;
mod rope;
mod safetensors;
mod tokenizer;

pub use config::{ModelConfig, RopeLayout};
pub use error::ModelError;
pub use fetch::default_model;
pub use hub::resolve;
pub use llama::Llama;
pub use matrix::Precision;
pub use rope::RopeScaling;
pub use tokenizer::{TextCodec, TextStream};

/// A model with its tokenizer.
pub struct Loaded {
    /// Weights and arithmetic.
    pub llama: Llama,
    /// Text to ids and back.
    pub tokenizer: TextCodec,
    scaling: RopeScaling,
}

impl Loaded {
    /// Loads a `.gguf` file or a directory with `config.json`, `tokenizer.json` and `*.safetensors`; without a path, the
    /// default model, which is fetched first if need be.
    ///
    /// # Errors
    /// One line that names the file and the field or tensor: see [`ModelError`].
    pub fn load(path: Option<&Path>, precision: Precision, scaling: RopeScaling) -> Result<Self, ModelError> {
        let Some(path) = path else {
            let path = default_model()?;
            let revision = fetch::hash_files(std::slice::from_ref(&path))?;
            fetch::check(&path, &revision)?;
            return Self::gguf(&path, precision, scaling, revision);
        };
        let kind = std::fs::metadata(path).map_err(ModelError::io(path))?;
        if kind.is_dir() {
            return Self::directory(path, precision, scaling);
        }
        let revision = fetch::hash_files(&[path.to_path_buf()])?;
        Self::gguf(path, precision, scaling, revision)
    }

    /// The same model prepared for `context` tokens in all, prompt and answer.
    ///
    /// # Errors
    /// [`ModelError::Context`] when that is beyond the trained context and scaling is off.
    pub fn for_context(mut self, context: u64) -> Result<Self, ModelError> {
        self.llama.set_context(context as usize, self.scaling)?;
        Ok(self)
    }

    fn gguf(
        path: &Path,
        precision: Precision,
        scaling: RopeScaling,
        revision: String,
    ) -> Result<Self, ModelError> {
        let mut source = gguf::GgufFile::open(path)?;
        let config = source.config()?;
        let tokenizer = TextCodec::from_gguf(&source.metadata(), &config.eos)?;
        let llama = Llama::load(config, &mut source, precision, revision)?;
        Ok(Self { llama, tokenizer, scaling })
    }

    fn directory(path: &Path, precision: Precision, scaling: RopeScaling) -> Result<Self, ModelError> {
        let mut source = safetensors::SafetensorsDir::open(path)?;
        let config = source.config()?;
        let tokenizer = TextCodec::from_directory(path, &config.eos)?;
        let revision = fetch::hash_files(source.files())?;
        let llama = Llama::load(config, &mut source, precision, revision)?;
        Ok(Self { llama, tokenizer, scaling })
    }
}
