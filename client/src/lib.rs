//! The shards as a caller sees them: attach, append, attend, fold, route.
//!
//! One decode step passes through [`attend`]: it splits the heads of every row by placement, sends one message to each
//! shard at the same time, checks what comes back and folds it to one partial per query head.
//!
//! * [`error`]: what can go wrong, which shard it was, and whether trying elsewhere would help
//! * [`shard`]: the seam: one shard, wire messages in, wire messages out. An in-process twin implements the same trait
//! * [`grpc`]: the seam over sockets: two connections, long-lived streams, limits, deadlines
//! * [`cluster`]: the shards together, their placement, opening of sessions
//! * [`session`]: one sequence on the cluster: its lease, truncation and end
//! * [`farewell`]: sessions that end without being closed
//! * [`held`]: a session that another program opened, read by its id
//! * [`append`]: bulk K, V and query samples, cut to the message limit; [`append_head`]: those of one head
//! * [`attend`]: rows of queries, answered by partials
//! * [`fold`]: answers of several shards to one partial per head; every token of every head once

pub mod append;
pub mod append_head;
pub mod attend;
pub mod cluster;
pub mod error;
mod farewell;
mod finite;
pub mod fold;
pub mod grpc;
pub mod held;
mod lease;
pub mod session;
pub mod shard;

pub use append::LayerChunk;
pub use append_head::HeadChunk;
pub use attend::{NewTokenKv, RowAnswer, RowAsk, RowStats};
pub use cluster::Cluster;
pub use error::{Error, Kind};
pub use farewell::OpenSessions;
pub use grpc::{Config, GrpcShard};
pub use held::HeldSession;
pub use session::{Readiness, Session, SessionSpec};
pub use shard::Shard;
pub use wire::Address;
pub use wire::convert::Budget;
