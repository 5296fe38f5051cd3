//! What was taken back of a session: whoever reads it piece by piece learns whether the pieces are of one state.

use std::sync::{Mutex, PoisonError};

/// Truncations since the session or the server began.
#[derive(Debug, Default)]
pub struct Cuts(Mutex<(u64, Option<u64>)>);

impl Cuts {
    /// Notes one that has left `length` tokens.
    pub fn add(&self, length: u64) {
        let mut cuts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cuts.0 += 1;
        cuts.1 = Some(cuts.1.map_or(length, |lowest| lowest.min(length)));
    }

    /// How many, and the shortest length that one left.
    pub fn told(&self) -> (u64, Option<u64>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
