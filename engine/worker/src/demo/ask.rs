//! Questions put to a prefilled document by greedy decoding.

use candle_core::Tensor;

use crate::compare::argmax;
use crate::model::Loaded;

/// Something that holds a document and can be asked: shards with a worker's window, or a baseline.
pub trait Asker {
    /// Decodes `ids` after what is there; logits `[n, vocab]`.
    fn extend(&mut self, ids: &[u32]) -> anyhow::Result<Tensor>;
    /// Back to the end of the document.
    fn rewind(&mut self) -> anyhow::Result<()>;
}

/// An answer, and the logits at every token of the question.
pub struct Reply {
    /// The answer's text.
    pub text: String,
    /// `[question tokens, vocab]`
    pub question_logits: Vec<f32>,
}

/// Asks one question: the question's tokens are given, up to `max_new` tokens are answered; `show` sees them come.
pub fn ask(
    loaded: &Loaded,
    asker: &mut dyn Asker,
    question: &[u32],
    max_new: usize,
    mut show: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<Reply> {
    let logits = asker.extend(question)?;
    let question_logits: Vec<f32> = logits.flatten_all()?.to_vec1()?;
    let vocab = question_logits.len() / question.len();
    let mut token = argmax(&question_logits[question_logits.len() - vocab..]);
    let mut stream = loaded.tokenizer.stream();
    let mut text = String::new();
    for i in 0..max_new {
        if loaded.tokenizer.is_end(token) {
            break;
        }
        let piece = stream.push(token)?;
        show(piece.trim_end_matches('\n'))?;
        text.push_str(&piece);
        if text.contains('\n') || i + 1 == max_new {
            break;
        }
        token = argmax(&asker.extend(&[token])?.flatten_all()?.to_vec1::<f32>()?);
    }
    asker.rewind()?;
    Ok(Reply { text, question_logits })
}
