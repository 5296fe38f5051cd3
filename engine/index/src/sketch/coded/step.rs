//! One channel as whole numbers.

/// Steps that are tried.
const TRIALS: usize = 32;
/// The widest step reaches the largest element, the narrowest this part of it.
const NARROWEST: f32 = 16.0;

/// Elements whose errors are added before it is seen whether the sum is too large already.
const PIECE: usize = 256;

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
        let mut best = (f64::INFINITY, trial(0));
        for step in (0..TRIALS).map(trial) {
            let grid = Grid::from(step);
            let (mut error, mut squares) = (0f64, [0f64; PIECE]);
            for sample in sample.chunks(PIECE) {
                for (square, &x) in squares.iter_mut().zip(sample) {
                    *square = f64::from(grid.off(x)).powi(2);
                }
                error = squares[..sample.len()].iter().fold(error, |sum, square| sum + square);
                // It only grows.
                if error >= best.0 {
                    break;
                }
            }
            if error < best.0 {
                best = (error, step);
            }
        }
        best.1
    }

    /// The code of an element; what is beyond the outermost codes takes these.
    pub fn code(self, x: f32) -> u32 {
        Grid::from(self).level(x) as u32
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

/// A step in the form that many elements are coded with: plain operations on floats only, which the compiler does for
/// several elements at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    width: f32,
    half: f32,
    last: f32,
    centre: f32,
}

impl From<Step> for Grid {
    fn from(step: Step) -> Grid {
        let codes = (1u32 << step.bits) as f32;
        if step.bits == 0 || step.width == 0.0 {
            // One code, which stands for 0.
            return Grid { width: 1.0, half: 0.0, last: 0.0, centre: 0.0 };
        }
        Grid { width: step.width, half: codes / 2.0, last: codes - 1.0, centre: step.centre() }
    }
}

impl Grid {
    /// The code of an element.
    fn level(self, x: f32) -> f32 {
        /// Beyond it f32 has whole numbers only; codes are far below.
        const WHOLE: f32 = 8_388_608.0;
        let place = (x / self.width + self.half).clamp(0.0, self.last);
        let near = (place + WHOLE) - WHOLE;
        if near > place { near - 1.0 } else { near }
    }

    /// How far an element is from what its code stands for.
    pub fn off(self, x: f32) -> f32 {
        x - (self.level(x) - self.centre) * self.width
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
    fn codes_are_those_of_the_definition() {
        let mut normal = Normal::new(6);
        for bits in 0..=12 {
            let step = Step { bits, width: 0.03 };
            for x in
                (0..500).map(|_| 30.0 * normal.next().powi(3)).chain([0.0, 0.03, -0.03, 0.06, 1e30, -1e30])
            {
                let most = (1i64 << bits) - 1;
                let code =
                    (f64::from(x / step.width + (most + 1) as f32 / 2.0).floor() as i64).clamp(0, most);
                assert_eq!(i64::from(step.code(x)), code, "{x} in {bits} bits");
                let off = x - if bits > 0 { step.value(code as u32) } else { 0.0 };
                assert_eq!(Grid::from(step).off(x), off, "{x} in {bits} bits");
            }
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
