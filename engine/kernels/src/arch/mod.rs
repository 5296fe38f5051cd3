//! One file per instruction set: implementations of `Vector` and `CodeSums`, and the table stamped from the generic loops.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

/// AVX2, FMA and F16C are present.
pub(crate) fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// AVX-512 F, BW, VL, DQ and VNNI are present, beside all of AVX2.
pub(crate) fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        has_avx2()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// A hint to bring the cache line at `p` near. `p` need not be readable: a prefetch never faults.
#[inline(always)]
pub(crate) fn prefetch_line(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of every x86-64, and a prefetch reads nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch hint changes neither memory nor registers.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}

/// Stamps one function per table entry, compiled for `$features`, around the generic loops over `$vector`.
macro_rules! stamp {
    ($vector:ty, $isa:expr, $features:literal) => {
        $crate::arch::stamp!(@functions $vector, $features,
            dot_rows(q: &[f32], dim: usize, rows: &[f16], out: &mut [f32]);
            dot_pointers(q: &[f32], dim: usize, rows: &[*const f16], out: &mut [f32], stride: usize);
            dot_group(q: &[f32], dim: usize, row: &[f16], out: &mut [f32]);
            dot_codes(
                query: &$crate::vector::CodeQuery<'_>, blocks: &[u8], runs: &[$crate::vector::CodeRun], out: &mut [f32]
            );
            dot_channels(q: &[f32], dim: usize, first: &[u8], second: Option<&[u8]>, z: &mut [f32]);
            dot_packed(rows: &$crate::packed::PackedRows<'_>, q: &[f32], base: &[f32], out: &mut [f32], stride: usize);
            dot_f16(a: &[f16], b: &[f16]) -> f32;
            l2_sq_f16(a: &[f16], b: &[f16]) -> f32;
            axpy_rows(w: &[f32], dim: usize, rows: &[f16], acc: &mut [f32]);
            axpy_pointers(w: &[f32], stride: usize, dim: usize, rows: &[*const f16], acc: &mut [f32]);
            axpy_codes(w: &[f32], codes: &[u8], stride: usize, from: usize, width: usize, acc: &mut [f32]);
            axpy_packed(rows: &$crate::packed::PackedRows<'_>, w: &[f32], stride: usize, acc: &mut [f32]);
            axpy_f32(w: f32, x: &[f32], acc: &mut [f32]);
            scale(w: f32, x: &mut [f32]);
            lift(z: &mut [f32], scale: f32, spreads: &[f32], lift: (f32, f32), counts: &[f32]);
            blend(x: &mut [f32], a: &[f32], w: f32, b: &[f32]);
            run_sums(x: &[f32], runs: &[$crate::vector::CodeRun], out: &mut [f32]);
            max(z: &[f32]) -> f32;
            exp_sum(z: &mut [f32], m: f32) -> f32;
            at_least(z: &[f32], limit: f32, out: &mut [u32]) -> usize;
            depth(z: &[f32], high: f32) -> f32;
            buckets(z: &[f32], high: f32, scale: f32, last: f32, out: &mut [u32]);
            gemm_nt(a: &[f32], b: &[f32], dim: usize, m: usize, n: usize, c: &mut [f32]);
            gemm_nn_add(a: &[f32], b: &[f32], dim: usize, m: usize, n: usize, c: &mut [f32]);
            f16_to_f32(src: &[f16], dst: &mut [f32]);
            f32_to_f16(src: &[f32], dst: &mut [f16]);
        );

        pub(crate) static TABLE: $crate::table::Table = $crate::table::Table {
            isa: $isa,
            dot_rows,
            dot_pointers,
            dot_group,
            dot_codes,
            dot_channels,
            dot_packed,
            dot_f16,
            l2_sq_f16,
            axpy_rows,
            axpy_pointers,
            axpy_codes,
            axpy_packed,
            axpy_f32,
            scale,
            lift,
            blend,
            run_sums,
            max,
            exp_sum,
            at_least,
            depth,
            buckets,
            gemm_nt,
            gemm_nn_add,
            f16_to_f32,
            f32_to_f16,
        };
    };
    (@functions $vector:ty, $features:literal,
        $($name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(
            #[target_feature(enable = $features)]
            unsafe fn $name($($arg: $type),*) $(-> $result)? {
                // SAFETY: this function is compiled for the vector's instruction set; lengths are the caller's.
                unsafe { $crate::generic::$name::<$vector>($($arg),*) }
            }
        )*
    };
}
pub(crate) use stamp;
