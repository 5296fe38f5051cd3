//! The middle and the outer tenths of a set of figures.

use serde::Serialize;

/// Of values over heads, or over queries.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// A tenth lies below.
    pub p10: f64,
    /// Half lies below.
    pub median: f64,
    /// A tenth lies above.
    pub p90: f64,
}

impl Spread {
    /// None of no values.
    pub fn of(values: impl Iterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let at = |tenths: usize| sorted[(last * tenths + 5) / 10];
        Some(Spread { p10: at(1), median: at(5), p90: at(9) })
    }
}

/// Mean; None of no values.
pub fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_the_nearest() {
        let spread = Spread::of((0..=10).rev().map(f64::from)).unwrap();
        assert_eq!(spread, Spread { p10: 1.0, median: 5.0, p90: 9.0 });
        assert_eq!(Spread::of([7.0].into_iter()).unwrap(), Spread { p10: 7.0, median: 7.0, p90: 7.0 });
        assert_eq!((Spread::of([].into_iter()), mean([].into_iter())), (None, None));
        assert_eq!(mean([1.0, 2.0].into_iter()), Some(1.5));
    }
}
