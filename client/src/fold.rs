//! From the answers of the shards to one partial per query head.
//!
//! An answer covers consecutive KV heads over a range of tokens. Today a head lies on one shard as a whole; when a head
//! outgrows a host its token ranges will be on several, so the fold takes any number of pieces, orders them by their
//! first token (never by arrival), and refuses a head of which a token was answered twice or not at all.

use attention::Partial;
use std::ops::Range;

/// One shard's answer: partials of the query heads of consecutive KV heads over a range of tokens.
#[derive(Debug, Clone)]
pub struct Piece {
    /// KV heads, half-open.
    pub kv_heads: Range<u32>,
    /// Tokens, half-open.
    pub tokens: Range<u64>,
    /// `kv_heads.len() * group` partials in the order of the query heads.
    pub partials: Vec<Partial>,
}

/// What the pieces together must cover.
#[derive(Debug, Clone)]
pub struct Whole {
    /// KV heads of the layer.
    pub kv_heads: u32,
    /// Query heads per KV head.
    pub group: usize,
    /// Value dim of the partials.
    pub value_dim: usize,
    /// Tokens asked for.
    pub tokens: Range<u64>,
}

/// Pieces that are not one answer to one question: the KV head and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("KV head {kv_head}: {what}")]
pub struct FoldError {
    /// The first head that does not add up.
    pub kv_head: u32,
    /// Why.
    pub what: String,
}

/// Folds the pieces in span order to `kv_heads * group` partials in the order of the query heads.
pub fn fold(whole: &Whole, mut pieces: Vec<Piece>) -> Result<Vec<Partial>, FoldError> {
    pieces.sort_by_key(|piece| (piece.tokens.start, piece.kv_heads.start));
    let mut heads: Vec<Option<Partial>> = vec![None; whole.kv_heads as usize * whole.group];
    let mut next: Vec<u64> = vec![whole.tokens.start; whole.kv_heads as usize];
    for piece in pieces {
        if piece.partials.len() != piece.kv_heads.len() * whole.group {
            let what = format!(
                "{} partials for {} query heads",
                piece.partials.len(),
                piece.kv_heads.len() * whole.group
            );
            return Err(FoldError { kv_head: piece.kv_heads.start, what });
        }
        let mut partials = piece.partials.into_iter();
        for kv_head in piece.kv_heads {
            let Some(position) = next.get_mut(kv_head as usize) else {
                return Err(FoldError { kv_head, what: "was not asked for".into() });
            };
            let seen = whole.tokens.is_empty() && heads[kv_head as usize * whole.group].is_some();
            if piece.tokens.start != *position || seen {
                let verb = if piece.tokens.start < *position || seen { "answered twice" } else { "missing" };
                let what = format!("tokens from {} are {verb}", piece.tokens.start.min(*position));
                return Err(FoldError { kv_head, what });
            }
            *position = piece.tokens.end;
            for head in &mut heads[kv_head as usize * whole.group..][..whole.group] {
                // The number of partials was checked above.
                let Some(partial) = partials.next() else { break };
                match head {
                    Some(sum) => sum.merge(&partial),
                    None => *head = Some(partial),
                }
            }
        }
    }
    if let Some((kv_head, end)) = (0..).zip(&next).find(|&(_, &end)| end != whole.tokens.end) {
        return Err(FoldError { kv_head, what: format!("answered to {end} of {}", whole.tokens.end) });
    }
    let group = whole.group.max(1);
    let folded = heads.into_iter().enumerate().map(|(i, head)| {
        head.ok_or_else(|| FoldError { kv_head: (i / group) as u32, what: "not answered".into() })
    });
    folded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(kv_heads: u32, group: usize, tokens: Range<u64>) -> Whole {
        Whole { kv_heads, group, value_dim: 2, tokens }
    }

    fn partial(m: f32, l: f32, o: f32) -> Partial {
        Partial { m, l_exact: l, l_quant: 0.0, l_est: 0.0, o: vec![o, -o] }
    }

    /// Distinct for every head and range, so that a swap shows.
    fn piece(kv_heads: Range<u32>, tokens: Range<u64>, group: usize) -> Piece {
        let first = kv_heads.start as usize * group;
        let count = kv_heads.len() * group;
        let partials = (first..first + count)
            .map(|h| partial(h as f32 * 0.1, tokens.end as f32 - tokens.start as f32, h as f32));
        Piece { kv_heads, partials: partials.collect(), tokens }
    }

    #[test]
    fn heads_come_back_in_order() {
        let folded =
            fold(&whole(3, 2, 5..9), vec![piece(2..3, 5..9, 2), piece(0..2, 5..9, 2)]).expect("whole");
        let values: Vec<f32> = folded.iter().map(|p| p.o[0]).collect();
        assert_eq!(values, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn every_token_of_every_head_once() {
        let refused = |pieces| fold(&whole(2, 1, 0..10), pieces).expect_err("refused").to_string();
        assert_eq!(refused(vec![piece(0..1, 0..10, 1)]), "KV head 1: answered to 0 of 10");
        assert_eq!(
            refused(vec![piece(0..2, 0..10, 1), piece(1..2, 0..10, 1)]),
            "KV head 1: tokens from 0 are answered twice"
        );
        assert_eq!(
            refused(vec![piece(0..2, 0..4, 1), piece(0..2, 5..10, 1)]),
            "KV head 0: tokens from 4 are missing"
        );
        assert_eq!(refused(vec![piece(0..2, 0..9, 1)]), "KV head 0: answered to 9 of 10");
        assert_eq!(refused(vec![piece(0..3, 0..10, 1)]), "KV head 2: was not asked for");
        let mut short = piece(0..2, 0..10, 1);
        short.partials.pop();
        assert_eq!(refused(vec![short]), "KV head 0: 1 partials for 2 query heads");
    }

    #[test]
    fn an_empty_range_is_answered_once_too() {
        let neutral = |heads: Range<u32>| Piece {
            partials: vec![Partial::neutral(2); heads.len()],
            kv_heads: heads,
            tokens: 7..7,
        };
        assert_eq!(
            fold(&whole(2, 1, 7..7), vec![neutral(0..2)]).expect("whole"),
            vec![Partial::neutral(2); 2]
        );
        assert!(fold(&whole(2, 1, 7..7), vec![neutral(0..1)]).is_err());
        assert!(fold(&whole(2, 1, 7..7), vec![neutral(0..2), neutral(0..1)]).is_err());
    }

    proptest! {
        /// Arrival order is no matter to the bit, and the fold is the merge in span order.
        #[test]
        fn arrival_order_is_no_matter(
            pieces in prop::collection::vec((1u64..50, -30f32..30.0, 0.1f32..9.0, -2f32..2.0), 1..6).prop_shuffle(),
            order in any::<u64>(),
        ) {
            let mut begin = 0;
            let mut spans = Vec::new();
            for &(len, m, l, o) in &pieces {
                spans.push(Piece { kv_heads: 0..1, tokens: begin..begin + len, partials: vec![partial(m, l, o)] });
                begin += len;
            }
            let whole = whole(1, 1, 0..begin);
            let straight = fold(&whole, spans.clone()).unwrap();
            let merged = Partial::fold(2, spans.iter().map(|s| &s.partials[0]));
            prop_assert_eq!(&straight[0], &merged);
            let turn = order as usize % spans.len();
            spans.rotate_left(turn);
            prop_assert_eq!(fold(&whole, spans).unwrap(), straight);
        }
    }
}
