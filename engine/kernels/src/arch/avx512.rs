//! AVX-512 (F, BW, VL, DQ, VNNI): sixteen lanes.

use std::arch::x86_64::*;

use half::f16;

use crate::arch::avx2::packed;
use crate::isa::Isa;
use crate::packed::Group;
use crate::vector::{CodeSums, Vector};

#[derive(Clone, Copy)]
pub(crate) struct F32x16(__m512);

crate::arch::stamp!(F32x16, Isa::Avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");

/// The mask of the first `len` lanes, `len < 16`.
#[inline(always)]
fn first(len: usize) -> __mmask16 {
    (1u16 << len) - 1
}

impl F32x16 {
    /// Sixteen bytes as numbers.
    ///
    /// # Safety
    /// As for [`Vector`].
    #[inline(always)]
    unsafe fn widen(bytes: __m128i) -> Self {
        // SAFETY: the instruction set is present.
        unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))) }
    }
}

// SAFETY for every block below: the trait's contract (instruction set present, pointers valid for the lanes touched).
impl Vector for F32x16 {
    const LANES: usize = 16;
    const WIDE: bool = true;
    type Codes = I32x8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm512_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm512_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut f16) {
        // SAFETY: see the impl.
        unsafe {
            let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0);
            _mm256_storeu_si256(p.cast(), halves)
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self {
        // SAFETY: see the impl; sixteen bytes are read.
        unsafe { Self::widen(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_low_bits(p: *const u8) -> Self {
        // SAFETY: see the impl; sixteen bytes are read.
        unsafe { Self::widen(_mm_and_si128(_mm_loadu_si128(p.cast()), _mm_set1_epi8(15))) }
    }
    #[inline(always)]
    unsafe fn load_high_bits(p: *const u8) -> Self {
        // SAFETY: see the impl; sixteen bytes are read.
        unsafe {
            let shifted = _mm_srli_epi16::<4>(_mm_loadu_si128(p.cast()));
            Self::widen(_mm_and_si128(shifted, _mm_set1_epi8(15)))
        }
    }
    #[inline(always)]
    unsafe fn load_packed(row: *const u8, groups: *const Group, d: usize) -> Self {
        // SAFETY: see the impl; two groups are a register, the second of which may be the empty one.
        unsafe {
            let (low, high) = (packed(row, groups.add(d / 8)), packed(row, groups.add(d / 8 + 1)));
            Self(_mm512_cvtepi32_ps(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)))
        }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, len: usize) -> Self {
        // SAFETY: see the impl; masked lanes are not read.
        unsafe { Self(_mm512_maskz_loadu_ps(first(len), p)) }
    }
    #[inline(always)]
    unsafe fn load_f16_part(p: *const f16, len: usize) -> Self {
        // SAFETY: see the impl; masked lanes are not read.
        unsafe { Self(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(len), p.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, len: usize) {
        // SAFETY: see the impl; masked lanes are not written.
        unsafe { _mm512_mask_storeu_ps(p, first(len), self.0) }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm512_add_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm512_sub_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm512_mul_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm512_fmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn neg_mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm512_fnmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm512_max_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm512_min_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: see the impl; scale 0 (the high four bits) rounds to integers.
        unsafe { Self(_mm512_roundscale_ps::<_MM_FROUND_TO_NEAREST_INT>(self.0)) }
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased)))
        }
    }
    #[inline(always)]
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let keep = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x.0, limit.0);
            Self(_mm512_maskz_mov_ps(keep, self.0))
        }
    }
    #[inline(always)]
    unsafe fn at_least(self, limit: Self) -> u32 {
        // SAFETY: see the impl.
        unsafe { u32::from(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(self.0, limit.0)) }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: see the impl.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        // SAFETY: see the impl.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn sum4(v: [Self; 4]) -> [f32; 4] {
        // SAFETY: see the impl; the last store writes the four floats of `out`.
        unsafe {
            let mut halves = [_mm256_setzero_ps(); 4];
            for (half, v) in halves.iter_mut().zip(v) {
                let low = _mm512_castps512_ps256(v.0);
                *half = _mm256_add_ps(low, _mm512_extractf32x8_ps::<1>(v.0));
            }
            let ab = _mm256_hadd_ps(halves[0], halves[1]);
            let cd = _mm256_hadd_ps(halves[2], halves[3]);
            let abcd = _mm256_hadd_ps(ab, cd);
            let mut out = [0.0f32; 4];
            let sums = _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps::<1>(abcd));
            _mm_storeu_ps(out.as_mut_ptr(), sums);
            out
        }
    }
}

/// Half of a register: a block has eight rows.
#[derive(Clone, Copy)]
pub(crate) struct I32x8(__m256i);

// SAFETY for every block below: the trait's contract.
impl CodeSums for I32x8 {
    const ROWS: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: i32) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_set1_epi32(x)) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, codes: *const u8, q: i32) -> Self {
        // SAFETY: see the impl; 32 codes are read.
        unsafe { Self(_mm256_dpbusd_epi32(self.0, _mm256_loadu_si256(codes.cast()), _mm256_set1_epi32(q))) }
    }
    #[inline(always)]
    unsafe fn store(self, step: f32, scales: *const u8, parent: f32, p: *mut f32) {
        // SAFETY: see the impl.
        unsafe {
            let scales = _mm256_mul_ps(_mm256_set1_ps(step), _mm256_loadu_ps(scales.cast()));
            let products = _mm256_mul_ps(_mm256_cvtepi32_ps(self.0), scales);
            _mm256_storeu_ps(p, _mm256_add_ps(_mm256_set1_ps(parent), products));
        }
    }
}
