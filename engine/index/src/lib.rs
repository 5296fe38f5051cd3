//! Which tokens to look at: the indexes of Recollect and the attention over what they find.
//!
//! The parts, in reading order:
//! - [`Kind`], [`BuildQueries`], [`BuildParams`]: what a build is told; [`build`] makes a [`SpanIndex`] of it.
//! - `summary`: group means of keys and values with counts: entry points, scan order, the remainder estimate; the keys
//!   as 8-bit codes in group order.
//! - `rows`: exact nearest keys of the build queries; `graph`: the attention-aware graph made of them, and its walk.
//! - `hnsw`: the conventional baseline, for comparison.
//! - `calibrate` and `auto`: the narrowest search, and the cheapest kind, that meet the target recall.
//! - `find`: candidates of one query head in one span; `finalists`: the best of all spans, scored exactly; `flat`: the
//!   plain scan; `coverage`: a share of the mass in place of a number.
//! - [`Budget`], [`SpanView`], [`Ask`], [`attend_spans`]: one decode step over all spans of a head: search, selection
//!   (finalists of all spans compete), exact attention over the selection, the estimate of the rest.
//! - [`Compact`]: a span in fewer bits or as a sketch, which is attended to whole.
//! - `saved`: an index as bytes.

mod ask;
mod auto;
mod build;
mod calibrate;
mod compact;
mod coverage;
mod error;
mod finalists;
mod find;
mod flat;
mod graph;
mod hnsw;
mod lift;
mod memory;
mod params;
mod rows;
mod saved;
mod scratch;
mod select;
mod shares;
pub mod sketch;
mod span;
mod summary;

pub use ask::{Ask, Budget, Chosen, SpanView, Stats};
pub use build::{build, build_with};
pub use compact::Compact;
pub use error::BuildError;
pub use memory::{index_bytes, working_bytes};
pub use params::{BuildParams, BuildQueries, Kind};
pub use saved::{SavedError, Shape};
pub use scratch::Scratch;
pub use select::attend_spans;
pub use span::{BuildStats, SpanIndex};
