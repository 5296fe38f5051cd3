//! `Evict`, `Promote`, `Pin`, `Unpin`: what operators say about where rows lie.

use crate::node::Node;
use crate::session::{Reading, Session};
use crate::shard::open::on_disk;
use crate::store::Store;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tonic::Status;
use wire::v1;

impl Node {
    /// Brings sealed spans to disk and spills them, or archives them: those of one session, or of all that are not pinned.
    pub async fn evict(self: &Arc<Self>, request: v1::EvictRequest) -> Result<v1::EvictResponse, Status> {
        let Some(store) = self.store.clone() else {
            let why = "nothing can be evicted: this server has no storage.path (--data)";
            return Err(Status::failed_precondition(why));
        };
        let sessions = if request.session.is_empty() {
            self.sessions().into_iter().filter(|s| !s.pinned.load(Ordering::Acquire)).collect()
        } else {
            let session = self.session(&request.session, "session")?;
            if session.pinned.load(Ordering::Acquire) {
                let id = wire::convert::hex(&session.id);
                return Err(Status::failed_precondition(format!("session {id} is pinned")));
            }
            vec![session]
        };
        match request.tier() {
            v1::Tier::Unspecified | v1::Tier::Spilled => {}
            v1::Tier::Archived => {
                let moved = self.archive(&store, sessions).await?;
                return Ok(v1::EvictResponse { freed_bytes: moved.freed, archived_bytes: moved.archived });
            }
            other => {
                let name = other.as_str_name();
                return Err(Status::invalid_argument(format!("tier: rows are not evicted to {name}")));
            }
        }
        let node = self.clone();
        let freed =
            on_disk(move || sessions.iter().map(|s| node.evict_one(&store, s)).sum::<Result<u64, _>>());
        Ok(v1::EvictResponse { freed_bytes: freed.await??, archived_bytes: 0 })
    }

    fn evict_one(&self, store: &Store, session: &Arc<Session>) -> Result<u64, Status> {
        self.persist_all(store, session)?;
        Ok(self.spill_all(store, session))
    }

    /// Brings every sealed span of a session to disk.
    pub(crate) fn persist_all(&self, store: &Store, session: &Arc<Session>) -> Result<(), Status> {
        let mut owned = session.owned();
        owned.try_for_each(|(layer, kv_head, _)| Ok(store.persist(session, (layer, kv_head))?))
    }

    /// Copies the spilled rows of a session, those of the archive among them, back into RAM.
    pub async fn promote(
        self: &Arc<Self>,
        request: v1::PromoteRequest,
    ) -> Result<v1::PromoteResponse, Status> {
        let session = self.session(&request.session, "session")?;
        let node = self.clone();
        let promoted = on_disk(move || {
            // So that they are not archived again before they are in RAM.
            let _reading = Reading::begin(&session);
            node.bring_from_archive(&session, |_, _| true)?;
            node.promote_all(&session).map_err(|s| node.short("promoting the session", s))
        });
        let promoted_bytes = promoted.await??;
        Ok(v1::PromoteResponse { promoted_bytes })
    }

    /// Keeps what a session has in RAM there, and brings the rest back as room allows; over restarts too.
    pub async fn pin(&self, request: v1::PinRequest) -> Result<v1::PinResponse, Status> {
        let session = self.session(&request.session, "session")?;
        self.set_pinned(&session, true).await?;
        Ok(v1::PinResponse { spilled_bytes: session.purse.usage().spilled })
    }

    /// Takes a pin back.
    pub async fn unpin(&self, request: v1::UnpinRequest) -> Result<v1::UnpinResponse, Status> {
        let session = self.session(&request.session, "session")?;
        self.set_pinned(&session, false).await?;
        Ok(v1::UnpinResponse {})
    }

    async fn set_pinned(&self, session: &Arc<Session>, pinned: bool) -> Result<(), Status> {
        match self.store.clone() {
            None => session.pinned.store(pinned, Ordering::Release),
            Some(store) => {
                let session = session.clone();
                on_disk(move || store.pin(&session, pinned)).await??;
            }
        }
        Ok(())
    }
}
