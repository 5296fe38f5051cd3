//! Rows and queries of a single head, for who brings a session in head by head rather than layer by layer.

use crate::append::send;
use crate::session::Holder;
use crate::{Error, Session, finite};
use half::f16;
use std::ops::Range;
use wire::tensor;
use wire::v1;

/// Consecutive tokens of one head, row-major.
#[derive(Debug, Clone, Copy)]
pub struct HeadChunk<'a> {
    /// Layer.
    pub layer: u32,
    /// KV head.
    pub kv_head: u32,
    /// Position of the first token; must equal the length held of this head.
    pub begin: u64,
    /// `[tokens, key_dim]`.
    pub k: &'a [f16],
    /// `[tokens, value_dim]`.
    pub v: &'a [f16],
    /// `[m, group, key_dim]`: sampled queries of these tokens; may be empty.
    pub q: &'a [f16],
    /// `[m]`, strictly ascending, each inside the chunk.
    pub q_pos: &'a [u64],
    /// Last tokens, the query's own included, that no index need serve.
    pub q_window: u64,
    /// After this chunk, make all fresh tokens below this position a span.
    pub seal_to: Option<u64>,
}

impl Session {
    /// Stores the chunk on the shard that holds the head; returns when all of it is acknowledged.
    ///
    /// Errors: [`Error::Input`] before anything is sent; otherwise the shard's refusal, after which a part may be stored.
    pub async fn append_head(&self, chunk: HeadChunk<'_>) -> Result<(), Error> {
        let (group, kd, vd) =
            (self.inner.geometry.group(), self.inner.geometry.key_dim, self.inner.geometry.value_dim);
        let holder = self.holder(&chunk)?;
        let tokens = chunk.k.len() / kd;
        check(&chunk, tokens, (group, kd, vd))?;
        let token_bytes = 2 * (kd + vd + group * kd) as u64 + 20;
        let piece = |tokens: Range<usize>, last| self.head_piece(&chunk, tokens, last);
        send(holder, (chunk.begin, tokens, token_bytes), piece).await
    }

    fn holder(&self, chunk: &HeadChunk<'_>) -> Result<&Holder, Error> {
        let runs = self.inner.plan.get(chunk.layer as usize).map_or(&[][..], Vec::as_slice);
        let run = runs.iter().find(|run| run.kv_heads.contains(&chunk.kv_head));
        run.and_then(|run| self.inner.holders.get(run.holder)).ok_or_else(|| {
            Error::Input(format!("the session has no layer {}, KV head {}", chunk.layer, chunk.kv_head))
        })
    }

    fn head_piece(&self, chunk: &HeadChunk<'_>, piece: Range<usize>, last: bool) -> v1::AppendChunk {
        let (group, kd, vd) =
            (self.inner.geometry.group(), self.inner.geometry.key_dim, self.inner.geometry.value_dim);
        let (begin, end) = (chunk.begin + piece.start as u64, chunk.begin + piece.end as u64);
        let from = chunk.q_pos.partition_point(|&p| p < begin);
        let to = chunk.q_pos.partition_point(|&p| p < end);
        let n = piece.len();
        let q = &chunk.q[from * group * kd..to * group * kd];
        v1::AppendChunk {
            session: self.inner.id.clone(),
            layer: chunk.layer,
            kv_head_begin: chunk.kv_head,
            begin,
            k: Some(tensor::from_f16(&[n, 1, kd], &chunk.k[piece.start * kd..piece.end * kd])),
            v: Some(tensor::from_f16(&[n, 1, vd], &chunk.v[piece.start * vd..piece.end * vd])),
            q: (from < to).then(|| tensor::from_f16(&[to - from, group, kd], q)),
            q_pos: chunk.q_pos[from..to].to_vec(),
            q_window: chunk.q_window,
            seal_to: chunk.seal_to.filter(|_| last),
        }
    }
}

/// Lengths, positions and numbers, before anything is sent.
fn check(chunk: &HeadChunk<'_>, tokens: usize, (group, kd, vd): (usize, usize, usize)) -> Result<(), Error> {
    let at = format!("chunk at {} of layer {}, KV head {}", chunk.begin, chunk.layer, chunk.kv_head);
    let refuse = |what: String| Err(Error::Input(format!("{at}: {what}")));
    let m = chunk.q_pos.len();
    for (field, got, want) in [
        ("k", chunk.k.len(), tokens * kd),
        ("v", chunk.v.len(), tokens * vd),
        ("q", chunk.q.len(), m * group * kd),
    ] {
        if got != want || tokens == 0 {
            return refuse(format!("{field} has {got} elements, must have {want}, of at least one token"));
        }
    }
    let Some(end) = chunk.begin.checked_add(tokens as u64) else {
        return refuse("positions do not fit 64 bits".into());
    };
    let inside = chunk.q_pos.iter().all(|p| (chunk.begin..end).contains(p));
    if !inside || !chunk.q_pos.windows(2).all(|pair| pair[0] < pair[1]) {
        return refuse(format!("q_pos must ascend inside [{}, {end})", chunk.begin));
    }
    let numbers = finite::halves("k", &[tokens, kd], chunk.k)
        .and_then(|()| finite::halves("v", &[tokens, vd], chunk.v))
        .and_then(|()| finite::halves("q", &[m, group, kd], chunk.q));
    numbers.or_else(|what| refuse(what.to_string()))
}
