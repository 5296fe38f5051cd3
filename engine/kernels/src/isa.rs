//! The instruction sets that kernels exist for.

use std::fmt;
use std::str::FromStr;

/// An instruction set with a path of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain loops, on every CPU; the reference of the tests.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL and DQ (and all of [`Isa::Avx2`]).
    Avx512,
    /// 64-bit Arm with NEON.
    Neon,
}

/// A kernel path was asked for that cannot be used here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// The name is none of `auto`, `scalar`, `avx2`, `avx512`, `neon`.
    #[error("unknown kernel path {0:?}: expected auto, scalar, avx2, avx512 or neon")]
    Unknown(String),
    /// The path exists, but this CPU or this build lacks it.
    #[error("kernel path {0} is not available on this CPU")]
    Unavailable(Isa),
}

impl Isa {
    /// Every instruction set, slowest first.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Neon];

    /// The paths that this CPU can run, slowest first; always starts with [`Isa::Scalar`].
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this CPU (and this build) can run the path.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            Isa::Avx2 => crate::arch::has_avx2(),
            Isa::Avx512 => crate::arch::has_avx512(),
            Isa::Neon => cfg!(target_arch = "aarch64"),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
        })
    }
}

impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(name: &str) -> Result<Isa, IsaError> {
        Isa::ALL
            .into_iter()
            .find(|isa| isa.to_string() == name)
            .ok_or_else(|| IsaError::Unknown(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for isa in Isa::ALL {
            assert_eq!(isa.to_string().parse(), Ok(isa));
        }
        assert!(matches!("sse9".parse::<Isa>(), Err(IsaError::Unknown(name)) if name == "sse9"));
    }

    #[test]
    fn scalar_is_always_there() {
        assert_eq!(Isa::available().first(), Some(&Isa::Scalar));
    }
}
