//! Conversions between f16 and f32.

use half::f16;

use crate::vector::Vector;

#[inline(always)]
pub(crate) unsafe fn f16_to_f32<V: Vector>(src: &[f16], dst: &mut [f32]) {
    let full = src.len() - src.len() % V::LANES;
    let mut i = 0;
    // SAFETY: the door checked that both have the same length; offsets stay below it.
    unsafe {
        while i < full {
            V::load_f16(src.as_ptr().add(i)).store(dst.as_mut_ptr().add(i));
            i += V::LANES;
        }
        if i < src.len() {
            let rest = src.len() - i;
            V::load_f16_part(src.as_ptr().add(i), rest).store_part(dst.as_mut_ptr().add(i), rest);
        }
    }
}

#[inline(always)]
pub(crate) unsafe fn f32_to_f16<V: Vector>(src: &[f32], dst: &mut [f16]) {
    let full = src.len() - src.len() % V::LANES;
    let mut i = 0;
    // SAFETY: the door checked that both have the same length; offsets stay below it.
    unsafe {
        while i < full {
            V::load(src.as_ptr().add(i)).store_f16(dst.as_mut_ptr().add(i));
            i += V::LANES;
        }
    }
    for (dst, &src) in dst[full..].iter_mut().zip(&src[full..]) {
        *dst = f16::from_f32(src);
    }
}
