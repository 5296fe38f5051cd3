//! Failpoints: named places after each durable step. In test builds one of them, named by a variable, ends the process as
//! a power switch would; in every other build they are nothing.

/// Passes the place `name`.
#[cfg(not(test))]
#[inline(always)]
pub fn point(_name: &str) {}

/// The variable: `NAME:N` ends the process at the N-th time that NAME is passed; NAME `any` counts all of them.
#[cfg(test)]
pub const VARIABLE: &str = "RECOLLECT_FAILPOINT";

/// Every place, so that a test can pick one.
#[cfg(test)]
pub const POINTS: [&str; 11] = [
    "temp written",
    "temp synced",
    "renamed",
    "directory synced",
    "catalogue written",
    "log created",
    "log appended",
    "log synced",
    "log dropped",
    "extent deleted",
    "object written",
];

/// Passes the place `name`.
#[cfg(test)]
pub fn point(name: &str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicI64, Ordering};
    static ARMED: LazyLock<Option<(String, AtomicI64)>> = LazyLock::new(|| {
        let text = std::env::var(VARIABLE).ok()?;
        let (name, count) = text.rsplit_once(':')?;
        Some((name.to_owned(), AtomicI64::new(count.parse().ok()?)))
    });
    debug_assert!(POINTS.contains(&name), "{name} is not in the list");
    if let Some((armed, left)) = &*ARMED
        && (armed == "any" || armed == name)
        && left.fetch_sub(1, Ordering::AcqRel) == 1
    {
        std::process::abort();
    }
}
