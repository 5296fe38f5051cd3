//! What survives the process: extent files, logs, and the catalogue that says what they are.
//!
//! * `extent_file`: the rows of an extent, mapped as they are; `error`: what can be wrong with a file
//! * `publish`: files that appear whole or not at all; `map`: read-only maps, the one place with `unsafe`
//! * `log`: what a durable session was given since its last span
//! * `bytes`: little-endian fields; `fail`: places where tests pull the plug

pub mod bytes;
pub mod error;
pub mod extent_file;
pub mod fail;
pub mod log;
pub mod map;
pub mod publish;
