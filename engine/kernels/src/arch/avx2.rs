//! AVX2 with FMA and F16C: eight lanes.

use std::arch::x86_64::*;

use half::f16;

use crate::isa::Isa;
use crate::packed::Group;
use crate::vector::{CodeSums, Vector};

#[derive(Clone, Copy)]
pub(crate) struct F32x8(__m256);

crate::arch::stamp!(F32x8, Isa::Avx2, "avx2,fma,f16c");

/// Eight codes of a row, where they are.
///
/// # Safety
/// As for [`Vector`]; the group's window of the row is read.
#[inline(always)]
pub(super) unsafe fn packed(row: *const u8, group: *const Group) -> __m256i {
    // SAFETY: the caller's.
    unsafe {
        let window = _mm256_broadcastsi128_si256(_mm_loadu_si128(row.add((*group).from).cast()));
        let bytes = _mm256_shuffle_epi8(window, _mm256_loadu_si256((*group).bytes.as_ptr().cast()));
        _mm256_and_si256(bytes, _mm256_loadu_si256((*group).masks.as_ptr().cast()))
    }
}

impl F32x8 {
    /// The first eight bytes as numbers.
    ///
    /// # Safety
    /// As for [`Vector`].
    #[inline(always)]
    unsafe fn widen(bytes: __m128i) -> Self {
        // SAFETY: the instruction set is present.
        unsafe { Self(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))) }
    }
}

// SAFETY for every block below: the trait's contract (instruction set present, pointers valid for the lanes touched).
impl Vector for F32x8 {
    const LANES: usize = 8;
    const WIDE: bool = false;
    type Codes = I32x8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see the impl.
        unsafe { _mm256_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_cvtph_ps(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut f16) {
        // SAFETY: see the impl.
        unsafe {
            let halves = _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(self.0);
            _mm_storeu_si128(p.cast(), halves)
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self {
        // SAFETY: see the impl; eight bytes are read.
        unsafe { Self::widen(_mm_loadl_epi64(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_low_bits(p: *const u8) -> Self {
        // SAFETY: see the impl; eight bytes are read.
        unsafe { Self::widen(_mm_and_si128(_mm_loadl_epi64(p.cast()), _mm_set1_epi8(15))) }
    }
    #[inline(always)]
    unsafe fn load_high_bits(p: *const u8) -> Self {
        // SAFETY: see the impl; eight bytes are read.
        unsafe {
            let shifted = _mm_srli_epi16::<4>(_mm_loadl_epi64(p.cast()));
            Self::widen(_mm_and_si128(shifted, _mm_set1_epi8(15)))
        }
    }
    #[inline(always)]
    unsafe fn load_packed(row: *const u8, groups: *const Group, d: usize) -> Self {
        // SAFETY: see the impl; a group is a register.
        unsafe { Self(_mm256_cvtepi32_ps(packed(row, groups.add(d / 8)))) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, len: usize) -> Self {
        let mut lanes = [0.0f32; 8];
        // SAFETY: see the impl.
        unsafe {
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), len);
            Self::load(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn load_f16_part(p: *const f16, len: usize) -> Self {
        let mut lanes = [f16::ZERO; 8];
        // SAFETY: see the impl.
        unsafe {
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), len);
            Self::load_f16(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, len: usize) {
        let mut lanes = [0.0f32; 8];
        // SAFETY: see the impl.
        unsafe {
            self.store(lanes.as_mut_ptr());
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, len);
        }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_add_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_sub_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_mul_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_fmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn neg_mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_fnmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_max_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_min_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        const MODE: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: see the impl.
        unsafe { Self(_mm256_round_ps::<MODE>(self.0)) }
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(self.0), _mm256_set1_epi32(127));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased)))
        }
    }
    #[inline(always)]
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let below = _mm256_cmp_ps::<_CMP_LT_OQ>(x.0, limit.0);
            Self(_mm256_andnot_ps(below, self.0))
        }
    }
    #[inline(always)]
    unsafe fn at_least(self, limit: Self) -> u32 {
        // SAFETY: see the impl.
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(self.0, limit.0)) as u32 }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn sum4(v: [Self; 4]) -> [f32; 4] {
        // SAFETY: see the impl; the last store writes the four floats of `out`.
        unsafe {
            let ab = _mm256_hadd_ps(v[0].0, v[1].0);
            let cd = _mm256_hadd_ps(v[2].0, v[3].0);
            let abcd = _mm256_hadd_ps(ab, cd);
            let mut out = [0.0f32; 4];
            let sums = _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps::<1>(abcd));
            _mm_storeu_ps(out.as_mut_ptr(), sums);
            out
        }
    }
}

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
        unsafe {
            let pairs = _mm256_maddubs_epi16(_mm256_loadu_si256(codes.cast()), _mm256_set1_epi32(q));
            Self(_mm256_add_epi32(self.0, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))))
        }
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
