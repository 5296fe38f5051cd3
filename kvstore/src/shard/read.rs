//! `ReadRows`: stored K and V of a range, for checks and for recovery.

use crate::node::Node;
use crate::session::Reading;
use crate::session::span::Want;
use std::sync::Arc;
use tonic::Status;
use wire::tensor::from_f16;
use wire::{WireError, v1};

impl Node {
    /// Copies `[begin, end)` of one head. The answer must fit a message.
    pub async fn read_rows(
        self: &Arc<Self>,
        request: v1::ReadRowsRequest,
    ) -> Result<v1::ReadRowsResponse, Status> {
        let session = self.session(&request.session, "session")?;
        let g = session.terms.geometry;
        let (layer, heads) = g.heads("", request.layer, request.kv_head, 1)?;
        let held = session.head(layer, heads.start)?.len();
        let (begin, end) = (request.begin, request.end);
        if begin >= end {
            return Err(WireError::range("begin", begin, format!("below end = {end}")).into());
        }
        if end > held {
            return Err(Status::out_of_range(format!("end is {end}, but {held} tokens are held")));
        }
        let bytes = (end - begin) * g.row_bytes();
        // Tags, shapes and framing take less than this.
        if bytes + 256 > self.config.max_message_bytes {
            return Err(Status::resource_exhausted(format!(
                "{bytes} bytes of rows do not fit server.max_message = {}",
                self.config.max_message_bytes
            )));
        }
        let reading = Reading::begin(&session);
        self.revive(&session, (layer, heads.clone()), (begin..end, Want::Rows), None).await?;
        let permit = self.pool.enter().await?;
        self.pool
            .run(permit, move || {
                let _reading = reading;
                let state = session.head(layer, heads.start)?.read();
                if end > state.end() {
                    return Err(Status::aborted("the range was truncated meanwhile"));
                }
                state.at_hand(begin, end, Want::Rows)?;
                let (k, v) = state.copy(begin, end);
                let n = (end - begin) as usize;
                Ok(v1::ReadRowsResponse {
                    k: Some(from_f16(&[n, g.key_dim], &k)),
                    v: Some(from_f16(&[n, g.value_dim], &v)),
                })
            })
            .await?
    }
}
