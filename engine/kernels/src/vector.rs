//! The private vector trait that the loops of `generic` are written over.

use half::f16;

use crate::packed::Group;

/// A register of `LANES` f32.
///
/// # Safety
/// Every method may only run on a CPU with the implementor's instruction set, inside a function compiled for it (all
/// are `#[inline(always)]`). Pointers need no alignment; `LANES` elements behind them must be readable (or writable).
/// The `_part` methods touch `len` elements only, `0 < len < LANES`.
pub(crate) trait Vector: Copy {
    const LANES: usize;
    /// Whether there are 32 registers to keep a tile in, not 16.
    const WIDE: bool;
    /// The integer register of the same instruction set.
    type Codes: CodeSums;

    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    unsafe fn load_f16(p: *const f16) -> Self;
    /// Rounds to nearest even.
    unsafe fn store_f16(self, p: *mut f16);
    /// Bytes as numbers from 0 to 255.
    unsafe fn load_u8(p: *const u8) -> Self;
    /// The lower four bits of bytes.
    unsafe fn load_low_bits(p: *const u8) -> Self;
    /// The upper four bits of bytes, as numbers from 0 to 15.
    unsafe fn load_high_bits(p: *const u8) -> Self;
    /// The codes of a packed row that belong to lanes `d` on, a multiple of `LANES`, each times its unit's inverse.
    unsafe fn load_packed(row: *const u8, groups: *const Group, d: usize) -> Self;
    /// The first `len` lanes from memory, the others 0.
    unsafe fn load_part(p: *const f32, len: usize) -> Self;
    unsafe fn load_f16_part(p: *const f16, len: usize) -> Self;
    unsafe fn store_part(self, p: *mut f32, len: usize);

    unsafe fn add(self, b: Self) -> Self;
    unsafe fn sub(self, b: Self) -> Self;
    unsafe fn mul(self, b: Self) -> Self;
    /// `self * b + c`, rounded once.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// `c - self * b`, rounded once.
    unsafe fn neg_mul_add(self, b: Self, c: Self) -> Self;
    /// The larger of each lane; `b` where either is NaN.
    unsafe fn max(self, b: Self) -> Self;
    /// The smaller of each lane; `b` where either is NaN.
    unsafe fn min(self, b: Self) -> Self;
    /// To the nearest integer, still a float.
    unsafe fn round(self) -> Self;
    /// 2 to the power of every lane, which holds an integer in -126..=127.
    unsafe fn pow2(self) -> Self;
    /// `self`, but 0 where `x < limit`. A NaN in `x` keeps the lane.
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self;
    /// Bit i is set where lane i is at least the limit's; not where either is NaN.
    unsafe fn at_least(self, limit: Self) -> u32;

    unsafe fn sum(self) -> f32;
    unsafe fn max_lane(self) -> f32;
    /// Four horizontal sums at once.
    unsafe fn sum4(v: [Self; 4]) -> [f32; 4];
}

/// Codes of the fine part of a key for each of its first part.
pub(crate) const FINE_CODES: f32 = 16.0;
/// Rows of a block of codes by channel are a multiple of this.
pub const CHANNEL_ROWS: usize = 64;

/// Rows of a block of codes.
pub const CODE_ROWS: usize = 8;
/// Dimensions of a row that lie together in a block of codes.
pub const CODE_DIMS: usize = 4;
/// The largest code: products of two codes and two query elements of at most 127 then sum up within 16 bits, which is
/// what the byte products of AVX2 saturate at.
pub const MOST_CODE: u8 = 127;

/// Bytes of the scales at the head of a block of codes, one f32 for each row.
pub const CODE_HEAD: usize = 4 * CODE_ROWS;

/// A query in the form that is multiplied with codes.
#[derive(Clone, Copy, Debug)]
pub struct CodeQuery<'a> {
    /// [dim], none of them -128.
    pub q: &'a [i8],
    /// What a row of codes that stand for 0 sums up to.
    pub zero: i32,
    /// What one unit of a sum is worth in a row of scale 1.
    pub step: f32,
}

/// Rows of codes that follow each other and were coded as deviations from one parent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodeRun {
    /// The first row.
    pub first: u32,
    /// The number of rows.
    pub len: u32,
    /// The product of the query with the parent.
    pub parent: f32,
}

/// Integer sums of `ROWS` rows of a block of codes, one sum each.
///
/// # Safety
/// As for [`Vector`].
pub(crate) trait CodeSums: Copy {
    const ROWS: usize;

    /// `x` in every sum.
    unsafe fn splat(x: i32) -> Self;
    /// Adds to every row's sum the products of four of its codes with the four bytes of `q` (lowest first). Reads
    /// `4 * ROWS` codes, none above [`MOST_CODE`].
    unsafe fn mul_add(self, codes: *const u8, q: i32) -> Self;
    /// Writes `ROWS` f32: `parent` plus each sum times (`step` times its scale), all three rounded.
    unsafe fn store(self, step: f32, scales: *const u8, parent: f32, p: *mut f32);
}
