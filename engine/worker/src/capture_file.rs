//! The capture file: keys, values and queries of one layer of a real run, as safetensors.
//!
//! `k`, `v` are F16 [tokens, kv_heads, dim], `q` F16 [m, q_heads, dim], `q_pos` I32 [m], ascending; keys and queries are
//! after RoPE. Metadata strings: `model layer scale rope_theta sink window eval_from text`.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use attention::Description;
use half::f16;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::cli::{input, usage};

/// A capture in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Capture {
    /// [tokens, kv_heads, dim].
    pub k: Vec<f16>,
    /// [tokens, kv_heads, value_dim].
    pub v: Vec<f16>,
    /// [m, q_heads, dim].
    pub q: Vec<f16>,
    /// The position of each sampled query, ascending: [m].
    pub q_pos: Vec<u32>,
    /// Tokens.
    pub tokens: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Query heads, a multiple of `kv_heads`.
    pub q_heads: usize,
    /// Elements of a key.
    pub dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Where it comes from and how it is to be read.
    pub meta: CaptureMeta,
}

/// The metadata of a capture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CaptureMeta {
    /// The model.
    pub model: String,
    /// The layer.
    pub layer: String,
    /// Multiplies q . k.
    pub scale: f32,
    /// RoPE base.
    pub rope_theta: f64,
    /// Tokens at the start that the worker holds.
    pub sink: usize,
    /// Tokens at the end that the worker holds.
    pub window: usize,
    /// Queries from this position on are decode queries, for evaluation only.
    pub eval_from: usize,
    /// What was read.
    pub text: String,
}

impl Capture {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// A usage error that names the file and what is wrong with it.
    pub fn read(path: &Path) -> Result<Capture> {
        let bytes = std::fs::read(path).map_err(|error| input::refused("--capture", path, &error))?;
        parse(&bytes).map_err(|error| usage(format!("--capture {}: {error:#}", path.display())))
    }

    /// Writes a file.
    pub fn write(&self, path: &Path) -> Result<()> {
        let kv = |dim| vec![self.tokens, self.kv_heads, dim];
        let (k, v, q) = (bytes_of(&self.k), bytes_of(&self.v), bytes_of(&self.q));
        let q_pos: Vec<u8> = self.q_pos.iter().flat_map(|&p| (p as i32).to_le_bytes()).collect();
        let m = self.q_pos.len();
        let tensors = [
            ("k", TensorView::new(Dtype::F16, kv(self.dim), &k)?),
            ("v", TensorView::new(Dtype::F16, kv(self.value_dim), &v)?),
            ("q", TensorView::new(Dtype::F16, vec![m, self.q_heads, self.dim], &q)?),
            ("q_pos", TensorView::new(Dtype::I32, vec![m], &q_pos)?),
        ];
        let meta = &self.meta;
        let metadata: HashMap<String, String> = [
            ("model", meta.model.clone()),
            ("layer", meta.layer.clone()),
            ("scale", meta.scale.to_string()),
            ("rope_theta", meta.rope_theta.to_string()),
            ("sink", meta.sink.to_string()),
            ("window", meta.window.to_string()),
            ("eval_from", meta.eval_from.to_string()),
            ("text", meta.text.clone()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        let data = safetensors::serialize(tensors, Some(metadata))?;
        std::fs::write(path, data).with_context(|| format!("writing capture {}", path.display()))
    }

    /// Query heads per KV head.
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }

    /// The tokens that an index covers.
    pub fn indexed(&self) -> std::ops::Range<usize> {
        self.meta.sink..self.meta.eval_from - self.meta.window
    }

    /// The queries for evaluation: those at or after `eval_from`. The ones before them may build and calibrate.
    pub fn decode_queries(&self) -> std::ops::Range<usize> {
        self.q_pos.partition_point(|&p| (p as usize) < self.meta.eval_from)..self.q_pos.len()
    }

    /// The capture as it would have been at a context of `tokens`: later tokens and queries are dropped, and the decode
    /// queries are those of as many last positions as in the whole capture.
    pub fn limited(mut self, tokens: usize) -> Result<Capture> {
        if tokens >= self.tokens {
            return Ok(self);
        }
        let evaluated = self.tokens - self.meta.eval_from;
        let least = self.meta.sink + self.meta.window + evaluated;
        ensure!(
            tokens > least,
            "a limit of {tokens} tokens leaves nothing to index (over {least} are needed)"
        );
        self.k.truncate(tokens * self.kv_heads * self.dim);
        self.v.truncate(tokens * self.kv_heads * self.value_dim);
        let m = self.q_pos.partition_point(|&p| (p as usize) < tokens);
        self.q_pos.truncate(m);
        self.q.truncate(m * self.q_heads * self.dim);
        (self.tokens, self.meta.eval_from) = (tokens, tokens - evaluated);
        Ok(self)
    }

    /// One KV head of `k`: [tokens, dim].
    pub fn keys(&self, kv_head: usize) -> Vec<f16> {
        head_of(&self.k, self.kv_heads, kv_head, self.dim)
    }

    /// One KV head of `v`: [tokens, value_dim].
    pub fn values(&self, kv_head: usize) -> Vec<f16> {
        head_of(&self.v, self.kv_heads, kv_head, self.value_dim)
    }

    /// The query heads of a KV head: [m, group, dim].
    pub fn queries(&self, kv_head: usize) -> Vec<f16> {
        head_of(&self.q, self.kv_heads, kv_head, self.group() * self.dim)
    }
}

fn head_of(data: &[f16], heads: usize, head: usize, width: usize) -> Vec<f16> {
    data.chunks(heads * width).flat_map(|row| &row[head * width..(head + 1) * width]).copied().collect()
}

fn bytes_of(data: &[f16]) -> Vec<u8> {
    data.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn parse(bytes: &[u8]) -> Result<Capture> {
    let wanted = "is no capture; a safetensors file as `recollect capture` writes it is wanted";
    let (_, header) = SafeTensors::read_metadata(bytes).context(wanted)?;
    let file = SafeTensors::deserialize(bytes).context(wanted)?;
    let none = HashMap::new();
    let meta = parse_meta(header.metadata().as_ref().unwrap_or(&none))?;
    let (k, k_shape) = f16_tensor(&file, "k")?;
    let (v, v_shape) = f16_tensor(&file, "v")?;
    let (q, q_shape) = f16_tensor(&file, "q")?;
    let q_pos = positions(&file)?;
    let [tokens, kv_heads, dim] = k_shape;
    ensure!(tokens > 0 && kv_heads > 0 && dim > 0, "k is empty: {k_shape:?}");
    ensure!(v_shape[..2] == k_shape[..2] && v_shape[2] > 0, "v is {v_shape:?}, k {k_shape:?}");
    let [m, q_heads, q_dim] = q_shape;
    ensure!(m == q_pos.len(), "q has {m} rows, q_pos {}", q_pos.len());
    ensure!(q_dim == dim, "q has dim {q_dim}, k {dim}");
    ensure!(q_heads > 0 && q_heads % kv_heads == 0, "{q_heads} query heads over {kv_heads} KV heads");
    ensure!(q_pos.is_sorted(), "q_pos is not ascending");
    let last = q_pos.last().copied().unwrap_or(0) as usize;
    ensure!(last < tokens, "q_pos reaches {last} of {tokens} tokens");
    let CaptureMeta { sink, window, eval_from, .. } = meta;
    ensure!(
        sink.checked_add(window).is_some_and(|held| held < eval_from) && eval_from <= tokens,
        "sink {sink}, window {window} and eval_from {eval_from} do not fit {tokens} tokens"
    );
    Ok(Capture { k, v, q, q_pos, tokens, kv_heads, q_heads, dim, value_dim: v_shape[2], meta })
}

fn parse_meta(metadata: &HashMap<String, String>) -> Result<CaptureMeta> {
    fn get<'a>(metadata: &'a HashMap<String, String>, name: &str) -> Result<&'a str> {
        metadata.get(name).map(String::as_str).with_context(|| format!("metadata lacks '{name}'"))
    }
    fn number<T: std::str::FromStr>(metadata: &HashMap<String, String>, name: &str) -> Result<T> {
        let text = get(metadata, name)?;
        text.parse().ok().with_context(|| format!("metadata '{name}' is '{text}', not a number"))
    }
    let scale: f32 = number(metadata, "scale")?;
    let most = Description::MAX_SCALE;
    ensure!(
        Description::is_scale(scale),
        "metadata 'scale' is {scale}: above 0 and at most {most:e} is possible"
    );
    Ok(CaptureMeta {
        model: get(metadata, "model")?.to_owned(),
        layer: get(metadata, "layer")?.to_owned(),
        scale,
        rope_theta: number(metadata, "rope_theta")?,
        sink: number(metadata, "sink")?,
        window: number(metadata, "window")?,
        eval_from: number(metadata, "eval_from")?,
        text: get(metadata, "text")?.to_owned(),
    })
}

fn f16_tensor(file: &SafeTensors<'_>, name: &str) -> Result<(Vec<f16>, [usize; 3])> {
    let tensor = file.tensor(name).with_context(|| format!("tensor '{name}'"))?;
    ensure!(tensor.dtype() == Dtype::F16, "'{name}' is {:?}, not F16", tensor.dtype());
    let Ok(shape) = <[usize; 3]>::try_from(tensor.shape()) else {
        bail!("'{name}' has shape {:?}, not three dimensions", tensor.shape())
    };
    let data: Vec<f16> = tensor.data().chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]])).collect();
    if let Some(at) = data.iter().position(|x| !x.is_finite()) {
        let width = (shape[1] * shape[2]).max(1);
        bail!("'{name}' holds {} at row {}, element {}", data[at], at / width, at % width);
    }
    Ok((data, shape))
}

fn positions(file: &SafeTensors<'_>) -> Result<Vec<u32>> {
    let tensor = file.tensor("q_pos").context("tensor 'q_pos'")?;
    ensure!(tensor.dtype() == Dtype::I32, "'q_pos' is {:?}, not I32", tensor.dtype());
    ensure!(tensor.shape().len() == 1, "'q_pos' has shape {:?}, not one dimension", tensor.shape());
    let read = |b: &[u8]| i32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    tensor
        .data()
        .chunks_exact(4)
        .map(|b| u32::try_from(read(b)).with_context(|| format!("q_pos holds {}", read(b))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Capture {
        let f = |n: usize| (0..n).map(|i| f16::from_f32((i % 37) as f32 / 8.0)).collect::<Vec<_>>();
        let meta = CaptureMeta {
            model: "m".into(),
            layer: "3".into(),
            scale: 0.25,
            rope_theta: 1e4,
            sink: 1,
            window: 2,
            eval_from: 8,
            text: "t".into(),
        };
        Capture {
            k: f(10 * 2 * 4),
            v: f(10 * 2 * 6),
            q: f(5 * 4 * 4),
            q_pos: vec![1, 3, 5, 8, 9],
            tokens: 10,
            kv_heads: 2,
            q_heads: 4,
            dim: 4,
            value_dim: 6,
            meta,
        }
    }

    #[test]
    fn round_trip_and_limit() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("c.safetensors");
        let capture = small();
        capture.write(&path)?;
        assert_eq!(Capture::read(&path)?, capture);
        assert_eq!(capture.indexed(), 1..6);
        let limited = capture.clone().limited(8)?;
        assert_eq!((limited.tokens, limited.meta.eval_from, limited.q_pos.len()), (8, 6, 3));
        assert_eq!(limited.keys(1).len(), 8 * 4);
        assert!(capture.limited(5).is_err());
        Ok(())
    }

    #[test]
    fn refuses_what_is_wrong_by_name() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("c.safetensors");
        let refused = |capture: &Capture| -> Result<String> {
            capture.write(&path)?;
            let error = Capture::read(&path).err().context("was accepted")?;
            Ok(format!("{error:#}"))
        };
        let mut nan = small();
        nan.v[13] = f16::NAN;
        assert!(refused(&nan)?.contains("'v' holds NaN at row 1, element 1"));
        let mut late = small();
        late.q_pos[4] = 10;
        assert!(refused(&late)?.contains("q_pos reaches 10"));
        let mut held = small();
        held.meta.window = 7;
        assert!(refused(&held)?.contains("window 7"));
        std::fs::write(&path, b"not a capture")?;
        let line = Capture::read(&path).unwrap_err().to_string();
        assert!(
            line.starts_with("--capture ") && line.contains("safetensors file") && !line.contains('\n'),
            "{line}"
        );
        Ok(())
    }
}
