//! What the tests share: noise, a problem of any geometry, the stated bound.

use attention::{Description, Partial, RowSource, Rows, oracle};
use kernels::{Isa, Kernels, f16};

pub fn paths() -> Vec<Kernels> {
    Isa::available().into_iter().filter_map(Kernels::with).collect()
}

/// A small xorshift: values depend on the seed alone.
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    pub fn f32(&mut self, n: usize, size: f32) -> Vec<f32> {
        (0..n).map(|_| size * self.next()).collect()
    }
    pub fn f16(&mut self, n: usize, size: f32) -> Vec<f16> {
        (0..n).map(|_| f16::from_f32(size * self.next())).collect()
    }
}

/// The bound that the crate's documentation states, for one query: (of m and ln l, of o relative to the largest
/// value).
pub fn bound<S: RowSource>(d: &Description, q: &[f32], keys: &S) -> f64 {
    let e = 2f64.powi(-24);
    let largest = (0..keys.count())
        .map(|i| {
            let row = keys.get(i).iter();
            q.iter().zip(row).map(|(&q, k)| (f64::from(q) * k.to_f64()).abs()).sum::<f64>()
        })
        .fold(0.0, f64::max);
    let delta = (q.len() + 3) as f64 * e * f64::from(d.scale.abs()) * largest;
    2.0 * delta + 1e-6
}

/// Holds a partial to the oracle over the rows `ids`.
#[track_caller]
pub fn check<S: RowSource>(
    d: &Description,
    q: &[f32],
    (keys, values): (&S, &S),
    ids: impl IntoIterator<Item = usize>,
    got: &Partial,
) {
    let want = oracle::attend(d, q, keys, values, ids);
    if want.l == 0.0 {
        assert_eq!(got, &Partial::neutral(values.width()));
        return;
    }
    let bound = bound(d, q, keys);
    let large = (0..values.count()).flat_map(|i| values.get(i)).map(|v| v.to_f64().abs()).fold(0.0, f64::max);
    assert!((f64::from(got.m) - want.m).abs() <= bound * (1.0 + want.m.abs()), "m {} for {}", got.m, want.m);
    assert!(want.mass_error(got) <= bound, "log-sum-exp off by {} > {bound}", want.mass_error(got));
    for (o, w) in got.o.iter().zip(&want.o) {
        assert!((f64::from(*o) - w).abs() <= bound * large, "o {o} for {w}, bound {}", bound * large);
    }
    assert_eq!((got.l_quant, got.l_est), (0.0, 0.0));
}

/// All partials of a group over a range.
pub fn range(
    k: &Kernels,
    d: &Description,
    q: &[f32],
    (keys, values): (&Rows<'_>, &Rows<'_>),
    range: std::ops::Range<usize>,
) -> Vec<Partial> {
    let mut scratch = attention::Scratch::new();
    let mut out = vec![Partial::neutral(values.dim()); q.len() / keys.dim()];
    attention::attend_range(k, d, q, keys, values, range, &mut scratch, &mut out);
    out
}
