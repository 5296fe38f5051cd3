//! `Truncate`: takes back the tokens of a rejected speculation, or of a step that did not reach every layer.

use crate::node::Node;
use tonic::Status;
use wire::v1;

impl Node {
    /// Drops every token at or beyond `length` in every owned head; heads that hold fewer stay as they are.
    ///
    /// Rows of a span that is cut stay in memory, invisible, until the span goes: spans are immutable.
    pub async fn truncate(&self, request: v1::TruncateRequest) -> Result<v1::TruncateResponse, Status> {
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
        let g = session.terms.geometry;
        let mut ingest = None;
        for (layer, _, head) in session.owned() {
            if !matches!(ingest, Some((held, _)) if held == layer) {
                // The old layer is let go before the next is taken.
                drop(ingest.take());
                ingest = Some((layer, session.ingest(layer)));
            }
            head.truncate(request.length, &g);
        }
        drop(ingest);
        Ok(v1::TruncateResponse { watermark: session.watermark() })
    }
}
