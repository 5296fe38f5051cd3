//! `ReadSamples`: the sampled queries that a head keeps, for a copy of the session elsewhere.

use crate::node::Node;
use std::sync::Arc;
use tonic::Status;
use wire::tensor::from_f16;
use wire::{WireError, v1};

/// Bytes of a page, whatever a message may take.
const PAGE_BYTES: u64 = 4 << 20;
/// Two numbers of a sample at their longest, as they are sent.
const NUMBER_BYTES: u64 = 20;

impl Node {
    /// Samples of one head at positions `[begin, end)`; a page of them. UNAVAILABLE while a build holds them.
    pub async fn read_samples(
        self: &Arc<Self>,
        request: v1::ReadSamplesRequest,
    ) -> Result<v1::ReadSamplesResponse, Status> {
        let session = self.session(&request.session, "session")?;
        let g = session.terms.geometry;
        let (layer, heads) = g.heads("", request.layer, request.kv_head, 1)?;
        let (begin, end) = (request.begin, request.end);
        if begin >= end {
            return Err(WireError::range("begin", begin, format!("below end = {end}")).into());
        }
        let sample_bytes = NUMBER_BYTES + 2 * (g.group * g.key_dim) as u64;
        // Tags, shapes and framing take less than this.
        let most = self.config.max_message_bytes.min(PAGE_BYTES).saturating_sub(256) / sample_bytes;
        if most == 0 {
            return Err(Status::resource_exhausted(format!(
                "a sample of {sample_bytes} bytes does not fit server.max_message = {}",
                self.config.max_message_bytes
            )));
        }
        let permit = self.pool.enter().await?;
        self.pool
            .run(permit, move || {
                let state = session.head(layer, heads.start)?.read();
                let page = state.sample_page(begin..end, usize::try_from(most).unwrap_or(usize::MAX));
                let page = page.ok_or_else(|| {
                    Status::unavailable(format!(
                        "an index of layer {layer}, KV head {} is being built: ask again after WaitReady",
                        heads.start
                    ))
                })?;
                let m = page.pos.len();
                let q = (m > 0).then(|| from_f16(&[m, g.group, g.key_dim], &page.q));
                Ok(v1::ReadSamplesResponse { pos: page.pos, seen: page.seen, q, next: page.next })
            })
            .await?
    }
}
