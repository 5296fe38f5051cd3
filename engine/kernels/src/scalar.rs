//! The plain twin of every kernel: one obvious loop each. Used as the reference of the tests and on CPUs that have
//! none of the faster paths.

use half::f16;

use crate::isa::Isa;
use crate::packed::PackedRows;
use crate::table::Table;
use crate::vector::{CODE_DIMS, CODE_HEAD, CODE_ROWS, CodeQuery, CodeRun, FINE_CODES};

pub(crate) static TABLE: Table = Table {
    isa: Isa::Scalar,
    dot_rows,
    dot_pointers,
    dot_group,
    dot_codes,
    dot_channels,
    dot_packed,
    dot_f16,
    l2_sq_f16,
    axpy_rows,
    axpy_pointers,
    axpy_codes,
    axpy_packed,
    axpy_f32,
    scale,
    lift,
    blend,
    run_sums,
    max,
    exp_sum,
    at_least,
    depth,
    buckets,
    gemm_nt,
    gemm_nn_add,
    f16_to_f32,
    f32_to_f16,
};

fn dot(q: &[f32], row: &[f16]) -> f32 {
    q.iter().zip(row).map(|(&x, y)| x * y.to_f32()).sum()
}

fn dot_rows(q: &[f32], dim: usize, rows: &[f16], out: &mut [f32]) {
    let n = rows.len() / dim;
    for (h, q) in q.chunks_exact(dim).enumerate() {
        for (r, row) in rows.chunks_exact(dim).enumerate() {
            out[h * n + r] = dot(q, row);
        }
    }
}

/// # Safety
/// Every pointer of `rows` points to `dim` readable f16.
unsafe fn dot_pointers(q: &[f32], dim: usize, rows: &[*const f16], out: &mut [f32], stride: usize) {
    for (h, q) in q.chunks_exact(dim).enumerate() {
        for (r, &row) in rows.iter().enumerate() {
            // SAFETY: the caller promises `dim` readable f16 behind every pointer.
            let row = unsafe { std::slice::from_raw_parts(row, dim) };
            out[h * stride + r] = dot(q, row);
        }
    }
}

fn dot_group(q: &[f32], dim: usize, row: &[f16], out: &mut [f32]) {
    for (q, out) in q.chunks_exact(dim).zip(out) {
        *out = dot(q, row);
    }
}

fn dot_codes(query: &CodeQuery<'_>, blocks: &[u8], runs: &[CodeRun], out: &mut [f32]) {
    let size = CODE_HEAD + query.q.len() * CODE_ROWS;
    let rows =
        runs.iter().flat_map(|run| (run.first..run.first + run.len).map(|row| (row as usize, run.parent)));
    for ((row, parent), out) in rows.zip(out) {
        let (scales, codes) = blocks[row / CODE_ROWS * size..][..size].split_at(CODE_HEAD);
        let r = row % CODE_ROWS;
        let code = |d: usize| codes[(d / CODE_DIMS * CODE_ROWS + r) * CODE_DIMS + d % CODE_DIMS];
        let products = query.q.iter().enumerate().map(|(d, &q)| i32::from(q) * i32::from(code(d)));
        let sum = products.sum::<i32>() - query.zero;
        *out = parent + sum as f32 * (query.step * f32::from_ne_bytes(scales.as_chunks().0[r]));
    }
}

fn dot_channels(q: &[f32], dim: usize, first: &[u8], second: Option<&[u8]>, z: &mut [f32]) {
    let (n, half) = (first.len() / dim, first.len() / dim / 2);
    for (q, z) in q.chunks_exact(dim).zip(z.chunks_exact_mut(n)) {
        for (r, z) in z.iter_mut().enumerate() {
            for (d, q) in q.iter().enumerate() {
                let first = f32::from(first[d * n + r]);
                let code = match second {
                    None => first,
                    Some(second) if r < half => first * FINE_CODES + f32::from(second[d * half + r] & 15),
                    Some(second) => first * FINE_CODES + f32::from(second[d * half + r - half] >> 4),
                };
                *z += q * code;
            }
        }
    }
}

/// The code of a row, at the place where it is.
fn packed(rows: &PackedRows<'_>, r: usize, d: usize) -> f32 {
    let (group, lane) = (&rows.packing.groups()[d / 8], d % 8);
    let window = &rows.bytes[r * rows.stride + group.from..][..16];
    let bytes =
        group.bytes.as_chunks::<4>().0[lane].map(|at| if at < 128 { window[usize::from(at)] } else { 0 });
    (u32::from_le_bytes(bytes) & group.masks[lane]) as f32
}

fn dot_packed(rows: &PackedRows<'_>, q: &[f32], base: &[f32], out: &mut [f32], stride: usize) {
    let lanes = rows.packing.lanes();
    for (h, base) in base.iter().enumerate() {
        for r in 0..rows.count {
            let products = (0..rows.packing.codes()).map(|d| q[h * lanes + d] * packed(rows, r, d));
            out[h * stride + r] = base + products.sum::<f32>();
        }
    }
}

fn dot_f16(a: &[f16], b: &[f16]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x.to_f32() * y.to_f32()).sum()
}

fn l2_sq_f16(a: &[f16], b: &[f16]) -> f32 {
    a.iter().zip(b).map(|(x, y)| (x.to_f32() - y.to_f32()).powi(2)).sum()
}

fn axpy(w: f32, row: &[f16], acc: &mut [f32]) {
    for (acc, x) in acc.iter_mut().zip(row) {
        *acc += w * x.to_f32();
    }
}

fn axpy_rows(w: &[f32], dim: usize, rows: &[f16], acc: &mut [f32]) {
    let n = rows.len() / dim;
    for (h, acc) in acc.chunks_exact_mut(dim).enumerate() {
        for (r, row) in rows.chunks_exact(dim).enumerate() {
            axpy(w[h * n + r], row, acc);
        }
    }
}

/// # Safety
/// Every pointer of `rows` points to `dim` readable f16.
unsafe fn axpy_pointers(w: &[f32], stride: usize, dim: usize, rows: &[*const f16], acc: &mut [f32]) {
    for (h, acc) in acc.chunks_exact_mut(dim).enumerate() {
        for (r, &row) in rows.iter().enumerate() {
            // SAFETY: the caller promises `dim` readable f16 behind every pointer.
            let row = unsafe { std::slice::from_raw_parts(row, dim) };
            axpy(w[h * stride + r], row, acc);
        }
    }
}

fn axpy_codes(w: &[f32], codes: &[u8], stride: usize, from: usize, width: usize, acc: &mut [f32]) {
    let n = codes.len() / stride;
    for (w, acc) in w.chunks_exact(n).zip(acc.chunks_exact_mut(stride)) {
        for (w, row) in w.iter().zip(codes.chunks_exact(stride)) {
            for (acc, &code) in acc[from..from + width].iter_mut().zip(&row[from..]) {
                *acc += w * f32::from(code);
            }
        }
    }
}

fn axpy_packed(rows: &PackedRows<'_>, w: &[f32], stride: usize, acc: &mut [f32]) {
    for (h, acc) in acc.chunks_exact_mut(rows.packing.lanes().max(1)).enumerate() {
        for (d, acc) in acc[..rows.packing.codes()].iter_mut().enumerate() {
            *acc += (0..rows.count).map(|r| w[h * stride + r] * packed(rows, r, d)).sum::<f32>();
        }
    }
}

fn axpy_f32(w: f32, x: &[f32], acc: &mut [f32]) {
    for (acc, x) in acc.iter_mut().zip(x) {
        *acc += w * x;
    }
}

fn scale(w: f32, x: &mut [f32]) {
    for x in x {
        *x *= w;
    }
}

fn lift(z: &mut [f32], scale: f32, spreads: &[f32], (lift, most): (f32, f32), counts: &[f32]) {
    for ((z, spread), &count) in z.iter_mut().zip(spreads).zip(counts) {
        let lifted = scale * *z + lift * (spread * spread);
        *z = match count > 0.0 {
            true if lifted < most => lifted,
            true => most,
            false => f32::NEG_INFINITY,
        };
    }
}

fn blend(x: &mut [f32], a: &[f32], w: f32, b: &[f32]) {
    for ((x, a), b) in x.iter_mut().zip(a).zip(b) {
        *x = *x * a + w * b;
    }
}

fn run_sums(x: &[f32], runs: &[CodeRun], out: &mut [f32]) {
    let mut x = x.iter();
    for (run, out) in runs.iter().zip(out) {
        *out = x.by_ref().take(run.len as usize).sum();
    }
}

fn max(z: &[f32]) -> f32 {
    z.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

fn exp_sum(z: &mut [f32], m: f32) -> f32 {
    let mut sum = 0.0;
    for z in z {
        let x = *z - m;
        *z = match x {
            x if x < EXP_MIN => 0.0,
            x if x > EXP_MAX => EXP_MAX.exp(),
            x => x.exp(),
        };
        sum += *z;
    }
    sum
}

/// Below this difference the exponential is taken as 0 on every path (it is 1.6e-38, the last normal f32).
pub(crate) const EXP_MIN: f32 = -87.0;
/// Differences are clamped to this; they are at most 0 wherever `m` is the maximum.
pub(crate) const EXP_MAX: f32 = 88.0;

fn at_least(z: &[f32], limit: f32, out: &mut [u32]) -> usize {
    let mut n = 0;
    for (i, &z) in z.iter().enumerate() {
        if z >= limit {
            out[n] = i as u32;
            n += 1;
        }
    }
    n
}

fn depth(z: &[f32], high: f32) -> f32 {
    z.iter().map(|z| high - z).filter(|depth| depth.is_finite()).fold(0.0, f32::max)
}

fn buckets(z: &[f32], high: f32, scale: f32, last: f32, out: &mut [u32]) {
    for (out, z) in out.iter_mut().zip(z) {
        *out = ((high - z) * scale).min(last) as u32;
    }
}

fn gemm_nt(a: &[f32], b: &[f32], dim: usize, _m: usize, n: usize, c: &mut [f32]) {
    for (a, c) in a.chunks_exact(dim).zip(c.chunks_exact_mut(n)) {
        for (b, c) in b.chunks_exact(dim).zip(c) {
            *c = a.iter().zip(b).map(|(x, y)| x * y).sum();
        }
    }
}

fn gemm_nn_add(a: &[f32], b: &[f32], dim: usize, _m: usize, n: usize, c: &mut [f32]) {
    for (a, c) in a.chunks_exact(dim).zip(c.chunks_exact_mut(n)) {
        for (&a, b) in a.iter().zip(b.chunks_exact(n)) {
            axpy_f32(a, b, c);
        }
    }
}

fn f16_to_f32(src: &[f16], dst: &mut [f32]) {
    for (dst, src) in dst.iter_mut().zip(src) {
        *dst = src.to_f32();
    }
}

fn f32_to_f16(src: &[f32], dst: &mut [f16]) {
    for (dst, &src) in dst.iter_mut().zip(src) {
        *dst = f16::from_f32(src);
    }
}
