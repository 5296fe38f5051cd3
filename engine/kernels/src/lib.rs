//! CPU kernels of Recollect, dispatched at run time.
//!
//! Everything numeric that is hot goes through [`Kernels`], a table of function pointers chosen once per process:
//! dot products of query rows with stored f16 rows, weighted sums of stored rows, the exponentials of softmax,
//! blocked matrix products, conversions. [`topk`] picks the best of many scores.
//!
//! The parts, in reading order:
//! - [`Isa`]: the instruction sets, which of them this CPU has, their names.
//! - [`Kernels`]: the safe door. It checks every length with `assert!` and then calls the chosen path.
//! - `scalar`: the plain twin of every kernel, one obvious loop each; the other paths are tested against it.
//! - `vector` and `generic`: the fast loops, written once over a small private vector trait.
//! - [`Packing`]: rows of codes of any width, and how a register finds its own.
//! - `arch`: one thin file per instruction set that implements the trait.
//! - [`topk`]: bounded selection of (score, id) with ties broken by the lower id.
//!
//! Numbers: rows are stored as f16, all sums and scores are f32. Paths differ from each other only in the order of
//! summation and in fused multiply-adds; on one path the same input gives the same bits.

mod arch;
mod door;
mod generic;
mod isa;
mod packed;
mod scalar;
mod table;
pub mod topk;
mod vector;

pub use door::Kernels;
pub use half::f16;
pub use isa::{Isa, IsaError};
pub use packed::{PACKED_BITS, PACKED_WINDOW, PackedRows, Packing};
pub use vector::{CHANNEL_ROWS, CODE_DIMS, CODE_HEAD, CODE_ROWS, CodeQuery, CodeRun, MOST_CODE};
