//! Sketches: the reversible compressed form of cold tokens.
//!
//! A sketch is built over the tokens of a span at a budget of bytes. It answers with a partial over every one of them,
//! exact where a token is held as it came and estimated elsewhere, and gives tokens back.
//!
//! - [`Watched`]: what decode paid attention to: what is built from; [`watch`] fills it from rows of decode.
//! - [`Sketch`], [`SketchParams`], [`SketchKind`]: any of the three below.
//! - [`Coded`]: means by position and deviations in few bits: the default.
//! - [`Means`]: cluster means with counts.
//! - [`Reviver`]: KVReviver as published, which also works token by token; `hash` and `table` are its count sketch.
//! - `part`: attention over rows that were read back.

mod coded;
mod error;
mod hash;
mod means;
mod part;
#[cfg(test)]
mod random;
mod reviver;
mod table;
mod watch;
mod watched;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use attention::{Description, Partial, Rows};
use kernels::Kernels;

pub use coded::{Coded, CodedScratch};
pub use error::SketchError;
pub use means::Means;
pub use reviver::{Reviver, Shape};
pub use table::CountTable;
pub use watch::{WatchedRow, watch};
pub use watched::Watched;

/// Hash rows of the published sketch.
const ROWS: usize = 3;
/// Tokens that leave its queue together.
const SLACK: usize = 64;

/// Which sketch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SketchKind {
    /// [`Coded`], the best by measurement (docs/TIERS.md).
    #[default]
    Coded,
    /// [`Means`].
    Means,
    /// [`Reviver`].
    Published,
}

impl SketchKind {
    /// All of them, the default first.
    pub const ALL: [SketchKind; 3] = [SketchKind::Coded, SketchKind::Means, SketchKind::Published];

    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            SketchKind::Coded => "coded",
            SketchKind::Means => "means",
            SketchKind::Published => "published",
        }
    }
}

impl fmt::Display for SketchKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SketchKind {
    type Err = String;

    fn from_str(s: &str) -> Result<SketchKind, String> {
        let found = SketchKind::ALL.into_iter().find(|kind| kind.name() == s);
        found.ok_or_else(|| format!("unknown sketch '{s}' (coded, means, published)"))
    }
}

/// How to build a sketch.
#[derive(Clone, Debug)]
pub struct SketchParams {
    /// What to build.
    pub kind: SketchKind,
    /// The most bytes for all tokens together; of [`Means`] and [`Reviver`] without what says where a token is
    /// ([`SketchBytes::reconstruction`]).
    pub bytes: usize,
    /// What q . k is multiplied by.
    pub scale: f32,
    /// Share of the bytes for tokens that [`Means`] and [`Reviver`] hold as they came; [`Coded`] finds its own.
    pub exact_share: f64,
    /// Seed of the hashes.
    pub seed: u64,
}

/// Bytes of a sketch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SketchBytes {
    /// What attention reads.
    pub attention: usize,
    /// What only reconstruction and selection need: which token is where.
    pub reconstruction: usize,
}

impl SketchBytes {
    /// Both.
    pub fn total(self) -> usize {
        self.attention + self.reconstruction
    }
}

/// A sketch of the tokens of one KV head in one span.
#[derive(Clone, Debug)]
pub enum Sketch {
    /// See [`Coded`].
    Coded(Box<Coded>),
    /// See [`Means`].
    Means(Means),
    /// See [`Reviver`].
    Published(Box<Reviver>),
}

/// Memory that a sketch works in; one per thread.
#[derive(Clone, Debug, Default)]
pub struct SketchScratch {
    coded: CodedScratch,
}

impl Sketch {
    /// Sketches `keys` and `values`. The same input gives the same bits.
    ///
    /// # Errors
    /// No token, counts or dims that do not fit each other, an element that is not finite, or too few bytes.
    pub fn build(
        keys: &Rows<'_>,
        values: &Rows<'_>,
        watched: &Watched,
        params: &SketchParams,
    ) -> Result<Sketch, SketchError> {
        check(keys, values, watched)?;
        let k = &Kernels::native();
        match params.kind {
            SketchKind::Coded => {
                let coded = coded::build(keys, values, watched, params.scale, params.bytes)?;
                Ok(Sketch::Coded(Box::new(coded)))
            }
            SketchKind::Means => {
                means::build(k, (keys, values), watched, params.bytes, params.exact_share).map(Sketch::Means)
            }
            SketchKind::Published => published(keys, values, watched, params),
        }
    }

    /// Which it is.
    pub fn kind(&self) -> SketchKind {
        match self {
            Sketch::Coded(_) => SketchKind::Coded,
            Sketch::Means(_) => SketchKind::Means,
            Sketch::Published(_) => SketchKind::Published,
        }
    }

    /// Tokens held.
    pub fn tokens(&self) -> usize {
        match self {
            Sketch::Coded(coded) => coded.tokens(),
            Sketch::Means(means) => means.tokens(),
            Sketch::Published(reviver) => reviver.tokens(),
        }
    }

    /// Attention of all query heads, `q` [g, key_dim], over the tokens of `range`, merged into `out` [g]: `l_est`, and
    /// `l_exact` of tokens held as they came. Panics when the range is not held.
    pub fn attend(
        &self,
        kernels: (&Kernels, &Description),
        q: &[f32],
        range: Range<usize>,
        scratch: &mut SketchScratch,
        out: &mut [Partial],
    ) {
        match self {
            Sketch::Coded(coded) => coded.attend(kernels, q, range, &mut scratch.coded, out),
            Sketch::Means(means) => means.attend(kernels, q, range, out),
            Sketch::Published(reviver) => reviver.attend(kernels, q, range, out),
        }
    }

    /// Products of all query heads, `q` [g, key_dim], with the keys as they are read back: [g, tokens]. What a selection
    /// from a sketch is made by.
    pub fn products(&self, k: &Kernels, q: &[f32], scratch: &mut SketchScratch) -> Vec<f32> {
        match self {
            Sketch::Coded(coded) => coded.products(k, q, &mut scratch.coded),
            Sketch::Means(means) => means.products(k, q),
            Sketch::Published(reviver) => reviver.products(k, q),
        }
    }

    /// Key and value of a token as they are read back.
    ///
    /// # Errors
    /// A token that does not exist.
    pub fn reconstruct(&self, token: u32) -> Result<(Vec<f32>, Vec<f32>), SketchError> {
        let unknown = SketchError::Unknown { token, tokens: self.tokens() };
        match self {
            Sketch::Coded(coded) => coded.reconstruct(token as usize).ok_or(unknown),
            Sketch::Means(means) => means.reconstruct(token as usize).ok_or(unknown),
            Sketch::Published(reviver) => {
                let (mut key, mut value) = (Vec::new(), Vec::new());
                reviver.reconstruct(&[token], &mut key, &mut value)?;
                Ok((key, value))
            }
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> SketchBytes {
        match self {
            Sketch::Coded(coded) => coded.bytes(),
            Sketch::Means(means) => means.bytes(),
            Sketch::Published(reviver) => {
                SketchBytes { attention: reviver.bytes(), reconstruction: reviver.bookkeeping_bytes() }
            }
        }
    }
}

/// All tokens one after the other, each with the attention it had, so that nothing has to come back from Vague.
fn published(
    keys: &Rows<'_>,
    values: &Rows<'_>,
    watched: &Watched,
    params: &SketchParams,
) -> Result<Sketch, SketchError> {
    let row = 2 * (keys.dim() + values.dim());
    let held = (params.bytes as f64 * params.exact_share) as usize / row;
    let buckets = params.bytes.saturating_sub(held * row) / (ROWS * row);
    if held <= SLACK || buckets == 0 {
        let each = |rows: usize, share: f64| (rows * row) as f64 / share.max(1e-9);
        let least =
            each(SLACK + 1, params.exact_share).max(each(ROWS, 1.0 - params.exact_share)).ceil() as usize;
        return Err(SketchError::TooSmall { bytes: params.bytes, tokens: keys.len(), least });
    }
    let shape = Shape { recent: 0, slack: SLACK, candidates: held - SLACK - 1, rows: ROWS, buckets };
    let mut reviver = Reviver::new(shape, (keys.dim(), values.dim()), params.seed);
    for (i, &attention) in watched.attention().iter().enumerate() {
        let token = reviver.push(keys.row(i), values.row(i))?;
        reviver.observe(&[token], &[attention as f32])?;
    }
    Ok(Sketch::Published(Box::new(reviver)))
}

fn check(keys: &Rows<'_>, values: &Rows<'_>, watched: &Watched) -> Result<(), SketchError> {
    if keys.is_empty() {
        return Err(SketchError::Empty);
    }
    if keys.len() != values.len() {
        return Err(SketchError::ValueCount { keys: keys.len(), values: values.len() });
    }
    if watched.tokens() != keys.len() || watched.dim() != keys.dim() {
        return Err(SketchError::Watched {
            watched: watched.tokens(),
            dim: watched.dim(),
            tokens: keys.len(),
            key_dim: keys.dim(),
        });
    }
    for (what, rows) in [("key", keys), ("value", values)] {
        for i in 0..rows.len() {
            if let Some(element) = rows.row(i).iter().position(|x| !x.is_finite()) {
                return Err(SketchError::NotFinite { token: i as u32, what, element });
            }
        }
    }
    Ok(())
}
