//! One channel as whole numbers.

/// Steps that are tried.
const TRIALS: usize = 32;
/// The widest step reaches the largest element, the narrowest this part of it.
const NARROWEST: f32 = 16.0;

/// A uniform quantiser around 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Step {
    /// Bits of a code; 0 has the one code 0, which stands for 0.
    pub bits: u8,
    /// What is between neighbouring codes.
    pub width: f32,
}

impl Step {
    /// The one with the least squared error on a sample.
    pub fn fit(sample: &[f32], bits: u8) -> Step {
        let most = sample.iter().fold(0f32, |most, x| most.max(x.abs()));
        if bits == 0 || most == 0.0 {
            return Step { bits, width: 0.0 };
        }
        let widest = 2.0 * most / (1u32 << bits) as f32;
        let trial =
            |i: usize| Step { bits, width: widest * NARROWEST.powf(-(i as f32) / (TRIALS - 1) as f32) };
        let error = |step: Step| {
            let square = |&x: &f32| f64::from(x - step.value(step.code(x))).powi(2);
            sample.iter().map(square).sum::<f64>()
        };
        let mut best = (f64::INFINITY, trial(0));
        for step in (0..TRIALS).map(trial) {
            let error = error(step);
            if error < best.0 {
                best = (error, step);
            }
        }
        best.1
    }

    /// The code of an element; what is beyond the outermost codes takes these.
    pub fn code(self, x: f32) -> u32 {
        let half = (1u32 << self.bits) as f32 / 2.0;
        if self.width > 0.0 { (x / self.width + half).floor().clamp(0.0, 2.0 * half - 1.0) as u32 } else { 0 }
    }

    /// What a code stands for.
    pub fn value(self, code: u32) -> f32 {
        (code as f32 - self.centre()) * self.width
    }

    /// The code, if there were one, that stands for 0.
    pub fn centre(self) -> f32 {
        ((1u32 << self.bits) - 1) as f32 / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sketch::random::Normal;

    #[test]
    fn errors_on_normal_data_are_those_of_the_table() {
        let mut normal = Normal::new(5);
        let sample: Vec<f32> = (0..20_000).map(|_| 3.0 * normal.next()).collect();
        for (bits, remains) in [(0, 1.0), (1, 0.3634), (2, 0.1188), (3, 0.0374), (4, 0.0115), (6, 0.00104)] {
            let step = Step::fit(&sample, bits);
            let square = |&x: &f32| f64::from(x - step.value(step.code(x))).powi(2);
            let error = sample.iter().map(square).sum::<f64>() / sample.len() as f64 / 9.0;
            assert!((error / remains - 1.0).abs() < 0.1, "{bits} bits: {error} for {remains}");
        }
    }

    #[test]
    fn constant_and_extreme_elements() {
        let step = Step::fit(&[0.0; 4], 5);
        assert_eq!(step.value(step.code(0.0)), 0.0);
        let step = Step::fit(&[1.0, -1.0, 0.5], 3);
        assert_eq!((step.code(1e30), step.code(-1e30)), (7, 0));
    }
}
