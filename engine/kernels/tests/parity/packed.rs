//! Products and sums of packed codes, on every path against f64.

use crate::{Noise, dot64, near, paths};
use kernels::{PACKED_BITS, PACKED_WINDOW, PackedRows, Packing};
use proptest::prelude::*;

/// Rows of codes bit by bit, and each code in units of its lane's number: [n, codes].
struct Case {
    packing: Packing,
    stride: usize,
    bytes: Vec<u8>,
    numbers: Vec<f64>,
}

fn case(noise: &mut Noise, first: usize, bits: &[u8], n: usize) -> Case {
    let packing = Packing::new(first, bits.iter().copied());
    let width: usize = bits.iter().map(|&b| usize::from(b)).sum();
    let stride = (first + width).div_ceil(8);
    let mut bytes = vec![0u8; n * stride + PACKED_WINDOW - 1];
    // Other bits are not 0.
    bytes.iter_mut().for_each(|byte| *byte = (noise.next() * 1e6) as i32 as u8);
    let mut numbers = Vec::new();
    for r in 0..n {
        let mut at = 8 * r * stride + first;
        for (&bits, unit) in bits.iter().zip(packing.units()) {
            let code =
                (0..usize::from(bits)).map(|k| u32::from(bytes[(at + k) / 8] >> ((at + k) % 8) & 1) << k);
            numbers.push(f64::from(code.sum::<u32>()) / f64::from(*unit));
            at += usize::from(bits);
        }
    }
    Case { packing, stride, bytes, numbers }
}

proptest! {
    #[test]
    fn packed_rows(
        g in 0usize..8,
        first in 0usize..40,
        bits in prop::collection::vec(1..=PACKED_BITS, 0..70),
        n in 0usize..20,
        more in 0usize..5,
        seed: u64,
    ) {
        let mut noise = Noise(seed | 1);
        let Case { packing, stride, bytes, numbers } = case(&mut noise, first, &bits, n);
        let (lanes, width, count) = (packing.lanes(), n + more, bits.len());
        let rows = PackedRows { packing: &packing, bytes: &bytes, stride, count: n };
        let (q, base, w) = (noise.f32(g * lanes), noise.f32(g), noise.f32(g * width));
        let (start, sums) = (noise.f32(g * width), noise.f32(g * lanes));
        for k in paths() {
            let (mut out, mut acc) = (start.clone(), sums.clone());
            k.dot_packed(&rows, &q, &base, &mut out, width);
            k.axpy_packed(&rows, &w, width, &mut acc);
            for h in 0..g {
                for r in 0..n {
                    let products = (0..count).map(|d| (f64::from(q[h * lanes + d]), numbers[r * count + d]));
                    let all = std::iter::once((f64::from(base[h]), 1.0)).chain(products);
                    near(out[h * width + r], dot64(all), "dot_packed");
                }
                prop_assert_eq!(&out[h * width + n..(h + 1) * width], &start[h * width + n..(h + 1) * width]);
                for d in 0..count {
                    let products = (0..n).map(|r| (f64::from(w[h * width + r]), numbers[r * count + d]));
                    let all = std::iter::once((f64::from(sums[h * lanes + d]), 1.0)).chain(products);
                    near(acc[h * lanes + d], dot64(all), "axpy_packed");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "packed rows")]
fn a_row_too_many_is_refused() {
    let mut noise = Noise(5);
    let Case { packing, stride, bytes, .. } = case(&mut noise, 0, &[3; 9], 4);
    let rows = PackedRows { packing: &packing, bytes: &bytes, stride, count: 5 };
    paths()[0].dot_packed(&rows, &vec![0.0; packing.lanes()], &[0.0], &mut [0.0; 5], 5);
}
