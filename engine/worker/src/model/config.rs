//! The geometry of a Llama-family model, whatever file it came from.

use std::path::Path;

use super::error::ModelError;

/// Which pairs of a head's components RoPE turns together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Components `2i` and `2i + 1`: GGUF files of Llama models, whose q and k rows are permuted for it.
    Interleaved,
    /// Components `i` and `i + dim / 2`: safetensors checkpoints.
    HalfSplit,
}

/// All that the arithmetic needs to know about a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Name for people, from the file or its path.
    pub name: String,
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward part.
    pub intermediate: usize,
    /// Query heads.
    pub q_heads: usize,
    /// Key and value heads; divides `q_heads`.
    pub kv_heads: usize,
    /// Components of a key, a value and a query; even.
    pub head_dim: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Epsilon of RMSNorm.
    pub rms_eps: f32,
    /// RoPE base as trained.
    pub rope_base: f64,
    /// Tokens of context the model was trained for.
    pub max_context: usize,
    /// The output head is the embedding matrix.
    pub tied_head: bool,
    /// Pairing of RoPE.
    pub rope_layout: RopeLayout,
    /// Token that opens a sequence when the tokenizer adds one.
    pub bos: Option<u32>,
    /// Tokens that end an answer.
    pub eos: Vec<u32>,
}

impl ModelConfig {
    /// Query heads that share a KV head.
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }

    /// Width of all query heads together.
    pub fn q_width(&self) -> usize {
        self.q_heads * self.head_dim
    }

    /// Width of all key heads (or value heads) together.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Factor on `q . k` before softmax: `1 / sqrt(head_dim)`.
    pub fn scale(&self) -> f32 {
        (1.0 / (self.head_dim as f64).sqrt()) as f32
    }

    /// Bytes of K and V in f16 that one token takes over all layers.
    pub fn kv_bytes_per_token(&self) -> usize {
        self.layers * self.kv_width() * 2 * 2
    }

    /// Checks every field; the error names the field and `path`.
    ///
    /// # Errors
    /// [`ModelError::Field`] for the first field that makes no sense.
    pub fn validate(&self, path: &Path) -> Result<(), ModelError> {
        let bad = |field: &str, reason: String| Err(ModelError::field(path, field, reason));
        for (field, value, limit) in [
            ("layers", self.layers, 4_096),
            ("hidden", self.hidden, 1 << 20),
            ("intermediate", self.intermediate, 1 << 22),
            ("q_heads", self.q_heads, 1 << 12),
            ("kv_heads", self.kv_heads, 1 << 12),
            ("head_dim", self.head_dim, 1 << 12),
            ("vocab", self.vocab, 1 << 24),
            ("max_context", self.max_context, 1 << 40),
        ] {
            if value == 0 || value > limit {
                return bad(field, format!("{value} is not between 1 and {limit}"));
            }
        }
        if !self.q_heads.is_multiple_of(self.kv_heads) {
            let (q, kv) = (self.q_heads, self.kv_heads);
            return bad("kv_heads", format!("{kv} does not divide {q} query heads"));
        }
        if !self.head_dim.is_multiple_of(2) {
            return bad("head_dim", format!("{} is odd", self.head_dim));
        }
        if !(self.rms_eps > 0.0 && self.rms_eps < 1.0) {
            return bad("rms_eps", format!("{} is not in (0, 1)", self.rms_eps));
        }
        if !(self.rope_base > 1.0 && self.rope_base.is_finite()) {
            return bad("rope_base", format!("{} is not above 1", self.rope_base));
        }
        for id in self.bos.iter().chain(&self.eos) {
            if *id as usize >= self.vocab {
                let vocab = self.vocab;
                return bad("bos/eos", format!("{id} is outside the vocabulary of {vocab}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> ModelConfig {
        ModelConfig {
            name: "t".into(),
            layers: 2,
            hidden: 64,
            intermediate: 128,
            q_heads: 28,
            kv_heads: 4,
            head_dim: 128,
            vocab: 300,
            rms_eps: 1e-5,
            rope_base: 1e4,
            max_context: 512,
            tied_head: true,
            rope_layout: RopeLayout::HalfSplit,
            bos: Some(1),
            eos: vec![2],
        }
    }

    #[test]
    fn widths_follow_the_heads() {
        let config = valid();
        config.validate(Path::new("c")).unwrap();
        assert_eq!((config.group(), config.q_width(), config.kv_width()), (7, 3584, 512));
        assert_eq!(config.kv_bytes_per_token(), 2 * 512 * 4);
    }

    #[test]
    fn each_bad_field_is_named() {
        type Break = fn(&mut ModelConfig);
        let cases: [(&str, Break); 8] = [
            ("layers", |c| c.layers = 0),
            ("hidden", |c| c.hidden = usize::MAX),
            ("kv_heads", |c| c.kv_heads = 3),
            ("head_dim", |c| c.head_dim = 7),
            ("rms_eps", |c| c.rms_eps = f32::NAN),
            ("rope_base", |c| c.rope_base = f64::INFINITY),
            ("bos/eos", |c| c.eos = vec![300]),
            ("max_context", |c| c.max_context = 0),
        ];
        for (field, breaks) in cases {
            let mut config = valid();
            breaks(&mut config);
            let message = config.validate(Path::new("c.json")).unwrap_err().to_string();
            assert!(message.starts_with(&format!("c.json: {field}: ")), "{message}");
        }
    }
}
