//! Memory is granted before it is used: a budget for the process, a purse for each session, a charge for each holder.
//!
//! A purse weighs on the budget with the larger of what was reserved at `Open` and what is charged to it, so a session
//! that reserved enough is never refused later. A [`Charge`] returns its bytes when it is dropped; counts therefore
//! return to zero with the last holder, whether that is a session, a running index build or a cancelled request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tonic::Status;

/// Name of the setting, for refusals.
pub const SETTING: &str = "memory.budget (--memory)";

/// What the bytes are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Stored keys and values.
    Kv,
    /// Finished indexes.
    Index,
    /// Sampled queries and the working memory of index builds.
    Scratch,
}

/// Bytes by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Stored keys and values.
    pub kv: u64,
    /// Finished indexes.
    pub index: u64,
    /// Sampled queries and the working memory of index builds.
    pub scratch: u64,
}

impl Usage {
    fn total(&self) -> u64 {
        self.kv + self.index + self.scratch
    }

    fn of(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Kv => &mut self.kv,
            Kind::Index => &mut self.index,
            Kind::Scratch => &mut self.scratch,
        }
    }
}

/// The memory of one process.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    /// Additions and subtractions only; held for a few instructions.
    state: Mutex<Totals>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Totals {
    granted: u64,
    usage: Usage,
}

/// A grant that the budget has no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Short {
    /// Bytes asked for.
    pub needed: u64,
    /// Bytes that could be granted now.
    pub available: u64,
    /// The whole budget.
    pub limit: u64,
}

impl Short {
    /// The refusal as the caller sees it.
    pub fn status(self, what: &str) -> Status {
        Status::resource_exhausted(format!(
            "{what} needs {} bytes, {} are available of {SETTING} = {}",
            self.needed, self.available, self.limit
        ))
    }
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, state: Mutex::default() })
    }

    /// The whole budget.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes granted: reserved or used.
    pub fn granted(&self) -> u64 {
        lock(&self.state).granted
    }

    /// Bytes used, by kind.
    pub fn usage(&self) -> Usage {
        lock(&self.state).usage
    }

    /// A purse with `reserved` bytes, or how much is missing.
    pub fn purse(self: &Arc<Self>, reserved: u64) -> Result<Arc<Purse>, Short> {
        {
            let mut totals = lock(&self.state);
            let available = self.limit - totals.granted;
            if reserved > available {
                return Err(Short { needed: reserved, available, limit: self.limit });
            }
            totals.granted += reserved;
        }
        Ok(Arc::new(Purse {
            budget: self.clone(),
            state: Mutex::new(State { reserved, usage: Usage::default() }),
        }))
    }
}

/// The memory of one session.
#[derive(Debug)]
pub struct Purse {
    budget: Arc<Budget>,
    /// Taken before the budget's own lock, never after it.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    reserved: u64,
    usage: Usage,
}

impl State {
    fn weight(&self) -> u64 {
        self.reserved.max(self.usage.total())
    }
}

impl Purse {
    /// Charges `bytes`, from the reservation first, then from the budget.
    pub fn charge(self: &Arc<Self>, kind: Kind, bytes: u64) -> Result<Charge, Short> {
        let mut state = lock(&self.state);
        let before = state.weight();
        let free_here = before - state.usage.total();
        let mut totals = lock(&self.budget.state);
        let available = free_here.saturating_add(self.budget.limit - totals.granted);
        if bytes > available {
            return Err(Short { needed: bytes, available, limit: self.budget.limit });
        }
        *state.usage.of(kind) += bytes;
        *totals.usage.of(kind) += bytes;
        totals.granted += state.weight() - before;
        Ok(Charge { purse: self.clone(), kind, bytes })
    }

    /// Reserves `bytes` more for as long as the extension lives: what background work may use in between is then never
    /// taken from what the session reserved for its tokens.
    pub fn extend(self: &Arc<Self>, bytes: u64) -> Result<Extension, Short> {
        let mut state = lock(&self.state);
        let before = state.weight();
        let mut totals = lock(&self.budget.state);
        let available = self.budget.limit - totals.granted;
        let reserved = state.reserved.saturating_add(bytes);
        if bytes > available {
            return Err(Short { needed: bytes, available, limit: self.budget.limit });
        }
        state.reserved = reserved;
        totals.granted += state.weight() - before;
        Ok(Extension { purse: self.clone(), bytes })
    }

    /// Bytes used, by kind.
    pub fn usage(&self) -> Usage {
        lock(&self.state).usage
    }

    /// Bytes this session weighs on the budget.
    pub fn granted(&self) -> u64 {
        lock(&self.state).weight()
    }

    /// Gives the reservation back; what is charged stays until its holders are gone.
    pub fn end_reservation(&self) {
        let mut state = lock(&self.state);
        let before = state.weight();
        state.reserved = 0;
        lock(&self.budget.state).granted -= before - state.weight();
    }

    fn release(&self, kind: Kind, bytes: u64) {
        let mut state = lock(&self.state);
        let before = state.weight();
        *state.usage.of(kind) -= bytes;
        let mut totals = lock(&self.budget.state);
        *totals.usage.of(kind) -= bytes;
        totals.granted -= before - state.weight();
    }
}

impl Drop for Purse {
    fn drop(&mut self) {
        self.end_reservation();
    }
}

/// A longer reservation; dropping it ends that.
#[derive(Debug)]
pub struct Extension {
    purse: Arc<Purse>,
    bytes: u64,
}

impl Drop for Extension {
    fn drop(&mut self) {
        let mut state = lock(&self.purse.state);
        let before = state.weight();
        // The whole reservation may have ended with the session.
        state.reserved = state.reserved.saturating_sub(self.bytes);
        lock(&self.purse.budget.state).granted -= before - state.weight();
    }
}

/// Bytes held by one owner; dropping it returns them.
#[derive(Debug)]
pub struct Charge {
    purse: Arc<Purse>,
    kind: Kind,
    bytes: u64,
}

impl Charge {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Moves all bytes of another charge of the same purse and kind into this one.
    pub fn absorb(&mut self, mut other: Charge) {
        debug_assert!(Arc::ptr_eq(&self.purse, &other.purse) && self.kind == other.kind);
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Splits off up to `bytes`.
    pub fn split(&mut self, bytes: u64) -> Charge {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Charge { purse: self.purse.clone(), kind: self.kind, bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.purse.release(self.kind, self.bytes);
        }
    }
}

/// Counters stay consistent between statements, so a panic elsewhere does not spoil them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reserved_bytes_are_never_refused() {
        let budget = Budget::new(100);
        let a = budget.purse(60).unwrap();
        assert_eq!(budget.purse(41).unwrap_err(), Short { needed: 41, available: 40, limit: 100 });
        let b = budget.purse(0).unwrap();
        let all = b.charge(Kind::Kv, 40).unwrap();
        assert!(b.charge(Kind::Kv, 1).is_err());
        let held = a.charge(Kind::Index, 60).unwrap();
        assert!(a.charge(Kind::Kv, 1).is_err());
        assert_eq!(budget.granted(), 100);
        drop((all, held));
        assert_eq!(budget.granted(), 60);
        drop(a);
        assert_eq!((budget.granted(), budget.usage()), (0, Usage::default()));
    }

    #[test]
    fn an_extension_leaves_the_reservation_alone_and_ends() {
        let budget = Budget::new(100);
        let purse = budget.purse(60).unwrap();
        assert_eq!(purse.extend(41).unwrap_err(), Short { needed: 41, available: 40, limit: 100 });
        let more = purse.extend(40).unwrap();
        let (work, tokens) = (purse.charge(Kind::Scratch, 40), purse.charge(Kind::Kv, 60));
        assert!(work.is_ok() && tokens.is_ok() && purse.charge(Kind::Kv, 1).is_err());
        drop((work, more));
        assert_eq!(budget.granted(), 60);
        let more = purse.extend(40).unwrap();
        purse.end_reservation();
        drop(more);
        drop(tokens);
        assert_eq!((budget.granted(), budget.usage()), (0, Usage::default()));
    }

    #[test]
    fn charges_outlive_the_reservation() {
        let budget = Budget::new(100);
        let purse = budget.purse(50).unwrap();
        let mut c = purse.charge(Kind::Kv, 70).unwrap();
        let part = c.split(30);
        purse.end_reservation();
        assert_eq!(budget.granted(), 70);
        drop(c);
        assert_eq!(budget.granted(), 30);
        drop((part, purse));
        assert_eq!(budget.granted(), 0);
    }

    proptest! {
        #[test]
        fn always_within_the_limit_and_back_to_zero(
            limit in 0u64..200,
            steps in proptest::collection::vec((0usize..3, 0u64..80, any::<bool>()), 0..60),
        ) {
            let budget = Budget::new(limit);
            let mut purses = Vec::new();
            let mut charges: Vec<Charge> = Vec::new();
            for (who, bytes, drop_one) in steps {
                if drop_one && !charges.is_empty() {
                    charges.swap_remove(bytes as usize % charges.len());
                } else if purses.len() < 3 {
                    purses.extend(budget.purse(bytes).ok());
                } else {
                    let purse: &Arc<Purse> = &purses[who];
                    charges.extend(purse.charge(Kind::Kv, bytes).ok());
                }
                prop_assert!(budget.granted() <= limit);
                let held: u64 = charges.iter().map(Charge::bytes).sum();
                prop_assert_eq!(budget.usage().kv, held);
                prop_assert!(budget.granted() >= held);
            }
            drop(purses);
            drop(charges);
            prop_assert_eq!(budget.granted(), 0);
            prop_assert_eq!(budget.usage(), Usage::default());
        }
    }
}
