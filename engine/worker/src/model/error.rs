//! What can go wrong with a model: every message is one line that names the file and the field or tensor.

use std::path::{Path, PathBuf};

/// An error of loading, fetching or asking a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not what its name says, is cut short or is of a kind that is not read here.
    #[error("{}: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// One line.
        reason: String,
    },
    /// What `--model` names is no checkpoint of a kind that is read here.
    #[error(
        "{}: {reason}; a .gguf file or a directory with config.json, tokenizer.json and *.safetensors is wanted",
        path.display()
    )]
    NoModel {
        /// The file or directory.
        path: PathBuf,
        /// One line.
        reason: &'static str,
    },
    /// A field of the configuration is missing, contradictory or not supported.
    #[error("{}: {field}: {reason}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The field as the file spells it.
        field: String,
        /// One line.
        reason: String,
    },
    /// A tensor is missing, of another shape, in an unknown format or holds a NaN or an infinity.
    #[error("{}: tensor {tensor}: {reason}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor as the file spells it.
        tensor: String,
        /// One line.
        reason: String,
    },
    /// The tokenizer cannot be built, or cannot encode or decode.
    #[error("{}: tokenizer: {reason}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// One line.
        reason: String,
    },
    /// The context is longer than the model was trained for and scaling is off.
    #[error(
        "a context of {asked} tokens is beyond the {trained} the model was trained for, and RoPE scaling is off: use --rope-scale auto or a shorter context"
    )]
    Context {
        /// Tokens asked for.
        asked: usize,
        /// Tokens the model was trained for.
        trained: usize,
    },
    /// The context is beyond what RoPE scaling reaches.
    #[error(
        "a context of {asked} tokens is beyond {most}, as far as scaling reaches from the {trained} the model was trained for"
    )]
    Scaling {
        /// Tokens asked for.
        asked: usize,
        /// Tokens the model was trained for.
        trained: usize,
        /// The most tokens.
        most: usize,
    },
    /// A token id is outside the vocabulary.
    #[error("token id {id} at position {position} is outside the vocabulary of {vocab}")]
    TokenId {
        /// The id.
        id: u32,
        /// Its place in the sequence that was given.
        position: usize,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The default model could not be fetched.
    #[error("default model: {0}")]
    Fetch(String),
    /// A model could not be had from the hub.
    #[error("{name}: {reason}")]
    Hub {
        /// `hub:OWNER/NAME[@REVISION]` as given.
        name: String,
        /// One line.
        reason: String,
    },
    /// A model was asked for under a name that this build cannot follow.
    #[error("{name}: {reason}")]
    Name {
        /// The name as given.
        name: String,
        /// One line.
        reason: String,
    },
    /// The tensor library refused an operation; a defect here rather than in the input.
    #[error("model arithmetic: {0}")]
    Compute(String),
}

impl ModelError {
    /// An I/O error at `path`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }

    /// A format error at `path`; only the first line of `reason` is kept.
    pub(crate) fn format(path: &Path, reason: impl ToString) -> Self {
        Self::Format { path: path.to_path_buf(), reason: first_line(reason) }
    }

    /// An error of one field of `path`.
    pub(crate) fn field(path: &Path, field: impl Into<String>, reason: impl ToString) -> Self {
        Self::Field { path: path.to_path_buf(), field: field.into(), reason: first_line(reason) }
    }

    /// An error of one tensor of `path`.
    pub(crate) fn tensor(path: &Path, tensor: impl Into<String>, reason: impl ToString) -> Self {
        Self::Tensor { path: path.to_path_buf(), tensor: tensor.into(), reason: first_line(reason) }
    }

    /// An error of the tokenizer of `path`.
    pub(crate) fn tokenizer(path: &Path, reason: impl ToString) -> Self {
        Self::Tokenizer { path: path.to_path_buf(), reason: first_line(reason) }
    }

    /// The caller chose something that is not there, cannot be read or is not supported (exit code 64), as opposed to
    /// damage.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Io { .. }
                | Self::NoModel { .. }
                | Self::Field { .. }
                | Self::Context { .. }
                | Self::Scaling { .. }
                | Self::TokenId { .. }
                | Self::Name { .. }
        )
    }

    /// Something outside this process was not there (exit code 69).
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Fetch(_) | Self::Hub { .. })
    }
}

impl From<candle_core::Error> for ModelError {
    fn from(error: candle_core::Error) -> Self {
        Self::Compute(first_line(error))
    }
}

/// Library errors may carry a backtrace; users get the first line.
pub(crate) fn first_line(text: impl ToString) -> String {
    let text = text.to_string();
    text.lines().next().unwrap_or_default().trim().to_string()
}
