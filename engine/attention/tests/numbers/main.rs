//! The numbers of attention: laws of partials, and every exact form against the f64 oracle.

mod common;
mod exact;
mod merge;
