//! The gRPC face of a node: thin adapters, limits, reflection.

mod admin;
mod kv;
pub mod limits;
pub mod reflection;

pub use admin::Admin;
pub use kv::Kv;

use crate::node::Node;
use std::sync::Arc;
use tokio::sync::watch;
use wire::v1::{admin_server::AdminServer, kv_server::KvServer};

/// The KV service with explicit message limits in both directions.
pub fn kv(node: Arc<Node>, draining: watch::Receiver<bool>, limit: usize) -> KvServer<Kv> {
    KvServer::new(Kv::new(node, draining, limit))
        .max_decoding_message_size(limit)
        .max_encoding_message_size(limit)
}

/// The admin service, likewise.
pub fn admin(node: Arc<Node>, limit: usize) -> AdminServer<Admin> {
    AdminServer::new(Admin::new(node)).max_decoding_message_size(limit).max_encoding_message_size(limit)
}
