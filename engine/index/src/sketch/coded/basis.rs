//! Channels: directions along which deviations are coded one by one.

use half::f16;

use super::jacobi::eigen;

/// Channels of deviations from bucket means: uncorrelated, and of unit length in the metric of what is asked, so that an
/// error of any channel costs the same.
#[derive(Clone, Debug)]
pub(super) struct Basis {
    dim: usize,
    /// Column j gives channel j of a deviation: [dim, dim]. Not needed after coding.
    pub forward: Vec<f32>,
    /// A deviation is the sum of its channels times these rows: [dim, dim].
    pub backward: Vec<f16>,
    /// Variance of each channel, the largest first.
    pub variances: Vec<f64>,
}

impl Basis {
    /// From `rows` [n, dim] of deviations, in a positive definite `metric` [dim, dim]: an error e costs e^T metric e.
    pub fn fit(rows: &[f32], dim: usize, metric: &[f64]) -> Basis {
        let (costs, axes) = eigen(metric, dim);
        let roots: Vec<f64> = costs.iter().map(|c| c.max(f64::MIN_POSITIVE).sqrt()).collect();
        let covariance = covariance(rows, dim);
        // In coordinates y_i = roots_i * (axes_i . row) the cost of an error is its squared length.
        let turned: Vec<f64> = product(&axes, &covariance, dim);
        let turned = product(&turned, &transposed(&axes, dim), dim);
        let scaled: Vec<f64> =
            turned.iter().enumerate().map(|(x, c)| c * roots[x / dim] * roots[x % dim]).collect();
        let (variances, vectors) = eigen(&scaled, dim);
        let along = |stretch: &dyn Fn(usize) -> f64| {
            let stretched: Vec<f64> = vectors.iter().enumerate().map(|(x, u)| u * stretch(x % dim)).collect();
            product(&stretched, &axes, dim)
        };
        Basis {
            dim,
            forward: transposed(&along(&|i| roots[i]), dim).iter().map(|&x| x as f32).collect(),
            backward: along(&|i| 1.0 / roots[i]).iter().map(|&x| f16::from_f64(x)).collect(),
            variances: variances.iter().map(|v| v.max(0.0)).collect(),
        }
    }

    /// Bytes that reading needs.
    pub fn bytes(&self) -> usize {
        2 * self.backward.len()
    }

    /// Channels of a deviation.
    pub fn turn(&self, row: &[f32], channels: &mut [f32]) {
        channels.fill(0.0);
        for (&x, forward) in row.iter().zip(self.forward.chunks_exact(self.dim)) {
            channels.iter_mut().zip(forward).for_each(|(channel, f)| *channel += f * x);
        }
    }

    /// Adds the deviation of channels to a row.
    pub fn add(&self, channels: &[f32], row: &mut [f32]) {
        for (&channel, back) in channels.iter().zip(self.backward.chunks_exact(self.dim)) {
            if channel != 0.0 {
                row.iter_mut().zip(back).for_each(|(x, b)| *x += channel * b.to_f32());
            }
        }
    }
}

fn covariance(rows: &[f32], dim: usize) -> Vec<f64> {
    let mut sums = vec![0f64; dim * dim];
    let mut wide = vec![0f64; dim];
    for row in rows.chunks_exact(dim) {
        wide.iter_mut().zip(row).for_each(|(wide, &x)| *wide = f64::from(x));
        // The upper half; the lower is its mirror.
        for (i, sums) in sums.chunks_exact_mut(dim).enumerate() {
            let a = wide[i];
            sums[i..].iter_mut().zip(&wide[i..]).for_each(|(s, b)| *s += a * b);
        }
    }
    let n = (rows.len() / dim).max(1) as f64;
    (0..dim * dim).map(|x| sums[(x / dim).min(x % dim) * dim + (x / dim).max(x % dim)] / n).collect()
}

fn product(a: &[f64], b: &[f64], dim: usize) -> Vec<f64> {
    let mut out = vec![0.0; dim * dim];
    for (out, a) in out.chunks_exact_mut(dim).zip(a.chunks_exact(dim)) {
        for (&x, b) in a.iter().zip(b.chunks_exact(dim)) {
            out.iter_mut().zip(b).for_each(|(o, y)| *o += x * y);
        }
    }
    out
}

fn transposed(a: &[f64], dim: usize) -> Vec<f64> {
    (0..dim * dim).map(|x| a[x % dim * dim + x / dim]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sketch::random::Normal;

    #[test]
    fn channels_are_uncorrelated_priced_by_the_metric_and_lead_back() {
        let (dim, n) = (6, 4000);
        let mut normal = Normal::new(3);
        let rows: Vec<f32> = (0..n)
            .flat_map(|_| {
                let x: Vec<f32> = (0..dim).map(|_| normal.next()).collect();
                (0..dim).map(|d| x[d] * (d + 1) as f32 + x[0]).collect::<Vec<_>>()
            })
            .collect();
        let mut metric = vec![0.5; dim * dim];
        (0..dim).for_each(|i| metric[i * dim + i] = 1.0 + i as f64);
        let basis = Basis::fit(&rows, dim, &metric);
        let mut sums = vec![0f64; dim * dim];
        for row in rows.chunks(dim) {
            let mut channels = vec![f32::NAN; dim];
            basis.turn(row, &mut channels);
            for (x, sum) in sums.iter_mut().enumerate() {
                *sum += f64::from(channels[x / dim] * channels[x % dim]) / n as f64;
            }
            let mut back = vec![0.0; dim];
            basis.add(&channels, &mut back);
            for (a, b) in row.iter().zip(&back) {
                assert!((a - b).abs() < 0.01 * (1.0 + a.abs()) + 0.02, "{row:?} {back:?}");
            }
            let cost: f64 = (0..dim * dim).map(|x| metric[x] * f64::from(row[x / dim] * row[x % dim])).sum();
            let square: f64 = channels.iter().map(|&c| f64::from(c).powi(2)).sum();
            assert!((cost - square).abs() < 1e-3 * cost.max(1.0), "{cost} {square}");
        }
        for (x, sum) in sums.iter().enumerate() {
            let wanted = if x / dim == x % dim { basis.variances[x / dim] } else { 0.0 };
            assert!((sum - wanted).abs() < 1e-3 * basis.variances[0], "{x}: {sum} {wanted}");
        }
    }

    #[test]
    fn equal_rows_have_channels_without_variance() {
        let basis = Basis::fit(&[0.0; 12], 3, &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
        assert_eq!(basis.variances, [0.0; 3]);
    }
}
