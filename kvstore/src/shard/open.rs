//! The life of a session: `Describe`, `Open`, `Renew`, `Close`.

use crate::node::Node;
use crate::session::geometry::{Geometry, reservation};
use crate::session::{Session, Terms, lease};
use crate::shard::kinds;
use attention::EXTENT_TOKENS;
use std::time::Duration;
use tonic::Status;
use wire::{PROTOCOL, WireError, v1};

/// Bytes set aside for the index of a token of one head: the queries kept for merges (a row for every 8 tokens), and the
/// index of an extent, by the token. A session that asks for a flat scan builds nothing.
fn index_allowance(kind: index::Kind, g: &Geometry) -> u64 {
    if kind == index::Kind::Flat {
        return 0;
    }
    let queries = 2 + g.key_dim as u64 / 4;
    let params = index::BuildParams { kind, ..index::BuildParams::default() };
    let tokens = EXTENT_TOKENS as u64;
    queries + index::index_bytes(&params, tokens, (g.key_dim as u64, g.value_dim as u64)).div_ceil(tokens)
}

impl Node {
    /// What this server is. Refuses a caller of another protocol.
    pub async fn describe(&self, request: v1::DescribeRequest) -> Result<v1::DescribeResponse, Status> {
        spoken(request.protocol)?;
        Ok(v1::DescribeResponse {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: self.instance.to_vec(),
            max_message_bytes: self.config.max_message_bytes,
            memory_budget_bytes: self.budget.limit(),
            memory_used_bytes: self.budget.granted(),
            kernel_path: self.kernel_path(),
        })
    }

    /// Creates a session and reserves its memory: KV of `reserve_tokens` in every owned head, and their indexes.
    pub async fn open(&self, request: v1::OpenRequest) -> Result<v1::OpenResponse, Status> {
        spoken(request.protocol)?;
        let id = wire::convert::id(&request.session, "session")?;
        let fingerprint = request.fingerprint.ok_or_else(|| WireError::missing("fingerprint"))?;
        let geometry = Geometry::read(&fingerprint)?;
        let owned = geometry.owned(&request.owned)?;
        let index = kinds::read(request.index)?;
        let lease = self.lease(request.lease_ms)?.unwrap_or(self.config.lease);
        let heads = owned.iter().filter(|&&o| o).count() as u64;
        let allowance = index_allowance(index, &geometry);
        let bytes = reservation(&geometry, heads, request.reserve_tokens, allowance)?;
        let purse = self.purse(bytes)?;
        let terms =
            Terms { fingerprint, geometry, index, seed: request.seed, deterministic: request.deterministic };
        let session =
            Session::new(id, terms, &owned, purse, lease).map_err(|s| self.short("an empty session", s))?;
        self.insert(session)?;
        self.metrics.opened.increment(1);
        Ok(v1::OpenResponse {
            instance: self.instance.to_vec(),
            lease_ms: millis(lease),
            reserved_bytes: bytes,
        })
    }

    /// Starts the lease anew, with another length if one is given.
    pub async fn renew(&self, request: v1::RenewRequest) -> Result<v1::RenewResponse, Status> {
        let session = self.session(&request.session, "session")?;
        let length = self.lease(request.lease_ms)?;
        Ok(v1::RenewResponse { lease_ms: millis(session.lease.renew(length)) })
    }

    /// Ends a session. Requests that still use its rows finish; the memory returns with the last of them.
    pub async fn close(&self, request: v1::CloseRequest) -> Result<v1::CloseResponse, Status> {
        let session = self.session(&request.session, "session")?;
        let freed_bytes = session.purse.granted();
        if self.remove(&session, |_| true) {
            self.metrics.closed.increment(1);
        }
        Ok(v1::CloseResponse { freed_bytes })
    }

    fn lease(&self, ms: u64) -> Result<Option<Duration>, WireError> {
        let length = Duration::from_millis(ms);
        if length > lease::MAX {
            return Err(WireError::range("lease_ms", ms, format!("at most {}", millis(lease::MAX))));
        }
        Ok((ms > 0).then_some(length))
    }
}

fn spoken(protocol: u32) -> Result<(), Status> {
    if protocol == PROTOCOL {
        return Ok(());
    }
    Err(Status::failed_precondition(format!(
        "protocol {protocol} is not spoken here: this server speaks {PROTOCOL}"
    )))
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
