//! GGUF checkpoints: header through `candle_core::quantized::gguf_file`, tensors dequantised to f32.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use candle_core::Device;
use candle_core::quantized::gguf_file::{Content, Value};

use super::config::ModelConfig;
use super::error::ModelError;
use super::parts::{GGUF_ROPE, Part, TensorSource};

/// An open GGUF file.
pub(crate) struct GgufFile {
    path: PathBuf,
    file: BufReader<File>,
    content: Content,
}

impl GgufFile {
    /// Opens `path` and reads its header.
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let file = File::open(path).map_err(ModelError::io(path))?;
        let mut file = BufReader::with_capacity(1 << 20, file);
        let content = Content::read(&mut file).map_err(|error| header_error(path, error))?;
        Ok(Self { path: path.to_path_buf(), file, content })
    }

    /// Metadata by key, for the tokenizer.
    pub(crate) fn metadata(&self) -> Metadata<'_> {
        Metadata { path: &self.path, values: &self.content.metadata }
    }

    /// The geometry; refuses architectures other than llama and variants of llama that are not computed here.
    pub(crate) fn config(&self) -> Result<ModelConfig, ModelError> {
        let meta = self.metadata();
        let architecture = meta.string("general.architecture")?;
        if architecture != "llama" {
            let reason = format!("\"{architecture}\" is not supported; only llama is");
            return Err(ModelError::field(&self.path, "general.architecture", reason));
        }
        for name in ["rope_freqs.weight", "blk.0.attn_q.bias", "blk.0.ffn_gate_inp.weight"] {
            if self.content.tensor_infos.contains_key(name) {
                return Err(ModelError::tensor(&self.path, name, "this variant of llama is not supported"));
            }
        }
        if let Ok(kind) = meta.string("llama.rope.scaling.type")
            && kind != "none"
        {
            let reason = format!("\"{kind}\" is not supported");
            return Err(ModelError::field(&self.path, "llama.rope.scaling.type", reason));
        }
        let hidden = meta.count("llama.embedding_length")?;
        let q_heads = meta.count("llama.attention.head_count")?;
        let head_dim = match meta.optional_count("llama.attention.key_length")? {
            Some(dim) => dim,
            None => hidden.checked_div(q_heads).unwrap_or(0),
        };
        for key in ["llama.attention.value_length", "llama.rope.dimension_count"] {
            match meta.optional_count(key)? {
                Some(dim) if dim != head_dim => {
                    let reason = format!("{dim} differs from the head dimension {head_dim}");
                    return Err(ModelError::field(&self.path, key, reason));
                }
                _ => {}
            }
        }
        let vocab = match meta.optional_count("llama.vocab_size")? {
            Some(vocab) => vocab,
            None => meta.array("tokenizer.ggml.tokens")?.len(),
        };
        let end = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
        let mut eos = Vec::new();
        for key in end {
            eos.extend(meta.optional_count(key)?.map(|id| id as u32));
        }
        let config = ModelConfig {
            name: meta.string("general.name").unwrap_or("unnamed").to_string(),
            layers: meta.count("llama.block_count")?,
            hidden,
            intermediate: meta.count("llama.feed_forward_length")?,
            q_heads,
            kv_heads: meta.optional_count("llama.attention.head_count_kv")?.unwrap_or(q_heads),
            head_dim,
            vocab,
            rms_eps: meta.number("llama.attention.layer_norm_rms_epsilon")? as f32,
            rope_base: meta.number("llama.rope.freq_base").unwrap_or(10_000.0),
            max_context: meta.count("llama.context_length")?,
            tied_head: !self.has(Part::Head),
            rope_layout: GGUF_ROPE,
            bos: meta.optional_count("tokenizer.ggml.bos_token_id")?.map(|id| id as u32),
            eos,
        };
        config.validate(&self.path)?;
        Ok(config)
    }
}

impl TensorSource for GgufFile {
    fn spell(&self, part: Part) -> String {
        part.gguf()
    }

    fn has(&self, part: Part) -> bool {
        self.content.tensor_infos.contains_key(&part.gguf())
    }

    fn origin(&self, _part: Part) -> PathBuf {
        self.path.clone()
    }

    fn read(&mut self, part: Part, dims: &[usize]) -> Result<Vec<f32>, ModelError> {
        let name = part.gguf();
        let bad = |reason: String| ModelError::tensor(&self.path, &name, reason);
        let info = self.content.tensor_infos.get(&name).ok_or_else(|| bad("is missing".into()))?;
        if info.shape.dims() != dims {
            return Err(bad(format!("has shape {:?} where {dims:?} is expected", info.shape.dims())));
        }
        let tensor = info
            .read(&mut self.file, self.content.tensor_data_offset, &Device::Cpu)
            .and_then(|quantised| quantised.dequantize(&Device::Cpu))
            .and_then(|tensor| tensor.flatten_all()?.to_vec1::<f32>());
        tensor.map_err(|error| bad(error.to_string()))
    }
}

/// Typed look-ups in GGUF metadata.
pub(crate) struct Metadata<'a> {
    pub(crate) path: &'a Path,
    values: &'a HashMap<String, Value>,
}

impl<'a> Metadata<'a> {
    fn get(&self, key: &str) -> Result<&'a Value, ModelError> {
        self.values.get(key).ok_or_else(|| ModelError::field(self.path, key, "is missing"))
    }

    fn typed<T>(&self, key: &str, value: candle_core::Result<T>) -> Result<T, ModelError> {
        value.map_err(|_| ModelError::field(self.path, key, "has another type than expected"))
    }

    /// A string.
    pub(crate) fn string(&self, key: &str) -> Result<&'a str, ModelError> {
        Ok(self.typed(key, self.get(key)?.to_string())?.as_str())
    }

    /// An array of anything.
    pub(crate) fn array(&self, key: &str) -> Result<&'a [Value], ModelError> {
        Ok(self.typed(key, self.get(key)?.to_vec())?.as_slice())
    }

    /// A non-negative integer of any width.
    pub(crate) fn count(&self, key: &str) -> Result<usize, ModelError> {
        match self.get(key)? {
            Value::I8(v) if *v >= 0 => Ok(*v as usize),
            Value::I16(v) if *v >= 0 => Ok(*v as usize),
            Value::I32(v) if *v >= 0 => Ok(*v as usize),
            Value::I64(v) if *v >= 0 => Ok(*v as usize),
            value => Ok(self.typed(key, value.to_u64())? as usize),
        }
    }

    /// As [`Self::count`]; `None` when the key is absent.
    pub(crate) fn optional_count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        match self.values.contains_key(key) {
            true => self.count(key).map(Some),
            false => Ok(None),
        }
    }

    /// A floating-point number.
    fn number(&self, key: &str) -> Result<f64, ModelError> {
        match self.get(key)? {
            Value::F64(v) => Ok(*v),
            value => Ok(f64::from(self.typed(key, value.to_f32())?)),
        }
    }

    /// A flag, false when absent.
    pub(crate) fn flag(&self, key: &str) -> Result<bool, ModelError> {
        match self.values.get(key) {
            None => Ok(false),
            Some(value) => self.typed(key, value.to_bool()),
        }
    }
}

/// Says what is wrong with a header in the words of the user's file.
fn header_error(path: &Path, error: candle_core::Error) -> ModelError {
    let text = error.to_string();
    let text = text.lines().next().unwrap_or_default();
    let reason = match text.strip_prefix("unknown dtype for tensor ") {
        Some(number) => format!("unknown quantisation: a tensor is of GGML type {number}"),
        None if text.starts_with("unknown magic") => {
            return ModelError::NoModel { path: path.into(), reason: "is not a GGUF file" };
        }
        None if text.contains("failed to fill") => "is cut short in its header".into(),
        None if text.contains("remaining") => format!("is cut short or damaged: {text}"),
        None => text.to_string(),
    };
    ModelError::format(path, reason)
}
