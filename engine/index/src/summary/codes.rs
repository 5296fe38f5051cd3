//! Vectors as codes of one byte an element: the keys in group order, and the means of the groups in cell order.
//!
//! A vector is coded as its deviation from its parent (the mean of its group, or of its cell), in units of each
//! dimension's spread and of the vector's own largest element, so that neither a wide dimension nor an outlying vector
//! costs the others their precision: x = parent + spread * scale * (code - 64). Products with the codes are therefore
//! close, not exact; they say which keys are worth scoring exactly and what the others weigh together.

use kernels::{CODE_DIMS, CODE_HEAD, CODE_ROWS, CodeQuery, CodeRun, Kernels, MOST_CODE};
use rayon::prelude::*;

use crate::saved::{Reader as Source, SavedError, Writer, check_finite};

/// The code of 0; the others reach as far below as above.
const ZERO: u8 = MOST_CODE / 2 + 1;
/// The largest element of a deviation, in codes.
const MOST: f32 = (MOST_CODE - ZERO) as f32;
/// The largest element of a query in integers.
const MOST_QUERY: f32 = 127.0;
/// Beyond this the spread of a dimension is cut, so that nothing here overflows with finite vectors.
const MOST_SPREAD: f32 = 65_504.0;

/// A query head: its query in integers, what it wants to be scored, and the scores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reader {
    q: Vec<i8>,
    step: f32,
    /// What the code of 0 adds to every sum.
    zero: i32,
    /// Vectors that were coded as deviations from one parent, and what the parent scored.
    pub runs: Vec<CodeRun>,
    /// Of the vectors of all runs in turn.
    pub scores: Vec<f32>,
}

/// Codes of n vectors.
#[derive(Clone, Debug)]
pub(crate) struct Codes {
    /// Root mean square of the deviations, per dimension: [dim].
    spread: Vec<f32>,
    /// Blocks of 8 vectors as [`Kernels::dot_codes`] reads them: their scales, then their codes; scale 0 and [`ZERO`]
    /// beyond the last vector, [`ZERO`] beyond the last dimension.
    blocks: Vec<u8>,
    /// Dimensions, rounded up to fours.
    width: usize,
}

impl Codes {
    /// Codes n vectors; `deviation` writes how far one lies from its parent. Deterministic.
    pub fn new(n: usize, dim: usize, deviation: impl Fn(usize, &mut [f32]) + Sync) -> Codes {
        let spread = spread(n, dim, &deviation);
        let inverse: Vec<f32> = spread.iter().map(|&s| if s > 0.0 { s.recip() } else { 0.0 }).collect();
        let width = dim.next_multiple_of(CODE_DIMS);
        let size = block_size(width);
        let mut blocks = vec![0u8; n.div_ceil(CODE_ROWS) * size];
        blocks.par_chunks_mut(size).enumerate().for_each_init(
            || vec![0f32; dim],
            |x, (block, bytes)| {
                let (scales, codes) = bytes.split_at_mut(CODE_HEAD);
                codes.fill(ZERO);
                for (r, scale) in (0..CODE_ROWS.min(n - block * CODE_ROWS)).zip(scales.chunks_mut(4)) {
                    deviation(block * CODE_ROWS + r, x);
                    x.iter_mut().zip(&inverse).for_each(|(x, s)| *x *= s);
                    let most = x.iter().fold(0f32, |m, x| m.max(x.abs()));
                    if most > 0.0 {
                        let unit = most / MOST;
                        scale.copy_from_slice(&unit.to_ne_bytes());
                        for (d, x) in x.iter().enumerate() {
                            codes[place(r, d)] = ((x / unit).round() + f32::from(ZERO)) as u8;
                        }
                    }
                }
            },
        );
        Codes { spread, blocks, width }
    }

    /// Adds to `out` the deviation that the codes of a vector stand for.
    pub fn add_decoded(&self, i: usize, out: &mut [f32]) {
        let (size, r) = (block_size(self.width), i % CODE_ROWS);
        let (scales, codes) = self.blocks[i / CODE_ROWS * size..][..size].split_at(CODE_HEAD);
        let scale = scales.as_chunks::<4>().0.get(r).map_or(0.0, |s| f32::from_ne_bytes(*s));
        for (d, (x, spread)) in out.iter_mut().zip(&self.spread).enumerate() {
            *x += spread * scale * (f32::from(codes[place(r, d)]) - f32::from(ZERO));
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.blocks.len() + 4 * self.spread.len()
    }

    /// Writes them.
    pub fn save(&self, w: &mut Writer) {
        w.array(&self.spread);
        w.array(&self.blocks);
    }

    /// Reads what [`Codes::save`] wrote of `n` vectors.
    pub fn load(r: &mut Source<'_>, n: usize, dim: usize) -> Result<Codes, SavedError> {
        let width = dim.next_multiple_of(CODE_DIMS);
        let size = block_size(width);
        let spread: Vec<f32> = r.array("spreads of codes", dim)?;
        let blocks: Vec<u8> = r.array("bytes of codes", n.div_ceil(CODE_ROWS) * size)?;
        check_finite("a code's spread", spread.iter().copied())?;
        for block in blocks.chunks(size) {
            let (scales, codes) = block.split_at(CODE_HEAD);
            check_finite("a code's scale", scales.as_chunks().0.iter().map(|s| f32::from_le_bytes(*s)))?;
            if codes.iter().any(|&code| code > MOST_CODE) {
                return Err(SavedError::Damaged("a code"));
            }
        }
        Ok(Codes { spread, blocks, width })
    }

    /// Brings `q` into the form that [`Codes::read`] takes.
    pub fn prepare(&self, q: &[f32], reader: &mut Reader) {
        let folded = || q.iter().zip(&self.spread).map(|(q, s)| q * s);
        let most = folded().fold(0f32, |m, x| m.max(x.abs()));
        reader.step = if most > 0.0 { most / MOST_QUERY } else { 0.0 };
        let inverse = if most > 0.0 { MOST_QUERY / most } else { 0.0 };
        reader.q.clear();
        // Rounded by hand: without SSE4.1, which nothing here may assume, `round` is a call.
        reader.q.extend(folded().map(|x| (x * inverse + 0.5f32.copysign(x)) as i8));
        reader.zero = i32::from(ZERO) * reader.q.iter().map(|&x| i32::from(x)).sum::<i32>();
        reader.q.resize(self.width, 0);
    }

    /// Scores the vectors of all runs.
    pub fn read(&self, k: &Kernels, reader: &mut Reader) {
        let Reader { q, step, zero, runs, scores } = reader;
        k.dot_codes(&CodeQuery { q, zero: *zero, step: *step }, &self.blocks, runs, scores);
    }
}

/// Scales are read in the machine's order and saved as they lie.
const _: () = assert!(cfg!(target_endian = "little"), "saved codes are little-endian");

fn block_size(width: usize) -> usize {
    CODE_HEAD + width * CODE_ROWS
}

/// Where a dimension of a row lies in its block.
fn place(row: usize, d: usize) -> usize {
    (d / CODE_DIMS * CODE_ROWS + row) * CODE_DIMS + d % CODE_DIMS
}

/// Root mean square of the deviations, per dimension.
fn spread(n: usize, dim: usize, deviation: &impl Fn(usize, &mut [f32])) -> Vec<f32> {
    let mut x = vec![0f32; dim];
    let mut squares = vec![0f64; dim];
    for i in 0..n {
        deviation(i, &mut x);
        squares.iter_mut().zip(&x).for_each(|(s, &x)| *s += f64::from(x * x));
    }
    squares.into_iter().map(|s| ((s / n as f64).sqrt() as f32).min(MOST_SPREAD)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        let mut x = seed | 1;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    fn codes(rows: &[f32], dim: usize) -> Codes {
        Codes::new(rows.len() / dim, dim, |i, x| x.copy_from_slice(&rows[i * dim..][..dim]))
    }

    fn scan(codes: &Codes, q: &[f32], runs: &[CodeRun]) -> Vec<f32> {
        let mut reader = Reader { runs: runs.to_vec(), ..Reader::default() };
        codes.prepare(q, &mut reader);
        codes.read(&Kernels::native(), &mut reader);
        reader.scores
    }

    fn run(rows: std::ops::Range<u32>, parent: f32) -> CodeRun {
        CodeRun { first: rows.start, len: rows.len() as u32, parent }
    }

    #[test]
    fn scores_are_close_whatever_the_dim_and_however_far_a_vector_lies() {
        for dim in [1, 7, 64, 80] {
            let mut rows = noise(701 * dim, dim as u64);
            // A wide dimension, and a vector far from all others.
            rows.iter_mut().step_by(dim).for_each(|x| *x *= 30.0);
            rows[33 * dim..34 * dim].iter_mut().for_each(|x| *x *= 500.0);
            let (codes, q) = (codes(&rows, dim), noise(dim, 99));
            // Runs that begin and end within a block, two of them side by side.
            let runs = [run(3..9, 0.0), run(9..40, 7.0), run(51..52, 0.0), run(64..701, -1.0)];
            let mut scores = scan(&codes, &q, &runs).into_iter();
            let size = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>().sqrt();
            let most = |x: &[f32]| x.iter().fold(0f32, |m, x| m.max(x.abs())) * (dim as f32).sqrt() / 2.0;
            let folded: Vec<f32> = q.iter().zip(&codes.spread).map(|(q, s)| q * s).collect();
            for CodeRun { first, len, parent } in runs {
                for i in first..first + len {
                    let row = &rows[i as usize * dim..][..dim];
                    let scaled: Vec<f32> = row.iter().zip(&codes.spread).map(|(x, s)| x / s).collect();
                    let exact: f32 = row.iter().zip(&q).map(|(x, q)| x * q).sum::<f32>() + parent;
                    // Half a unit in every element of either side.
                    let bound =
                        size(&folded) * most(&scaled) / MOST + size(&scaled) * most(&folded) / MOST_QUERY;
                    let score = scores.next().expect("a score for every row");
                    assert!((score - exact).abs() < 1.02 * bound, "{dim} {i}: {score} {exact}");
                    let mut decoded = vec![0.0; dim];
                    codes.add_decoded(i as usize, &mut decoded);
                    for ((x, y), s) in decoded.iter().zip(row).zip(&codes.spread) {
                        assert!((x - y).abs() <= 1.02 * s * most(&scaled) / MOST, "{dim} {i}: {x} {y}");
                    }
                }
            }
            assert_eq!(scores.next(), None);
        }
    }

    #[test]
    fn a_vector_equal_to_its_parent_scores_as_it_to_the_bit() {
        let codes = codes(&[0.0; 100 * 8], 8);
        assert_eq!(scan(&codes, &noise(8, 3), &[run(0..100, 0.37)]), vec![0.37; 100]);
    }
}
