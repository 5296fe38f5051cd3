//! The table of function pointers that a path fills in.

use half::f16;

use crate::isa::Isa;
use crate::packed::PackedRows;
use crate::vector::{CodeQuery, CodeRun};

/// One path. Every function is `unsafe`: the caller (the door) has checked that the CPU has the instruction set and
/// that the slices have the lengths that the door documents; row pointers point to `dim` readable f16 each.
#[expect(clippy::type_complexity, reason = "the argument names in the pointer types are their documentation")]
pub(crate) struct Table {
    pub isa: Isa,
    pub dot_rows: unsafe fn(q: &[f32], dim: usize, rows: &[f16], out: &mut [f32]),
    /// `out[h * stride + r] = q_h . rows[r]`; `out` reaches to the last of these.
    pub dot_pointers: unsafe fn(q: &[f32], dim: usize, rows: &[*const f16], out: &mut [f32], stride: usize),
    pub dot_group: unsafe fn(q: &[f32], dim: usize, row: &[f16], out: &mut [f32]),
    /// One after the other for each row of each run: parent + (sum over d of q[d] * codes[d] - zero) * (step * scale).
    /// `out` has [`CODE_ROWS`](crate::CODE_ROWS) places more than there are rows.
    pub dot_codes: unsafe fn(query: &CodeQuery<'_>, blocks: &[u8], runs: &[CodeRun], out: &mut [f32]),
    /// `z[h * n + r] += sum over d of q[h * dim + d] * code(d, r)`, n rows by channel.
    pub dot_channels: unsafe fn(q: &[f32], dim: usize, first: &[u8], second: Option<&[u8]>, z: &mut [f32]),
    /// `out[h * stride + r] = base[h] + sum over d of q[h * lanes + d] * code(r, d)`; `out` reaches to the last of these.
    pub dot_packed: unsafe fn(rows: &PackedRows<'_>, q: &[f32], base: &[f32], out: &mut [f32], stride: usize),
    pub dot_f16: unsafe fn(a: &[f16], b: &[f16]) -> f32,
    pub l2_sq_f16: unsafe fn(a: &[f16], b: &[f16]) -> f32,
    pub axpy_rows: unsafe fn(w: &[f32], dim: usize, rows: &[f16], acc: &mut [f32]),
    /// `acc[h * dim + d] += sum over r of w[h * stride + r] * rows[r][d]`.
    pub axpy_pointers: unsafe fn(w: &[f32], stride: usize, dim: usize, rows: &[*const f16], acc: &mut [f32]),
    /// `acc[h * stride + d] += sum over r of w[h * n + r] * codes[r * stride + d]`, for d in from..from + width.
    pub axpy_codes:
        unsafe fn(w: &[f32], codes: &[u8], stride: usize, from: usize, width: usize, acc: &mut [f32]),
    /// `acc[h * lanes + d] += sum over r of w[h * stride + r] * code(r, d)`; `w` reaches to the last of these.
    pub axpy_packed: unsafe fn(rows: &PackedRows<'_>, w: &[f32], stride: usize, acc: &mut [f32]),
    pub axpy_f32: unsafe fn(w: f32, x: &[f32], acc: &mut [f32]),
    pub scale: unsafe fn(w: f32, x: &mut [f32]),
    pub lift: unsafe fn(z: &mut [f32], scale: f32, spreads: &[f32], lift: (f32, f32), counts: &[f32]),
    pub blend: unsafe fn(x: &mut [f32], a: &[f32], w: f32, b: &[f32]),
    pub run_sums: unsafe fn(x: &[f32], runs: &[CodeRun], out: &mut [f32]),
    pub max: unsafe fn(z: &[f32]) -> f32,
    pub exp_sum: unsafe fn(z: &mut [f32], m: f32) -> f32,
    pub at_least: unsafe fn(z: &[f32], limit: f32, out: &mut [u32]) -> usize,
    pub depth: unsafe fn(z: &[f32], high: f32) -> f32,
    pub buckets: unsafe fn(z: &[f32], high: f32, scale: f32, last: f32, out: &mut [u32]),
    pub gemm_nt: unsafe fn(a: &[f32], b: &[f32], dim: usize, m: usize, n: usize, c: &mut [f32]),
    pub gemm_nn_add: unsafe fn(a: &[f32], b: &[f32], dim: usize, m: usize, n: usize, c: &mut [f32]),
    pub f16_to_f32: unsafe fn(src: &[f16], dst: &mut [f32]),
    pub f32_to_f16: unsafe fn(src: &[f32], dst: &mut [f16]),
}
