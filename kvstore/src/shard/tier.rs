//! `Evict`, `Promote`, `Pin`, `Unpin`: what operators say about where rows lie.

use crate::builder::Work;
use crate::compactor::Compaction;
use crate::node::Node;
use crate::session::compact::Form;
use crate::session::span::Want;
use crate::session::{Reading, Session};
use crate::shard::archive::PATIENCE;
use crate::shard::open::on_disk;
use crate::spill::{NotBack, Place, places};
use crate::store::Store;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::oneshot;
use tonic::Status;
use wire::v1;

/// The form that is asked for.
fn form(request: &v1::EvictRequest) -> Result<Form, Status> {
    match (request.tier(), request.sketch_percent) {
        (v1::Tier::Sketched, 0) => Ok(Form::Sketched(Form::SKETCH_PERCENT)),
        (v1::Tier::Sketched, percent) => match u8::try_from(percent) {
            Ok(percent) if percent <= Form::SKETCH_MOST => Ok(Form::Sketched(percent)),
            _ => Err(Status::invalid_argument(format!(
                "sketch_percent is {percent}, must be 1 to {}, or 0 for {}",
                Form::SKETCH_MOST,
                Form::SKETCH_PERCENT
            ))),
        },
        (_, 0) => Ok(Form::Quantised),
        _ => Err(Status::invalid_argument("sketch_percent is for the tier sketched")),
    }
}

impl Node {
    /// Brings sealed spans to disk and spills, compacts or archives them: those of one session, or of all that are not pinned.
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
            v1::Tier::Quantised | v1::Tier::Sketched => {
                let form = form(&request)?;
                let freed_bytes = self.compact(&store, sessions, form).await?;
                return Ok(v1::EvictResponse { freed_bytes, archived_bytes: 0 });
            }
            v1::Tier::Full => {
                let name = v1::Tier::Full.as_str_name();
                return Err(Status::invalid_argument(format!("tier: rows are not evicted to {name}")));
            }
        }
        if request.sketch_percent != 0 {
            return Err(Status::invalid_argument("sketch_percent is for the tier sketched"));
        }
        let node = self.clone();
        let freed =
            on_disk(move || sessions.iter().map(|s| node.evict_one(&store, s)).sum::<Result<u64, _>>());
        Ok(v1::EvictResponse { freed_bytes: freed.await??, archived_bytes: 0 })
    }

    fn evict_one(&self, store: &Store, session: &Arc<Session>) -> Result<u64, Status> {
        self.persist_all(store, session)?;
        let freed = self.spill_all(store, session);
        let stay =
            places(session, |span| span.rows.tiers().0 > 0 && span.rows.published() && !span.can_spill());
        match stay.first() {
            None => Ok(freed),
            Some(Place { at: (layer, kv_head), span, .. }) => Err(Status::data_loss(format!(
                "{} spans stay in RAM, since their files cannot be read back; the first holds tokens {}..{} of layer {layer}, KV head {kv_head}",
                stay.len(),
                span.begin,
                span.end
            ))),
        }
    }

    /// Brings every sealed span of a session to disk.
    pub(crate) fn persist_all(&self, store: &Store, session: &Arc<Session>) -> Result<(), Status> {
        let mut owned = session.owned();
        owned.try_for_each(|(layer, kv_head, _)| Ok(store.persist(session, (layer, kv_head))?))
    }

    /// Brings every span of these sessions that has an index into a compact form, its rows to disk and its index to its file.
    /// The first error ends it; what is done stays.
    async fn compact(
        self: &Arc<Self>,
        store: &Arc<Store>,
        sessions: Vec<Arc<Session>>,
        form: Form,
    ) -> Result<u64, Status> {
        let mut freed = 0;
        for session in sessions {
            session.pending.settled(Instant::now().checked_add(PATIENCE)).await;
            let (node, store, of) = (self.clone(), store.clone(), session.clone());
            let ready = on_disk(move || {
                node.persist_all(&store, &of)?;
                // A sketch is made of the rows.
                node.bring(&of, Want::Rows, |_, span| span.about().is_some())?;
                Ok::<_, Status>(places(&of, |span| {
                    span.about().is_some() && span.ready() && span.can_spill()
                }))
            });
            for place in ready.await?? {
                let (reply, answer) = oneshot::channel();
                self.queue_compaction(&place, form, Some(reply));
                let done =
                    answer.await.map_err(|_| Status::internal("the compaction ended without an answer"))?;
                freed += done.map_err(|reason| {
                    let (layer, kv_head) = place.at;
                    let tokens = format!("tokens {}..{}", place.span.begin, place.span.end);
                    Status::failed_precondition(format!(
                        "{tokens} of layer {layer}, KV head {kv_head} stay as they are: {reason}"
                    ))
                })?;
            }
        }
        Ok(freed)
    }

    /// Queues the compaction of a span.
    pub(crate) fn queue_compaction(
        &self,
        Place { session, at, span }: &Place,
        form: Form,
        reply: Option<oneshot::Sender<Result<u64, String>>>,
    ) {
        let (of, core) = (Arc::downgrade(session), Arc::downgrade(span.core()));
        self.queue(session, *at, Work::Compact(Compaction { session: of, core, form, reply }));
    }

    /// Copies the spilled rows of a session, those of the archive among them, back into RAM.
    pub async fn promote(
        self: &Arc<Self>,
        request: v1::PromoteRequest,
    ) -> Result<v1::PromoteResponse, Status> {
        let session = self.session(&request.session, "session")?;
        // Without a store everything is in RAM.
        let Some(store) = self.store.clone() else { return Ok(v1::PromoteResponse::default()) };
        let node = self.clone();
        let promoted = on_disk(move || {
            // So that they are not archived again before they are in RAM.
            let _reading = Reading::begin(&session);
            node.bring(&session, Want::Rows, |_, _| true)?;
            node.promote_all(&store, &session).map_err(|e| match e {
                NotBack::Memory(short) => node.short("promoting the session", short),
                NotBack::Damaged(why) => Status::data_loss(why),
            })
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
