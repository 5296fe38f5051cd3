//! What answers in the place of rows: they lie in files, it lies in RAM.

use crate::admission::{Charge, Charges, Kind, Short};
use crate::recipe::Recipe;
use crate::session::head::Head;
use crate::session::span::Span;
use attention::quant::{Precision, Quantised};
use attention::{Description, Rows};
use half::f16;
use index::Compact;
use index::sketch::{Sketch, SketchError, SketchKind, SketchParams, Watched, WatchedRow, watch};
use kernels::Kernels;
use std::sync::Arc;
use std::time::Instant;

/// The latest sampled positions of a head, of decode and of the prefill, whose attention a sketch is made by.
const WATCHED: usize = 512;
/// Bytes that the build of a sketch works in, for each element of a key or a value.
const WORKING: u64 = 16;

/// A form of a span.
#[derive(Debug)]
pub struct Compacted {
    /// What answers.
    pub form: Compact,
    /// Which it is.
    pub kind: Form,
    /// Its bytes.
    pub charge: Charge,
}

/// Which form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// 8 bits, and 4 more for keys.
    Quantised,
    /// A sketch in this many percent of the bytes of the rows.
    Sketched(u8),
}

impl Form {
    /// Percent of the bytes of rows that a sketch takes where nobody says.
    pub const SKETCH_PERCENT: u8 = 25;
    /// The most that can be asked for.
    pub const SKETCH_MOST: u8 = 50;

    /// As the catalogue knows it; 0: none.
    pub fn code(form: Option<Form>) -> u32 {
        match form {
            None => 0,
            Some(Form::Quantised) => 100,
            Some(Form::Sketched(percent)) => percent.into(),
        }
    }

    /// What a code says; none where it says nothing that is known.
    pub fn of_code(code: u32) -> Option<Form> {
        match code {
            100 => Some(Form::Quantised),
            _ => u8::try_from(code).ok().filter(|p| (1..=Self::SKETCH_MOST).contains(p)).map(Form::Sketched),
        }
    }
}

/// Why there is no form; one line.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The purse has no room.
    #[error("{}", .0.status("the compact form").message())]
    Memory(Short),
    /// The rows cannot be brought into it.
    #[error("{0}")]
    Build(String),
}

impl From<Short> for Failure {
    fn from(short: Short) -> Self {
        Failure::Memory(short)
    }
}

impl Compacted {
    /// Brings the rows of a span, which are at hand, into a form. The same rows and queries give the same bits.
    pub fn build(
        kind: Form,
        (head, span): (&Head, &Span),
        recipe: &Recipe,
        charges: Charges,
    ) -> Result<Self, Failure> {
        let g = &recipe.geometry;
        let charge = |kind, bytes| recipe.purse.charge_as(charges, kind, bytes);
        let started = Instant::now();
        let (keys, values) = (span.rows.keys(), span.rows.values());
        let rows = span.len() * g.row_bytes();
        let (form, mut held) = match kind {
            Form::Quantised => {
                // What is held as it came makes it larger than the codes; never larger than the rows and their codes.
                let held = charge(Kind::Compact, rows)?;
                let quantised = Quantised::new(&keys, &values, Precision::Int8);
                (Compact::Quantised(Box::new(quantised.map_err(|e| Failure::Build(e.to_string()))?)), held)
            }
            Form::Sketched(percent) => {
                let bytes = rows * u64::from(percent) / 100;
                let held = charge(Kind::Compact, bytes)?;
                let elements = span.len() * (g.key_dim + g.value_dim) as u64;
                let queries = (WATCHED * g.group * g.key_dim * 4) as u64;
                let _working = charge(Kind::Scratch, elements * WORKING + queries)?;
                let params = SketchParams {
                    kind: SketchKind::Coded,
                    bytes: bytes as usize,
                    scale: recipe.scale,
                    exact_share: 0.0,
                    seed: recipe.seed,
                };
                let seen = Seen::of(head, span);
                let built = seen.watched(span, recipe);
                let built = built.and_then(|watched| Sketch::build(&keys, &values, &watched, &params));
                let built = built.map_err(|e| match e {
                    SketchError::TooSmall { least, .. } => Failure::Build(format!(
                        "a sketch of {percent} % is too small for {} tokens: at least {} % are needed (sketch_percent)",
                        span.len(),
                        (least as u64 * 100).div_ceil(rows)
                    )),
                    e => Failure::Build(e.to_string()),
                })?;
                (Compact::Sketched(built), held)
            }
        };
        let bytes = form.bytes() as u64;
        held.resize(bytes, charges)?;
        tracing::debug!(
            begin = span.begin,
            tokens = span.len(),
            bytes,
            took_ms = started.elapsed().as_millis(),
            "compact form ready"
        );
        Ok(Self { form, kind, charge: held })
    }
}

/// What of a head tells the attention that a span gets: all keys at hand, and the latest sampled queries that see it.
struct Seen {
    spans: Vec<Arc<Span>>,
    fresh: (u64, Vec<f16>),
    rows: Vec<WatchedRow>,
}

impl Seen {
    fn of(head: &Head, span: &Span) -> Self {
        let state = head.read();
        let spans: Vec<Arc<Span>> = state.spans().map(|(span, _)| span.clone()).collect();
        let begin = state.fresh_begin();
        let rows = state.latest_samples(span.begin, WATCHED);
        Self { spans, fresh: (begin, state.copy(begin, state.end()).0), rows }
    }

    fn watched(&self, span: &Span, recipe: &Recipe) -> Result<Watched, SketchError> {
        let dim = recipe.geometry.key_dim;
        // Those that only the archive holds are left out: a sink, which is the worker's, and what is older than this.
        let mut pieces: Vec<(usize, Rows<'_>)> =
            self.spans.iter().map(|s| (s.begin as usize, s.rows.keys())).collect();
        pieces.push((self.fresh.0 as usize, Rows::contiguous(&self.fresh.1, dim)));
        let description = Description { scale: recipe.scale, softcap: None };
        let numbers = (&Kernels::native(), &description);
        watch(numbers, (&pieces, dim), span.begin as usize..span.end as usize, &self.rows)
    }
}
