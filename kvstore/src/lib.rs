//! One shard of Recollect: every token's K and V, the indexes over them, and the answers.
//!
//! * [`Node`]: the shard without sockets; `shard`: its verbs, one file each
//! * `session`: one sequence: heads, spans, fresh tokens, lease
//! * `builder`: the queue of the background; `recipe`: index builds; `merger`: merges of small spans; `compactor`: compact forms
//! * `pool`: attend threads behind a bounded queue
//! * `admission`: memory granted before it is used; [`allocator`]: so that what is freed goes back to the system
//! * `spill`: which rows leave RAM when it is short, and come back; what is cold
//! * `archive`: an object store for files that need not lie on this host
//! * `store`: what survives the process; `catalogue`: what on disk belongs to what
//! * `service`: the gRPC face of a node; `http`: probes, metrics and status; [`serve`]: both on their ports
//! * [`decoders`]: the readers of stored bytes, for fuzz tests
//! * [`config`]: file, environment, flags; [`telemetry`]: figures and log; [`error`]: exit codes

mod admission;
pub mod allocator;
mod archive;
mod builder;
mod catalogue;
mod compactor;
pub mod config;
pub mod decoders;
pub mod error;
mod http;
mod merger;
mod node;
mod pool;
mod recipe;
pub mod serve;
mod service;
mod session;
mod shard;
mod spill;
mod store;
pub mod telemetry;
#[cfg(test)]
mod testing;

pub use archive::Settings as ArchiveSettings;
pub use node::{Node, NodeConfig, NodeError};
pub use session::compact::Form;
pub use shard::kinds::wire_kind;
pub use shard::probe::Selection;
pub use spill::cool::Cooling;
pub use store::inspect::{StoredExtent, inspect_extent};
