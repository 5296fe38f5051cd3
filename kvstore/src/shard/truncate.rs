//! `Truncate`: takes back the tokens of a rejected speculation, or of a step that did not reach every layer.

use crate::node::Node;
use crate::session::Session;
use crate::shard::open::on_disk;
use crate::store::log::record::Record;
use std::sync::Arc;
use tonic::Status;
use wire::v1;

impl Node {
    /// Drops every token at or beyond `length` in every owned head; heads that hold fewer stay as they are.
    ///
    /// Rows of a span that is cut stay in memory, invisible, until the span goes: spans are immutable.
    ///
    /// What is on disk is cut before the answer, durable session or not: a restart must not bring tokens back that the
    /// worker has replaced since.
    pub async fn truncate(
        self: &Arc<Self>,
        request: v1::TruncateRequest,
    ) -> Result<v1::TruncateResponse, Status> {
        let session = self.session(&request.session, "session")?;
        let longest = session.longest();
        if request.length > longest {
            return Err(Status::out_of_range(format!(
                "length is {}, but no head holds more than {longest} tokens",
                request.length
            )));
        }
        session.lease.renew(None);
        if session.terms.deterministic {
            // A merge that ends after the cut is void, one that ended before it is not.
            session.pending.settled(None).await;
        }
        match session.log() {
            None => self.cut(&session, request.length, 0),
            Some(log) => {
                // The log has it in the same order as the layers do.
                let _ingest = session.ingest_all();
                let number = match &self.store {
                    None => 0,
                    Some(store) => store.append(log, &Record::Cut(request.length))?,
                };
                log.lower(request.length);
                self.cut(&session, request.length, number);
            }
        }
        if let Some(log) = session.log() {
            let watermark = self.settled(&session, log).await?;
            return Ok(v1::TruncateResponse { watermark });
        }
        if let (Some(store), Some(kept)) = (&self.store, &session.kept) {
            let (store, session, kept) = (store.clone(), session.clone(), kept.clone());
            // Not only what was cut now: an attempt before this one may have failed on its way to the disk.
            let cut = move || {
                kept.beyond(request.length).into_iter().try_for_each(|at| store.persist(&session, at))
            };
            on_disk(cut).await??;
        }
        Ok(v1::TruncateResponse { watermark: session.watermark() })
    }

    /// Cuts every head in memory and queues those of which a span was cut for the disk. The caller holds every layer of a
    /// session with a log; without one they are taken here, one after the other.
    fn cut(&self, session: &Arc<Session>, length: u64, number: u64) {
        let g = session.terms.geometry;
        let mut ingest = None;
        for (layer, kv_head, head) in session.owned() {
            if session.log().is_none() && !matches!(ingest, Some((held, _)) if held == layer) {
                // The old layer is let go before the next is taken.
                drop(ingest.take());
                ingest = Some((layer, session.ingest(layer)));
            }
            if head.truncate(length, &g, number) {
                self.keep(session, (layer, kv_head));
            }
        }
        // Before anything can be appended in the place of what went.
        session.cuts.add(length);
    }
}
