//! The demo: a document of the project's own making with hidden facts, asked over shards and over two baselines.

mod ask;
mod askers;
mod document;

pub use ask::{Asker, Reply, ask};
pub use askers::{InProcess, OverShards};
pub use document::{Fact, Filler, facts};

use crate::cli::usage;

/// Refuses a context without room for hidden facts between sink and window.
pub fn check_context(tokens: usize, (sink, window): (usize, usize)) -> anyhow::Result<()> {
    let local = sink.saturating_add(window).saturating_add(512);
    match tokens > local {
        true => Ok(()),
        false => Err(usage(format!(
            "--context {tokens}: leaves no room for hidden facts; more than sink + window + 512 = {local} are needed"
        ))),
    }
}

/// The document as token ids: an opening, then filler with the facts spread evenly over the part that only the shards
/// hold, `tokens` long at least.
///
/// `sink` and `window` are the worker's: no fact lies in either.
///
/// # Errors
/// A usage error when `tokens` leaves no room for the facts.
pub fn build_document(
    facts: &[Fact],
    (sink, window): (usize, usize),
    tokens: usize,
    seed: u64,
    encode: impl Fn(&str) -> anyhow::Result<Vec<u32>>,
) -> anyhow::Result<Vec<u32>> {
    check_context(tokens, (sink, window))?;
    let mut filler = Filler::new(seed);
    let mut ids = encode("The logbook of the harbour, as the clerk kept it.\n\n")?;
    // The questions follow the document, so the last fact stays well clear of the window.
    let (from, to) = (sink + 64, tokens - window - 128);
    let step = (to - from) / facts.len().max(1);
    let mut left = facts.iter();
    let mut next = left.next();
    while ids.len() < tokens {
        let placed = facts.len() - left.len();
        if let Some(fact) = next
            && ids.len() >= from + (placed - 1) * step
        {
            ids.extend(encode(&format!("Remember this: {}\n\n", fact.sentence))?);
            next = left.next();
        }
        ids.extend(encode(&format!("{}\n\n", filler.paragraph()))?);
    }
    match next {
        None => Ok(ids),
        Some(_) => Err(usage(format!("--context {tokens}: too few tokens for {} facts", facts.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One id per byte.
    fn bytes(text: &str) -> anyhow::Result<Vec<u32>> {
        Ok(text.bytes().map(u32::from).collect())
    }

    #[test]
    fn every_fact_lies_between_sink_and_window() {
        let facts = facts(8, 3);
        let ids = build_document(&facts, (128, 512), 6000, 3, bytes).unwrap();
        assert!(ids.len() >= 6000);
        let text: String = ids.iter().map(|&id| id as u8 as char).collect();
        for fact in &facts {
            let at = text.find(&fact.sentence).unwrap();
            assert!(at >= 128 && at + fact.sentence.len() <= ids.len() - 512, "{} at {at}", fact.sentence);
            assert!(!fact.question.contains(&fact.answer));
        }
    }

    #[test]
    fn too_short_a_context_is_refused() {
        assert!(build_document(&facts(8, 3), (128, 512), 700, 3, bytes).is_err());
        for tokens in [0, 1152] {
            let line = check_context(tokens, (128, 512)).unwrap_err().to_string();
            assert!(line.starts_with(&format!("--context {tokens}: ")) && line.contains("= 1152 "), "{line}");
        }
        assert!(check_context(1153, (128, 512)).is_ok());
    }
}
