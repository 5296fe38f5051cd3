//! Checked conversions between [`Tensor`] messages and slices.
//!
//! Tensors are row-major and little-endian. Reading checks, in this order: presence, dtype tag, shape, byte length,
//! and that every element is finite; nothing is allocated before the length is known to be right.

use crate::{Bytes, WireError, v1::DType, v1::Tensor};
use half::f16;

/// A dimension of a wanted shape: exact, or free with a name for the error text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dim {
    /// Must be this.
    Is(usize),
    /// Whatever the sender chose, at least one.
    Any(&'static str),
}

impl From<usize> for Dim {
    fn from(n: usize) -> Self {
        Dim::Is(n)
    }
}

/// Packs f16 rows. `shape` must multiply to `data.len()`.
pub fn from_f16(shape: &[usize], data: &[f16]) -> Tensor {
    pack(shape, data.len(), DType::F16, |out| {
        out.extend(data.iter().flat_map(|x| x.to_le_bytes()));
    })
}

/// Packs f32 rows. `shape` must multiply to `data.len()`.
pub fn from_f32(shape: &[usize], data: &[f32]) -> Tensor {
    pack(shape, data.len(), DType::F32, |out| {
        out.extend(data.iter().flat_map(|x| x.to_le_bytes()));
    })
}

fn pack(shape: &[usize], len: usize, dtype: DType, fill: impl FnOnce(&mut Vec<u8>)) -> Tensor {
    assert_eq!(shape.iter().product::<usize>(), len, "shape {shape:?}");
    let mut out = Vec::with_capacity(len * width(dtype));
    fill(&mut out);
    Tensor { dtype: dtype as i32, shape: shape.iter().map(|&n| n as u64).collect(), data: Bytes::from(out) }
}

/// Reads a finite F16 tensor of the wanted shape; returns the data and the actual dimensions.
pub fn read_f16(t: Option<&Tensor>, field: &str, want: &[Dim]) -> Result<(Vec<f16>, Vec<usize>), WireError> {
    let (t, dims) = checked(t, field, DType::F16, want)?;
    let data: Vec<f16> = t.data.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]])).collect();
    // All exponent bits set is NaN or an infinity; the scan without an early exit vectorises.
    let bad = data.iter().fold(false, |bad, x| bad | (x.to_bits() & 0x7c00 == 0x7c00));
    if bad {
        finite(field, &dims, data.iter().map(|x| x.to_f32()))?;
    }
    Ok((data, dims))
}

/// Reads a finite F32 tensor of the wanted shape; returns the data and the actual dimensions.
pub fn read_f32(t: Option<&Tensor>, field: &str, want: &[Dim]) -> Result<(Vec<f32>, Vec<usize>), WireError> {
    let (data, dims) = read_f32_any(t, field, want)?;
    finite(field, &dims, data.iter().copied())?;
    Ok((data, dims))
}

/// Reads an F32 tensor in which -inf is meaningful: the maximum over nothing. NaN and +inf are refused.
pub fn read_f32_max(
    t: Option<&Tensor>,
    field: &str,
    want: &[Dim],
) -> Result<(Vec<f32>, Vec<usize>), WireError> {
    let (data, dims) = read_f32_any(t, field, want)?;
    let lowered = data.iter().map(|&x| if x == f32::NEG_INFINITY { f32::MIN } else { x });
    finite(field, &dims, lowered)?;
    Ok((data, dims))
}

fn read_f32_any(t: Option<&Tensor>, field: &str, want: &[Dim]) -> Result<(Vec<f32>, Vec<usize>), WireError> {
    let (t, dims) = checked(t, field, DType::F32, want)?;
    let data = t.data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    Ok((data, dims))
}

/// Presence, tag, shape and byte length.
fn checked<'a>(
    t: Option<&'a Tensor>,
    field: &str,
    dtype: DType,
    want: &[Dim],
) -> Result<(&'a Tensor, Vec<usize>), WireError> {
    let t = t.ok_or_else(|| WireError::missing(field))?;
    if t.dtype != dtype as i32 {
        let got = match DType::try_from(t.dtype) {
            Ok(DType::Unspecified) => "unspecified".to_owned(),
            Ok(d) => d.as_str_name().trim_start_matches("D_TYPE_").to_owned(),
            Err(_) => format!("unknown ({})", t.dtype),
        };
        return Err(WireError::DType {
            field: field.to_owned(),
            got,
            want: dtype.as_str_name().trim_start_matches("D_TYPE_"),
        });
    }
    let shape_error =
        || WireError::Shape { field: field.to_owned(), got: t.shape.clone(), want: describe(want) };
    if t.shape.len() != want.len() {
        return Err(shape_error());
    }
    let mut dims = Vec::with_capacity(want.len());
    let mut bytes = width(dtype) as u64;
    for (&got, want) in t.shape.iter().zip(want) {
        let fits = match want {
            Dim::Is(n) => got == *n as u64,
            Dim::Any(_) => got >= 1,
        };
        if !fits {
            return Err(shape_error());
        }
        bytes = bytes.checked_mul(got).ok_or_else(shape_error)?;
        dims.push(usize::try_from(got).map_err(|_| shape_error())?);
    }
    if t.data.len() as u64 != bytes {
        return Err(WireError::Length { field: field.to_owned(), got: t.data.len() as u64, want: bytes });
    }
    Ok((t, dims))
}

fn finite(field: &str, dims: &[usize], mut data: impl Iterator<Item = f32>) -> Result<(), WireError> {
    let mut value = 0.0;
    let Some(flat) = data.position(|x| {
        value = x;
        !x.is_finite()
    }) else {
        return Ok(());
    };
    let mut rest = flat;
    let mut position: Vec<u64> = Vec::with_capacity(dims.len());
    for &n in dims.iter().rev() {
        position.push((rest % n) as u64);
        rest /= n;
    }
    position.reverse();
    Err(WireError::NotFinite { field: field.to_owned(), position, value })
}

fn width(dtype: DType) -> usize {
    match dtype {
        DType::F32 => 4,
        DType::F16 | DType::Bf16 => 2,
        DType::Unspecified => 0,
    }
}

fn describe(want: &[Dim]) -> String {
    let dims: Vec<String> = want
        .iter()
        .map(|d| match d {
            Dim::Is(n) => n.to_string(),
            Dim::Any(name) => (*name).to_owned(),
        })
        .collect();
    format!("[{}]", dims.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn want(t: usize, h: usize, d: usize) -> [Dim; 3] {
        [Dim::Is(t), Dim::Is(h), Dim::Is(d)]
    }

    proptest! {
        #[test]
        fn round_trip(t in 1usize..5, h in 1usize..4, d in 1usize..9, seed in 0u32..1000) {
            let x: Vec<f32> = (0..t * h * d).map(|i| (i as f32 * 0.37 + seed as f32).sin()).collect();
            let y: Vec<f16> = x.iter().map(|&x| f16::from_f32(x)).collect();
            prop_assert_eq!(read_f32(Some(&from_f32(&[t, h, d], &x)), "x", &want(t, h, d)).unwrap().0, x);
            prop_assert_eq!(read_f16(Some(&from_f16(&[t, h, d], &y)), "y", &want(t, h, d)).unwrap().0, y);
        }

        #[test]
        fn any_bytes_any_shape_never_panic(
            dtype in -1i32..6,
            shape in proptest::collection::vec(prop_oneof![0u64..4, Just(u64::MAX), Just(1 << 40)], 0..5),
            data in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let t = Tensor { dtype, shape, data: data.into() };
            let any = [Dim::Any("a"), Dim::Any("b")];
            let _ = read_f16(Some(&t), "t", &any);
            let _ = read_f32(Some(&t), "t", &any);
            let _ = read_f32_max(Some(&t), "t", &any);
        }

        #[test]
        fn a_bad_element_is_named(i in 0usize..24, bad in prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(f32::NEG_INFINITY)]) {
            let mut x = vec![1.0f32; 24];
            x[i] = bad;
            let position = vec![(i / 12) as u64, (i / 4 % 3) as u64, (i % 4) as u64];
            let y: Vec<f16> = x.iter().map(|&x| f16::from_f32(x)).collect();
            for e in [
                read_f32(Some(&from_f32(&[2, 3, 4], &x)), "q", &want(2, 3, 4)).unwrap_err(),
                read_f16(Some(&from_f16(&[2, 3, 4], &y)), "q", &want(2, 3, 4)).unwrap_err(),
            ] {
                match e {
                    WireError::NotFinite { field, position: p, .. } => {
                        prop_assert_eq!(field, "q");
                        prop_assert_eq!(&p, &position);
                    }
                    other => prop_assert!(false, "{other:?}"),
                }
            }
        }
    }

    #[test]
    fn refusals_in_one_line() {
        let x = from_f32(&[2, 2], &[1.0; 4]);
        let two = [Dim::Is(2), Dim::Is(2)];
        let say = |r: Result<_, WireError>| -> String {
            r.map(|_: (Vec<f16>, Vec<usize>)| ()).unwrap_err().to_string()
        };
        assert_eq!(say(read_f16(None, "k", &two)), "k: missing");
        assert_eq!(say(read_f16(Some(&x), "k", &two)), "k: dtype is F32, must be F16");
        let mut bf16 = from_f16(&[2, 2], &[f16::ONE; 4]);
        bf16.dtype = DType::Bf16 as i32;
        assert_eq!(say(read_f16(Some(&bf16), "v", &two)), "v: dtype is BF16, must be F16");
        let y = from_f16(&[2, 2], &[f16::ONE; 4]);
        assert_eq!(
            say(read_f16(Some(&y), "k", &[Dim::Any("tokens"), Dim::Is(3)])),
            "k: shape is [2, 2], must be [tokens, 3]"
        );
        let mut short = y.clone();
        short.data = short.data.slice(0..7);
        assert_eq!(say(read_f16(Some(&short), "k", &two)), "k: 7 bytes of data, the shape needs 8");
        let mut zero = y;
        zero.shape = vec![0, 2];
        zero.data = Bytes::new();
        assert_eq!(
            say(read_f16(Some(&zero), "k", &[Dim::Any("tokens"), Dim::Is(2)])),
            "k: shape is [0, 2], must be [tokens, 2]"
        );
    }

    #[test]
    fn minus_infinity_is_a_maximum_over_nothing() {
        let t = from_f32(&[2], &[f32::NEG_INFINITY, 1.0]);
        assert!(read_f32_max(Some(&t), "m", &[Dim::Is(2)]).is_ok());
        assert!(read_f32(Some(&t), "m", &[Dim::Is(2)]).is_err());
        let t = from_f32(&[2], &[f32::INFINITY, 1.0]);
        assert!(read_f32_max(Some(&t), "m", &[Dim::Is(2)]).is_err());
    }
}
