//! How finely each token is coded.

/// Bits a channel of each class, on average; tokens of the class after the last are held as they came.
pub(super) const RATES: [f64; 5] = [0.5, 1.0, 2.0, 4.0, 8.0];
/// Classes, that of exact tokens included.
pub(super) const CLASSES: usize = RATES.len() + 1;
/// The class of exact tokens.
pub(super) const EXACT: u8 = RATES.len() as u8;
/// Bits of a class.
pub(super) const CLASS_BITS: u8 = 3;
/// Halvings of the (logarithmic) interval of prices.
const STEPS: usize = 80;

/// The classes with the least expected error at no more than `bytes` in all: `errors` [n, CLASSES] are the squared errors
/// of each token in each class, `squares` [n] the squares of their expected weights, `costs` the bytes of a token of each
/// class. None when even the cheapest class takes more.
///
/// Errors of tokens are independent, so an output's squared error is the sum of squares times errors. At the least sum
/// every token pays the same price for a byte (Lagrange): it takes the class with the least error plus price times bytes.
pub(super) fn choose(
    errors: &[f32],
    squares: &[f64],
    costs: &[usize; CLASSES],
    bytes: usize,
) -> Option<Vec<u8>> {
    let at = |price: f64| -> (usize, Vec<u8>) {
        let mut used = 0;
        let classes = errors
            .chunks_exact(CLASSES)
            .zip(squares)
            .map(|(errors, &square)| {
                let total = |c: usize| square * f64::from(errors[c]) + price * costs[c] as f64;
                // The cheaper one of equals.
                let best = (0..CLASSES).fold(0, |best, c| if total(c) < total(best) { c } else { best });
                used += costs[best];
                best as u8
            })
            .collect();
        (used, classes)
    };
    let (mut low, mut high) = (-200f64, 200f64);
    let mut found = at(high.exp2());
    if found.0 > bytes {
        return None;
    }
    for _ in 0..STEPS {
        let middle = (low + high) / 2.0;
        let tried = at(middle.exp2());
        if tried.0 > bytes {
            low = middle;
        } else {
            (high, found) = (middle, tried);
        }
    }
    Some(found.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: [usize; CLASSES] = [1, 2, 4, 8, 16, 32];

    fn errors(n: usize) -> Vec<f32> {
        (0..n).flat_map(|_| [1.0, 0.5, 0.2, 0.05, 0.001, 0.0]).collect()
    }

    #[test]
    fn heavy_tokens_are_coded_more_finely_within_the_budget() {
        let squares = [1e-6, 1e-4, 1e-2, 1.0];
        for bytes in [4, 10, 30, 60, 128, 1000] {
            let classes = choose(&errors(4), &squares, &COSTS, bytes).unwrap();
            assert!(classes.is_sorted(), "{classes:?}");
            assert!(classes.iter().map(|&c| COSTS[c as usize]).sum::<usize>() <= bytes);
        }
        assert_eq!(choose(&errors(4), &squares, &COSTS, 128).unwrap(), [EXACT; 4]);
        assert_eq!(choose(&errors(4), &squares, &COSTS, 3), None);
    }

    #[test]
    fn what_no_code_can_hold_is_exact() {
        let mut errors = errors(9);
        errors[3 * CLASSES..4 * CLASSES - 1].fill(1e12);
        let classes = choose(&errors, &[1e-3; 9], &COSTS, 9 * 4 + 32).unwrap();
        assert_eq!(classes[3], EXACT);
        assert!(classes.iter().enumerate().all(|(i, &c)| i == 3 || c < EXACT), "{classes:?}");
    }
}
