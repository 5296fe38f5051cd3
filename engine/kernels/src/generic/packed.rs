//! Products and sums of packed codes. Codes lie along the lanes, so that one table of a group serves all rows, whatever the
//! widths of its codes; steps and centres are the caller's, as in `bytes`.

use crate::packed::{Group, PackedRows};
use crate::vector::Vector;

/// Rows of a tile of `dot_packed`: with three heads twelve sums, three registers of a query and one of codes.
const ROWS: usize = 4;

/// Heads of the next tile: at most three, and rather two and two than three and one.
#[inline(always)]
fn heads_at_once(left: usize) -> usize {
    match left {
        1 => 1,
        2 | 4 => 2,
        _ => 3,
    }
}

/// `out[h * stride + r] = base[h] + sum over d of q[h * lanes + d] * code(r, d)`.
#[inline(always)]
pub(crate) unsafe fn dot_packed<V: Vector>(
    rows: &PackedRows<'_>,
    q: &[f32],
    base: &[f32],
    out: &mut [f32],
    stride: usize,
) {
    let (lanes, mut h) = (rows.packing.lanes(), 0);
    while h < base.len() {
        let heads = heads_at_once(base.len() - h);
        // SAFETY: the door checked the lengths; `heads` heads from `h` on exist.
        unsafe {
            let (q, base, out) =
                (q.as_ptr().add(h * lanes), base.as_ptr().add(h), out.as_mut_ptr().add(h * stride));
            match heads {
                1 => products::<V, 1>(rows, q, base, out, stride),
                2 => products::<V, 2>(rows, q, base, out, stride),
                _ => products::<V, 3>(rows, q, base, out, stride),
            }
        }
        h += heads;
    }
}

#[inline(always)]
unsafe fn products<V: Vector, const H: usize>(
    rows: &PackedRows<'_>,
    q: *const f32,
    base: *const f32,
    out: *mut f32,
    stride: usize,
) {
    let mut r = 0;
    // SAFETY: as for the caller; all rows from `r` on that are touched exist.
    unsafe {
        while r + ROWS <= rows.count {
            let sums = tile::<V, H, ROWS>(rows, q, r);
            for h in 0..H {
                let sums = V::sum4(sums[h]);
                for i in 0..ROWS {
                    *out.add(h * stride + r + i) = *base.add(h) + sums[i];
                }
            }
            r += ROWS;
        }
        while r < rows.count {
            let sums = tile::<V, H, 1>(rows, q, r);
            for h in 0..H {
                *out.add(h * stride + r) = *base.add(h) + sums[h][0].sum();
            }
            r += 1;
        }
    }
}

#[inline(always)]
unsafe fn tile<V: Vector, const H: usize, const R: usize>(
    rows: &PackedRows<'_>,
    q: *const f32,
    r: usize,
) -> [[V; R]; H] {
    let (lanes, groups) = (rows.packing.lanes(), rows.packing.groups().as_ptr());
    // SAFETY: as for the caller; lanes come in whole registers.
    unsafe {
        let first = rows.bytes.as_ptr().add(r * rows.stride);
        let mut acc = [[V::splat(0.0); R]; H];
        let mut d = 0;
        while d < rows.packing.codes() {
            let mut query = [V::splat(0.0); H];
            for h in 0..H {
                query[h] = V::load(q.add(h * lanes + d));
            }
            for i in 0..R {
                let code = V::load_packed(first.add(i * rows.stride), groups, d);
                for h in 0..H {
                    acc[h][i] = query[h].mul_add(code, acc[h][i]);
                }
            }
            d += V::LANES;
        }
        acc
    }
}

/// `acc[h * lanes + d] += sum over r of w[h * stride + r] * code(r, d)`.
#[inline(always)]
pub(crate) unsafe fn axpy_packed<V: Vector>(
    rows: &PackedRows<'_>,
    w: &[f32],
    stride: usize,
    acc: &mut [f32],
) {
    let lanes = rows.packing.lanes();
    if lanes == 0 {
        return;
    }
    let (all, mut h) = (acc.len() / lanes, 0);
    while h < all {
        let heads = heads_at_once(all - h);
        // SAFETY: the door checked the lengths; `heads` heads from `h` on exist.
        unsafe {
            let (w, acc) = (w.as_ptr().add(h * stride), acc.as_mut_ptr().add(h * lanes));
            match heads {
                1 => sums::<V, 1>(rows, w, stride, acc),
                2 => sums::<V, 2>(rows, w, stride, acc),
                _ => sums::<V, 3>(rows, w, stride, acc),
            }
        }
        h += heads;
    }
}

#[inline(always)]
unsafe fn sums<V: Vector, const H: usize>(
    rows: &PackedRows<'_>,
    w: *const f32,
    stride: usize,
    acc: *mut f32,
) {
    let registers = rows.packing.codes().div_ceil(V::LANES);
    let mut i = 0;
    // SAFETY: as for the caller; lanes come in whole registers.
    unsafe {
        while i < registers {
            let d = i * V::LANES;
            match registers - i {
                1 => add::<V, H, 1>(rows, w, stride, acc, d),
                2 | 3 => add::<V, H, 2>(rows, w, stride, acc, d),
                _ => add::<V, H, 4>(rows, w, stride, acc, d),
            }
            i += match registers - i {
                1 => 1,
                2 | 3 => 2,
                _ => 4,
            };
        }
    }
}

/// `B` registers of lanes from `d` on. The sum of these rows begins at 0, so that the error grows with the calls and not
/// with all their rows.
#[inline(always)]
unsafe fn add<V: Vector, const H: usize, const B: usize>(
    rows: &PackedRows<'_>,
    w: *const f32,
    stride: usize,
    acc: *mut f32,
    d: usize,
) {
    let (lanes, groups): (usize, *const Group) = (rows.packing.lanes(), rows.packing.groups().as_ptr());
    // SAFETY: as for the caller.
    unsafe {
        let mut sum = [[V::splat(0.0); B]; H];
        let mut row = rows.bytes.as_ptr();
        for r in 0..rows.count {
            let mut weights = [V::splat(0.0); H];
            for h in 0..H {
                weights[h] = V::splat(*w.add(h * stride + r));
            }
            for b in 0..B {
                let code = V::load_packed(row, groups, d + b * V::LANES);
                for h in 0..H {
                    sum[h][b] = weights[h].mul_add(code, sum[h][b]);
                }
            }
            row = row.wrapping_add(rows.stride);
        }
        for h in 0..H {
            for b in 0..B {
                let at = acc.add(h * lanes + d + b * V::LANES);
                V::load(at).add(sum[h][b]).store(at);
            }
        }
    }
}
