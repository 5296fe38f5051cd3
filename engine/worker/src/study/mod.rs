//! Where retrieval holds and where not: per layer and KV head of a model, and per place in a document.
//!
//! - [`heads`]: recovery and output error against the budget for every head; `measure` does one head, `head_rows` turns
//!   what it saw into rows, `diffuse` says which heads need many tokens, `head_plots` draws
//! - [`needles`]: a fact at every depth of contexts of several lengths; `needle_document` hides it
//! - `spread`: median and outer tenths

mod diffuse;
mod head_plots;
mod head_rows;
pub mod heads;
mod measure;
mod needle_document;
pub mod needles;
mod spread;
