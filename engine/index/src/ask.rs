//! What one decode step asks of the spans of a KV head, and what it cost.

use std::ops::Range;
use std::time::Instant;

use attention::{Description, Rows};

use crate::compact::Compact;
use crate::span::SpanIndex;

/// How much is attended to exactly per query head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// This many tokens over all spans.
    TopK(usize),
    /// As few as reach this share of the mass (of spans, fresh ranges and what `out` held before), by the estimate.
    Coverage(f32),
    /// Every visible token.
    All,
}

/// One span: its rows, its index, and what of it may be seen.
#[derive(Clone, Debug)]
pub struct SpanView<'a> {
    /// [tokens, key_dim].
    pub keys: Rows<'a>,
    /// [tokens, value_dim].
    pub values: Rows<'a>,
    /// None: the span is scanned.
    pub index: Option<&'a SpanIndex>,
    /// In place of the rows, which then need not be there, where [`Compact::answers`].
    pub compact: Option<&'a Compact>,
    /// Span-local.
    pub visible: Range<usize>,
}

/// What is asked, for all query heads of a KV head.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// [group, key_dim].
    pub q: &'a [f32],
    /// Query heads.
    pub group: usize,
    /// Scale and soft-cap.
    pub description: Description,
    /// How much is attended to exactly.
    pub budget: Budget,
    /// Whether the remainder is estimated. Off: nothing of it is computed.
    pub estimate: bool,
    /// In place of the calibrated search width.
    pub width: Option<usize>,
    /// When to stop searching and to answer with what was found.
    pub deadline: Option<Instant>,
    /// [group]: log of the mass that is attended to exactly elsewhere at this step (a worker's sink and window), which a
    /// coverage budget counts as reached.
    pub outside: Option<&'a [f32]>,
}

impl Ask<'_> {
    /// Whether the mass of what is not selected matters.
    pub(crate) fn wants_mass(&self) -> bool {
        self.estimate || matches!(self.budget, Budget::Coverage(_))
    }
}

/// The exactly attended (span, span-local id) of each query head, ascending.
pub type Chosen = Vec<Vec<(u32, u32)>>;

/// What a step did: means per query head.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Tokens attended to exactly, fresh ones included.
    pub exact_tokens: f64,
    /// Tokens of spans that answered in a compact form.
    pub compact_tokens: f64,
    /// Keys scored in any precision (tokens of budget all and fresh tokens included).
    pub keys_scored: f64,
    /// Rows of summaries scored.
    pub summary_scored: f64,
    /// Bytes of keys, values, summaries and edges; what the heads of a group share is divided among them.
    pub bytes_read: f64,
    /// Whether the deadline cut the search short.
    pub deadline_hit: bool,
}

impl Stats {
    /// Means of what are sums over heads.
    pub(crate) fn per_head(self, heads: usize) -> Stats {
        let heads = heads as f64;
        Stats {
            exact_tokens: self.exact_tokens / heads,
            compact_tokens: self.compact_tokens / heads,
            keys_scored: self.keys_scored / heads,
            summary_scored: self.summary_scored / heads,
            bytes_read: self.bytes_read / heads,
            deadline_hit: self.deadline_hit,
        }
    }
}
