//! The wire contract between workers and shards.
//!
//! * [`v1`]: messages, server and client of package `recollect.v1`, generated from `kv.proto`
//! * [`address`]: where a shard listens, and where it is connected to
//! * [`tensor`]: [`v1::Tensor`] to and from slices, with every check a stranger's bytes need
//! * [`samples`]: pages of sampled queries
//! * [`convert`]: partials, budgets and ranges to and from their messages
//! * [`error`]: what a message can be refused for, as one line and as a gRPC status
//! * [`placement`]: which shard holds which heads; pure
//! * [`names`]: names of metrics and spans, so that server, dashboards and tests agree

pub mod address;
pub mod convert;
pub mod error;
pub mod names;
pub mod placement;
pub mod samples;
pub mod tensor;

pub use address::Address;
pub use error::WireError;
pub use prost::bytes::Bytes;

/// Generated from `kv.proto`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("recollect.v1");
}

/// The protocol this build speaks. A server refuses any other in `Describe` and `Open`.
pub const PROTOCOL: u32 = 1;

/// The descriptor of `kv.proto`, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kv.bin"));

/// Largest message either side accepts unless configured otherwise, in bytes.
pub const DEFAULT_MAX_MESSAGE_BYTES: u64 = 64 << 20;

/// Length of session and instance ids, in bytes.
pub const ID_BYTES: usize = 16;
