//! The safe door to the kernels: it checks lengths, then calls the chosen path.

use std::fmt;
use std::sync::OnceLock;

use half::f16;

use crate::isa::{Isa, IsaError};
use crate::packed::PackedRows;
use crate::table::Table;
use crate::vector::{CHANNEL_ROWS, CODE_DIMS, CODE_HEAD, CODE_ROWS, CodeQuery, CodeRun};

/// The kernels of one path. One pointer, cheap to copy.
///
/// Shapes: `q` is [g, dim] in f32, `rows` is [n, dim] in f16, both contiguous. All functions panic when lengths do not
/// fit each other or `dim` is 0; any `dim` works, multiples of 16 are fast.
#[derive(Clone, Copy)]
pub struct Kernels {
    table: &'static Table,
}

/// Rows whose addresses are resolved (and prefetched) ahead of their use by the gathering kernels.
const AHEAD: usize = 32;

impl Kernels {
    /// The path forced by the environment variable `RECOLLECT_KERNELS`, else the fastest of this CPU. Detected once per
    /// process. A value that cannot be honoured is ignored here; a program's start should report it through
    /// [`Kernels::from_env`].
    pub fn native() -> Kernels {
        static NATIVE: OnceLock<Kernels> = OnceLock::new();
        *NATIVE.get_or_init(|| Kernels::from_env().unwrap_or_else(|_| Kernels::fastest()))
    }

    /// As [`Kernels::native`], but an unknown or unavailable path in `RECOLLECT_KERNELS` is an error. Unset, empty and
    /// `auto` mean the fastest.
    pub fn from_env() -> Result<Kernels, IsaError> {
        match std::env::var("RECOLLECT_KERNELS").as_deref() {
            Err(_) | Ok("" | "auto") => Ok(Kernels::fastest()),
            Ok(name) => {
                let isa: Isa = name.parse()?;
                Kernels::with(isa).ok_or(IsaError::Unavailable(isa))
            }
        }
    }

    fn fastest() -> Kernels {
        Isa::ALL.into_iter().rev().find_map(Kernels::with).unwrap_or(Kernels { table: &crate::scalar::TABLE })
    }

    /// The path of `isa`; `None` when this CPU or this build lacks it.
    pub fn with(isa: Isa) -> Option<Kernels> {
        if !isa.is_available() {
            return None;
        }
        let table = match isa {
            Isa::Scalar => &crate::scalar::TABLE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &crate::arch::avx2::TABLE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &crate::arch::avx512::TABLE,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => &crate::arch::neon::TABLE,
            _ => return None,
        };
        Some(Kernels { table })
    }

    /// The instruction set of this path.
    pub fn isa(&self) -> Isa {
        self.table.isa
    }

    /// `out[h * n + r] = q_h . row_r`. Each row is loaded once for all query rows.
    pub fn dot_rows(&self, q: &[f32], dim: usize, rows: &[f16], out: &mut [f32]) {
        let (g, n) = (rows_of(q.len(), dim), rows_of(rows.len(), dim));
        assert!(out.len() == g * n, "dot_rows: out has {} of {g} x {n}", out.len());
        // SAFETY: the CPU has the path's instruction set (checked by `with`) and the lengths fit.
        unsafe { (self.table.dot_rows)(q, dim, rows, out) }
    }

    /// [`Kernels::dot_rows`] for rows that lie anywhere: `out[h * n + i] = q_h . rows[i]`, n the number of rows. Rows
    /// are prefetched some ahead of their use.
    pub fn dot_gather<'a, I>(&self, q: &[f32], dim: usize, rows: I, out: &mut [f32])
    where
        I: IntoIterator<Item = &'a [f16], IntoIter: ExactSizeIterator>,
    {
        let (g, rows) = (rows_of(q.len(), dim), rows.into_iter());
        let n = rows.len();
        assert!(out.len() == g * n, "dot_gather: out has {} of {g} x {n}", out.len());
        self.in_batches(dim, rows, n, |from, batch| {
            // SAFETY: as in `dot_rows`; every pointer comes from a slice of `dim` elements that outlives the call, and
            // `in_batches` never passes more than n rows in all.
            unsafe { (self.table.dot_pointers)(q, dim, batch, &mut out[from..], n) }
        });
    }

    /// One row against all query rows: `out[h] = q_h . row`.
    pub fn dot_group(&self, q: &[f32], dim: usize, row: &[f16], out: &mut [f32]) {
        let g = rows_of(q.len(), dim);
        assert!(row.len() == dim && out.len() == g, "dot_group: row or out does not fit");
        // SAFETY: as in `dot_rows`.
        unsafe { (self.table.dot_group)(q, dim, row, out) }
    }

    /// `q . row`.
    pub fn dot(&self, q: &[f32], row: &[f16]) -> f32 {
        let mut out = [0.0];
        self.dot_group(q, row.len(), row, &mut out);
        out[0]
    }

    /// Products of an integer query with codes: one for each row of each run, in turn, replacing what `out` held.
    /// `blocks` holds [`CODE_ROWS`] rows a block: the scale of each row (f32 in the machine's order), then the codes in
    /// fours of dimensions, [dim / 4, 8, 4]. A product is the run's parent plus (sum of `q` times code, less `zero`) times
    /// (`step` times scale): the same bits on every path, as long as no code is above
    /// [`MOST_CODE`](crate::MOST_CODE). The length of `q` is a multiple of [`CODE_DIMS`].
    pub fn dot_codes(&self, query: &CodeQuery<'_>, blocks: &[u8], runs: &[CodeRun], out: &mut Vec<f32>) {
        let dim = query.q.len();
        let size = CODE_HEAD + dim * CODE_ROWS;
        assert!(dim > 0 && dim.is_multiple_of(CODE_DIMS), "dot_codes: a query of {dim} elements");
        assert!(blocks.len().is_multiple_of(size), "dot_codes: {} bytes of blocks of {size}", blocks.len());
        let rows = (blocks.len() / size * CODE_ROWS) as u64;
        let (mut total, mut end) = (0, 0);
        for run in runs {
            total += run.len as usize;
            end = end.max(u64::from(run.first) + u64::from(run.len));
        }
        assert!(end <= rows, "dot_codes: row {end} of {rows}");
        out.resize(total + CODE_ROWS, 0.0);
        // SAFETY: as in `dot_rows`.
        unsafe { (self.table.dot_codes)(query, blocks, runs, out) }
        out.truncate(total);
    }

    /// Products with the codes of a block of rows, by channel: `z[h * n + r] += sum over d of q[h * dim + d] * code(d, r)`.
    /// `first` is [dim, n], n a multiple of [`CHANNEL_ROWS`]. With a second part, [dim, n / 2], a code is 16 times that of
    /// the first plus four bits: the lower halves of its bytes are of the first half of the rows, the upper ones of the second.
    pub fn dot_channels(&self, q: &[f32], dim: usize, first: &[u8], second: Option<&[u8]>, z: &mut [f32]) {
        let (g, n) = (rows_of(q.len(), dim), rows_of(first.len(), dim));
        assert!(n.is_multiple_of(CHANNEL_ROWS), "dot_channels: {n} rows, not a multiple of {CHANNEL_ROWS}");
        assert!(z.len() == g * n, "dot_channels: z has {} of {g} x {n}", z.len());
        assert!(second.is_none_or(|s| s.len() == dim * n / 2), "dot_channels: the second part does not fit");
        if n > 0 {
            // SAFETY: as in `dot_rows`.
            unsafe { (self.table.dot_channels)(q, dim, first, second, z) }
        }
    }

    /// Products with packed rows: `out[h * stride + r] = base[h] + sum over d of q[h * lanes + d] * number(r, d)`. A number
    /// is a code divided by its unit ([`Packing::units`]), which the caller has multiplied into `q` [g, lanes].
    pub fn dot_packed(&self, rows: &PackedRows<'_>, q: &[f32], base: &[f32], out: &mut [f32], stride: usize) {
        let g = base.len();
        assert!(q.len() == g * rows.packing.lanes(), "dot_packed: {} of {g} queries", q.len());
        check_packed(rows, g, out.len(), stride);
        if g > 0 && rows.count > 0 {
            // SAFETY: as in `dot_rows`; every window that is read lies within the bytes.
            unsafe { (self.table.dot_packed)(rows, q, base, out, stride) }
        }
    }

    /// `a . b` of two stored rows.
    pub fn dot_f16(&self, a: &[f16], b: &[f16]) -> f32 {
        assert!(a.len() == b.len(), "dot_f16: {} and {} elements", a.len(), b.len());
        // SAFETY: as in `dot_rows`.
        unsafe { (self.table.dot_f16)(a, b) }
    }

    /// The squared Euclidean distance of two stored rows.
    pub fn l2_sq_f16(&self, a: &[f16], b: &[f16]) -> f32 {
        assert!(a.len() == b.len(), "l2_sq_f16: {} and {} elements", a.len(), b.len());
        // SAFETY: as in `dot_rows`.
        unsafe { (self.table.l2_sq_f16)(a, b) }
    }

    /// `acc[h] += w[h] * row`: `w` is [g], `acc` [g, dim] with dim the length of `row`.
    pub fn axpy_group(&self, w: &[f32], row: &[f16], acc: &mut [f32]) {
        self.axpy_rows(w, row.len(), row, acc);
    }

    /// `acc[h] += sum over r of w[h * n + r] * row_r`: `w` is [g, n], `rows` [n, dim], `acc` [g, dim]. Sums stay in
    /// registers while the rows stream by once for up to three heads.
    pub fn axpy_rows(&self, w: &[f32], dim: usize, rows: &[f16], acc: &mut [f32]) {
        let (g, n) = (rows_of(acc.len(), dim), rows_of(rows.len(), dim));
        assert!(w.len() == g * n, "axpy_rows: {} weights of {g} x {n}", w.len());
        // SAFETY: as in `dot_rows`.
        unsafe { (self.table.axpy_rows)(w, dim, rows, acc) }
    }

    /// [`Kernels::axpy_rows`] for rows that lie anywhere, prefetched some ahead of their use.
    pub fn axpy_gather<'a, I>(&self, w: &[f32], dim: usize, rows: I, acc: &mut [f32])
    where
        I: IntoIterator<Item = &'a [f16], IntoIter: ExactSizeIterator>,
    {
        let (g, rows) = (rows_of(acc.len(), dim), rows.into_iter());
        let n = rows.len();
        assert!(w.len() == g * n, "axpy_gather: {} weights of {g} x {n}", w.len());
        self.in_batches(dim, rows, n, |from, batch| {
            // SAFETY: as in `dot_gather`.
            unsafe { (self.table.axpy_pointers)(&w[from..], n, dim, batch, acc) }
        });
    }

    /// Adds rows of codes, [n, dim], by their weights, for `width` dimensions from `from` on: `w` is [g, n], `acc` [g, dim],
    /// `acc[h * dim + d] += sum over r of w[h * n + r] * codes[r * dim + d]`.
    pub fn axpy_codes(
        &self,
        w: &[f32],
        dim: usize,
        codes: &[u8],
        (from, width): (usize, usize),
        acc: &mut [f32],
    ) {
        let (g, n) = (rows_of(acc.len(), dim), rows_of(codes.len(), dim));
        assert!(w.len() == g * n, "axpy_codes: {} weights of {g} x {n}", w.len());
        assert!(from <= dim && width <= dim - from, "axpy_codes: {width} of {dim} dimensions from {from} on");
        if n > 0 {
            // SAFETY: as in `dot_rows`.
            unsafe { (self.table.axpy_codes)(w, codes, dim, from, width, acc) }
        }
    }

    /// Adds packed rows by their weights: `acc[h * lanes + d] += sum over r of w[h * stride + r] * number(r, d)`, with
    /// numbers as in [`Kernels::dot_packed`]; `acc` is [g, lanes].
    pub fn axpy_packed(&self, rows: &PackedRows<'_>, w: &[f32], stride: usize, acc: &mut [f32]) {
        let lanes = rows.packing.lanes();
        if lanes == 0 {
            return;
        }
        let g = rows_of(acc.len(), lanes);
        check_packed(rows, g, w.len(), stride);
        if g > 0 && rows.count > 0 {
            // SAFETY: as in `dot_packed`.
            unsafe { (self.table.axpy_packed)(rows, w, stride, acc) }
        }
    }

    /// `acc += w * x`.
    pub fn axpy_f32(&self, w: f32, x: &[f32], acc: &mut [f32]) {
        assert!(x.len() == acc.len(), "axpy_f32: {} and {} elements", x.len(), acc.len());
        // SAFETY: as in `dot_rows`.
        unsafe { (self.table.axpy_f32)(w, x, acc) }
    }

    /// `x *= w`.
    pub fn scale(&self, w: f32, x: &mut [f32]) {
        // SAFETY: as in `dot_rows`.
        unsafe { (self.table.scale)(w, x) }
    }

    /// `z[i] = scale * z[i] + lift * spreads[i]^2`, at most `most`, but -inf where `counts[i]` is 0; the same bits on every
    /// path.
    pub fn lift(&self, z: &mut [f32], scale: f32, spreads: &[f32], (lift, most): (f32, f32), counts: &[f32]) {
        let n = z.len();
        assert!(
            n == spreads.len() && n == counts.len(),
            "lift: {n}, {}, {} elements",
            spreads.len(),
            counts.len()
        );
        // SAFETY: as in `dot_rows`.
        unsafe { (self.table.lift)(z, scale, spreads, (lift, most), counts) }
    }

    /// `x[i] = x[i] * a[i] + w * b[i]`, the same bits on every path.
    pub fn blend(&self, x: &mut [f32], a: &[f32], w: f32, b: &[f32]) {
        assert!(
            x.len() == a.len() && a.len() == b.len(),
            "blend: {}, {}, {} elements",
            x.len(),
            a.len(),
            b.len()
        );
        // SAFETY: as in `dot_rows`.
        unsafe { (self.table.blend)(x, a, w, b) }
    }

    /// `out[i]` is the sum of the part of `x` that belongs to run i, for runs whose rows follow each other in `x`.
    pub fn run_sums(&self, x: &[f32], runs: &[CodeRun], out: &mut [f32]) {
        let total: usize = runs.iter().map(|run| run.len as usize).sum();
        assert!(x.len() == total, "run_sums: {} elements for {total}", x.len());
        assert!(out.len() == runs.len(), "run_sums: room for {} of {}", out.len(), runs.len());
        // SAFETY: as in `dot_rows`.
        unsafe { (self.table.run_sums)(x, runs, out) }
    }

    /// The largest element, -inf of none. No element may be NaN.
    pub fn max(&self, z: &[f32]) -> f32 {
        // SAFETY: as in `dot_rows`.
        unsafe { (self.table.max)(z) }
    }

    /// `z := exp(z - m)`; returns the sum. `m` is the maximum of a set that `z` is part of, so differences are at most
    /// 0; the relative error is below 2e-7 down to -87 and the result 0 below (so for `z` = -inf too); `exp(0)` is
    /// exactly 1. With `m` = -inf (nothing is visible) everything becomes 0. NaN stays NaN.
    pub fn exp_sum(&self, z: &mut [f32], m: f32) -> f32 {
        if m == f32::NEG_INFINITY {
            z.fill(0.0);
            return 0.0;
        }
        // SAFETY: as in `dot_rows`.
        unsafe { (self.table.exp_sum)(z, m) }
    }

    /// Writes the positions of the elements of `z` that are at least `limit`, ascending, to the front of `out`, which has
    /// room for all; returns how many they are.
    pub fn at_least(&self, z: &[f32], limit: f32, out: &mut [u32]) -> usize {
        assert!(out.len() >= z.len(), "at_least: room for {} of {}", out.len(), z.len());
        // SAFETY: as in `dot_rows`.
        unsafe { (self.table.at_least)(z, limit, out) }
    }

    /// The largest finite `high - z[i]`, 0 where there is none; `high` is the maximum of `z` and finite.
    pub fn depth(&self, z: &[f32], high: f32) -> f32 {
        // SAFETY: as in `dot_rows`.
        unsafe { (self.table.depth)(z, high) }
    }

    /// `out[i]` is the bucket of `z[i]`: the whole part of `(high - z[i]) * scale`, at most `count - 1`, the same on every
    /// path. No element is above `high` or NaN.
    pub fn buckets(&self, z: &[f32], high: f32, scale: f32, count: u16, out: &mut [u32]) {
        assert!(out.len() == z.len(), "buckets: room for {} of {}", out.len(), z.len());
        assert!(
            scale > 0.0 && high.is_finite() && count > 0,
            "buckets: {count} of scale {scale} below {high}"
        );
        // SAFETY: as in `dot_rows`.
        unsafe { (self.table.buckets)(z, high, scale, f32::from(count - 1), out) }
    }

    /// C[m, n] = A[m, dim] . B[n, dim]^T in f32, blocked, on one thread. All are contiguous.
    pub fn gemm_nt(&self, a: &[f32], b: &[f32], dim: usize, m: usize, n: usize, c: &mut [f32]) {
        check_gemm((a.len(), b.len(), c.len()), dim, m, n);
        if m > 0 && n > 0 {
            // SAFETY: as in `dot_rows`.
            unsafe { (self.table.gemm_nt)(a, b, dim, m, n, c) }
        }
    }

    /// C[m, n] += A[m, dim] . B[dim, n] in f32, blocked, on one thread. All are contiguous.
    pub fn gemm_nn_add(&self, a: &[f32], b: &[f32], dim: usize, m: usize, n: usize, c: &mut [f32]) {
        check_gemm((a.len(), b.len(), c.len()), dim, m, n);
        if m > 0 && n > 0 {
            // SAFETY: as in `dot_rows`.
            unsafe { (self.table.gemm_nn_add)(a, b, dim, m, n, c) }
        }
    }

    /// Widens; exact.
    pub fn f16_to_f32(&self, src: &[f16], dst: &mut [f32]) {
        assert!(src.len() == dst.len(), "f16_to_f32: {} and {} elements", src.len(), dst.len());
        // SAFETY: as in `dot_rows`.
        unsafe { (self.table.f16_to_f32)(src, dst) }
    }

    /// Rounds to nearest even; beyond 65504 it gives infinity.
    pub fn f32_to_f16(&self, src: &[f32], dst: &mut [f16]) {
        assert!(src.len() == dst.len(), "f32_to_f16: {} and {} elements", src.len(), dst.len());
        // SAFETY: as in `dot_rows`.
        unsafe { (self.table.f32_to_f16)(src, dst) }
    }

    /// A hint to bring all cache lines of `row` (a stored row, a list of edges) near.
    #[inline]
    pub fn prefetch<T>(&self, row: &[T]) {
        const LINE: usize = 64;
        let first = row.as_ptr().cast::<u8>();
        let lines = (first.addr() % LINE + size_of_val(row)).div_ceil(LINE);
        for line in 0..lines {
            crate::arch::prefetch_line(first.wrapping_add(line * LINE));
        }
    }

    /// Hands the addresses of `rows` to `work(first row, addresses)` in batches; while one batch is worked on, the next
    /// is on its way from memory. At most `n` rows are taken.
    fn in_batches<'a>(
        &self,
        dim: usize,
        rows: impl Iterator<Item = &'a [f16]>,
        n: usize,
        mut work: impl FnMut(usize, &[*const f16]),
    ) {
        let mut rows = rows.take(n);
        let mut fill = |batch: &mut [*const f16; AHEAD]| {
            let mut len = 0;
            for (slot, row) in batch.iter_mut().zip(&mut rows) {
                assert!(row.len() == dim, "gather: a row has {} of {dim} elements", row.len());
                self.prefetch(row);
                *slot = row.as_ptr();
                len += 1;
            }
            len
        };
        let (mut now, mut next) = ([std::ptr::null(); AHEAD], [std::ptr::null(); AHEAD]);
        let (mut from, mut len) = (0, fill(&mut now));
        while len > 0 {
            let coming = fill(&mut next);
            work(from, &now[..len]);
            from += len;
            std::mem::swap(&mut now, &mut next);
            len = coming;
        }
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernels({})", self.isa())
    }
}

fn rows_of(len: usize, dim: usize) -> usize {
    assert!(dim > 0 && len.is_multiple_of(dim), "{len} elements are not rows of {dim}");
    len / dim
}

/// Whether rows, and what belongs to them for each of `g` heads, are there.
fn check_packed(rows: &PackedRows<'_>, g: usize, len: usize, stride: usize) {
    let (count, bytes) = (rows.count, rows.bytes.len());
    if g > 0 && count > 0 {
        let reach = (count - 1).saturating_mul(rows.stride).saturating_add(rows.packing.reach());
        assert!(reach <= bytes, "packed rows: {count} of {} bytes reach to {reach} of {bytes}", rows.stride);
        let places = (g - 1).saturating_mul(stride).saturating_add(count);
        assert!(
            count <= stride && places <= len,
            "packed rows: {len} places for {g} x {count} in steps of {stride}"
        );
    }
}

fn check_gemm((a, b, c): (usize, usize, usize), dim: usize, m: usize, n: usize) {
    assert!(dim > 0, "gemm: dim is 0");
    assert!(a == m * dim && b == n * dim && c == m * n, "gemm: {a}, {b}, {c} elements for {m} x {n} x {dim}");
}
