//! Products and sums of byte codes that were quantised with steps of their own: the caller has multiplied the steps into
//! queries or weights, so that codes are only widened, multiplied and added.

use crate::vector::{FINE_CODES, Vector};

/// Registers of rows in a tile of `dot_channels`: half of the rows are a whole number of tiles.
const ROWS: usize = 2;
/// Registers of dimensions in a tile of `axpy_codes`.
const DIMS: usize = 4;
/// No second part; rows of its lower halves of bytes; rows of its upper ones.
const WHOLE: u8 = 0;
const LOW: u8 = 1;
const HIGH: u8 = 2;

/// Codes of a block of rows, channel by channel.
#[derive(Clone, Copy)]
struct Channels {
    dim: usize,
    /// Rows.
    n: usize,
    /// [dim, n].
    first: *const u8,
    /// [dim, n / 2], or dangling.
    second: *const u8,
}

/// `z[h * n + r] += sum over d of q[h * dim + d] * code(d, r)`.
#[inline(always)]
pub(crate) unsafe fn dot_channels<V: Vector>(
    q: &[f32],
    dim: usize,
    first: &[u8],
    second: Option<&[u8]>,
    z: &mut [f32],
) {
    let n = first.len() / dim;
    let codes =
        Channels { dim, n, first: first.as_ptr(), second: second.map_or(first.as_ptr(), <[u8]>::as_ptr) };
    let heads = q.len() / dim;
    for h in (0..heads).step_by(4) {
        for r in (0..n).step_by(ROWS * V::LANES) {
            // SAFETY: the door checked the lengths; a tile lies within one half of the rows.
            unsafe {
                let (q, z) = (q.as_ptr().add(h * dim), z.as_mut_ptr().add(h * n));
                match second {
                    None => heads_of_tile::<V, WHOLE>(codes, heads - h, q, r, z),
                    Some(_) if r < n / 2 => heads_of_tile::<V, LOW>(codes, heads - h, q, r, z),
                    Some(_) => heads_of_tile::<V, HIGH>(codes, heads - h, q, r, z),
                }
            }
        }
    }
}

/// Up to four heads.
#[inline(always)]
unsafe fn heads_of_tile<V: Vector, const PART: u8>(
    codes: Channels,
    heads: usize,
    q: *const f32,
    r: usize,
    z: *mut f32,
) {
    // SAFETY: as for the caller.
    unsafe {
        match heads {
            1 => tile::<V, 1, PART>(codes, q, r, z),
            2 => tile::<V, 2, PART>(codes, q, r, z),
            3 => tile::<V, 3, PART>(codes, q, r, z),
            _ => tile::<V, 4, PART>(codes, q, r, z),
        }
    }
}

#[inline(always)]
unsafe fn tile<V: Vector, const H: usize, const PART: u8>(
    codes: Channels,
    q: *const f32,
    r: usize,
    z: *mut f32,
) {
    let Channels { dim, n, first, second } = codes;
    // SAFETY: as for the caller.
    unsafe {
        let mut acc = [[V::splat(0.0); ROWS]; H];
        for h in 0..H {
            for i in 0..ROWS {
                acc[h][i] = V::load(z.add(h * n + r + i * V::LANES));
            }
        }
        for d in 0..dim {
            let mut code = [V::splat(0.0); ROWS];
            for i in 0..ROWS {
                let at = r + i * V::LANES;
                let whole = V::load_u8(first.add(d * n + at));
                let fine = second.wrapping_add(d * (n / 2));
                code[i] = match PART {
                    LOW => whole.mul_add(V::splat(FINE_CODES), V::load_low_bits(fine.add(at))),
                    HIGH => whole.mul_add(V::splat(FINE_CODES), V::load_high_bits(fine.add(at - n / 2))),
                    _ => whole,
                };
            }
            for h in 0..H {
                let q = V::splat(*q.add(h * dim + d));
                for i in 0..ROWS {
                    acc[h][i] = q.mul_add(code[i], acc[h][i]);
                }
            }
        }
        for h in 0..H {
            for i in 0..ROWS {
                acc[h][i].store(z.add(h * n + r + i * V::LANES));
            }
        }
    }
}

/// `acc[h * stride + d] += sum over r of w[h * n + r] * codes[r * stride + d]` for the `width` dimensions from `from` on.
#[inline(always)]
pub(crate) unsafe fn axpy_codes<V: Vector>(
    w: &[f32],
    codes: &[u8],
    stride: usize,
    from: usize,
    width: usize,
    acc: &mut [f32],
) {
    let (n, heads) = (codes.len() / stride, acc.len() / stride);
    let mut d = from;
    // SAFETY: the door checked the lengths and that `from + width` is at most `stride`.
    unsafe {
        while d + DIMS * V::LANES <= from + width {
            sums::<V, DIMS>(w, codes, (n, stride), d, heads, acc);
            d += DIMS * V::LANES;
        }
        while d + V::LANES <= from + width {
            sums::<V, 1>(w, codes, (n, stride), d, heads, acc);
            d += V::LANES;
        }
    }
    for d in d..from + width {
        for (w, acc) in w.chunks_exact(n).zip(acc.chunks_exact_mut(stride)) {
            acc[d] = w
                .iter()
                .zip(codes[d..].iter().step_by(stride))
                .fold(acc[d], |sum, (w, &c)| sum + w * f32::from(c));
        }
    }
}

/// `B` registers of dimensions from `d` on, up to three heads at a time.
#[inline(always)]
unsafe fn sums<V: Vector, const B: usize>(
    w: &[f32],
    codes: &[u8],
    (n, stride): (usize, usize),
    d: usize,
    heads: usize,
    acc: &mut [f32],
) {
    for h in (0..heads).step_by(3) {
        // SAFETY: as for the caller; the heads from `h` on exist.
        unsafe {
            let (w, acc) = (w.as_ptr().add(h * n), acc.as_mut_ptr().add(h * stride + d));
            let codes = codes.as_ptr().add(d);
            match heads - h {
                1 => sums_of::<V, 1, B>(w, codes, n, stride, acc),
                2 => sums_of::<V, 2, B>(w, codes, n, stride, acc),
                _ => sums_of::<V, 3, B>(w, codes, n, stride, acc),
            }
        }
    }
}

#[inline(always)]
unsafe fn sums_of<V: Vector, const H: usize, const B: usize>(
    w: *const f32,
    codes: *const u8,
    n: usize,
    stride: usize,
    acc: *mut f32,
) {
    // SAFETY: as for the caller.
    unsafe {
        let mut sum = [[V::splat(0.0); B]; H];
        for h in 0..H {
            for b in 0..B {
                sum[h][b] = V::load(acc.add(h * stride + b * V::LANES));
            }
        }
        for r in 0..n {
            let mut weights = [V::splat(0.0); H];
            for h in 0..H {
                weights[h] = V::splat(*w.add(h * n + r));
            }
            for b in 0..B {
                let code = V::load_u8(codes.add(r * stride + b * V::LANES));
                for h in 0..H {
                    sum[h][b] = weights[h].mul_add(code, sum[h][b]);
                }
            }
        }
        for h in 0..H {
            for b in 0..B {
                sum[h][b].store(acc.add(h * stride + b * V::LANES));
            }
        }
    }
}
