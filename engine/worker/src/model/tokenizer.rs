//! Text to token ids and back: from GGUF metadata or `tokenizer.json`, with chat turns and a UTF-8-safe stream.

use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::Value;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{AddedToken, Tokenizer};

use super::error::ModelError;
use super::gguf::Metadata;

/// Ids that a partly decoded character may span before it is shown as it is.
const MAX_PENDING: usize = 8;

/// A tokenizer with the turns of its model's chat format.
pub struct TextCodec {
    path: PathBuf,
    /// Reads `<|im_start|>` and the like as the special tokens they spell.
    markup: Tokenizer,
    /// Reads them as plain text: for what users and documents say.
    plain: Tokenizer,
    chat: Option<ChatMl>,
    bos: Option<u32>,
    ends: Vec<u32>,
}

/// The ChatML format: `<|im_start|>role\ntext<|im_end|>\n`.
struct ChatMl {
    start: u32,
    end: u32,
    default_system: Option<String>,
}

impl TextCodec {
    /// From the `tokenizer.ggml.*` metadata of a GGUF file.
    pub(crate) fn from_gguf(meta: &Metadata<'_>, eos: &[u32]) -> Result<Self, ModelError> {
        let tokenizer = gguf_tokenizer(meta)?;
        let template = meta.string("tokenizer.chat_template").ok();
        let bos = match meta.flag("tokenizer.ggml.add_bos_token")? {
            true => meta.optional_count("tokenizer.ggml.bos_token_id")?.map(|id| id as u32),
            false => None,
        };
        Ok(Self { bos, ..Self::new(meta.path, tokenizer, template, eos) })
    }

    /// From `tokenizer.json` in `directory`, with the chat template of `tokenizer_config.json` when there is one.
    pub(crate) fn from_directory(directory: &Path, eos: &[u32]) -> Result<Self, ModelError> {
        let path = directory.join("tokenizer.json");
        let bytes = std::fs::read(&path).map_err(ModelError::io(&path))?;
        let tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| ModelError::tokenizer(&path, error))?;
        let template = std::fs::read(directory.join("tokenizer_config.json"))
            .ok()
            .and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok())
            .and_then(|json| Some(json.get("chat_template")?.as_str()?.to_string()));
        Ok(Self::new(&path, tokenizer, template.as_deref(), eos))
    }

    fn new(path: &Path, markup: Tokenizer, template: Option<&str>, eos: &[u32]) -> Self {
        let mut plain = markup.clone();
        plain.set_encode_special_tokens(true);
        let chat = match (markup.token_to_id("<|im_start|>"), markup.token_to_id("<|im_end|>")) {
            (Some(start), Some(end)) => {
                let default_system = template.and_then(default_system).map(str::to_string);
                Some(ChatMl { start, end, default_system })
            }
            _ => None,
        };
        let mut ends = eos.to_vec();
        ends.extend(markup.token_to_id("<|endoftext|>"));
        Self { path: path.to_path_buf(), markup, plain, chat, bos: None, ends }
    }

    /// Ids of `text`; special tokens spelled in it become those tokens.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] when the tokenizer refuses the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let mut ids: Vec<u32> = self.bos.into_iter().collect();
        let encoding = self.markup.encode_fast(text, true);
        ids.extend(encoding.map_err(|error| ModelError::tokenizer(&self.path, error))?.get_ids());
        Ok(ids)
    }

    /// Ids of `text` taken literally: a document that spells a special token cannot forge one.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] when the tokenizer refuses the text.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let encoding = self.plain.encode_fast(text, false);
        Ok(encoding.map_err(|error| ModelError::tokenizer(&self.path, error))?.get_ids().to_vec())
    }

    /// Ids of one user turn under the model's own system message; see [`Self::encode_chat_with`].
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] when the tokenizer refuses the text.
    pub fn encode_chat(&self, user: &str) -> Result<Vec<u32>, ModelError> {
        self.encode_chat_with(user, None)
    }

    /// Ids of one user turn that the assistant is to answer, in the model's chat format; a model without one gets the
    /// plain text. `system` replaces the model's own system message.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] when the tokenizer refuses the text.
    pub fn encode_chat_with(&self, user: &str, system: Option<&str>) -> Result<Vec<u32>, ModelError> {
        let Some(chat) = &self.chat else {
            return self.encode(user);
        };
        let mut ids: Vec<u32> = self.bos.into_iter().collect();
        let system = system.or(chat.default_system.as_deref());
        for (role, text) in system.map(|text| ("system", text)).into_iter().chain([("user", user)]) {
            ids.push(chat.start);
            ids.extend(self.encode_plain(&format!("{role}\n{text}"))?);
            ids.push(chat.end);
            ids.extend(self.encode_plain("\n")?);
        }
        ids.push(chat.start);
        ids.extend(self.encode_plain("assistant\n")?);
        Ok(ids)
    }

    /// Whether [`Self::encode_chat`] wraps text in turns.
    pub fn has_chat(&self) -> bool {
        self.chat.is_some()
    }

    /// Whether a token ends an answer.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// Text of `ids`; special tokens are left out.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] when the decoder refuses the ids.
    pub fn decode(&self, ids: &[u32]) -> Result<String, ModelError> {
        self.markup.decode(ids, true).map_err(|error| ModelError::tokenizer(&self.path, error))
    }

    /// A stream that turns ids into text one by one.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { codec: self, ids: Vec::new(), shown: String::new() }
    }
}

/// Decodes ids as they come and never cuts a UTF-8 character.
pub struct TextStream<'a> {
    codec: &'a TextCodec,
    /// Context for decoders that look at the neighbours, then what is not shown yet.
    ids: Vec<u32>,
    /// Text of the context, already handed out.
    shown: String,
}

impl TextStream<'_> {
    /// Adds one id; returns the text that became certain, possibly empty.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] when the decoder refuses the id.
    pub fn push(&mut self, id: u32) -> Result<String, ModelError> {
        self.ids.push(id);
        let text = self.codec.decode(&self.ids)?;
        if text.ends_with('\u{FFFD}') && self.ids.len() < MAX_PENDING {
            return Ok(String::new());
        }
        let fresh = text.strip_prefix(&self.shown).unwrap_or(&text).to_string();
        if !fresh.is_empty() {
            self.ids = vec![id];
            self.shown = self.codec.decode(&self.ids)?;
        }
        Ok(fresh)
    }

    /// What is still pending, incomplete characters as U+FFFD.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] when the decoder refuses the ids.
    pub fn finish(self) -> Result<String, ModelError> {
        let text = self.codec.decode(&self.ids)?;
        Ok(text.strip_prefix(&self.shown).unwrap_or(&text).to_string())
    }
}

/// The system message that a ChatML template spells out, if it is plain text.
fn default_system(template: &str) -> Option<&str> {
    let (_, rest) = template
        .split_once("<|im_start|>system\\n")
        .or_else(|| template.split_once("<|im_start|>system\n"))?;
    let (text, _) = rest.split_once("<|im_end|>")?;
    (!text.contains(['{', '}', '\'', '+'])).then_some(text)
}

fn gguf_tokenizer(meta: &Metadata<'_>) -> Result<Tokenizer, ModelError> {
    let unsupported =
        |key: &str, value: &str| ModelError::field(meta.path, key, format!("\"{value}\" is not supported"));
    let kind = meta.string("tokenizer.ggml.model")?;
    if kind != "gpt2" {
        return Err(unsupported("tokenizer.ggml.model", kind));
    }
    let byte_level = ByteLevel::new(false, true, true);
    let pre: PreTokenizerWrapper = match meta.string("tokenizer.ggml.pre").unwrap_or("default") {
        // Every digit a token of its own, then the byte-level split.
        "smollm" => Sequence::new(vec![Digits::new(true).into(), byte_level.into()]).into(),
        "gpt-2" | "default" => byte_level.into(),
        other => return Err(unsupported("tokenizer.ggml.pre", other)),
    };
    let tokens = strings(meta, "tokenizer.ggml.tokens")?;
    let mut merges = Vec::new();
    for merge in strings(meta, "tokenizer.ggml.merges")? {
        match merge.split_once(' ') {
            Some((left, right)) => merges.push((left.to_string(), right.to_string())),
            None => {
                let reason = format!("\"{merge}\" is not a pair");
                return Err(ModelError::field(meta.path, "tokenizer.ggml.merges", reason));
            }
        }
    }
    let vocab: Vocab = (0u32..).zip(&tokens).map(|(id, token)| (token.to_string(), id)).collect();
    let broken = |error: tokenizers::Error| ModelError::tokenizer(meta.path, error);
    let bpe = BPE::builder().vocab_and_merges(vocab, merges).build().map_err(broken)?;
    let mut tokenizer = Tokenizer::new(bpe);
    tokenizer.with_pre_tokenizer(Some(pre)).with_decoder(Some(ByteLevel::new(false, true, true)));
    // Types 3 (control) and 4 (user defined) stand for themselves and are never split.
    let types = meta.array("tokenizer.ggml.token_type").unwrap_or_default();
    let specials = tokens.iter().zip(types).filter_map(|(token, kind)| match kind {
        Value::I32(3 | 4) | Value::U32(3 | 4) => Some(AddedToken::from(*token, true)),
        _ => None,
    });
    tokenizer.add_special_tokens(specials.collect::<Vec<_>>()).map_err(broken)?;
    Ok(tokenizer)
}

fn strings<'a>(meta: &Metadata<'a>, key: &str) -> Result<Vec<&'a str>, ModelError> {
    let one = |value: &'a Value| match value {
        Value::String(text) => Ok(text.as_str()),
        _ => Err(ModelError::field(meta.path, key, "holds something other than strings")),
    };
    meta.array(key)?.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_message_is_read_from_plain_templates_only() {
        let plain = "{% if x %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}";
        assert_eq!(default_system(plain), Some("Be kind."));
        assert_eq!(default_system("{{ '<|im_start|>system\n' + m + '<|im_end|>' }}"), None);
        assert_eq!(default_system("nothing"), None);
    }
}
