//! Memory is granted before it is used: a budget for the process, a purse for each session, a charge for each holder.
//!
//! A purse weighs on the budget with the larger of what was reserved at `Open` and what is charged to it, so a session
//! that reserved enough is never refused later. A [`Charge`] returns its bytes when it is dropped; counts therefore
//! return to zero with the last holder, whether that is a session, a running index build or a cancelled request.
//!
//! Who finds too little asks the budget's [`Reclaim`] first, which spills what is cold; only then it is refused. Rows that
//! lie in maps of their files are counted, but weigh nothing: the kernel takes their pages back when it needs them.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use tonic::Status;

/// Name of the setting, for refusals.
pub const SETTING: &str = "memory.budget (--memory)";
/// How long a charge that finds too little may wait for room.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the bytes are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Stored keys and values.
    Kv,
    /// Finished indexes.
    Index,
    /// Quantised and sketched forms of rows that lie in files.
    Compact,
    /// Sampled queries and the working memory of index builds.
    Scratch,
    /// The cache of the catalogue.
    Catalogue,
    /// Keys and values in maps of their files: counted, but no part of the budget.
    Spilled,
    /// Keys and values that only the archive holds: counted, but no part of the budget.
    Archived,
}

/// Whether memory that is not free is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charges {
    /// What is cold makes room.
    Patient,
    /// What is not there now is not asked for.
    Now,
}

/// Bytes by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Stored keys and values.
    pub kv: u64,
    /// Finished indexes.
    pub index: u64,
    /// Quantised and sketched forms.
    pub compact: u64,
    /// Sampled queries and the working memory of index builds.
    pub scratch: u64,
    /// The cache of the catalogue.
    pub catalogue: u64,
    /// Keys and values in maps of their files.
    pub spilled: u64,
    /// Keys and values that only the archive holds.
    pub archived: u64,
}

impl Usage {
    /// What is in RAM.
    fn total(&self) -> u64 {
        self.kv + self.index + self.compact + self.scratch + self.catalogue
    }

    fn of(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Kv => &mut self.kv,
            Kind::Index => &mut self.index,
            Kind::Compact => &mut self.compact,
            Kind::Scratch => &mut self.scratch,
            Kind::Catalogue => &mut self.catalogue,
            Kind::Spilled => &mut self.spilled,
            Kind::Archived => &mut self.archived,
        }
    }
}

/// Whoever can give memory back.
pub trait Reclaim: Send + Sync {
    /// Gives back `missing` bytes if it can, waiting no longer than `until`. Whether it makes sense to try again. The
    /// caller holds no lock that readers or writers of rows take.
    fn reclaim(&self, missing: u64, until: Instant) -> bool;
}

/// The memory of one process.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    /// Additions and subtractions only; held for a few instructions.
    state: Mutex<Totals>,
    /// Set once, when there is something to reclaim from.
    reclaim: OnceLock<Weak<dyn Reclaim>>,
    /// Held by the one that reclaims, so that two that are short do not both free what one of them needs.
    reclaiming: Mutex<()>,
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
        Arc::new(Self {
            limit,
            state: Mutex::default(),
            reclaim: OnceLock::new(),
            reclaiming: Mutex::default(),
        })
    }

    /// Says whom to ask when a charge finds too little. The first call counts.
    pub fn reclaim_from(&self, reclaim: Weak<dyn Reclaim>) {
        let _ = self.reclaim.set(reclaim);
    }

    /// Tries to take; what is missing is reclaimed, if that can be done in time.
    fn with_room<T>(&self, take: impl Fn() -> Result<T, Short>) -> Result<T, Short> {
        let short = match take() {
            Err(short) if short.needed <= self.limit => short,
            done => return done,
        };
        let Some(reclaim) = self.reclaim.get().and_then(Weak::upgrade) else {
            return Err(short);
        };
        let until = Instant::now() + PATIENCE;
        let _one = lock(&self.reclaiming);
        loop {
            let short = match take() {
                Ok(taken) => return Ok(taken),
                Err(short) => short,
            };
            if Instant::now() >= until || !reclaim.reclaim(short.needed - short.available, until) {
                return Err(short);
            }
        }
    }

    /// Whether so many bytes could be granted now.
    pub fn check(&self, bytes: u64) -> Result<(), Short> {
        self.room(&lock(&self.state), 0, bytes)
    }

    /// Whether `bytes` fit, of which `free` are granted already.
    fn room(&self, totals: &Totals, free: u64, bytes: u64) -> Result<(), Short> {
        let available = free.saturating_add(self.limit - totals.granted);
        match bytes > available {
            true => Err(Short { needed: bytes, available, limit: self.limit }),
            false => Ok(()),
        }
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
        self.purse_beside(reserved, 0)
    }

    /// A purse that was to have `reserved` bytes, of which `spilled` lie in files.
    pub fn purse_beside(self: &Arc<Self>, reserved: u64, spilled: u64) -> Result<Arc<Purse>, Short> {
        let cut = reserved.min(spilled);
        let reserved = reserved - cut;
        self.with_room(|| {
            let mut totals = lock(&self.state);
            self.room(&totals, 0, reserved)?;
            totals.granted += reserved;
            Ok(())
        })?;
        let state = State { reserved, extended: 0, cut, usage: Usage::default() };
        Ok(Arc::new(Purse { budget: self.clone(), state: Mutex::new(state) }))
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
    /// By [`Extension`]s.
    extended: u64,
    /// Taken off the reservation for rows that were spilled; a promotion gives it back.
    cut: u64,
    usage: Usage,
}

impl State {
    fn weight(&self) -> u64 {
        (self.reserved + self.extended).max(self.usage.total())
    }
}

impl Purse {
    /// Charges `bytes`, from the reservation first, then from the budget.
    pub fn charge(self: &Arc<Self>, kind: Kind, bytes: u64) -> Result<Charge, Short> {
        self.budget.with_room(|| self.try_charge(kind, bytes))
    }

    /// The same for work that can wait: what is not there now is not asked for.
    pub fn charge_now(self: &Arc<Self>, kind: Kind, bytes: u64) -> Result<Charge, Short> {
        self.try_charge(kind, bytes)
    }

    /// One or the other.
    pub fn charge_as(self: &Arc<Self>, charges: Charges, kind: Kind, bytes: u64) -> Result<Charge, Short> {
        match charges {
            Charges::Patient => self.charge(kind, bytes),
            Charges::Now => self.charge_now(kind, bytes),
        }
    }

    /// Counts rows that lie in maps; that takes nothing of the budget, so it is never refused.
    pub fn count_spilled(self: &Arc<Self>, bytes: u64) -> Charge {
        self.count(Kind::Spilled, bytes)
    }

    /// Counts rows that only the archive holds.
    pub fn count_archived(self: &Arc<Self>, bytes: u64) -> Charge {
        self.count(Kind::Archived, bytes)
    }

    fn count(self: &Arc<Self>, kind: Kind, bytes: u64) -> Charge {
        *lock(&self.state).usage.of(kind) += bytes;
        *lock(&self.budget.state).usage.of(kind) += bytes;
        Charge { purse: self.clone(), kind, bytes }
    }

    fn try_charge(self: &Arc<Self>, kind: Kind, bytes: u64) -> Result<Charge, Short> {
        let mut state = lock(&self.state);
        let before = state.weight();
        let free_here = before - state.usage.total();
        let mut totals = lock(&self.budget.state);
        self.budget.room(&totals, free_here, bytes)?;
        *state.usage.of(kind) += bytes;
        *totals.usage.of(kind) += bytes;
        totals.granted += state.weight() - before;
        Ok(Charge { purse: self.clone(), kind, bytes })
    }

    /// Reserves `bytes` more for as long as the extension lives: what background work may use in between is then never
    /// taken from what the session reserved for its tokens.
    pub fn extend(self: &Arc<Self>, bytes: u64) -> Result<Extension, Short> {
        self.budget.with_room(|| {
            let mut state = lock(&self.state);
            let before = state.weight();
            let mut totals = lock(&self.budget.state);
            self.budget.room(&totals, 0, bytes)?;
            state.extended += bytes;
            totals.granted += state.weight() - before;
            Ok(Extension { purse: self.clone(), bytes })
        })
    }

    /// Takes bytes that were spilled off the reservation, so that it stands for what is still to come into RAM.
    pub fn shrink(&self, bytes: u64) {
        let mut state = lock(&self.state);
        let before = state.weight();
        let bytes = bytes.min(state.reserved);
        state.reserved -= bytes;
        state.cut += bytes;
        lock(&self.budget.state).granted -= before - state.weight();
    }

    /// Charges rows that come back into RAM and gives the reservation what their spill took off it. Nothing is reclaimed
    /// for it: it would push out what is used as much.
    pub fn promote(self: &Arc<Self>, bytes: u64) -> Result<Charge, Short> {
        let mut state = lock(&self.state);
        let before = state.weight();
        let mut totals = lock(&self.budget.state);
        self.budget.room(&totals, 0, bytes)?;
        let back = bytes.min(state.cut);
        state.cut -= back;
        state.reserved += back;
        state.usage.kv += bytes;
        totals.usage.kv += bytes;
        totals.granted += state.weight() - before;
        Ok(Charge { purse: self.clone(), kind: Kind::Kv, bytes })
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
        (state.reserved, state.extended, state.cut) = (0, 0, 0);
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
        state.extended = state.extended.saturating_sub(self.bytes);
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

    /// Holds so many bytes from now on: what was charged ahead of the work was a guess.
    pub fn resize(&mut self, bytes: u64, charges: Charges) -> Result<(), Short> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.absorb(self.purse.charge_as(charges, self.kind, more)?),
            None => drop(self.split(self.bytes - bytes)),
        }
        Ok(())
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
mod tests;
