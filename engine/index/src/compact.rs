//! The rows of a span in a form that takes less memory than they do. It is attended to whole: no index, no selection, and
//! nothing of the budget of a query head.

use std::ops::Range;

use attention::quant::{QuantScratch, Quantised};
use attention::{Description, Partial};
use kernels::Kernels;

use crate::ask::{Ask, Budget, SpanView};
use crate::sketch::{Sketch, SketchScratch};

/// Rows in fewer bits, or a sketch of them.
#[derive(Clone, Debug)]
pub enum Compact {
    /// Answers as `l_quant`.
    Quantised(Box<Quantised>),
    /// Answers as `l_est`; tokens that it holds as they came as `l_exact`.
    Sketched(Sketch),
}

/// Memory that attention over compact forms works in.
#[derive(Clone, Debug, Default)]
pub(crate) struct CompactScratch {
    quantised: QuantScratch,
    sketched: SketchScratch,
}

impl Compact {
    /// Tokens.
    pub fn tokens(&self) -> usize {
        match self {
            Compact::Quantised(quantised) => quantised.tokens(),
            Compact::Sketched(sketch) => sketch.tokens(),
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        match self {
            Compact::Quantised(quantised) => quantised.bytes(),
            Compact::Sketched(sketch) => sketch.bytes().total(),
        }
    }

    /// Whether it may answer: never where all tokens are to be attended to exactly, and a sketch only where an estimate is
    /// welcome. Otherwise the rows do.
    pub fn answers(&self, budget: Budget, estimate: bool) -> bool {
        budget != Budget::All && (estimate || matches!(self, Compact::Quantised(_)))
    }

    /// Attention of all query heads over the tokens of a range, merged into `out`.
    pub(crate) fn attend(
        &self,
        (k, d): (&Kernels, &Description),
        q: &[f32],
        range: Range<usize>,
        scratch: &mut CompactScratch,
        out: &mut [Partial],
    ) {
        match self {
            Compact::Quantised(quantised) => {
                quantised.attend((k, d), q, range, &mut scratch.quantised, out);
            }
            Compact::Sketched(sketch) => sketch.attend((k, d), q, range, &mut scratch.sketched, out),
        }
    }
}

/// The form in which a span answers, if it has one and may.
pub(crate) fn form<'a>(compact: Option<&'a Compact>, ask: &Ask<'_>) -> Option<&'a Compact> {
    compact.filter(|compact| compact.answers(ask.budget, ask.estimate))
}

/// The spans as a search sees them, to which nothing of those that answer in a compact form is visible; None where none
/// does.
pub(crate) fn searched<'a>(spans: &[SpanView<'a>], ask: &Ask<'_>) -> Option<Vec<SpanView<'a>>> {
    spans.iter().find(|view| form(view.compact, ask).is_some())?;
    let seen = |view: &SpanView<'a>| match form(view.compact, ask) {
        None => view.clone(),
        Some(_) => SpanView { visible: 0..0, index: None, ..view.clone() },
    };
    Some(spans.iter().map(seen).collect())
}
