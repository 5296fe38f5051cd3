//! The tensors of a Llama-family model, their two spellings, and the trait that a checkpoint format implements.

use rayon::prelude::*;

use super::config::{ModelConfig, RopeLayout};
use super::error::ModelError;

/// One tensor of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Embedding,
    FinalNorm,
    Head,
    AttentionNorm(usize),
    Query(usize),
    Key(usize),
    Value(usize),
    Output(usize),
    FeedForwardNorm(usize),
    Gate(usize),
    Up(usize),
    Down(usize),
}

impl Part {
    /// As GGUF spells it.
    pub(crate) fn gguf(self) -> String {
        match self {
            Self::Embedding => "token_embd.weight".into(),
            Self::FinalNorm => "output_norm.weight".into(),
            Self::Head => "output.weight".into(),
            Self::AttentionNorm(i) => format!("blk.{i}.attn_norm.weight"),
            Self::Query(i) => format!("blk.{i}.attn_q.weight"),
            Self::Key(i) => format!("blk.{i}.attn_k.weight"),
            Self::Value(i) => format!("blk.{i}.attn_v.weight"),
            Self::Output(i) => format!("blk.{i}.attn_output.weight"),
            Self::FeedForwardNorm(i) => format!("blk.{i}.ffn_norm.weight"),
            Self::Gate(i) => format!("blk.{i}.ffn_gate.weight"),
            Self::Up(i) => format!("blk.{i}.ffn_up.weight"),
            Self::Down(i) => format!("blk.{i}.ffn_down.weight"),
        }
    }

    /// As safetensors checkpoints of Llama models spell it.
    pub(crate) fn safetensors(self) -> String {
        let layer = |i: usize, name: &str| format!("model.layers.{i}.{name}.weight");
        match self {
            Self::Embedding => "model.embed_tokens.weight".into(),
            Self::FinalNorm => "model.norm.weight".into(),
            Self::Head => "lm_head.weight".into(),
            Self::AttentionNorm(i) => layer(i, "input_layernorm"),
            Self::Query(i) => layer(i, "self_attn.q_proj"),
            Self::Key(i) => layer(i, "self_attn.k_proj"),
            Self::Value(i) => layer(i, "self_attn.v_proj"),
            Self::Output(i) => layer(i, "self_attn.o_proj"),
            Self::FeedForwardNorm(i) => layer(i, "post_attention_layernorm"),
            Self::Gate(i) => layer(i, "mlp.gate_proj"),
            Self::Up(i) => layer(i, "mlp.up_proj"),
            Self::Down(i) => layer(i, "mlp.down_proj"),
        }
    }

    /// Rows and columns (`[out, in]`); a norm is one row.
    pub(crate) fn shape(self, config: &ModelConfig) -> (usize, usize) {
        let hidden = config.hidden;
        match self {
            Self::Embedding | Self::Head => (config.vocab, hidden),
            Self::FinalNorm | Self::AttentionNorm(_) | Self::FeedForwardNorm(_) => (1, hidden),
            Self::Query(_) => (config.q_width(), hidden),
            Self::Key(_) | Self::Value(_) => (config.kv_width(), hidden),
            Self::Output(_) => (hidden, config.q_width()),
            Self::Gate(_) | Self::Up(_) => (config.intermediate, hidden),
            Self::Down(_) => (hidden, config.intermediate),
        }
    }

    /// Dimensions as files store them: a norm has one, the rest two.
    pub(crate) fn dims(self, config: &ModelConfig) -> Vec<usize> {
        match self.shape(config) {
            (1, columns) => vec![columns],
            (rows, columns) => vec![rows, columns],
        }
    }
}

/// A checkpoint that can hand out tensors as f32, row-major.
pub(crate) trait TensorSource {
    /// The spelling of `part` in this format, for messages.
    fn spell(&self, part: Part) -> String;

    /// Whether the file has `part`.
    fn has(&self, part: Part) -> bool;

    /// Reads `part`, whose dimensions must be `dims`.
    fn read(&mut self, part: Part, dims: &[usize]) -> Result<Vec<f32>, ModelError>;

    /// The file that holds `part`, for messages.
    fn origin(&self, part: Part) -> std::path::PathBuf;

    /// Reads `part` with the shape that `config` wants and refuses a NaN or an infinity with its place.
    fn checked(&mut self, part: Part, config: &ModelConfig) -> Result<Vec<f32>, ModelError> {
        let values = self.read(part, &part.dims(config))?;
        match values.par_iter().position_first(|x| !x.is_finite()) {
            None => Ok(values),
            Some(at) => {
                let (_, columns) = part.shape(config);
                let (row, column) = (at / columns, at % columns);
                let reason = format!("{} at row {row}, column {column}", values[at]);
                Err(ModelError::tensor(&self.origin(part), self.spell(part), reason))
            }
        }
    }
}

/// RoPE pairing that each format's q and k rows are stored for.
pub(crate) const GGUF_ROPE: RopeLayout = RopeLayout::Interleaved;
/// See [`GGUF_ROPE`].
pub(crate) const SAFETENSORS_ROPE: RopeLayout = RopeLayout::HalfSplit;
