//! In which pieces a head is appended, so that its spans are sealed where they were and its samples see what they saw.

use std::ops::Range;

/// Consecutive tokens, after which everything below a position becomes a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// First position.
    pub begin: u64,
    /// Position after the last.
    pub end: u64,
    /// What to seal after them.
    pub seal_to: Option<u64>,
}

/// The steps of a head with spans that end at `ends`, each at least 1 and strictly ascending up to `tokens`.
///
/// A span is sealed when all but the last token of the next one are there, the last span when all tokens are: an index is
/// also built from the queries behind its span, as far as they have come, and a prefill seals when its window is there.
pub fn steps(ends: &[u64], tokens: u64) -> Vec<Step> {
    let mut begin = 0;
    let sealing = ends.iter().enumerate().map(|(i, &seal)| {
        // One token is kept back, since an append must bring some.
        let end = ends.get(i + 1).map_or(tokens, |next| next - 1);
        let step = Step { begin, end, seal_to: Some(seal) };
        begin = end;
        step
    });
    let mut steps: Vec<Step> = sealing.collect();
    if steps.is_empty() {
        steps.push(Step { begin: 0, end: tokens, seal_to: None });
    }
    steps
}

/// Tokens of one append, with the samples among them: by index, and the window that makes each see what it saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Positions.
    pub tokens: Range<u64>,
    /// Indexes of the samples.
    pub samples: Range<usize>,
    /// The window.
    pub window: u64,
}

/// Cuts `tokens`, among which samples at `pos` see what lies before `seen`, into as few pieces as one window each allows. A
/// query at p with window w sees what lies before p + 1 - w, at least 0.
pub fn pieces(tokens: Range<u64>, pos: &[u64], seen: &[u64]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut piece = Piece { tokens: tokens.clone(), samples: 0..0, window: 0 };
    // Set by a query that sees something; one that sees nothing only asks for a window of at least so much.
    let mut exact = None;
    for (i, (&p, &s)) in pos.iter().zip(seen).enumerate() {
        let (asks, sees) = (p + 1 - s, s > 0);
        let fits = match (exact, sees) {
            (None, true) => asks >= piece.window,
            (None, false) => true,
            (Some(window), true) => asks == window,
            (Some(window), false) => asks <= window,
        };
        if !fits {
            piece.tokens.end = p;
            pieces.push(piece);
            piece = Piece { tokens: p..tokens.end, samples: i..i, window: 0 };
            exact = None;
        }
        piece.samples.end = i + 1;
        piece.window = if sees { asks } else { piece.window.max(asks) };
        exact = exact.or(sees.then_some(asks));
    }
    pieces.push(piece);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_prefill_is_sealed_with_its_window_there() {
        let step = |begin, end, seal_to| Step { begin, end, seal_to };
        assert_eq!(steps(&[], 7), [step(0, 7, None)]);
        assert_eq!(steps(&[7], 7), [step(0, 7, Some(7))]);
        let sink_and_prefill = [step(0, 2487, Some(128)), step(2487, 3000, Some(2488))];
        assert_eq!(steps(&[128, 2488], 3000), sink_and_prefill);
    }

    proptest! {
        #[test]
        fn steps_cover_all_tokens_and_seal_what_is_there(
            lengths in proptest::collection::vec(1u64..9, 0..12), fresh in 0u64..9,
        ) {
            let mut end = 0;
            let ends: Vec<u64> = lengths.iter().map(|n| { end += n; end }).collect();
            let tokens = end + fresh.max(u64::from(end == 0));
            let steps = steps(&ends, tokens);
            let mut at = 0;
            for step in &steps {
                prop_assert!(step.begin == at && step.end > at);
                at = step.end;
                prop_assert!(step.seal_to.is_none_or(|to| to <= step.end));
            }
            prop_assert_eq!(at, tokens);
            prop_assert_eq!(steps.iter().filter_map(|s| s.seal_to).collect::<Vec<_>>(), ends);
        }

        #[test]
        fn every_sample_sees_what_it_saw_and_every_token_is_in_one_piece(
            gaps in proptest::collection::vec((1u64..4, 0u64..6), 0..30), begin in 0u64..5, more in 1u64..5,
        ) {
            let mut next = begin;
            let (mut pos, mut seen) = (Vec::new(), Vec::new());
            for (gap, hidden) in gaps {
                next += gap;
                pos.push(next - 1);
                seen.push(next.saturating_sub(hidden));
            }
            let tokens = begin..next + more;
            let (mut at, mut sample) = (begin, 0);
            for piece in pieces(tokens.clone(), &pos, &seen) {
                prop_assert!(piece.tokens.start == at && piece.samples.start == sample);
                prop_assert!(!piece.tokens.is_empty());
                for i in piece.samples.clone() {
                    prop_assert!(piece.tokens.contains(&pos[i]));
                    prop_assert_eq!((pos[i] + 1).saturating_sub(piece.window), seen[i]);
                }
                (at, sample) = (piece.tokens.end, piece.samples.end);
            }
            prop_assert_eq!((at, sample), (tokens.end, pos.len()));
        }
    }

    #[test]
    fn one_window_is_one_piece() {
        let pos: Vec<u64> = (0..40).step_by(4).collect();
        let seen: Vec<u64> = pos.iter().map(|p| (p + 1u64).saturating_sub(10)).collect();
        assert_eq!(pieces(0..41, &pos, &seen), [Piece { tokens: 0..41, samples: 0..10, window: 10 }]);
    }
}
