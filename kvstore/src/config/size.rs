//! Sizes as people write them: a whole number and a binary unit.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

/// Reads `4GiB`, `512MiB`, `1024B` or a plain number of bytes. Nothing else: no fractions, no `GB`, no spaces.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let bad = || format!("{text:?} is not a size: write 4GiB, 512MiB or a number of bytes");
    let shift = match unit {
        "" => 0,
        unit => UNITS.iter().find(|(u, _)| *u == unit).ok_or_else(bad)?.1,
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is more than any memory"))
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_size(text).map(Size)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |(_, shift): &&(&str, u32)| self.0.is_multiple_of(1 << shift) && self.0 > 0;
        match UNITS.iter().find(exact) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(d)? {
            Written::Bytes(n) => Ok(Size(n)),
            Written::Text(t) => t.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_sizes() {
        for (text, bytes) in [
            ("4GiB", 4u64 << 30),
            ("512MiB", 512 << 20),
            ("7", 7),
            ("7B", 7),
            ("1TiB", 1 << 40),
            ("3KiB", 3072),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
            assert_eq!(parse_size(&Size(bytes).to_string()), Ok(bytes));
        }
        for text in
            ["", "GiB", "4GB", "4 GiB", "4gib", "1.5GiB", "-1", "+1", "99999999999TiB", "4GiB ", "0x10", "٤"]
        {
            let e = parse_size(text).unwrap_err();
            assert!(e.contains(text) && !e.contains('\n'), "{e}");
        }
    }
}
