//! The loops, written once over `Vector`; `arch::stamp!` compiles them for each instruction set.
//!
//! Every function here is `#[inline(always)]`, so that it takes the target features of the function it is stamped into.

#![allow(clippy::needless_range_loop, reason = "tiles index two arrays by the same register number")]

mod axpy;
mod bytes;
mod codes;
mod convert;
mod dot;
mod gemm;
mod masses;
mod packed;
mod sieve;
mod softmax;

use half::f16;

pub(crate) use axpy::{axpy_f32, axpy_pointers, axpy_rows, scale};
pub(crate) use bytes::{axpy_codes, dot_channels};
pub(crate) use codes::dot_codes;
pub(crate) use convert::{f16_to_f32, f32_to_f16};
pub(crate) use dot::{dot_f16, dot_group, dot_pointers, dot_rows, l2_sq_f16};
pub(crate) use gemm::{gemm_nn_add, gemm_nt};
pub(crate) use masses::{blend, lift, run_sums};
pub(crate) use packed::{axpy_packed, dot_packed};
pub(crate) use sieve::{at_least, buckets, depth};
pub(crate) use softmax::{exp_sum, max};

/// Rows that all heads and tiles of a call are done with before the next are touched: 16 KiB, which stays in L1, and
/// whole tiles of 3 and of 4.
fn rows_at_once(dim: usize) -> usize {
    (8192 / dim / 12).max(1) * 12
}

/// Where the rows of a call lie.
trait RowPointers: Copy {
    /// The rows from `r` on.
    ///
    /// # Safety
    /// `r` is at most the number of rows.
    unsafe fn skip(self, r: usize) -> Self;
    /// # Safety
    /// `r` is less than the number of rows.
    unsafe fn row(self, r: usize) -> *const f16;
}

/// Rows one after the other.
#[derive(Clone, Copy)]
struct Contiguous {
    base: *const f16,
    dim: usize,
}

impl RowPointers for Contiguous {
    #[inline(always)]
    unsafe fn skip(self, r: usize) -> Self {
        // SAFETY: `r` is at most the number of rows.
        Self { base: unsafe { self.base.add(r * self.dim) }, dim: self.dim }
    }
    #[inline(always)]
    unsafe fn row(self, r: usize) -> *const f16 {
        // SAFETY: `r` is a row of the slice that `base` starts.
        unsafe { self.base.add(r * self.dim) }
    }
}

/// Rows anywhere.
#[derive(Clone, Copy)]
struct Scattered<'a>(&'a [*const f16]);

impl RowPointers for Scattered<'_> {
    #[inline(always)]
    unsafe fn skip(self, r: usize) -> Self {
        // SAFETY: `r` is at most the number of pointers.
        Self(unsafe { self.0.get_unchecked(r..) })
    }
    #[inline(always)]
    unsafe fn row(self, r: usize) -> *const f16 {
        // SAFETY: `r` is less than the number of pointers.
        unsafe { *self.0.get_unchecked(r) }
    }
}
