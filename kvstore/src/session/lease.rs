//! How long a session lives without a word from its worker.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest lease that is granted: a day.
pub const MAX: Duration = Duration::from_secs(24 * 3600);

/// Renewed by every append and attend and by `Renew`; ended by the reaper when it has run out.
#[derive(Debug)]
pub struct Lease {
    /// Two words that must change together.
    state: Mutex<(Instant, Duration)>,
}

impl Lease {
    /// A lease from now on.
    pub fn new(length: Duration) -> Self {
        Self { state: Mutex::new((Instant::now(), length)) }
    }

    /// Starts the time anew, with another length if one is given; returns the length.
    pub fn renew(&self, length: Option<Duration>) -> Duration {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let length = length.unwrap_or(state.1);
        *state = (Instant::now(), length);
        length
    }

    /// How long it is when it begins.
    pub fn length(&self) -> Duration {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    /// What is left at `now`; zero when it has run out.
    pub fn left(&self, now: Instant) -> Duration {
        let (since, length) = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        length.saturating_sub(now.saturating_duration_since(since))
    }
}
