//! Attention in f64: slow, and obviously right. What everything else is tested against.

use crate::description::Description;
use crate::partial::Partial;
use crate::rows::RowSource;

/// (m, l, o) in f64.
#[derive(Clone, Debug, PartialEq)]
pub struct OraclePartial {
    /// The largest logit, -inf over no token.
    pub m: f64,
    /// The sum of exp(z - m).
    pub l: f64,
    /// The weighted mean of the values.
    pub o: Vec<f64>,
}

/// Attention of one query over the rows `ids`, each named once: mask by leaving out.
pub fn attend<S: RowSource>(
    d: &Description,
    q: &[f32],
    keys: &S,
    values: &S,
    ids: impl IntoIterator<Item = usize>,
) -> OraclePartial {
    let ids: Vec<usize> = ids.into_iter().collect();
    let z: Vec<f64> = ids.iter().map(|&i| logit(d, q, keys, i)).collect();
    let m = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut l, mut o) = (0.0, vec![0.0; values.width()]);
    for (&i, z) in ids.iter().zip(z) {
        let w = (z - m).exp();
        l += w;
        for (o, v) in o.iter_mut().zip(values.get(i)) {
            *o += w * v.to_f64();
        }
    }
    if l > 0.0 {
        o.iter_mut().for_each(|o| *o /= l);
    }
    OraclePartial { m, l, o }
}

/// The logit of row `i`.
pub fn logit<S: RowSource>(d: &Description, q: &[f32], keys: &S, i: usize) -> f64 {
    let qk: f64 = q.iter().zip(keys.get(i)).map(|(&q, k)| f64::from(q) * k.to_f64()).sum();
    let z = f64::from(d.scale) * qk;
    match d.softcap {
        Some(cap) => f64::from(cap) * (z / f64::from(cap)).tanh(),
        None => z,
    }
}

impl OraclePartial {
    /// Merges another, over a disjoint set.
    pub fn merge(&mut self, other: &OraclePartial) {
        let m = self.m.max(other.m);
        if m == f64::NEG_INFINITY {
            return;
        }
        let (a, b) = (self.l * (self.m - m).exp(), other.l * (other.m - m).exp());
        for (x, y) in self.o.iter_mut().zip(&other.o) {
            *x = (a * *x + b * y) / (a + b);
        }
        (self.m, self.l) = (m, a + b);
    }

    /// |o - self.o| / |self.o| in the Euclidean norm; the plain norm of o when self.o is 0.
    pub fn output_error(&self, o: &[f32]) -> f64 {
        let norm = |x: f64| if x > 0.0 { x.sqrt() } else { 0.0 };
        let off: f64 = self.o.iter().zip(o).map(|(a, &b)| (a - f64::from(b)).powi(2)).sum();
        let len: f64 = self.o.iter().map(|x| x * x).sum();
        if len > 0.0 { norm(off) / norm(len) } else { norm(off) }
    }

    /// How far the partial's log-sum-exp is from this one's; 0 when both are neutral.
    pub fn mass_error(&self, partial: &Partial) -> f64 {
        if self.l == 0.0 && partial.is_neutral() {
            return 0.0;
        }
        (self.m + self.l.ln() - f64::from(partial.log_sum_exp())).abs()
    }
}
