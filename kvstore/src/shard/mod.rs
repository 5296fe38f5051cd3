//! The verbs of a shard, one file each: check, act, answer.
//!
//! * `open`: `Describe`, `Open`, `Renew`, `Close`
//! * `append`: `Append`, one chunk
//! * `plan`, `attend`: `Attend`, first every check, then the work
//! * `read`: `ReadRows`; `samples`: `ReadSamples`
//! * `truncate`: `Truncate`
//! * `admin`: `Inspect`, `WaitReady`
//! * `archive`: rows that go to the archive; `bring`: what is brought back before it is read
//! * `tier`: `Evict`, `Promote`, `Pin`, `Unpin`
//! * `probe`: which tokens a query selects, for measurements

pub mod admin;
pub mod append;
pub mod archive;
pub mod attend;
pub mod bring;
pub mod kinds;
pub mod open;
pub mod plan;
pub mod probe;
pub mod read;
pub mod samples;
pub mod tier;
pub mod truncate;

#[cfg(test)]
pub mod tests;
