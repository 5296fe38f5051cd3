//! Blocked matrix products in f32, one thread.
//!
//! B is packed into panels of `2 * LANES` columns ([depth, 2 * LANES], zero-padded, aligned), a few hundred columns at a
//! time so that the packed block stays in the L2 cache; a group of its panels stays in L1 while the rows of A pass. A
//! micro-kernel of 6 rows x 2 registers then keeps 12 sums in registers (with 2 registers of B and 1 broadcast of A: 15
//! of the 16 of AVX2) over the whole depth; head dims are at most a few hundred, so the depth is not split. A is read in
//! place, a block of rows that fits in L2 at a time.

use crate::vector::Vector;

/// Rows of the micro-kernel.
const MR: usize = 6;
/// Registers across.
const NR: usize = 2;
/// f32 of B packed at a time: 128 KiB.
const PACKED: usize = 32 * 1024;
/// f32 of B that stay in L1: 16 KiB.
const NEAR: usize = 4 * 1024;
/// f32 of A per block of rows: 128 KiB.
const BLOCK_A: usize = 32 * 1024;

/// A cache line of packed f32; a panel row is a whole number of these for 16 lanes, half of two for 8.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([f32; 16]);

/// How B lies in memory.
#[derive(Clone, Copy)]
enum Layout {
    /// [n, depth]: C = A . B^T.
    Transposed,
    /// [depth, n]: C = A . B.
    Plain,
}

struct Product<'a> {
    a: &'a [f32],
    b: &'a [f32],
    layout: Layout,
    depth: usize,
    m: usize,
    n: usize,
    accumulate: bool,
}

/// C[m, n] = A[m, dim] . B[n, dim]^T
#[inline(always)]
pub(crate) unsafe fn gemm_nt<V: Vector>(a: &[f32], b: &[f32], dim: usize, m: usize, n: usize, c: &mut [f32]) {
    let product = Product { a, b, layout: Layout::Transposed, depth: dim, m, n, accumulate: false };
    // SAFETY: the door checked the lengths.
    unsafe { run::<V>(&product, c) }
}

/// C[m, n] += A[m, dim] . B[dim, n]
#[inline(always)]
pub(crate) unsafe fn gemm_nn_add<V: Vector>(
    a: &[f32],
    b: &[f32],
    dim: usize,
    m: usize,
    n: usize,
    c: &mut [f32],
) {
    let product = Product { a, b, layout: Layout::Plain, depth: dim, m, n, accumulate: true };
    // SAFETY: the door checked the lengths.
    unsafe { run::<V>(&product, c) }
}

#[inline(always)]
unsafe fn run<V: Vector>(p: &Product<'_>, c: &mut [f32]) {
    let width = NR * V::LANES;
    let panel_len = p.depth * width;
    let columns = (PACKED / panel_len).max(1) * width;
    let rows = (BLOCK_A / p.depth).max(MR).next_multiple_of(MR);
    let lines = (columns.min(p.n.next_multiple_of(width)) * p.depth).div_ceil(16);
    let mut packed = vec![Line([0.0; 16]); lines];
    let packed = packed.as_mut_ptr().cast::<f32>();
    let mut j0 = 0;
    while j0 < p.n {
        let nc = columns.min(p.n - j0);
        // SAFETY: `packed` holds `columns` (or all, rounded up to panels) columns of `depth`.
        unsafe { pack::<V>(p, j0, nc, packed) };
        let mut i0 = 0;
        while i0 < p.m {
            let mc = rows.min(p.m - i0);
            let group = (NEAR / panel_len).max(1) * width;
            let mut j = 0;
            while j < nc {
                // SAFETY: rows i0..i0 + mc and columns j0 + j .. j0 + nc exist; j is a whole number of panels.
                unsafe {
                    let near = packed.add(j * p.depth);
                    block::<V>(p, (i0, mc), (j0 + j, group.min(nc - j)), near, c.as_mut_ptr());
                }
                j += group;
            }
            i0 += mc;
        }
        j0 += nc;
    }
}

#[inline(always)]
unsafe fn block<V: Vector>(
    p: &Product<'_>,
    (i0, mc): (usize, usize),
    (j0, nc): (usize, usize),
    packed: *const f32,
    c: *mut f32,
) {
    let width = NR * V::LANES;
    let mut i = 0;
    while i < mc {
        let mut j = 0;
        while j < nc {
            // SAFETY: panel j / width was packed; rows and columns below exist.
            unsafe {
                let panel = packed.add(j * p.depth);
                let cols = width.min(nc - j);
                let at = i0 + i;
                let a = p.a.as_ptr().add(at * p.depth);
                let c = c.add(at * p.n + j0 + j);
                match mc - i {
                    1 => micro::<V, 1>(p, a, panel, c, cols),
                    2 => micro::<V, 2>(p, a, panel, c, cols),
                    3 => micro::<V, 3>(p, a, panel, c, cols),
                    4 => micro::<V, 4>(p, a, panel, c, cols),
                    5 => micro::<V, 5>(p, a, panel, c, cols),
                    _ => micro::<V, MR>(p, a, panel, c, cols),
                }
            }
            j += width;
        }
        i += MR;
    }
}

/// C[M, cols] (+)= A[M, depth] . panel[depth, NR * LANES]
#[inline(always)]
unsafe fn micro<V: Vector, const M: usize>(
    p: &Product<'_>,
    a: *const f32,
    panel: *const f32,
    c: *mut f32,
    cols: usize,
) {
    let width = NR * V::LANES;
    // SAFETY: M rows of A and C and the panel exist; at most `cols` columns of C are touched.
    unsafe {
        let mut acc = [[V::splat(0.0); NR]; M];
        for k in 0..p.depth {
            let mut b = [V::splat(0.0); NR];
            for (j, b) in b.iter_mut().enumerate() {
                *b = V::load(panel.add(k * width + j * V::LANES));
            }
            for (i, acc) in acc.iter_mut().enumerate() {
                let a = V::splat(*a.add(i * p.depth + k));
                for j in 0..NR {
                    acc[j] = a.mul_add(b[j], acc[j]);
                }
            }
        }
        for (i, acc) in acc.iter().enumerate() {
            let c = c.add(i * p.n);
            if cols == width {
                for (j, acc) in acc.iter().enumerate() {
                    let at = c.add(j * V::LANES);
                    let sum = if p.accumulate { acc.add(V::load(at)) } else { *acc };
                    sum.store(at);
                }
            } else {
                let mut sums = Line([0.0; 16]);
                for (j, acc) in acc.iter().enumerate() {
                    let from = j * V::LANES;
                    acc.store(sums.0.as_mut_ptr());
                    for x in from..cols.clamp(from, from + V::LANES) {
                        let old = if p.accumulate { *c.add(x) } else { 0.0 };
                        *c.add(x) = old + sums.0[x - from];
                    }
                }
            }
        }
    }
}

/// Packs columns j0..j0 + nc of B into panels.
#[inline(always)]
unsafe fn pack<V: Vector>(p: &Product<'_>, j0: usize, nc: usize, packed: *mut f32) {
    let width = NR * V::LANES;
    let mut j = 0;
    while j < nc {
        let cols = width.min(nc - j);
        // SAFETY: the panel has `depth * width` elements; columns j0 + j .. + cols exist in B.
        unsafe {
            let panel = packed.add(j * p.depth);
            match p.layout {
                Layout::Transposed => {
                    for x in 0..cols {
                        let b = p.b.as_ptr().add((j0 + j + x) * p.depth);
                        for k in 0..p.depth {
                            *panel.add(k * width + x) = *b.add(k);
                        }
                    }
                    for x in cols..width {
                        for k in 0..p.depth {
                            *panel.add(k * width + x) = 0.0;
                        }
                    }
                }
                Layout::Plain => {
                    for k in 0..p.depth {
                        let b = p.b.as_ptr().add(k * p.n + j0 + j);
                        let to = panel.add(k * width);
                        std::ptr::copy_nonoverlapping(b, to, cols);
                        std::ptr::write_bytes(to.add(cols), 0, width - cols);
                    }
                }
            }
        }
        j += width;
    }
}
