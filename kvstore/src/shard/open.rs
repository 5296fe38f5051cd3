//! The life of a session: `Describe`, `Open`, `Renew`, `Close`.

use crate::admission::Purse;
use crate::node::Node;
use crate::session::geometry::{Geometry, reservation};
use crate::session::{Id, Session, Terms, lease};
use crate::shard::kinds;
use crate::store::kept::Kept;
use attention::EXTENT_TOKENS;
use std::sync::Arc;
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

/// What a caller asks for, checked.
pub struct Opening {
    /// Of the session.
    pub id: Id,
    /// Fixed for its life.
    pub terms: Terms,
    /// Heads by layer and KV head.
    pub owned: Vec<bool>,
    /// Bytes to reserve.
    pub reserved: u64,
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
    pub async fn open(self: &Arc<Self>, request: v1::OpenRequest) -> Result<v1::OpenResponse, Status> {
        let Opening { id, terms, owned, reserved: bytes } = self.read_open(&request)?;
        let lease = self.lease(request.lease_ms)?.unwrap_or(self.config.lease);
        if request.durable && self.store.is_none() {
            let why = "durable is asked for, but this server has no storage.path (--data)";
            return Err(Status::failed_precondition(why));
        }
        self.vacant(&id)?;
        let purse = self.reserve(bytes).await?;
        let kept = self.begin(request, lease).await?;
        let session = Session::new((id, terms), &owned, purse, lease, kept.clone())
            .map_err(|s| self.short("an empty session", s))
            .and_then(|session| self.insert(Arc::new(session)));
        if let (Err(_), Some(store), Some(kept)) = (&session, &self.store, &kept) {
            store.forget(kept);
        }
        session?;
        self.metrics.opened.increment(1);
        Ok(v1::OpenResponse {
            instance: self.instance.to_vec(),
            lease_ms: millis(lease),
            reserved_bytes: bytes,
        })
    }

    /// Checks what does not depend on what is open.
    pub(crate) fn read_open(&self, request: &v1::OpenRequest) -> Result<Opening, Status> {
        spoken(request.protocol)?;
        let id = wire::convert::id(&request.session, "session")?;
        let fingerprint = request.fingerprint.clone().ok_or_else(|| WireError::missing("fingerprint"))?;
        let geometry = Geometry::read(&fingerprint)?;
        let owned = geometry.owned(&request.owned)?;
        let index = kinds::read(request.index)?;
        let heads = owned.iter().filter(|&&o| o).count() as u64;
        let allowance = index_allowance(index, &geometry);
        let reserved = reservation(&geometry, heads, request.reserve_tokens, allowance)?;
        let terms =
            Terms { fingerprint, geometry, index, seed: request.seed, deterministic: request.deterministic };
        Ok(Opening { id, terms, owned, reserved })
    }

    /// Reserves memory; what is cold may have to go to disk for it.
    async fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Arc<Purse>, Status> {
        if self.store.is_none() {
            return self.purse(bytes, 0);
        }
        let node = self.clone();
        on_disk(move || node.purse(bytes, 0)).await?
    }

    /// Enters a new session into the catalogue, if there is one.
    async fn begin(&self, request: v1::OpenRequest, lease: Duration) -> Result<Option<Arc<Kept>>, Status> {
        let Some(store) = self.store.clone() else {
            return Ok(None);
        };
        let begun = on_disk(move || store.begin(&request, lease)).await?;
        Ok(Some(Arc::new(begun?)))
    }

    /// Starts the lease anew, with another length if one is given.
    pub async fn renew(&self, request: v1::RenewRequest) -> Result<v1::RenewResponse, Status> {
        let session = self.session(&request.session, "session")?;
        let length = self.lease(request.lease_ms)?;
        if let (Some(length), Some(store), Some(kept)) = (length, &self.store, &session.kept)
            && length != session.lease.length()
        {
            let (store, kept) = (store.clone(), kept.clone());
            on_disk(move || store.lease(&kept, length)).await??;
        }
        let watermark = session.told_watermark();
        Ok(v1::RenewResponse { lease_ms: millis(session.lease.renew(length)), watermark })
    }

    /// Ends a session. Requests that still use its rows finish; the memory returns with the last of them.
    pub async fn close(self: &Arc<Self>, request: v1::CloseRequest) -> Result<v1::CloseResponse, Status> {
        let id = wire::convert::id(&request.session, "session")?;
        if self.refused().contains_key(&id) {
            let node = self.clone();
            if on_disk(move || node.drop_refused(&id)).await? {
                self.metrics.closed.increment(1);
                return Ok(v1::CloseResponse { freed_bytes: 0 });
            }
        }
        let session = self.session(&request.session, "session")?;
        let freed_bytes = session.purse.granted();
        if session.kept.is_some() {
            let (node, session) = (self.clone(), session.clone());
            // Counted there: whoever asked may be gone before it is done.
            on_disk(move || node.close_one(&session)).await?;
        } else {
            self.close_one(&session);
        }
        Ok(v1::CloseResponse { freed_bytes })
    }

    fn close_one(&self, session: &Arc<Session>) {
        if self.remove(session, |_| true) {
            self.metrics.closed.increment(1);
        }
    }

    fn lease(&self, ms: u64) -> Result<Option<Duration>, WireError> {
        let length = Duration::from_millis(ms);
        if length > lease::MAX {
            return Err(WireError::range("lease_ms", ms, format!("at most {}", millis(lease::MAX))));
        }
        Ok((ms > 0).then_some(length))
    }
}

/// Work that waits for the disk, off the threads that serve.
pub async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| Status::internal(format!("a task of the store ended without an answer: {e}")))
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
