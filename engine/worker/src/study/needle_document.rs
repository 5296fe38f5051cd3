//! A document of filler with facts at one depth, no longer than asked.

use std::ops::Range;

use crate::cli::usage;
use crate::demo::{Fact, Filler};

/// A document, and where its facts are.
pub struct NeedleDocument {
    /// Token ids.
    pub ids: Vec<u32>,
    /// The positions of the facts, one after the other.
    pub needle: Range<usize>,
}

/// Filler with `facts` in a row, at most `tokens` long. At `depth` 0 they follow the opening, at 1 they end the document;
/// between, the share of the other tokens that stand before them is `depth`, less what is left of a paragraph.
///
/// # Errors
/// A usage error when the facts alone do not fit.
pub fn build(
    facts: &[Fact],
    tokens: usize,
    depth: f64,
    seed: u64,
    encode: impl Fn(&str) -> anyhow::Result<Vec<u32>>,
) -> anyhow::Result<NeedleDocument> {
    let mut ids = encode("The logbook of the harbour, as the clerk kept it.\n\n")?;
    let mut needle = Vec::new();
    for fact in facts {
        needle.extend(encode(&format!("Remember this: {}\n\n", fact.sentence))?);
    }
    let Some(others) = tokens.checked_sub(needle.len()).filter(|&others| others >= ids.len()) else {
        let least = ids.len() + needle.len();
        return Err(usage(format!(
            "{tokens} tokens of document: {least} are needed for {} facts",
            facts.len()
        )));
    };
    let mut filler = Filler::new(seed);
    let mut paragraphs = || encode(&format!("{}\n\n", filler.paragraph()));
    let begin = (depth * others as f64) as usize;
    let mut next = paragraphs()?;
    while ids.len() + next.len() <= begin {
        ids.append(&mut next);
        next = paragraphs()?;
    }
    let at = ids.len();
    ids.append(&mut needle);
    let needle = at..ids.len();
    while ids.len() + next.len() <= tokens {
        ids.append(&mut next);
        next = paragraphs()?;
    }
    Ok(NeedleDocument { ids, needle })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::facts;

    /// One id per byte.
    fn bytes(text: &str) -> anyhow::Result<Vec<u32>> {
        Ok(text.bytes().map(u32::from).collect())
    }

    #[test]
    fn the_facts_are_at_their_depth_and_the_document_is_not_too_long() {
        let facts = facts(3, 1);
        let paragraph = 400;
        for depth in [0.0, 0.3, 0.5, 1.0] {
            let document = build(&facts, 6000, depth, 1, bytes).unwrap();
            assert!((6000 - paragraph..=6000).contains(&document.ids.len()), "{}", document.ids.len());
            let text: String = document.ids.iter().map(|&id| id as u8 as char).collect();
            for fact in &facts {
                let at = text.find(&fact.sentence).unwrap();
                assert!(document.needle.contains(&at) && text.matches(&fact.sentence).count() == 1);
            }
            let wanted = depth * (6000 - document.needle.len()) as f64;
            let off = wanted - document.needle.start as f64;
            assert!((-100.0..=paragraph as f64).contains(&off), "depth {depth}: {off} before");
        }
        assert!(build(&facts, 60, 0.0, 1, bytes).err().unwrap().to_string().contains("3 facts"));
    }
}
