//! NEON of 64-bit Arm: four lanes.

use std::arch::aarch64::*;

use half::f16;

use crate::isa::Isa;
use crate::packed::Group;
use crate::vector::{CodeSums, Vector};

#[derive(Clone, Copy)]
pub(crate) struct F32x4(float32x4_t);

crate::arch::stamp!(F32x4, Isa::Neon, "neon");

impl F32x4 {
    /// The first four bytes as numbers.
    ///
    /// # Safety
    /// As for [`Vector`].
    #[inline(always)]
    unsafe fn widen(bytes: uint8x8_t) -> Self {
        // SAFETY: the instruction set is present.
        unsafe { Self(vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))))) }
    }
}

/// Four bytes, twice.
///
/// # Safety
/// As for [`Vector`]; four bytes are read.
#[inline(always)]
unsafe fn four(p: *const u8) -> uint8x8_t {
    // SAFETY: the caller's.
    unsafe { vreinterpret_u8_u32(vdup_n_u32(p.cast::<u32>().read_unaligned())) }
}

// SAFETY for every block below: the trait's contract (instruction set present, pointers valid for the lanes touched).
impl Vector for F32x4 {
    const LANES: usize = 4;
    const WIDE: bool = true;
    type Codes = I32x4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(vdupq_n_f32(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(vld1q_f32(p)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see the impl.
        unsafe { vst1q_f32(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p.cast())))) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut f16) {
        // SAFETY: see the impl.
        unsafe { vst1_u16(p.cast(), vreinterpret_u16_f16(vcvt_f16_f32(self.0))) }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self {
        // SAFETY: see the impl; four bytes are read.
        unsafe { Self::widen(four(p)) }
    }
    #[inline(always)]
    unsafe fn load_low_bits(p: *const u8) -> Self {
        // SAFETY: see the impl; four bytes are read.
        unsafe { Self::widen(vand_u8(four(p), vdup_n_u8(15))) }
    }
    #[inline(always)]
    unsafe fn load_high_bits(p: *const u8) -> Self {
        // SAFETY: see the impl; four bytes are read.
        unsafe { Self::widen(vshr_n_u8::<4>(four(p))) }
    }
    #[inline(always)]
    unsafe fn load_packed(row: *const u8, groups: *const Group, d: usize) -> Self {
        // SAFETY: see the impl; half a group is a register, and its window of the row is read.
        unsafe {
            let (group, lane) = (&*groups.add(d / 8), d % 8);
            let window = vld1q_u8(row.add(group.from));
            let bytes = vqtbl1q_u8(window, vld1q_u8(group.bytes.as_ptr().add(4 * lane)));
            let mask = vld1q_u32(group.masks.as_ptr().add(lane));
            Self(vcvtq_f32_u32(vandq_u32(vreinterpretq_u32_u8(bytes), mask)))
        }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, len: usize) -> Self {
        let mut lanes = [0.0f32; 4];
        // SAFETY: see the impl.
        unsafe {
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), len);
            Self::load(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn load_f16_part(p: *const f16, len: usize) -> Self {
        let mut lanes = [f16::ZERO; 4];
        // SAFETY: see the impl.
        unsafe {
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), len);
            Self::load_f16(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, len: usize) {
        let mut lanes = [0.0f32; 4];
        // SAFETY: see the impl.
        unsafe {
            self.store(lanes.as_mut_ptr());
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, len);
        }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(vaddq_f32(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(vsubq_f32(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(vmulq_f32(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(vfmaq_f32(c.0, self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn neg_mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(vfmsq_f32(c.0, self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        // SAFETY: see the impl; a comparison, because vmaxq gives NaN where either is NaN.
        unsafe { Self(vbslq_f32(vcgtq_f32(self.0, b.0), self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        // SAFETY: as `max`.
        unsafe { Self(vbslq_f32(vcltq_f32(self.0, b.0), self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(vrndnq_f32(self.0)) }
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let biased = vaddq_s32(vcvtq_s32_f32(self.0), vdupq_n_s32(127));
            Self(vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased)))
        }
    }
    #[inline(always)]
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(vbslq_f32(vcltq_f32(x.0, limit.0), vdupq_n_f32(0.0), self.0)) }
    }
    #[inline(always)]
    unsafe fn at_least(self, limit: Self) -> u32 {
        const BITS: [u32; 4] = [1, 2, 4, 8];
        // SAFETY: see the impl; BITS has four elements.
        unsafe { vaddvq_u32(vandq_u32(vcgeq_f32(self.0, limit.0), vld1q_u32(BITS.as_ptr()))) }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: see the impl.
        unsafe { vaddvq_f32(self.0) }
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        // SAFETY: see the impl.
        unsafe { vmaxvq_f32(self.0) }
    }
    #[inline(always)]
    unsafe fn sum4(v: [Self; 4]) -> [f32; 4] {
        // SAFETY: see the impl; the last store writes the four floats of `out`.
        unsafe {
            let (ab, cd) = (vpaddq_f32(v[0].0, v[1].0), vpaddq_f32(v[2].0, v[3].0));
            let mut out = [0.0f32; 4];
            vst1q_f32(out.as_mut_ptr(), vpaddq_f32(ab, cd));
            out
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct I32x4(int32x4_t);

// SAFETY for every block below: the trait's contract.
impl CodeSums for I32x4 {
    const ROWS: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: i32) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(vdupq_n_s32(x)) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, codes: *const u8, q: i32) -> Self {
        // SAFETY: see the impl; 16 codes are read, which fit signed bytes.
        unsafe {
            let codes = vreinterpretq_s8_u8(vld1q_u8(codes));
            let q = vreinterpretq_s8_s32(vdupq_n_s32(q));
            let first = vpaddlq_s16(vmull_s8(vget_low_s8(codes), vget_low_s8(q)));
            let second = vpaddlq_s16(vmull_high_s8(codes, q));
            Self(vaddq_s32(self.0, vpaddq_s32(first, second)))
        }
    }
    #[inline(always)]
    unsafe fn store(self, step: f32, scales: *const u8, parent: f32, p: *mut f32) {
        // SAFETY: see the impl.
        unsafe {
            let scales = vmulq_n_f32(vreinterpretq_f32_u8(vld1q_u8(scales)), step);
            let products = vmulq_f32(vcvtq_f32_s32(self.0), scales);
            vst1q_f32(p, vaddq_f32(vdupq_n_f32(parent), products));
        }
    }
}
