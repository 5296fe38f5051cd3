//! Why the program ends early, as one line and an exit code.

use std::process::ExitCode;

/// The end of the program.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// A flag, a variable or the file is wrong: 64.
    #[error("{0}")]
    Usage(String),
    /// An address is taken or cannot be resolved: 69.
    #[error("{0}")]
    Unavailable(String),
    /// Anything else: 1.
    #[error("{0}")]
    Failed(String),
}

impl Fatal {
    /// The exit code of this end.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Fatal::Usage(_) => 64,
            Fatal::Unavailable(_) => 69,
            Fatal::Failed(_) => 1,
        })
    }
}
