//! Measurements on captured Q, K and V.
//!
//! - [`retrieval`]: one way of searching on one capture: recall, output error, cost. `head` builds and asks, `judge` rates by `truth`,
//!   `dump` lets another program check.
//! - [`appends`]: what tokens appended by decode are found like, with and without merges, and what an append costs;
//!   `shard` plays a capture to a shard.
//! - [`tiers`]: what quantised and sketched tokens lose for the bytes they save; `tier_rows` writes tables and
//!   pictures.
//! - [`attention`]: one decode step over many heads, retrieval against dense.

pub mod appends;
pub mod attention;
mod dump;
pub(crate) mod head;
mod judge;
pub mod retrieval;
mod shard;
mod tier_rows;
pub mod tiers;
pub(crate) mod truth;
