//! Dot products of f32 query rows with f16 rows, and of f16 rows with each other.
//!
//! A tile of G query rows x R stored rows keeps G * R sums in registers, beside G query registers and one or two
//! converted rows. With 16 registers that is 3 x 3 or 2 x 4 (3 x 4 would need all 16, and in practice one more), with 32
//! it is 3 x 4. Each stored row is converted once per tile.

use half::f16;

use super::{Contiguous, RowPointers, Scattered};
use crate::vector::Vector;

#[inline(always)]
unsafe fn tile<V: Vector, const G: usize, const R: usize>(
    q: *const f32,
    dim: usize,
    rows: [*const f16; R],
) -> [[V; R]; G] {
    // SAFETY: `q` has G rows of `dim`, every row pointer `dim` elements; offsets stay below `dim`.
    unsafe {
        let mut acc = [[V::splat(0.0); R]; G];
        let full = dim - dim % V::LANES;
        let mut d = 0;
        while d < full {
            let mut query = [V::splat(0.0); G];
            for (h, query) in query.iter_mut().enumerate() {
                *query = V::load(q.add(h * dim + d));
            }
            for r in 0..R {
                let x = V::load_f16(rows[r].add(d));
                for h in 0..G {
                    acc[h][r] = x.mul_add(query[h], acc[h][r]);
                }
            }
            d += V::LANES;
        }
        if full < dim {
            let rest = dim - full;
            for h in 0..G {
                let query = V::load_part(q.add(h * dim + full), rest);
                for r in 0..R {
                    let x = V::load_f16_part(rows[r].add(full), rest);
                    acc[h][r] = x.mul_add(query, acc[h][r]);
                }
            }
        }
        acc
    }
}

/// The sums of the heads h..h + G and the rows r..r + R, or what is left of them: a tile that reaches beyond the last
/// row reads it again, so that a row's score has the same bits in every tile.
#[inline(always)]
unsafe fn store_tile<V: Vector, S: RowPointers, const G: usize, const R: usize>(
    job: &Job<S>,
    h: usize,
    r: usize,
) {
    // SAFETY: heads h..h + G and row r exist, and `out` has room for the sums of existing rows.
    unsafe {
        let left = R.min(job.n - r);
        let mut rows = [std::ptr::null(); R];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = job.rows.row(r + i.min(left - 1));
        }
        let acc = tile::<V, G, R>(job.q.add(h * job.dim), job.dim, rows);
        for (i, acc) in acc.iter().enumerate() {
            let mut four = [V::splat(0.0); 4];
            four[..R].copy_from_slice(acc);
            let sums = V::sum4(four);
            let out = job.out.add((h + i) * job.stride + r);
            if left == R {
                std::ptr::copy_nonoverlapping(sums.as_ptr(), out, R);
            } else {
                std::ptr::copy_nonoverlapping(sums.as_ptr(), out, left);
            }
        }
    }
}

/// One row against G query rows, two sums each so that the additions overlap.
#[inline(always)]
unsafe fn single<V: Vector, const G: usize>(q: *const f32, dim: usize, row: *const f16) -> [f32; G] {
    // SAFETY: `q` has G rows of `dim`, `row` has `dim` elements; offsets stay below `dim`.
    unsafe {
        let mut acc = [[V::splat(0.0); 2]; G];
        let pairs = dim - dim % (2 * V::LANES);
        let full = dim - dim % V::LANES;
        let mut d = 0;
        while d < pairs {
            for u in 0..2 {
                let at = d + u * V::LANES;
                let x = V::load_f16(row.add(at));
                for (h, acc) in acc.iter_mut().enumerate() {
                    acc[u] = x.mul_add(V::load(q.add(h * dim + at)), acc[u]);
                }
            }
            d += 2 * V::LANES;
        }
        if d < full {
            let x = V::load_f16(row.add(d));
            for (h, acc) in acc.iter_mut().enumerate() {
                acc[0] = x.mul_add(V::load(q.add(h * dim + d)), acc[0]);
            }
        }
        if full < dim {
            let x = V::load_f16_part(row.add(full), dim - full);
            for (h, acc) in acc.iter_mut().enumerate() {
                let query = V::load_part(q.add(h * dim + full), dim - full);
                acc[1] = x.mul_add(query, acc[1]);
            }
        }
        let mut out = [0.0; G];
        for (out, acc) in out.iter_mut().zip(acc) {
            *out = acc[0].add(acc[1]).sum();
        }
        out
    }
}

#[inline(always)]
unsafe fn store_single<V: Vector, const G: usize>(
    q: *const f32,
    dim: usize,
    row: *const f16,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: as `single`; `out` has room for one sum at each of G strides.
    unsafe {
        for (h, sum) in single::<V, G>(q, dim, row).into_iter().enumerate() {
            *out.add(h * stride) = sum;
        }
    }
}

/// `out[h * stride + r] = q_h . rows[r]` for `g` query rows and `n` rows.
struct Job<S> {
    q: *const f32,
    g: usize,
    dim: usize,
    rows: S,
    n: usize,
    out: *mut f32,
    stride: usize,
}

#[inline(always)]
unsafe fn all_heads<V: Vector, S: RowPointers>(job: &Job<S>) {
    // SAFETY: h + G stays within g.
    unsafe {
        let mut h = 0;
        while h < job.g {
            // Four heads are two pairs: a lone head would waste the conversion.
            h += match job.g - h {
                1 => rows::<V, S, 1, 4>(job, h),
                2 | 4 => rows::<V, S, 2, 4>(job, h),
                _ if V::WIDE => rows::<V, S, 3, 4>(job, h),
                _ => rows::<V, S, 3, 3>(job, h),
            };
        }
    }
}

#[inline(always)]
unsafe fn all<V: Vector, S: RowPointers>(job: &Job<S>) {
    let step = super::rows_at_once(job.dim);
    let mut r = 0;
    while r < job.n {
        let n = step.min(job.n - r);
        // SAFETY: rows r..r + n exist, and places for their sums.
        unsafe {
            let (rows, out) = (job.rows.skip(r), job.out.add(r));
            all_heads::<V, S>(&Job { rows, n, out, ..*job });
        }
        r += n;
    }
}

/// All rows for the heads h..h + G; returns G.
#[inline(always)]
unsafe fn rows<V: Vector, S: RowPointers, const G: usize, const R: usize>(job: &Job<S>, h: usize) -> usize {
    let mut r = 0;
    while r < job.n {
        // SAFETY: row r and the heads exist.
        unsafe { store_tile::<V, S, G, R>(job, h, r) };
        r += R;
    }
    G
}

#[inline(always)]
unsafe fn group<V: Vector>(q: &[f32], dim: usize, row: *const f16, out: *mut f32, stride: usize) {
    let g = q.len() / dim;
    // SAFETY: h stays below g; `out` has one sum at each of g strides.
    unsafe {
        let mut h = 0;
        while h < g {
            let query = q.as_ptr().add(h * dim);
            let out = out.add(h * stride);
            match g - h {
                1 => store_single::<V, 1>(query, dim, row, out, stride),
                2 => store_single::<V, 2>(query, dim, row, out, stride),
                _ => store_single::<V, 3>(query, dim, row, out, stride),
            }
            h += 3;
        }
    }
}

#[inline(always)]
pub(crate) unsafe fn dot_rows<V: Vector>(q: &[f32], dim: usize, rows: &[f16], out: &mut [f32]) {
    let n = rows.len() / dim;
    let rows = Contiguous { base: rows.as_ptr(), dim };
    let job = Job { q: q.as_ptr(), g: q.len() / dim, dim, rows, n, out: out.as_mut_ptr(), stride: n };
    // SAFETY: the door checked that `out` holds one sum per query row and row.
    unsafe { all::<V, _>(&job) }
}

#[inline(always)]
pub(crate) unsafe fn dot_pointers<V: Vector>(
    q: &[f32],
    dim: usize,
    rows: &[*const f16],
    out: &mut [f32],
    stride: usize,
) {
    let (n, rows) = (rows.len(), Scattered(rows));
    let job = Job { q: q.as_ptr(), g: q.len() / dim, dim, rows, n, out: out.as_mut_ptr(), stride };
    // SAFETY: the caller promises readable rows and room in `out`.
    unsafe { all::<V, _>(&job) }
}

#[inline(always)]
pub(crate) unsafe fn dot_group<V: Vector>(q: &[f32], dim: usize, row: &[f16], out: &mut [f32]) {
    // SAFETY: the door checked the lengths.
    unsafe { group::<V>(q, dim, row.as_ptr(), out.as_mut_ptr(), 1) }
}

/// What two stored rows are folded with, lane by lane.
trait Fold {
    unsafe fn fold<V: Vector>(a: V, b: V, acc: V) -> V;
}

struct Product;
struct SquaredDifference;

impl Fold for Product {
    #[inline(always)]
    unsafe fn fold<V: Vector>(a: V, b: V, acc: V) -> V {
        // SAFETY: the caller runs on the vector's instruction set.
        unsafe { a.mul_add(b, acc) }
    }
}

impl Fold for SquaredDifference {
    #[inline(always)]
    unsafe fn fold<V: Vector>(a: V, b: V, acc: V) -> V {
        // SAFETY: the caller runs on the vector's instruction set.
        unsafe {
            let x = a.sub(b);
            x.mul_add(x, acc)
        }
    }
}

#[inline(always)]
unsafe fn pair<V: Vector, F: Fold>(a: &[f16], b: &[f16]) -> f32 {
    let dim = a.len();
    let (a, b) = (a.as_ptr(), b.as_ptr());
    let block = 4 * V::LANES;
    let (blocks, full) = (dim - dim % block, dim - dim % V::LANES);
    // SAFETY: the door checked that both rows have `dim` elements; offsets stay below it.
    unsafe {
        let mut acc = [V::splat(0.0); 4];
        let mut d = 0;
        while d < blocks {
            for (u, acc) in acc.iter_mut().enumerate() {
                let at = d + u * V::LANES;
                *acc = F::fold(V::load_f16(a.add(at)), V::load_f16(b.add(at)), *acc);
            }
            d += block;
        }
        while d < full {
            acc[0] = F::fold(V::load_f16(a.add(d)), V::load_f16(b.add(d)), acc[0]);
            d += V::LANES;
        }
        if full < dim {
            let rest = dim - full;
            let (x, y) = (V::load_f16_part(a.add(full), rest), V::load_f16_part(b.add(full), rest));
            acc[1] = F::fold(x, y, acc[1]);
        }
        acc[0].add(acc[1]).add(acc[2].add(acc[3])).sum()
    }
}

#[inline(always)]
pub(crate) unsafe fn dot_f16<V: Vector>(a: &[f16], b: &[f16]) -> f32 {
    // SAFETY: the door checked the lengths.
    unsafe { pair::<V, Product>(a, b) }
}

#[inline(always)]
pub(crate) unsafe fn l2_sq_f16<V: Vector>(a: &[f16], b: &[f16]) -> f32 {
    // SAFETY: the door checked the lengths.
    unsafe { pair::<V, SquaredDifference>(a, b) }
}
