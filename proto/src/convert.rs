//! Messages to and from what the rest of the project computes with.

use crate::{ID_BYTES, WireError, v1};

/// Reads a session or instance id: exactly 16 bytes.
pub fn id(bytes: &[u8], field: &str) -> Result<[u8; ID_BYTES], WireError> {
    bytes.try_into().map_err(|_| WireError::range(field, format!("{} bytes", bytes.len()), "16 bytes"))
}

/// An id as people read it: lower-case hex.
pub fn hex(id: &[u8]) -> String {
    id.iter().map(|b| format!("{b:02x}")).collect()
}

/// How many tokens to attend to exactly, checked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// This many of the indexed visible range, per query head; at least one.
    TopK(u32),
    /// This share of the softmax mass, in (0, 1].
    Coverage(f32),
    /// Every visible token.
    All,
}

impl Budget {
    /// From the message; `field` names it in the error.
    pub fn read(message: Option<&v1::Budget>, field: &str) -> Result<Self, WireError> {
        use v1::budget::Kind;
        match message.and_then(|b| b.kind.as_ref()) {
            None => Err(WireError::missing(field)),
            Some(Kind::All(_)) => Ok(Self::All),
            Some(Kind::TopK(0)) => Err(WireError::range(&format!("{field}.top_k"), 0, "at least 1")),
            Some(Kind::TopK(k)) => Ok(Self::TopK(*k)),
            Some(Kind::Coverage(c)) if *c > 0.0 && *c <= 1.0 => Ok(Self::Coverage(*c)),
            Some(Kind::Coverage(c)) => Err(WireError::range(&format!("{field}.coverage"), c, "in (0, 1]")),
        }
    }

    /// As a message.
    pub fn write(self) -> v1::Budget {
        use v1::budget::Kind;
        v1::Budget {
            kind: Some(match self {
                Self::TopK(k) => Kind::TopK(k),
                Self::Coverage(c) => Kind::Coverage(c),
                Self::All => Kind::All(v1::All {}),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets() {
        for b in [Budget::TopK(1), Budget::Coverage(1.0), Budget::All] {
            assert_eq!(Budget::read(Some(&b.write()), "budget").unwrap(), b);
        }
        for b in [Budget::TopK(0), Budget::Coverage(0.0), Budget::Coverage(1.1), Budget::Coverage(f32::NAN)] {
            assert!(Budget::read(Some(&b.write()), "budget").is_err(), "{b:?}");
        }
        assert_eq!(Budget::read(None, "rows[2].budget").unwrap_err().to_string(), "rows[2].budget: missing");
    }

    #[test]
    fn ids() {
        assert_eq!(id(&[1, 2], "session").unwrap_err().to_string(), "session: 2 bytes, must be 16 bytes");
        assert_eq!(hex(&id(&[0xab; 16], "session").unwrap()), "ab".repeat(16));
    }
}
