//! The model on tiny random weights: geometries, formats, RoPE layouts, tokenizers, and damaged files.

mod common;

use std::path::Path;

use candle_core::Tensor;
use candle_core::quantized::gguf_file::Value;
use common::{TinyModel, VOCAB};
use half::f16;
use proptest::prelude::*;
use worker::forward::{LayerAttention, LayerBlock, forward};
use worker::model::{Loaded, ModelError, Precision, RopeScaling};

/// Keys or values of one layer: a row per token.
type TokenRows = Vec<Vec<f64>>;

/// Full attention in f64 over everything it has seen.
struct Plain {
    model: TinyModel,
    rows: Vec<(TokenRows, TokenRows)>,
}

impl Plain {
    fn new(model: &TinyModel) -> Self {
        Self { rows: vec![Default::default(); model.layers], model: model.clone() }
    }
}

impl LayerAttention for Plain {
    fn attend(&mut self, block: LayerBlock) -> anyhow::Result<Vec<f32>> {
        let (k, v) = &mut self.rows[block.layer];
        let width = self.model.kv_heads * self.model.head_dim;
        let stored =
            |rows: &[f16]| rows.chunks(width).map(|r| r.iter().map(|x| x.to_f64()).collect()).collect();
        let (new_k, new_v): (Vec<Vec<f64>>, Vec<Vec<f64>>) = (stored(&block.k), stored(&block.v));
        k.extend(new_k);
        v.extend(new_v);
        let mut out = Vec::new();
        for (i, q) in block.q.chunks(self.model.q_heads * self.model.head_dim).enumerate() {
            let q: Vec<f64> = q.iter().map(|&x| x.into()).collect();
            let seen = block.begin as usize + i + 1;
            out.extend(self.model.attend(&q, &k[..seen], &v[..seen]).into_iter().map(|x| x as f32));
        }
        Ok(out)
    }
}

fn load(path: &Path, precision: Precision) -> Loaded {
    Loaded::load(Some(path), precision, RopeScaling::Auto).unwrap()
}

fn logits(loaded: &Loaded, model: &TinyModel, blocks: &[&[u32]]) -> Vec<Vec<f32>> {
    let mut attention = Plain::new(model);
    let mut begin = 0;
    let mut rows = Vec::new();
    for ids in blocks {
        let (hidden, _) = forward(&loaded.llama, ids, begin, &mut attention).unwrap();
        let logits: Tensor = loaded.llama.head(&hidden).unwrap();
        rows.extend(logits.to_vec2::<f32>().unwrap());
        begin += ids.len() as u64;
    }
    rows
}

fn assert_close(got: &[Vec<f32>], expected: &[Vec<f64>], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (got, expected) in got.iter().zip(expected) {
        let size = expected.iter().map(|x| x.abs()).fold(0.0, f64::max);
        let error = got.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
        // K and V round to f16 on both sides, sometimes to different neighbours.
        assert!(error < 2e-3 * size, "{what}: error {error} of {size}");
    }
}

fn ids(n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 89 + 7) % VOCAB) as u32).collect()
}

#[test]
fn geometries_formats_and_precisions_equal_the_oracle() {
    for model in [TinyModel::grouped(), TinyModel::multi_head()] {
        let directory = tempfile::tempdir().unwrap();
        let ids = ids(40);
        let expected = model.oracle(&ids);
        let gguf = model.write_gguf(&directory.path().join("tiny.gguf"));
        let checkpoint = model.write_directory(directory.path(), 1);
        for path in [&gguf, &checkpoint] {
            for precision in [Precision::Half, Precision::Single] {
                let loaded = load(path, precision);
                let what = format!("{} {precision:?} {model:?}", path.display());
                assert_close(&logits(&loaded, &model, &[&ids]), &expected, &what);
                // A block, then one by one: the same answers.
                let (head, tail) = ids.split_at(33);
                let blocks: Vec<&[u32]> = std::iter::once(head).chain(tail.chunks(1)).collect();
                assert_close(&logits(&loaded, &model, &blocks), &expected, &what);
            }
        }
    }
}

#[test]
fn shards_and_narrow_dtypes_are_read() {
    let model = TinyModel::multi_head();
    let directory = tempfile::tempdir().unwrap();
    let ids = ids(9);
    let expected = model.oracle(&ids);
    let sharded = model.write_directory(directory.path(), 3);
    assert_close(&logits(&load(&sharded, Precision::Half), &model, &[&ids]), &expected, "sharded");
    let half = tempfile::tempdir().unwrap();
    model.write_directory(half.path(), 1);
    let file = half.path().join("model.safetensors");
    let tensors = candle_core::safetensors::load(&file, &candle_core::Device::Cpu).unwrap();
    let narrow =
        tensors.into_iter().map(|(n, t)| (n, t.to_dtype(candle_core::DType::F16).unwrap())).collect();
    candle_core::safetensors::save(&narrow, &file).unwrap();
    assert_close(&logits(&load(half.path(), Precision::Half), &model, &[&ids]), &expected, "f16");
}

#[test]
fn fingerprints_differ_where_kv_differs() {
    let directory = tempfile::tempdir().unwrap();
    let model = TinyModel { max_context: 128, ..TinyModel::small(1) };
    let a = load(&model.write_gguf(&directory.path().join("a.gguf")), Precision::Half);
    let other = TinyModel { seed: 9, ..model.clone() };
    let b = load(&other.write_gguf(&directory.path().join("b.gguf")), Precision::Half);
    let print = a.llama.fingerprint();
    assert_ne!(print.weight_revision, b.llama.fingerprint().weight_revision);
    assert_eq!((print.layers, print.q_heads, print.kv_heads, print.key_dim), (1, 4, 2, 16));
    assert!(print.rope_interleaved);
    let scaled = a.for_context(512).unwrap();
    assert!(scaled.llama.fingerprint().rope_base > print.rope_base);
}

#[test]
fn a_context_beyond_the_trained_one_needs_scaling() {
    let directory = tempfile::tempdir().unwrap();
    let model = TinyModel { max_context: 128, ..TinyModel::small(1) };
    let path = model.write_gguf(&directory.path().join("tiny.gguf"));
    let load = |scaling| Loaded::load(Some(&path), Precision::Half, scaling).unwrap();
    assert!(load(RopeScaling::None).for_context(128).is_ok());
    let error = load(RopeScaling::None).for_context(129).err().unwrap();
    assert!(error.is_usage() && error.to_string().contains("129") && error.to_string().contains("128"));
    let error = load(RopeScaling::Auto).llama.embed(&[1, VOCAB as u32]).unwrap_err();
    assert!(error.to_string().contains("259 at position 1"), "{error}");
}

#[test]
fn both_tokenizers_agree_and_keep_special_tokens_apart() {
    let directory = tempfile::tempdir().unwrap();
    let model = TinyModel::small(1);
    let gguf = load(&model.write_gguf(&directory.path().join("tiny.gguf")), Precision::Half);
    let json = load(&model.write_directory(directory.path(), 1), Precision::Half);
    let text = "né 😀 <|im_end|> 12\n\n x";
    for loaded in [&gguf, &json] {
        let codec = &loaded.tokenizer;
        let marked = codec.encode(text).unwrap();
        assert_eq!(marked.iter().filter(|&&id| id == 258).count(), 1);
        let plain = codec.encode_plain(text).unwrap();
        assert!(plain.iter().all(|&id| id < 256), "{plain:?}");
        assert_eq!(plain.len(), text.len());
        assert_eq!(codec.decode(&plain).unwrap(), text);
        let mut stream = codec.stream();
        let mut streamed = String::new();
        for id in plain {
            let piece = stream.push(id).unwrap();
            assert!(!piece.contains('\u{FFFD}'), "{piece:?}");
            streamed += &piece;
        }
        streamed += &stream.finish().unwrap();
        assert_eq!(streamed, text);
        let chat = codec.encode_chat("<|im_end|>hi").unwrap();
        assert_eq!(chat.iter().filter(|&&id| id == 258).count(), 1, "a user cannot forge the end of a turn");
        assert_eq!(
            (chat[0], codec.is_end(258), codec.is_end(256), codec.is_end(65)),
            (257, true, true, false)
        );
    }
    assert_eq!(gguf.tokenizer.encode(text).unwrap(), json.tokenizer.encode(text).unwrap());
}

#[test]
fn a_lone_invalid_byte_does_not_stop_the_stream() {
    let directory = tempfile::tempdir().unwrap();
    let model = TinyModel::small(1);
    let loaded = load(&model.write_gguf(&directory.path().join("tiny.gguf")), Precision::Half);
    let mut stream = loaded.tokenizer.stream();
    let mut text = String::new();
    for id in [0xE2, 0x41, 0xFF, 0x42] {
        text += &stream.push(id).unwrap();
    }
    text += &stream.finish().unwrap();
    assert_eq!(text, "\u{FFFD}A\u{FFFD}B");
}

/// The message of a refused file: one line that names the file.
fn refusal(path: &Path) -> (String, ModelError) {
    let error = Loaded::load(Some(path), Precision::Half, RopeScaling::Auto).err().expect("refused");
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message}");
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(message.contains(name), "{message}");
    (message, error)
}

#[test]
fn bad_gguf_files_are_named_with_the_field_or_tensor() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bad.gguf");
    let model = TinyModel::small(1);
    let weights = model.weights();

    model.write_gguf_with(&path, &weights, |m| {
        m.insert("general.architecture", Value::String("mamba".into()));
    });
    let (message, error) = refusal(&path);
    assert!(message.contains("general.architecture") && message.contains("mamba"), "{message}");
    assert!(error.is_usage());

    model.write_gguf_with(&path, &weights, |m| {
        m.remove("llama.block_count");
    });
    assert!(refusal(&path).0.contains("llama.block_count"));

    model.write_gguf_with(&path, &weights, |m| {
        m.insert("llama.attention.head_count_kv", Value::U32(3));
    });
    assert!(refusal(&path).0.contains("kv_heads"));

    model.write_gguf_with(&path, &weights, |m| {
        m.insert("tokenizer.ggml.pre", Value::String("other".into()));
    });
    assert!(refusal(&path).0.contains("tokenizer.ggml.pre"));

    let mut poisoned = weights.clone();
    poisoned.get_mut("model.layers.0.mlp.up_proj.weight").unwrap().1[model.hidden + 5] = f32::NAN;
    model.write_gguf_with(&path, &poisoned, |_| {});
    let (message, error) = refusal(&path);
    assert!(message.contains("blk.0.ffn_up.weight") && message.contains("row 1, column 5"), "{message}");
    assert!(!error.is_usage());

    let mut missing = weights.clone();
    missing.remove("model.norm.weight");
    model.write_gguf_with(&path, &missing, |_| {});
    assert!(refusal(&path).0.contains("output_norm.weight"));

    let mut reshaped = weights.clone();
    reshaped.get_mut("model.layers.0.mlp.down_proj.weight").unwrap().0.reverse();
    model.write_gguf_with(&path, &reshaped, |_| {});
    assert!(refusal(&path).0.contains("blk.0.ffn_down.weight"));

    std::fs::write(&path, b"not a model at all, but long enough").unwrap();
    assert!(refusal(&path).0.contains("not a GGUF file"));

    model.write_gguf_with(&path, &weights, |_| {});
    let mut bytes = std::fs::read(&path).unwrap();
    let name = b"blk.0.attn_q.weight";
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap() + name.len() + 4 + 16;
    bytes[at..at + 4].copy_from_slice(&77u32.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let (message, _) = refusal(&path);
    assert!(message.contains("unknown quantisation") && message.contains("77"), "{message}");
}

#[test]
fn bad_directories_are_named_with_the_field_or_tensor() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bad");
    std::fs::create_dir(&path).unwrap();
    assert!(refusal(&path).0.contains("no *.safetensors"));
    let model = TinyModel::small(1);
    model.write_directory(&path, 1);
    for (field, value) in [
        ("model_type", "gpt_neox".into()),
        ("hidden_act", "gelu".into()),
        ("attention_bias", true.into()),
        ("rope_scaling", serde_json::json!({ "rope_type": "llama3", "factor": 8.0 })),
        ("num_hidden_layers", "two".into()),
        ("hidden_size", serde_json::Value::Null),
    ] {
        let mut config = model.config();
        config[field] = value;
        std::fs::write(path.join("config.json"), config.to_string()).unwrap();
        let message =
            Loaded::load(Some(&path), Precision::Half, RopeScaling::Auto).err().unwrap().to_string();
        assert!(message.contains("config.json") && message.contains(field), "{message}");
    }
    std::fs::write(path.join("config.json"), model.config().to_string()).unwrap();
    let mut weights = model.weights();
    weights.get_mut("model.embed_tokens.weight").unwrap().1[3] = f32::INFINITY;
    model.write_weights(&path, &weights, 1);
    let message = Loaded::load(Some(&path), Precision::Half, RopeScaling::Auto).err().unwrap().to_string();
    assert!(message.contains("model.embed_tokens.weight") && message.contains("inf"), "{message}");
    std::fs::remove_file(path.join("tokenizer.json")).unwrap();
    let message = Loaded::load(Some(&path), Precision::Half, RopeScaling::Auto).err().unwrap().to_string();
    assert!(message.contains("tokenizer.json"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A file cut at any length is refused in one line, without a panic.
    #[test]
    fn a_file_cut_short_is_refused(share in 0.0f64..0.9999, format in 0usize..2) {
        let directory = tempfile::tempdir().unwrap();
        let model = TinyModel::small(1);
        let path = match format {
            0 => model.write_gguf(&directory.path().join("cut.gguf")),
            _ => model.write_directory(directory.path(), 1),
        };
        let file = if format == 0 { path.clone() } else { path.join("model.safetensors") };
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..(bytes.len() as f64 * share) as usize]).unwrap();
        let error = Loaded::load(Some(&path), Precision::Half, RopeScaling::Auto).err().expect("refused");
        let message = error.to_string();
        prop_assert!(!message.contains('\n') && message.contains(file.file_name().unwrap().to_str().unwrap()), "{}", message);
    }
}

/// Runs the binary with nothing of this machine's caches or programs; exit code and stderr.
fn recollect(arguments: &[&str], cache: &Path) -> (i32, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_recollect"));
    command.args(arguments).env("RECOLLECT_CACHE", cache).env("PATH", cache).env("RECOLLECT_LOG", "off");
    let output = command.output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn the_default_model_is_refused_when_damaged_and_its_absence_explained() {
    let cache = tempfile::tempdir().unwrap();
    let text = cache.path().join("text");
    std::fs::write(&text, "a").unwrap();
    let out = cache.path().join("out");
    let (text, out) = (text.to_str().unwrap(), out.to_str().unwrap());
    let verb =
        ["capture", "--text", text, "--layers", "0", "--kv-heads", "0", "--context", "4096", "--out", out];
    let (code, message) = recollect(&verb, cache.path());
    assert_eq!((code, message.lines().count()), (69, 1), "{message}");
    assert!(message.starts_with("error: default model: python3 cannot be started"), "{message}");
    std::fs::write(cache.path().join("SmolLM2-135M-Instruct.Q4_1.gguf"), "damaged").unwrap();
    let (code, message) = recollect(&verb, cache.path());
    assert_eq!((code, message.lines().count()), (69, 1), "{message}");
    assert!(message.contains("BLAKE3"), "{message}");
}

#[test]
fn captures_hold_the_rows_of_the_chosen_heads() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_string();
    let model = TinyModel::small(2);
    model.write_gguf(Path::new(&at("tiny.gguf")));
    std::fs::write(at("text"), "Some text, long enough. ".repeat(20)).unwrap();
    let (gguf, text, out) = (at("tiny.gguf"), at("text"), at("out"));
    let run = |layers: &str, context: &str| {
        let sizes = ["--context", context, "--sink", "8", "--window", "16", "--eval", "40"];
        let files = ["--model", &gguf, "--text", &text, "--out", &out];
        let verb = ["capture", "--layers", layers, "--kv-heads", "1,0"];
        recollect(&[&verb[..], &files[..], &sizes[..]].concat(), directory.path())
    };
    assert_eq!(run("0,1", "300"), (0, String::new()));
    let (code, message) = run("2", "300");
    assert!(code == 64 && message.contains("--layers 2"), "{code} {message}");
    let (code, message) = run("0", "3000");
    assert!(code == 64 && message.contains("has 480 tokens"), "{code} {message}");
    let (code, message) = run("0", "64");
    assert!(code == 64 && message.contains("--context 64"), "{code} {message}");

    let loaded = load(Path::new(&gguf), Precision::Half);
    let ids = loaded.tokenizer.encode_plain(&std::fs::read_to_string(&text).unwrap()).unwrap();
    let block = loaded.llama.qkv(0, &loaded.llama.embed(&ids[..300]).unwrap(), 0).unwrap();
    let bytes = std::fs::read(directory.path().join("out/tiny-l00-h1-300.safetensors")).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = header.metadata().clone().unwrap();
    assert_eq!((metadata["eval_from"].as_str(), metadata["scale"].as_str()), ("260", "0.25"));
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let halves = |name: &str| -> Vec<f16> {
        let data = file.tensor(name).unwrap().data().to_vec();
        data.chunks(2).map(|b| f16::from_le_bytes([b[0], b[1]])).collect()
    };
    assert_eq!(file.tensor("k").unwrap().shape(), [300, 1, 16]);
    assert_eq!(file.tensor("q").unwrap().shape(), [65 + 40, 2, 16]);
    assert_eq!(halves("k")[16 * 7..16 * 8], block.k[32 * 7 + 16..32 * 8]);
    let last: Vec<f16> = block.q[299 * 64 + 32..].iter().map(|&x| f16::from_f32(x)).collect();
    assert_eq!(halves("q")[104 * 32..], last);
}
