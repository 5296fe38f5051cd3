//! Eigenvectors of a symmetric matrix.

/// Sweeps after which it stops in any case; eight are enough for 256 rows in f64.
const SWEEPS: usize = 30;

/// Eigenvalues, the largest first, and their unit vectors as rows [n, n], by cyclic Jacobi rotations (Golub and Van Loan,
/// "Matrix Computations", 8.5). O(n^3) a sweep.
pub(super) fn eigen(matrix: &[f64], n: usize) -> (Vec<f64>, Vec<f64>) {
    assert!(matrix.len() == n * n, "{} elements of {n} x {n}", matrix.len());
    let mut a = matrix.to_vec();
    let mut v = vec![0.0; n * n];
    (0..n).for_each(|i| v[i * n + i] = 1.0);
    let scale: f64 = a.iter().map(|x| x * x).sum();
    for _ in 0..SWEEPS {
        let off: f64 =
            (0..n).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| a[i * n + j].powi(2)).sum();
        if off <= scale * 1e-26 {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                rotate(&mut a, &mut v, n, (p, q));
            }
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| a[j * n + j].total_cmp(&a[i * n + i]));
    let values = order.iter().map(|&i| a[i * n + i]).collect();
    let vectors = order.iter().flat_map(|&i| v[i * n..(i + 1) * n].iter().copied()).collect();
    (values, vectors)
}

/// Makes the element (p, q) zero. Rows of `v` are the vectors.
fn rotate(a: &mut [f64], v: &mut [f64], n: usize, (p, q): (usize, usize)) {
    let apq = a[p * n + q];
    if apq == 0.0 {
        return;
    }
    let theta = (a[q * n + q] - a[p * n + p]) / (2.0 * apq);
    let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
    let c = 1.0 / (t * t + 1.0).sqrt();
    let s = t * c;
    for i in 0..n {
        let (x, y) = (a[i * n + p], a[i * n + q]);
        (a[i * n + p], a[i * n + q]) = (c * x - s * y, s * x + c * y);
    }
    for matrix in [a, v] {
        for i in 0..n {
            let (x, y) = (matrix[p * n + i], matrix[q * n + i]);
            (matrix[p * n + i], matrix[q * n + i]) = (c * x - s * y, s * x + c * y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sketch::random::Normal;

    #[test]
    fn vectors_are_orthonormal_and_give_the_matrix_back() {
        for n in [1, 2, 17, 64] {
            let mut normal = Normal::new(n as u64);
            let rows: Vec<f64> = (0..n * n).map(|_| f64::from(normal.next())).collect();
            let at = |i: usize, j: usize| (0..n).map(|k| rows[i * n + k] * rows[j * n + k]).sum::<f64>();
            let matrix: Vec<f64> = (0..n * n).map(|x| at(x / n, x % n)).collect();
            let (values, vectors) = eigen(&matrix, n);
            assert!(values.is_sorted_by(|a, b| a >= b) && values[n - 1] > -1e-9, "{values:?}");
            for i in 0..n {
                for j in 0..n {
                    let dot: f64 = (0..n).map(|k| vectors[i * n + k] * vectors[j * n + k]).sum();
                    assert!((dot - f64::from(u8::from(i == j))).abs() < 1e-10, "{i} {j}: {dot}");
                    let back: f64 = (0..n).map(|k| values[k] * vectors[k * n + i] * vectors[k * n + j]).sum();
                    assert!((back - matrix[i * n + j]).abs() < 1e-8 * values[0].max(1.0), "{i} {j}");
                }
            }
        }
    }
}
