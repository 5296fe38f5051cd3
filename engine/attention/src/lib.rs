//! What the numbers of Recollect mean. Pure: no threads, no I/O, no clock.
//!
//! The logit of a token is z = scale * (q . k), or softcap * tanh(scale * (q . k) / softcap); logarithms are natural
//! everywhere. Attention over a set of tokens is the [`Partial`] (m, l, o) with m = max z, l = sum exp(z - m) and
//! o = (sum exp(z - m) v) / l, in f32 whatever the stored precision. Partials over disjoint sets merge exactly, so a
//! set can be attended to in any pieces, on any machines.
//!
//! The parts, in reading order:
//! - [`Partial`]: the triple, its merge and fold, coverage, a learned sink.
//! - [`Description`]: how a product q . k becomes a logit.
//! - [`Rows`]: stored keys or values of one head, in extents of [`EXTENT_TOKENS`] rows; [`HeadRows`] and [`RowSource`]
//!   for the layout of prefill.
//! - [`attend_range`]: exact attention of a group of query heads over a range of rows; the flat kernel.
//! - [`attend_ids`]: exact attention of one head over chosen rows whose products are known.
//! - [`attend_block`]: exact causal attention of many rows, blocked; prefill.
//! - [`quant`]: rows in 8 or 4 bits, and attention over them.
//! - [`oracle`]: the same in f64, slow and obviously right.
//!
//! Rounding: with n tokens, dimension d and e = 2^-24, a logit is off by at most about d * e * scale * sum |q_i k_i|
//! =: delta, m by delta, l and o by a factor 1 + 2 delta + 1e-6. The tests hold every function to that bound.

mod causal;
mod description;
mod ids;
pub mod oracle;
mod partial;
pub mod quant;
mod range;
mod rows;
mod scratch;

pub use causal::{BlockPartials, BlockScratch, CausalBlock, attend_block};
pub use description::Description;
pub use ids::attend_ids;
pub use partial::Partial;
pub use range::attend_range;
pub use rows::{EXTENT_TOKENS, HeadRows, RowSource, Rows};
pub use scratch::Scratch;
