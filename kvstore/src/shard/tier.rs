//! `Evict`, `Promote`, `Pin`, `Unpin`: what operators say about where rows lie.

use crate::node::Node;
use crate::session::Session;
use crate::shard::open::on_disk;
use crate::store::Store;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tonic::Status;
use wire::v1;

impl Node {
    /// Brings sealed spans to disk and spills them: those of one session, or of all that are not pinned.
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
        let node = self.clone();
        let freed =
            on_disk(move || sessions.iter().map(|s| node.evict_one(&store, s)).sum::<Result<u64, _>>());
        Ok(v1::EvictResponse { freed_bytes: freed.await?? })
    }

    fn evict_one(&self, store: &Store, session: &Arc<Session>) -> Result<u64, Status> {
        for (layer, kv_head, _) in session.owned() {
            store.persist(session, (layer, kv_head))?;
        }
        Ok(self.spill_all(store, session))
    }

    /// Copies the spilled rows of a session back into RAM.
    pub async fn promote(
        self: &Arc<Self>,
        request: v1::PromoteRequest,
    ) -> Result<v1::PromoteResponse, Status> {
        let session = self.session(&request.session, "session")?;
        let node = self.clone();
        let promoted = on_disk(move || node.promote_all(&session)).await?;
        let promoted_bytes = promoted.map_err(|s| self.short("promoting the session", s))?;
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
