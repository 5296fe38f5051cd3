//! Coverage of merged answers: the share of the softmax mass that was attended to exactly, over many steps.

/// Sums over query heads, rows and layers.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoverageTally {
    sum: f64,
    known: u64,
    unknown: u64,
    missing_max: f32,
}

impl CoverageTally {
    /// Counts one merged answer. `None`: tokens were left out and nobody estimated their mass.
    pub fn note(&mut self, coverage: Option<f32>) {
        match coverage {
            Some(share) => {
                self.sum += f64::from(share);
                self.known += 1;
                self.missing_max = self.missing_max.max(1.0 - share);
            }
            None => self.unknown += 1,
        }
    }

    /// Takes over the counts of another tally.
    pub fn add(&mut self, other: &Self) {
        self.sum += other.sum;
        self.known += other.known;
        self.unknown += other.unknown;
        self.missing_max = self.missing_max.max(other.missing_max);
    }

    /// Mean coverage, in 0..=1; `None` when there was no answer, or one whose coverage is not known.
    pub fn mean(&self) -> Option<f64> {
        self.complete().then(|| self.sum / self.known as f64)
    }

    /// Largest share of the mass that an answer did not attend to exactly; `None` as for [`Self::mean`].
    pub fn missing_mass_max(&self) -> Option<f32> {
        self.complete().then_some(self.missing_max)
    }

    fn complete(&self) -> bool {
        self.known > 0 && self.unknown == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_unknown_answer_makes_the_whole_unknown() {
        let mut tally = CoverageTally::default();
        assert_eq!((tally.mean(), tally.missing_mass_max()), (None, None));
        tally.note(Some(1.0));
        tally.note(Some(0.5));
        assert_eq!((tally.mean(), tally.missing_mass_max()), (Some(0.75), Some(0.5)));
        let mut other = CoverageTally::default();
        other.note(None);
        tally.add(&other);
        assert_eq!((tally.mean(), tally.missing_mass_max()), (None, None));
    }
}
