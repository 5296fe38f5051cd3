//! Weight matrices: f16 rows streamed by the kernels for a few inputs, candle's blocked product for many.

use candle_core::{Device, Tensor};
use half::f16;
use half::slice::HalfFloatSliceExt;
use kernels::Kernels;
use rayon::prelude::*;

use super::error::ModelError;

/// Up to this many inputs f16 rows are streamed as they are: one input is bound by reading them, and more share the
/// read. Beyond, the blocked product in f32 costs the same per input and has repaid the widening of the weights.
const FEW: usize = 64;
/// Inputs of one blocked product: bounds the scratch at any prompt length.
const INPUT_BLOCK: usize = 1024;
/// Weight rows widened to f32 at a time.
const WEIGHT_BLOCK: usize = 4096;
/// Values that one task converts.
const CONVERT_BLOCK: usize = 1 << 16;

/// How weights are kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Precision {
    /// f16, or f32 for a matrix with values that f16 cannot hold: half the memory and half the time per token.
    #[default]
    Half,
    /// f32 throughout, by candle alone.
    Single,
}

enum Storage {
    Half(Vec<f16>),
    Single(Tensor),
}

/// A `[rows, columns]` matrix that maps `columns` inputs to `rows` outputs.
pub(crate) struct Matrix {
    rows: usize,
    columns: usize,
    storage: Storage,
}

impl Matrix {
    /// Takes row-major `values`, `rows * columns` of them.
    pub(crate) fn new(
        rows: usize,
        columns: usize,
        values: Vec<f32>,
        precision: Precision,
    ) -> Result<Self, ModelError> {
        let fits = |x: &[f32]| x.iter().all(|x| x.abs() <= f16::MAX.to_f32());
        let storage = if precision == Precision::Half && values.par_chunks(CONVERT_BLOCK).all(fits) {
            let mut narrow = vec![f16::ZERO; values.len()];
            narrow
                .par_chunks_mut(CONVERT_BLOCK)
                .zip(values.par_chunks(CONVERT_BLOCK))
                .for_each(|(narrow, values)| narrow.convert_from_f32_slice(values));
            Storage::Half(narrow)
        } else {
            Storage::Single(Tensor::from_vec(values, (rows, columns), &Device::Cpu)?)
        };
        Ok(Self { rows, columns, storage })
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        let width = match &self.storage {
            Storage::Half(_) => 2,
            Storage::Single(_) => 4,
        };
        self.rows * self.columns * width
    }

    /// Row `index` as f32, into `out[columns]`.
    pub(crate) fn row(&self, index: usize, out: &mut [f32]) -> Result<(), ModelError> {
        match &self.storage {
            Storage::Half(values) => {
                values[index * self.columns..][..self.columns].convert_to_f32_slice(out);
            }
            Storage::Single(values) => out.copy_from_slice(&values.get(index)?.to_vec1::<f32>()?),
        }
        Ok(())
    }

    /// `x [n, columns]` to `[n, rows]`.
    pub(crate) fn apply(&self, kernels: &Kernels, x: &[f32]) -> Result<Vec<f32>, ModelError> {
        let n = x.len() / self.columns;
        let mut out = vec![0.0; n * self.rows];
        match &self.storage {
            Storage::Half(weights) if n <= FEW => self.stream(kernels, weights, x, &mut out),
            Storage::Half(weights) => {
                for (block, rows) in weights.chunks(WEIGHT_BLOCK * self.columns).enumerate() {
                    let mut wide = vec![0.0; rows.len()];
                    wide.par_chunks_mut(CONVERT_BLOCK)
                        .zip(rows.par_chunks(CONVERT_BLOCK))
                        .for_each(|(wide, rows)| kernels.f16_to_f32(rows, wide));
                    let shape = (rows.len() / self.columns, self.columns);
                    let weights = Tensor::from_vec(wide, shape, &Device::Cpu)?;
                    self.block(&weights, block * WEIGHT_BLOCK, x, &mut out)?;
                }
            }
            Storage::Single(weights) => self.block(weights, 0, x, &mut out)?,
        }
        Ok(out)
    }

    /// Few inputs: each thread streams its share of the weight rows once for all of them.
    fn stream(&self, kernels: &Kernels, weights: &[f16], x: &[f32], out: &mut [f32]) {
        let n = x.len() / self.columns;
        let share = self.rows.div_ceil(rayon::current_num_threads()).max(16);
        let chunks = weights.par_chunks(share * self.columns);
        if n == 1 {
            out.par_chunks_mut(share)
                .zip(chunks)
                .for_each(|(out, rows)| kernels.dot_rows(x, self.columns, rows, out));
            return;
        }
        let parts: Vec<Vec<f32>> = chunks
            .map(|rows| {
                let mut part = vec![0.0; n * (rows.len() / self.columns)];
                kernels.dot_rows(x, self.columns, rows, &mut part);
                part
            })
            .collect();
        let mut first = 0;
        for part in parts {
            let width = part.len() / n;
            for (row, values) in part.chunks_exact(width).enumerate() {
                out[row * self.rows + first..][..width].copy_from_slice(values);
            }
            first += width;
        }
    }

    /// Many inputs against the weight rows `first..first + weights.rows`.
    fn block(&self, weights: &Tensor, first: usize, x: &[f32], out: &mut [f32]) -> Result<(), ModelError> {
        let transposed = weights.t()?;
        let width = weights.dim(0)?;
        let inputs = x.chunks(INPUT_BLOCK * self.columns);
        for (x, out) in inputs.zip(out.chunks_mut(INPUT_BLOCK * self.rows)) {
            let input = Tensor::from_slice(x, (x.len() / self.columns, self.columns), &Device::Cpu)?;
            let product = input.matmul(&transposed)?.flatten_all()?.to_vec1::<f32>()?;
            for (row, values) in product.chunks_exact(width).enumerate() {
                out[row * self.rows + first..][..width].copy_from_slice(values);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, salt: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 37 + salt * 11) % 101) as f32 / 101.0 - 0.5).collect()
    }

    fn plain(weights: &[f32], columns: usize, x: &[f32]) -> Vec<f32> {
        let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        x.chunks(columns).flat_map(|x| weights.chunks(columns).map(move |w| dot(x, w) as f32)).collect()
    }

    #[test]
    fn every_path_gives_the_same_product() {
        let kernels = Kernels::native();
        for (rows, columns) in [(5, 8), (70, 48), (33, 31)] {
            let weights: Vec<f32> =
                numbers(rows * columns, 1).into_iter().map(|w| f16::from_f32(w).to_f32()).collect();
            for n in [1, 3, FEW, FEW + 1, INPUT_BLOCK + 3] {
                let x = numbers(n * columns, 2);
                let expected = plain(&weights, columns, &x);
                for precision in [Precision::Half, Precision::Single] {
                    let matrix = Matrix::new(rows, columns, weights.clone(), precision).unwrap();
                    let got = matrix.apply(&kernels, &x).unwrap();
                    let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
                    assert!(got.iter().zip(&expected).all(close), "{rows}x{columns} n={n} {precision:?}");
                    assert_eq!(got.len(), expected.len());
                }
            }
        }
    }

    #[test]
    fn values_beyond_f16_stay_f32() {
        let matrix = Matrix::new(1, 2, vec![1e6, 1.0], Precision::Half).unwrap();
        let mut row = [0.0; 2];
        matrix.row(0, &mut row).unwrap();
        assert_eq!(row, [1e6, 1.0]);
        assert_eq!(matrix.bytes(), 8);
        assert_eq!(matrix.apply(&Kernels::native(), &[1.0, 2.0]).unwrap(), [1_000_002.0]);
    }
}
