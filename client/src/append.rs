//! Bulk K, V and query samples of one layer: cut by placement and by the message limit, acknowledged in order.

use crate::session::{Geometry, Holder, Inner, PlannedRun};
use crate::{Error, Session, finite};
use futures::future::try_join_all;
use half::f16;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use wire::tensor;
use wire::v1;

/// Messages are not made larger than this, whatever the shard takes: smaller ones spread over the pipeline.
const PIECE_BYTES: u64 = 4 << 20;
/// Ids, tags and lengths of a chunk, generously.
const OVERHEAD_BYTES: u64 = 1024;

/// Consecutive tokens of one layer, all KV heads, row-major.
#[derive(Debug, Clone, Copy)]
pub struct LayerChunk<'a> {
    /// Layer.
    pub layer: u32,
    /// Position of the first token; must equal the length held of this layer.
    pub begin: u64,
    /// `[tokens, kv_heads, key_dim]`, after RoPE.
    pub k: &'a [f16],
    /// `[tokens, kv_heads, value_dim]`.
    pub v: &'a [f16],
    /// `[m, q_heads, key_dim]`, after RoPE, not scaled: a sample of the prefill queries of these tokens; may be empty.
    pub q: &'a [f16],
    /// `[m]`, strictly ascending, each inside the chunk.
    pub q_pos: &'a [u64],
    /// Last tokens, the query's own included, that a worker attends to itself at decode: no index need serve them.
    pub q_window: u64,
    /// After this chunk, make all fresh tokens below this position a span and build its index.
    pub seal_to: Option<u64>,
}

impl Session {
    /// Stores the chunk on all shards that hold heads of the layer; returns the session's watermark when every part is
    /// acknowledged.
    ///
    /// Errors: [`Error::Input`] before anything is sent; otherwise the first shard that refused or is lost. Other shards
    /// may have stored their part.
    pub async fn append(&self, chunk: LayerChunk<'_>) -> Result<u64, Error> {
        let inner = &*self.inner;
        let tokens = check(&inner.geometry, &chunk)?;
        let runs = &inner.plan[chunk.layer as usize];
        try_join_all(runs.iter().map(|run| inner.append_run(&chunk, tokens, run))).await?;
        Ok(self.watermark())
    }
}

impl Inner {
    /// The pieces of one run, in order, as many in flight as the shard's client allows.
    async fn append_run(&self, chunk: &LayerChunk<'_>, tokens: usize, run: &PlannedRun) -> Result<(), Error> {
        let Geometry { key_dim, value_dim, .. } = self.geometry;
        // A query for every token at the most.
        let width = key_dim + value_dim + self.geometry.group() * key_dim;
        let token_bytes = 2 * (run.kv_heads.len() * width) as u64 + 10;
        let piece = |tokens: Range<usize>, last| self.piece(chunk, run, tokens, last);
        send(&self.holders[run.holder], (chunk.begin, tokens, token_bytes), piece).await
    }

    fn piece(
        &self,
        chunk: &LayerChunk<'_>,
        run: &PlannedRun,
        tokens: Range<usize>,
        last: bool,
    ) -> v1::AppendChunk {
        let Geometry { kv_heads, key_dim, value_dim, .. } = self.geometry;
        let group = self.geometry.group();
        let heads = run.kv_heads.start as usize..run.kv_heads.end as usize;
        let begin = chunk.begin + tokens.start as u64;
        let end = chunk.begin + tokens.end as u64;
        let queries = chunk.q_pos.partition_point(|&p| p < begin)..chunk.q_pos.partition_point(|&p| p < end);
        let pack = |data: &[f16], rows: Range<usize>, per_head: usize, shape: [usize; 3]| {
            tensor::from_f16(
                &shape,
                &columns(data, rows, kv_heads * per_head, heads.start * per_head..heads.end * per_head),
            )
        };
        let n = tokens.len();
        let q = (!queries.is_empty()).then(|| {
            let shape = [queries.len(), heads.len() * group, key_dim];
            pack(chunk.q, queries.clone(), group * key_dim, shape)
        });
        v1::AppendChunk {
            session: self.id.clone(),
            layer: chunk.layer,
            kv_head_begin: run.kv_heads.start,
            begin,
            k: Some(pack(chunk.k, tokens.clone(), key_dim, [n, heads.len(), key_dim])),
            v: Some(pack(chunk.v, tokens, value_dim, [n, heads.len(), value_dim])),
            q,
            q_pos: chunk.q_pos[queries].to_vec(),
            q_window: chunk.q_window,
            seal_to: chunk.seal_to.filter(|_| last),
        }
    }
}

/// Sends `tokens` tokens from position `begin` on, of so many bytes each, in pieces that a message has room for; returns when
/// all are acknowledged. `piece` makes the message of a part, and is told whether it is the last.
pub(crate) async fn send(
    holder: &Holder,
    (begin, tokens, token_bytes): (u64, usize, u64),
    piece: impl Fn(Range<usize>, bool) -> v1::AppendChunk,
) -> Result<(), Error> {
    let room = holder.max_message_bytes.min(PIECE_BYTES).saturating_sub(OVERHEAD_BYTES) / token_bytes;
    if room == 0 {
        return Err(Error::Input(format!(
            "shard {}: server.max_message = {} is too small for one token of {token_bytes} bytes",
            holder.shard.name(),
            holder.max_message_bytes
        )));
    }
    let mut pending = VecDeque::new();
    let step = usize::try_from(room).unwrap_or(usize::MAX);
    for first in (0..tokens).step_by(step) {
        let part = first..tokens.min(first.saturating_add(step));
        let (end, last) = (begin + part.end as u64, part.end == tokens);
        match holder.shard.submit(piece(part, last)).await {
            Ok(ack) => pending.push_back((end, ack)),
            Err(status) => {
                // An earlier refusal is the better reason.
                drain(holder, &mut pending).await?;
                return Err(holder.explain(&status).await);
            }
        }
    }
    drain(holder, &mut pending).await
}

/// Waits for what is in flight; every acknowledgement must name the end of its own piece.
async fn drain(
    holder: &Holder,
    pending: &mut VecDeque<(u64, crate::shard::PendingAck)>,
) -> Result<(), Error> {
    while let Some((end, ack)) = pending.pop_front() {
        let ack = match ack.await {
            Ok(ack) => ack,
            Err(status) => return Err(holder.explain(&status).await),
        };
        if let Some(refused) = ack.error {
            return Err(holder.explain(&refused.into()).await);
        }
        if ack.layer_end != end {
            return Err(holder.bad(format!("acknowledged to {} a chunk that ends at {end}", ack.layer_end)));
        }
        holder.watermark.fetch_max(ack.watermark, Ordering::AcqRel);
    }
    Ok(())
}

/// Some columns of some rows; without a copy when all columns are asked for.
fn columns(data: &[f16], rows: Range<usize>, width: usize, columns: Range<usize>) -> Cow<'_, [f16]> {
    let rows = &data[rows.start * width..rows.end * width];
    if columns.len() == width {
        return Cow::Borrowed(rows);
    }
    let mut out = Vec::with_capacity(rows.len() / width * columns.len());
    for row in rows.chunks_exact(width) {
        out.extend_from_slice(&row[columns.clone()]);
    }
    Cow::Owned(out)
}

/// Lengths and positions; returns the number of tokens.
fn check(geometry: &Geometry, chunk: &LayerChunk<'_>) -> Result<usize, Error> {
    let refuse = |what: String| {
        Err(Error::Input(format!("chunk at {} of layer {}: {what}", chunk.begin, chunk.layer)))
    };
    let tokens = chunk.k.len() / (geometry.kv_heads * geometry.key_dim);
    if chunk.layer >= geometry.layers {
        return refuse(format!("the session has {} layers", geometry.layers));
    }
    if tokens == 0 {
        return refuse("no tokens".into());
    }
    let m = chunk.q_pos.len();
    for (field, got, want) in [
        ("k", chunk.k.len(), tokens * geometry.kv_heads * geometry.key_dim),
        ("v", chunk.v.len(), tokens * geometry.kv_heads * geometry.value_dim),
        ("q", chunk.q.len(), m * geometry.q_heads * geometry.key_dim),
    ] {
        if got != want {
            return refuse(format!("{field} has {got} elements, must have {want}"));
        }
    }
    let Some(end) = chunk.begin.checked_add(tokens as u64) else {
        return refuse("positions do not fit 64 bits".into());
    };
    let ascending = chunk.q_pos.windows(2).all(|pair| pair[0] < pair[1]);
    let inside =
        chunk.q_pos.first().is_none_or(|&p| p >= chunk.begin) && chunk.q_pos.last().is_none_or(|&p| p < end);
    if !ascending || !inside {
        return refuse(format!("q_pos must ascend inside [{}, {end})", chunk.begin));
    }
    if chunk.seal_to.is_some_and(|to| to > end) {
        return refuse(format!("seal_to is beyond its end {end}"));
    }
    // Refused here, or the shards of the other heads would store their part.
    let rows = |dim| [tokens, geometry.kv_heads, dim];
    let numbers = finite::halves("k", &rows(geometry.key_dim), chunk.k)
        .and_then(|()| finite::halves("v", &rows(geometry.value_dim), chunk.v))
        .and_then(|()| finite::halves("q", &[m, geometry.q_heads, geometry.key_dim], chunk.q));
    if let Err(what) = numbers {
        return refuse(what.to_string());
    }
    Ok(tokens)
}
