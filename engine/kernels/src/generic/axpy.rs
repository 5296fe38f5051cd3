//! Weighted sums of rows.
//!
//! A tile of G heads x C registers of the dimension stays in registers while the rows stream by, beside G weights and
//! one or two converted pieces of a row: 3 x 3 or 2 x 4 with 16 registers, 3 x 4 with 32.

use half::f16;

use super::{Contiguous, RowPointers, Scattered};
use crate::vector::Vector;

/// The weights and sums of one call; `w` and `acc` point at the first head of the tile.
#[derive(Clone, Copy)]
struct Job<S> {
    rows: S,
    n: usize,
    w: *const f32,
    stride: usize,
    acc: *mut f32,
    dim: usize,
}

#[inline(always)]
unsafe fn tile<V: Vector, S: RowPointers, const G: usize, const C: usize>(job: Job<S>, d: usize) {
    // SAFETY: d + C * LANES is at most `dim`; heads 0..G and rows 0..n exist.
    unsafe {
        let mut acc = [[V::splat(0.0); C]; G];
        for (h, acc) in acc.iter_mut().enumerate() {
            for (c, acc) in acc.iter_mut().enumerate() {
                *acc = V::load(job.acc.add(h * job.dim + d + c * V::LANES));
            }
        }
        for r in 0..job.n {
            let row = job.rows.row(r).add(d);
            let mut w = [V::splat(0.0); G];
            for (h, w) in w.iter_mut().enumerate() {
                *w = V::splat(*job.w.add(h * job.stride + r));
            }
            for c in 0..C {
                let x = V::load_f16(row.add(c * V::LANES));
                for h in 0..G {
                    acc[h][c] = x.mul_add(w[h], acc[h][c]);
                }
            }
        }
        for (h, acc) in acc.iter().enumerate() {
            for (c, acc) in acc.iter().enumerate() {
                acc.store(job.acc.add(h * job.dim + d + c * V::LANES));
            }
        }
    }
}

/// The last `dim % LANES` elements of the rows.
#[inline(always)]
unsafe fn tail<V: Vector, S: RowPointers, const G: usize>(job: Job<S>, d: usize) {
    let rest = job.dim - d;
    // SAFETY: `rest` is less than LANES; heads 0..G and rows 0..n exist.
    unsafe {
        let mut acc = [V::splat(0.0); G];
        for (h, acc) in acc.iter_mut().enumerate() {
            *acc = V::load_part(job.acc.add(h * job.dim + d), rest);
        }
        for r in 0..job.n {
            let x = V::load_f16_part(job.rows.row(r).add(d), rest);
            for (h, acc) in acc.iter_mut().enumerate() {
                *acc = x.mul_add(V::splat(*job.w.add(h * job.stride + r)), *acc);
            }
        }
        for (h, acc) in acc.iter().enumerate() {
            acc.store_part(job.acc.add(h * job.dim + d), rest);
        }
    }
}

#[inline(always)]
unsafe fn heads<V: Vector, S: RowPointers, const G: usize>(job: Job<S>) {
    let mut d = 0;
    // SAFETY: d plus the width of the tile never exceeds `dim`.
    unsafe {
        if G == 3 && !V::WIDE {
            while d + 3 * V::LANES <= job.dim {
                tile::<V, S, G, 3>(job, d);
                d += 3 * V::LANES;
            }
        } else {
            while d + 4 * V::LANES <= job.dim {
                tile::<V, S, G, 4>(job, d);
                d += 4 * V::LANES;
            }
        }
        if d + 2 * V::LANES <= job.dim {
            tile::<V, S, G, 2>(job, d);
            d += 2 * V::LANES;
        }
        if d + V::LANES <= job.dim {
            tile::<V, S, G, 1>(job, d);
            d += V::LANES;
        }
        if d < job.dim {
            tail::<V, S, G>(job, d);
        }
    }
}

#[inline(always)]
unsafe fn all_heads<V: Vector, S: RowPointers>(mut job: Job<S>, mut g: usize) {
    // SAFETY: the job moves on by the heads that were done, g of them are left.
    unsafe {
        while g > 0 {
            let done = match g {
                1 => {
                    heads::<V, S, 1>(job);
                    1
                }
                2 | 4 => {
                    heads::<V, S, 2>(job);
                    2
                }
                _ => {
                    heads::<V, S, 3>(job);
                    3
                }
            };
            job.w = job.w.wrapping_add(done * job.stride);
            job.acc = job.acc.wrapping_add(done * job.dim);
            g -= done;
        }
    }
}

#[inline(always)]
unsafe fn all<V: Vector, S: RowPointers>(job: Job<S>, g: usize) {
    let step = super::rows_at_once(job.dim);
    let mut r = 0;
    while r < job.n {
        let n = step.min(job.n - r);
        // SAFETY: rows r..r + n exist, and their weights.
        unsafe {
            let (rows, w) = (job.rows.skip(r), job.w.add(r));
            all_heads::<V, S>(Job { rows, n, w, ..job }, g);
        }
        r += n;
    }
}

#[inline(always)]
pub(crate) unsafe fn axpy_rows<V: Vector>(w: &[f32], dim: usize, rows: &[f16], acc: &mut [f32]) {
    let n = rows.len() / dim;
    let job = Job {
        rows: Contiguous { base: rows.as_ptr(), dim },
        n,
        w: w.as_ptr(),
        stride: n,
        acc: acc.as_mut_ptr(),
        dim,
    };
    // SAFETY: the door checked the lengths.
    unsafe { all::<V, _>(job, acc.len() / dim) }
}

#[inline(always)]
pub(crate) unsafe fn axpy_pointers<V: Vector>(
    w: &[f32],
    stride: usize,
    dim: usize,
    rows: &[*const f16],
    acc: &mut [f32],
) {
    let job = Job { rows: Scattered(rows), n: rows.len(), w: w.as_ptr(), stride, acc: acc.as_mut_ptr(), dim };
    // SAFETY: the caller promises readable rows and weights for them; only existing heads are addressed.
    unsafe { all::<V, _>(job, acc.len() / dim) }
}

#[inline(always)]
pub(crate) unsafe fn axpy_f32<V: Vector>(w: f32, x: &[f32], acc: &mut [f32]) {
    let dim = x.len();
    let full = dim - dim % V::LANES;
    let (x, acc) = (x.as_ptr(), acc.as_mut_ptr());
    // SAFETY: the door checked that both have `dim` elements.
    unsafe {
        let w = V::splat(w);
        let mut d = 0;
        while d < full {
            w.mul_add(V::load(x.add(d)), V::load(acc.add(d))).store(acc.add(d));
            d += V::LANES;
        }
        if d < dim {
            let rest = dim - d;
            let sum = w.mul_add(V::load_part(x.add(d), rest), V::load_part(acc.add(d), rest));
            sum.store_part(acc.add(d), rest);
        }
    }
}

#[inline(always)]
pub(crate) unsafe fn scale<V: Vector>(w: f32, x: &mut [f32]) {
    let dim = x.len();
    let full = dim - dim % V::LANES;
    let x = x.as_mut_ptr();
    // SAFETY: offsets stay below the length.
    unsafe {
        let w = V::splat(w);
        let mut d = 0;
        while d < full {
            w.mul(V::load(x.add(d))).store(x.add(d));
            d += V::LANES;
        }
        if d < dim {
            let rest = dim - d;
            w.mul(V::load_part(x.add(d), rest)).store_part(x.add(d), rest);
        }
    }
}
