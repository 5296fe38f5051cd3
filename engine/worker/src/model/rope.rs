//! Rotary position embedding, both pairings, with NTK scaling of the base for contexts beyond the trained one.

use std::str::FromStr;

use rayon::prelude::*;

use super::config::{ModelConfig, RopeLayout};
use super::error::ModelError;

/// The largest factor: beyond it neighbouring positions are no longer told apart.
const MOST_SCALING: f64 = 1e4;

/// How the RoPE base grows with the context.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum RopeScaling {
    /// By context / trained context, when that is above 1.
    #[default]
    Auto,
    /// Never; a context beyond the trained one is an error.
    None,
    /// By this factor, whatever the context.
    Factor(f64),
}

impl FromStr for RopeScaling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            _ => match text.parse::<f64>() {
                Ok(factor) if (1.0..=MOST_SCALING).contains(&factor) => Ok(Self::Factor(factor)),
                _ => Err("expected auto, none or a factor from 1 to 10000".into()),
            },
        }
    }
}

impl RopeScaling {
    /// The base to use for `context` tokens of `config`.
    ///
    /// For a factor s > 1 it is `base * s^(d / (d - 2)) * c(s)`: NTK scaling with a correction c that is 1.3 up to s = 4
    /// and 5 at s = 16, where perplexity was measured flat, and a power of s in between and beyond.
    ///
    /// # Errors
    /// [`ModelError::Context`] when scaling is off and `context` is beyond the trained one; [`ModelError::Scaling`] when it
    /// is on and `context` is beyond any scaling.
    pub fn base(self, config: &ModelConfig, context: usize) -> Result<f64, ModelError> {
        let trained = config.max_context;
        let factor = match self {
            Self::Auto => context as f64 / trained as f64,
            Self::Factor(factor) => factor,
            Self::None if context > trained => {
                return Err(ModelError::Context { asked: context, trained });
            }
            Self::None => 1.0,
        };
        if factor > MOST_SCALING {
            let most = (trained as f64 * MOST_SCALING) as usize;
            return Err(ModelError::Scaling { asked: context, trained, most });
        }
        if factor <= 1.0 {
            return Ok(config.rope_base);
        }
        let dim = (config.head_dim as f64).max(4.0);
        let correction = 1.3 * (factor / 4.0).max(1.0).powf((5.0f64 / 1.3).ln() / 4.0f64.ln());
        Ok(config.rope_base * factor.powf(dim / (dim - 2.0)) * correction)
    }
}

/// Turns heads by their positions; angles are computed in f64, so that far positions keep their precision.
#[derive(Clone, Debug)]
pub struct Rope {
    base: f64,
    head_dim: usize,
    layout: RopeLayout,
    inverse_frequencies: Vec<f64>,
}

impl Rope {
    /// RoPE of `head_dim` components over `base`.
    pub fn new(base: f64, head_dim: usize, layout: RopeLayout) -> Self {
        let half = head_dim / 2;
        let inverse_frequencies = (0..half).map(|i| base.powf(-2.0 * i as f64 / head_dim as f64)).collect();
        Self { base, head_dim, layout, inverse_frequencies }
    }

    /// The base in use.
    pub fn base(&self) -> f64 {
        self.base
    }

    /// Cosines and sines of `positions`: `[n, head_dim / 2]` pairs.
    pub(crate) fn angles(&self, positions: std::ops::Range<u64>) -> Vec<(f32, f32)> {
        let half = self.inverse_frequencies.len();
        let n = (positions.end - positions.start) as usize;
        let mut angles = vec![(0.0, 0.0); n * half];
        angles.par_chunks_mut(half).with_min_len(64).enumerate().for_each(|(i, row)| {
            let position = (positions.start + i as u64) as f64;
            for (pair, frequency) in row.iter_mut().zip(&self.inverse_frequencies) {
                let (sin, cos) = (position * frequency).sin_cos();
                *pair = (cos as f32, sin as f32);
            }
        });
        angles
    }

    /// Turns every head of one row (`[heads, head_dim]`) by `angles` (`[head_dim / 2]`).
    pub(crate) fn turn(&self, row: &mut [f32], angles: &[(f32, f32)]) {
        let half = angles.len();
        for head in row.chunks_exact_mut(self.head_dim) {
            match self.layout {
                RopeLayout::Interleaved => {
                    for (pair, &(cos, sin)) in head.chunks_exact_mut(2).zip(angles) {
                        let (a, b) = (pair[0], pair[1]);
                        pair[0] = a * cos - b * sin;
                        pair[1] = a * sin + b * cos;
                    }
                }
                RopeLayout::HalfSplit => {
                    let (low, high) = head.split_at_mut(half);
                    for ((a, b), &(cos, sin)) in low.iter_mut().zip(high).zip(angles) {
                        let (x, y) = (*a, *b);
                        *a = x * cos - y * sin;
                        *b = x * sin + y * cos;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn smollm() -> ModelConfig {
        ModelConfig {
            name: "t".into(),
            layers: 30,
            hidden: 576,
            intermediate: 1536,
            q_heads: 9,
            kv_heads: 3,
            head_dim: 64,
            vocab: 49152,
            rms_eps: 1e-5,
            rope_base: 1e5,
            max_context: 8192,
            tied_head: true,
            rope_layout: RopeLayout::Interleaved,
            bos: None,
            eos: vec![],
        }
    }

    #[test]
    fn auto_scaling_matches_the_measured_bases() {
        let config = smollm();
        let base = |context| RopeScaling::Auto.base(&config, context).unwrap();
        assert_eq!(base(100), 1e5);
        assert_eq!(base(8192), 1e5);
        assert!((base(32_768) - 543_781.757).abs() < 0.01);
        assert!((base(131_072) - 8_748_479.27).abs() < 0.1);
        assert!(base(65_536) > base(32_768) && base(65_536) < base(131_072));
    }

    #[test]
    fn none_refuses_more_than_the_trained_context() {
        let config = smollm();
        assert_eq!(RopeScaling::None.base(&config, 8192).unwrap(), 1e5);
        let error = RopeScaling::None.base(&config, 8193).unwrap_err();
        assert!(error.to_string().contains("8193") && error.to_string().contains("8192"));
        let error = RopeScaling::Auto.base(&config, usize::MAX).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("81920000"), "{error}");
        assert!(RopeScaling::Auto.base(&config, 81_920_000).is_ok());
        assert!("0.5".parse::<RopeScaling>().is_err());
        assert_eq!("2".parse(), Ok(RopeScaling::Factor(2.0)));
    }

    #[test]
    fn both_layouts_agree_after_permutation() {
        let dim = 8;
        let head: Vec<f32> = (0..dim).map(|i| i as f32 - 3.0).collect();
        let half: Vec<usize> = (0..dim / 2).flat_map(|i| [i, i + dim / 2]).collect();
        let mut split = head.clone();
        let mut paired: Vec<f32> = half.iter().map(|&i| head[i]).collect();
        let a = Rope::new(1e4, dim, RopeLayout::HalfSplit);
        let b = Rope::new(1e4, dim, RopeLayout::Interleaved);
        a.turn(&mut split, &a.angles(1000..1001));
        b.turn(&mut paired, &b.angles(1000..1001));
        let expected: Vec<f32> = half.iter().map(|&i| split[i]).collect();
        assert_eq!(paired, expected);
        let norm = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>();
        assert!((norm(&split) - norm(&head)).abs() < 1e-3);
    }
}
