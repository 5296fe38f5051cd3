//! Tiny random models that tests write to disk, and the plain f64 forward pass they are held to.
#![allow(dead_code)] // each test binary uses a part

pub mod daemon;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use half::f16;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

/// Bytes, then the special tokens.
const SPECIALS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// Vocabulary of every tiny model.
pub const VOCAB: usize = 256 + SPECIALS.len();

/// Name, shape and values of one tensor, as safetensors checkpoints spell and store it.
type Weights = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// A geometry with random weights; all of them are exact in f16.
#[derive(Clone, Debug)]
pub struct TinyModel {
    pub layers: usize,
    pub hidden: usize,
    pub intermediate: usize,
    pub q_heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub tied: bool,
    pub max_context: usize,
    pub seed: u64,
}

impl TinyModel {
    /// 28 query heads over 4 KV heads of dimension 128, untied.
    pub fn grouped() -> Self {
        Self {
            layers: 2,
            hidden: 48,
            intermediate: 96,
            q_heads: 28,
            kv_heads: 4,
            head_dim: 128,
            tied: false,
            max_context: 65_536,
            seed: 1,
        }
    }

    /// Every query head with a KV head of its own, dimension 80, tied.
    pub fn multi_head() -> Self {
        Self { q_heads: 4, kv_heads: 4, head_dim: 80, tied: true, hidden: 64, seed: 2, ..Self::grouped() }
    }

    /// One small layer or two: for long contexts.
    pub fn small(layers: usize) -> Self {
        Self {
            layers,
            q_heads: 4,
            kv_heads: 2,
            head_dim: 16,
            tied: true,
            hidden: 32,
            seed: 3,
            ..Self::grouped()
        }
    }

    /// All tensors.
    pub fn weights(&self) -> Weights {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mut draw = |shape: &[usize], low: f32, high: f32| {
            let n: usize = shape.iter().product();
            let values = (0..n).map(|_| f16::from_f32(rng.random_range(low..high)).to_f32());
            (shape.to_vec(), values.collect::<Vec<f32>>())
        };
        let (q, kv) = (self.q_heads * self.head_dim, self.kv_heads * self.head_dim);
        let (hidden, inner) = (self.hidden, self.intermediate);
        let mut weights = Weights::new();
        for i in 0..self.layers {
            let name = |part: &str| format!("model.layers.{i}.{part}.weight");
            weights.insert(name("input_layernorm"), draw(&[hidden], 0.5, 1.5));
            weights.insert(name("post_attention_layernorm"), draw(&[hidden], 0.5, 1.5));
            for (part, rows, columns) in [
                ("self_attn.q_proj", q, hidden),
                ("self_attn.k_proj", kv, hidden),
                ("self_attn.v_proj", kv, hidden),
                ("self_attn.o_proj", hidden, q),
                ("mlp.gate_proj", inner, hidden),
                ("mlp.up_proj", inner, hidden),
                ("mlp.down_proj", hidden, inner),
            ] {
                let limit = (3.0 / columns as f32).sqrt();
                weights.insert(name(part), draw(&[rows, columns], -limit, limit));
            }
        }
        weights.insert("model.norm.weight".into(), draw(&[hidden], 0.5, 1.5));
        weights.insert("model.embed_tokens.weight".into(), draw(&[VOCAB, hidden], -1.0, 1.0));
        if !self.tied {
            weights.insert("lm_head.weight".into(), draw(&[VOCAB, hidden], -1.0, 1.0));
        }
        weights
    }

    /// `config.json`, `tokenizer.json` and f32 safetensors, over `shards` files, in `directory`.
    pub fn write_directory(&self, directory: &Path, shards: usize) -> PathBuf {
        self.write_weights(directory, &self.weights(), shards);
        directory.to_path_buf()
    }

    /// As [`Self::write_directory`] with other weights.
    pub fn write_weights(&self, directory: &Path, weights: &Weights, shards: usize) {
        write_json(&directory.join("config.json"), &self.config());
        write_json(&directory.join("tokenizer.json"), &tokenizer());
        let names: Vec<&String> = weights.keys().collect();
        let mut map = serde_json::Map::new();
        for (i, names) in names.chunks(names.len().div_ceil(shards)).enumerate() {
            let file = match shards {
                1 => "model.safetensors".to_string(),
                _ => format!("model-{i:05}.safetensors"),
            };
            let tensors = names.iter().map(|name| {
                let (shape, values) = &weights[*name];
                map.insert((*name).clone(), file.clone().into());
                ((*name).clone(), Tensor::from_slice(values, shape.as_slice(), &Device::Cpu).unwrap())
            });
            let tensors: std::collections::HashMap<String, Tensor> = tensors.collect();
            candle_core::safetensors::save(&tensors, directory.join(file)).unwrap();
        }
        if shards > 1 {
            write_json(&directory.join("model.safetensors.index.json"), &json!({ "weight_map": map }));
        }
    }

    /// The content of `config.json`.
    pub fn config(&self) -> serde_json::Value {
        json!({
            "model_type": "llama", "hidden_act": "silu", "num_hidden_layers": self.layers,
            "hidden_size": self.hidden, "intermediate_size": self.intermediate,
            "num_attention_heads": self.q_heads, "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim, "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "max_position_embeddings": self.max_context, "tie_word_embeddings": self.tied,
            "bos_token_id": 257, "eos_token_id": 258,
        })
    }

    /// A GGUF file of the same model: f32 tensors, q and k rows permuted for interleaved RoPE.
    pub fn write_gguf(&self, path: &Path) -> PathBuf {
        self.write_gguf_with(path, &self.weights(), |_| {});
        path.to_path_buf()
    }

    /// As [`Self::write_gguf`] with other weights, and metadata changed by `edit`.
    pub fn write_gguf_with(
        &self,
        path: &Path,
        weights: &Weights,
        edit: impl FnOnce(&mut BTreeMap<&'static str, Value>),
    ) {
        let tensors: Vec<(String, QTensor)> = weights
            .iter()
            .map(|(name, (shape, values))| {
                let permuted = if name.contains("q_proj") || name.contains("k_proj") {
                    self.permute(values)
                } else {
                    values.clone()
                };
                let tensor = Tensor::from_vec(permuted, shape.as_slice(), &Device::Cpu).unwrap();
                (gguf_name(name), QTensor::quantize(&tensor, GgmlDType::F32).unwrap())
            })
            .collect();
        let mut metadata = self.metadata();
        edit(&mut metadata);
        let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(key, value)| (*key, value)).collect();
        let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
        gguf_file::write(&mut File::create(path).unwrap(), &metadata, &tensors).unwrap();
    }

    fn metadata(&self) -> BTreeMap<&'static str, Value> {
        let number = |n: usize| Value::U32(n as u32);
        let tokens = tokens();
        let types = (0..VOCAB).map(|i| Value::I32(if i < 256 { 1 } else { 3 })).collect();
        BTreeMap::from([
            ("general.architecture", Value::String("llama".into())),
            ("general.name", Value::String("tiny".into())),
            ("llama.block_count", number(self.layers)),
            ("llama.context_length", number(self.max_context)),
            ("llama.embedding_length", number(self.hidden)),
            ("llama.feed_forward_length", number(self.intermediate)),
            ("llama.attention.head_count", number(self.q_heads)),
            ("llama.attention.head_count_kv", number(self.kv_heads)),
            ("llama.attention.key_length", number(self.head_dim)),
            ("llama.attention.value_length", number(self.head_dim)),
            ("llama.rope.dimension_count", number(self.head_dim)),
            ("llama.rope.freq_base", Value::F32(10_000.0)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
            ("llama.vocab_size", number(VOCAB)),
            ("tokenizer.ggml.model", Value::String("gpt2".into())),
            ("tokenizer.ggml.pre", Value::String("smollm".into())),
            ("tokenizer.ggml.tokens", Value::Array(tokens.into_iter().map(Value::String).collect())),
            ("tokenizer.ggml.token_type", Value::Array(types)),
            ("tokenizer.ggml.merges", Value::Array(vec![])),
            ("tokenizer.ggml.bos_token_id", number(257)),
            ("tokenizer.ggml.eos_token_id", number(258)),
        ])
    }

    /// Rows `i` and `i + dim / 2` of every head become rows `2i` and `2i + 1`.
    fn permute(&self, values: &[f32]) -> Vec<f32> {
        let (dim, columns) = (self.head_dim, self.hidden);
        let mut out = Vec::with_capacity(values.len());
        for head in values.chunks_exact(dim * columns) {
            for i in 0..dim / 2 {
                for row in [i, i + dim / 2] {
                    out.extend_from_slice(&head[row * columns..(row + 1) * columns]);
                }
            }
        }
        out
    }

    /// Logits of every position, in f64, with K and V rounded to f16 as they are stored.
    pub fn oracle(&self, ids: &[u32]) -> Vec<Vec<f64>> {
        let weights = self.weights();
        let get = |name: &str| &weights[name].1;
        let embedding = get("model.embed_tokens.weight");
        let row = |id: u32| embedding[id as usize * self.hidden..][..self.hidden].iter();
        let mut x: Vec<Vec<f64>> = ids.iter().map(|&id| row(id).map(|&v| v.into()).collect()).collect();
        for i in 0..self.layers {
            let get = |part: &str| get(&format!("model.layers.{i}.{part}.weight"));
            let normed: Vec<_> = x.iter().map(|x| norm(x, get("input_layernorm"))).collect();
            let project = |part: &str| normed.iter().map(|x| product(get(part), x)).collect::<Vec<_>>();
            let (mut q, mut k) = (project("self_attn.q_proj"), project("self_attn.k_proj"));
            let mut v = project("self_attn.v_proj");
            for position in 0..ids.len() {
                turn(&mut q[position], self.head_dim, position);
                turn(&mut k[position], self.head_dim, position);
                let stored = |x: &mut f64| *x = f16::from_f64(*x).to_f64();
                k[position].iter_mut().for_each(stored);
                v[position].iter_mut().for_each(stored);
            }
            for position in 0..ids.len() {
                let attended = self.attend(&q[position], &k[..=position], &v[..=position]);
                add(&mut x[position], &product(get("self_attn.o_proj"), &attended));
                let normed = norm(&x[position], get("post_attention_layernorm"));
                let gate = product(get("mlp.gate_proj"), &normed);
                let up = product(get("mlp.up_proj"), &normed);
                let inner: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                add(&mut x[position], &product(get("mlp.down_proj"), &inner));
            }
        }
        let head = get(if self.tied { "model.embed_tokens.weight" } else { "lm_head.weight" });
        x.iter().map(|x| product(head, &norm(x, get("model.norm.weight")))).collect()
    }

    /// Attention of one token over `k` and `v`, each query head over its own KV head.
    pub fn attend(&self, q: &[f64], k: &[Vec<f64>], v: &[Vec<f64>]) -> Vec<f64> {
        let (dim, group) = (self.head_dim, self.q_heads / self.kv_heads);
        let mut out = vec![0.0; q.len()];
        for (head, (q, out)) in q.chunks(dim).zip(out.chunks_mut(dim)).enumerate() {
            let at = head / group * dim;
            let dot = |k: &Vec<f64>| q.iter().zip(&k[at..at + dim]).map(|(a, b)| a * b).sum::<f64>();
            let z: Vec<f64> = k.iter().map(|k| dot(k) / (dim as f64).sqrt()).collect();
            let m = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = z.iter().map(|z| (z - m).exp()).sum();
            for (z, v) in z.iter().zip(v) {
                let weight = (z - m).exp() / total;
                out.iter_mut().zip(&v[at..at + dim]).for_each(|(o, v)| *o += weight * v);
            }
        }
        out
    }
}

fn norm(x: &[f64], weight: &[f32]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(weight).map(|(x, &w)| x / (mean + 1e-5).sqrt() * f64::from(w)).collect()
}

fn product(weights: &[f32], x: &[f64]) -> Vec<f64> {
    weights.chunks(x.len()).map(|w| w.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()).collect()
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

fn turn(row: &mut [f64], dim: usize, position: usize) {
    for head in row.chunks_mut(dim) {
        for i in 0..dim / 2 {
            let angle = position as f64 * 10_000f64.powf(-2.0 * i as f64 / dim as f64);
            let (a, b) = (head[i], head[i + dim / 2]);
            head[i] = a * angle.cos() - b * angle.sin();
            head[i + dim / 2] = a * angle.sin() + b * angle.cos();
        }
    }
}

fn gguf_name(name: &str) -> String {
    let mut name = name.to_string();
    for (theirs, ours) in [
        ("model.layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("model.norm", "output_norm"),
        ("model.embed_tokens", "token_embd"),
        ("lm_head", "output"),
    ] {
        name = name.replace(theirs, ours);
    }
    name
}

/// The printable stand-in of every byte in byte-level BPE, then the special tokens.
fn tokens() -> Vec<String> {
    let plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut moved = 256;
    let byte = |byte: u8| {
        let code = if plain(byte) {
            u32::from(byte)
        } else {
            moved += 1;
            moved - 1
        };
        char::from_u32(code).unwrap().to_string()
    };
    (0..=255).map(byte).chain(SPECIALS.map(String::from)).collect()
}

fn tokenizer() -> serde_json::Value {
    let tokens = tokens();
    let vocab: serde_json::Map<String, serde_json::Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let added: Vec<serde_json::Value> = (256..VOCAB)
        .map(|id| {
            json!({ "id": id, "content": tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true })
        })
        .collect();
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                   "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                   "ignore_merges": false, "vocab": vocab, "merges": [] },
    })
}

fn write_json(path: &Path, value: &serde_json::Value) {
    std::fs::write(path, serde_json::to_vec(value).unwrap()).unwrap();
}
