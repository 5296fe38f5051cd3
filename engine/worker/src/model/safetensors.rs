//! Checkpoint directories: `config.json`, `tokenizer.json` and one or more `*.safetensors` of f32, f16 or bf16.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use serde::Deserialize;
use serde_json::Value;

use super::config::ModelConfig;
use super::error::ModelError;
use super::parts::{Part, SAFETENSORS_ROPE, TensorSource};

/// A header beyond this is damage.
const MAX_HEADER: u64 = 100 << 20;

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

struct Located {
    file: usize,
    start: u64,
    entry: Entry,
}

/// An open checkpoint directory.
pub(crate) struct SafetensorsDir {
    directory: PathBuf,
    files: Vec<PathBuf>,
    tensors: BTreeMap<String, Located>,
}

impl SafetensorsDir {
    /// Reads the headers of every shard in `directory`.
    pub(crate) fn open(directory: &Path) -> Result<Self, ModelError> {
        let files = shard_files(directory)?;
        let mut tensors = BTreeMap::new();
        for (index, path) in files.iter().enumerate() {
            for (name, entry, start) in read_header(path)? {
                tensors.insert(name, Located { file: index, start, entry });
            }
        }
        Ok(Self { directory: directory.to_path_buf(), files, tensors })
    }

    /// The shards, in the order of their names.
    pub(crate) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The geometry from `config.json`.
    pub(crate) fn config(&self) -> Result<ModelConfig, ModelError> {
        parse_config(&self.directory)
    }
}

impl TensorSource for SafetensorsDir {
    fn spell(&self, part: Part) -> String {
        part.safetensors()
    }

    fn has(&self, part: Part) -> bool {
        self.tensors.contains_key(&part.safetensors())
    }

    fn origin(&self, part: Part) -> PathBuf {
        match self.tensors.get(&part.safetensors()) {
            Some(located) => self.files[located.file].clone(),
            None => self.directory.clone(),
        }
    }

    fn read(&mut self, part: Part, dims: &[usize]) -> Result<Vec<f32>, ModelError> {
        let name = part.safetensors();
        let path = self.origin(part);
        let bad = |reason: String| ModelError::tensor(&path, &name, reason);
        let located = self.tensors.get(&name).ok_or_else(|| bad("is missing".into()))?;
        let entry = &located.entry;
        if entry.shape != dims {
            return Err(bad(format!("has shape {:?} where {dims:?} is expected", entry.shape)));
        }
        let width = match entry.dtype.as_str() {
            "F32" => 4,
            "F16" | "BF16" => 2,
            other => return Err(bad(format!("dtype {other} is not supported"))),
        };
        let (begin, end) = entry.data_offsets;
        let bytes = dims.iter().product::<usize>() * width;
        if end.checked_sub(begin) != Some(bytes as u64) {
            return Err(bad(format!("offsets {begin}..{end} do not hold {bytes} bytes")));
        }
        let mut raw = vec![0u8; bytes];
        let mut file = File::open(&path).map_err(ModelError::io(&path))?;
        file.seek(SeekFrom::Start(located.start + begin))
            .and_then(|_| file.read_exact(&mut raw))
            .map_err(|_| bad("the file is cut short".into()))?;
        Ok(match entry.dtype.as_str() {
            "F32" => decode(&raw, f32::from_le_bytes),
            "F16" => decode(&raw, |b| f16::from_le_bytes(b).to_f32()),
            _ => decode(&raw, |b| bf16::from_le_bytes(b).to_f32()),
        })
    }
}

fn decode<const W: usize>(raw: &[u8], one: impl Fn([u8; W]) -> f32) -> Vec<f32> {
    let (chunks, _) = raw.as_chunks::<W>();
    chunks.iter().map(|chunk| one(*chunk)).collect()
}

/// The shards that the index names, or every `*.safetensors` without one.
fn shard_files(directory: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let index = directory.join("model.safetensors.index.json");
    let mut files: Vec<PathBuf> = if index.exists() {
        let json = read_json(&index)?;
        let map = json.get("weight_map").and_then(Value::as_object);
        let map = map.ok_or_else(|| ModelError::field(&index, "weight_map", "is missing"))?;
        map.values()
            .filter_map(Value::as_str)
            .map(|name| directory.join(Path::new(name).file_name().unwrap_or_default()))
            .collect()
    } else {
        let entries = std::fs::read_dir(directory).map_err(ModelError::io(directory))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        paths.filter(|path| path.extension().is_some_and(|e| e == "safetensors")).collect()
    };
    files.sort();
    files.dedup();
    match files.is_empty() {
        true => Err(ModelError::NoModel { path: directory.into(), reason: "holds no *.safetensors file" }),
        false => Ok(files),
    }
}

/// Names, entries and the offset of the data area of one shard.
fn read_header(path: &Path) -> Result<Vec<(String, Entry, u64)>, ModelError> {
    let mut file = File::open(path).map_err(ModelError::io(path))?;
    let length = file.metadata().map_err(ModelError::io(path))?.len();
    let short = || ModelError::format(path, "is cut short or not a safetensors file");
    let mut prefix = [0u8; 8];
    file.read_exact(&mut prefix).map_err(|_| short())?;
    let header = u64::from_le_bytes(prefix);
    if header > MAX_HEADER || header + 8 > length {
        return Err(short());
    }
    let mut text = vec![0u8; header as usize];
    file.read_exact(&mut text).map_err(|_| short())?;
    let fields: BTreeMap<String, Value> = serde_json::from_slice(&text)
        .map_err(|error| ModelError::format(path, format!("header: {error}")))?;
    let mut entries = Vec::with_capacity(fields.len());
    for (name, value) in fields {
        if name == "__metadata__" {
            continue;
        }
        let entry: Entry =
            serde_json::from_value(value).map_err(|error| ModelError::tensor(path, &name, error))?;
        let end = entry.data_offsets.1;
        if end > length - 8 - header {
            return Err(ModelError::tensor(
                path,
                &name,
                format!("ends at byte {end}: the file is cut short"),
            ));
        }
        entries.push((name, entry, 8 + header));
    }
    Ok(entries)
}

fn read_json(path: &Path) -> Result<Value, ModelError> {
    let text = std::fs::read(path).map_err(ModelError::io(path))?;
    serde_json::from_slice(&text).map_err(|error| ModelError::format(path, format!("not JSON: {error}")))
}

fn parse_config(directory: &Path) -> Result<ModelConfig, ModelError> {
    let path = directory.join("config.json");
    let json = read_json(&path)?;
    let bad = |field: &str, reason: String| ModelError::field(&path, field, reason);
    let text = |field: &str| json.get(field).and_then(Value::as_str);
    match text("model_type") {
        Some("llama") => {}
        Some(other) => return Err(bad("model_type", format!("\"{other}\" is not supported; only llama is"))),
        None => return Err(bad("model_type", "is missing".into())),
    }
    match text("hidden_act") {
        None | Some("silu") => {}
        Some(other) => return Err(bad("hidden_act", format!("\"{other}\" is not supported; only silu is"))),
    }
    for field in ["attention_bias", "mlp_bias"] {
        if json.get(field).and_then(Value::as_bool) == Some(true) {
            return Err(bad(field, "true is not supported".into()));
        }
    }
    let rope = json.get("rope_parameters").filter(|v| !v.is_null());
    for (field, value) in [("rope_scaling", json.get("rope_scaling")), ("rope_parameters", rope)] {
        let kind = value.and_then(|v| v.get("rope_type").or_else(|| v.get("type")));
        match kind.and_then(Value::as_str) {
            None | Some("default") => {}
            Some(other) => return Err(bad(field, format!("\"{other}\" is not supported"))),
        }
    }
    let optional = |field: &str| match json.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(number) => Ok(Some(number as usize)),
            None => Err(bad(field, format!("{value} is not a non-negative integer"))),
        },
    };
    let count = |field: &str| optional(field)?.ok_or_else(|| bad(field, "is missing".into()));
    let number = |field: &str| json.get(field).and_then(Value::as_f64);
    let hidden = count("hidden_size")?;
    let q_heads = count("num_attention_heads")?;
    let rope_theta = rope.and_then(|v| v.get("rope_theta")).and_then(Value::as_f64);
    let eos = match json.get("eos_token_id") {
        Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_u64).map(|id| id as u32).collect(),
        Some(id) => id.as_u64().map(|id| id as u32).into_iter().collect(),
        None => Vec::new(),
    };
    let config = ModelConfig {
        name: text("_name_or_path").filter(|name| !name.is_empty()).map_or_else(
            || directory.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            str::to_string,
        ),
        layers: count("num_hidden_layers")?,
        hidden,
        intermediate: count("intermediate_size")?,
        q_heads,
        kv_heads: optional("num_key_value_heads")?.unwrap_or(q_heads),
        head_dim: optional("head_dim")?.unwrap_or(hidden.checked_div(q_heads).unwrap_or(0)),
        vocab: count("vocab_size")?,
        rms_eps: number("rms_norm_eps").unwrap_or(1e-6) as f32,
        rope_base: rope_theta.or(number("rope_theta")).unwrap_or(10_000.0),
        max_context: count("max_position_embeddings")?,
        tied_head: json.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false),
        rope_layout: SAFETENSORS_ROPE,
        bos: optional("bos_token_id")?.map(|id| id as u32),
        eos,
    };
    config.validate(&path)?;
    Ok(config)
}
