//! NaN and infinities are refused before a row is cut, with their position in what the caller passed.

use half::f16;
use wire::WireError;

/// Checks f16 rows of the given shape.
pub(crate) fn halves(field: &str, shape: &[usize], data: &[f16]) -> Result<(), WireError> {
    // All exponent bits set; a scan without an early exit vectorises.
    let bad = data.iter().fold(false, |bad, x| bad | (x.to_bits() & 0x7c00 == 0x7c00));
    if bad { locate(field, shape, data.iter().map(|x| x.to_f32())) } else { Ok(()) }
}

/// Checks f32 rows of the given shape.
pub(crate) fn singles(field: &str, shape: &[usize], data: &[f32]) -> Result<(), WireError> {
    locate(field, shape, data.iter().copied())
}

fn locate(field: &str, shape: &[usize], data: impl Iterator<Item = f32>) -> Result<(), WireError> {
    let Some((flat, value)) = data.enumerate().find(|(_, x)| !x.is_finite()) else { return Ok(()) };
    let mut rest = flat;
    let mut position: Vec<u64> = Vec::with_capacity(shape.len());
    for &n in shape.iter().rev() {
        position.push((rest % n) as u64);
        rest /= n;
    }
    position.reverse();
    Err(WireError::NotFinite { field: field.to_owned(), position, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_those_of_the_caller() {
        let mut data = vec![f16::ONE; 24];
        assert_eq!(halves("k", &[2, 3, 4], &data), Ok(()));
        data[12 + 4 + 3] = f16::NEG_INFINITY;
        let line = halves("k", &[2, 3, 4], &data).expect_err("refused").to_string();
        assert_eq!(line, "k[1, 1, 3]: -inf is not a finite number");
        assert_eq!(halves("k", &[0], &[]), Ok(()));
        assert!(singles("q", &[2, 1], &[0.0, f32::NAN]).is_err());
    }
}
