//! Measurements on captured Q, K and V.
//!
//! - [`retrieval`]: one way of searching on one capture: recall, output error, cost. `head` builds and asks, `judge` rates by `truth`,
//!   `dump` lets another program check.
//! - [`attention`]: one decode step over many heads, retrieval against dense.

pub mod attention;
mod dump;
pub(crate) mod head;
mod judge;
pub mod retrieval;
pub(crate) mod truth;
