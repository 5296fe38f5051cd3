//! `Append`: bulk ingest of one chunk. Everything is checked and paid for before anything is stored.

use crate::builder::Work;
use crate::merger::Merge;
use crate::node::Node;
use crate::session::Session;
use crate::session::head::{Grant, Head, Rows};
use crate::store::StoreError;
use crate::store::log::Log;
use crate::store::log::record::{self, Record};
use half::f16;
use std::ops::Range;
use std::sync::Arc;
use tonic::Status;
use tracing::Instrument;
use wire::tensor::{Dim, read_f16};
use wire::{WireError, names, v1};

/// A chunk that may be stored, positions apart.
struct Chunk {
    layer: usize,
    heads: Range<usize>,
    begin: u64,
    tokens: u64,
    k: Vec<f16>,
    v: Vec<f16>,
    q: Vec<f16>,
    q_pos: Vec<u64>,
    q_window: u64,
    seal_to: Option<u64>,
}

impl Node {
    /// Stores one chunk and answers with what is held. An error means that nothing of the chunk was stored.
    pub async fn append(self: &Arc<Self>, chunk: v1::AppendChunk) -> Result<v1::AppendAck, Status> {
        let span = tracing::debug_span!(names::SPAN_APPEND, layer = chunk.layer, begin = chunk.begin);
        let result = self.append_inner(chunk).instrument(span).await;
        match &result {
            Ok(_) => self.metrics.chunks_ok.increment(1),
            Err(_) => self.metrics.chunks_error.increment(1),
        }
        result
    }

    async fn append_inner(self: &Arc<Self>, chunk: v1::AppendChunk) -> Result<v1::AppendAck, Status> {
        let session = self.session(&chunk.session, "session")?;
        session.lease.renew(None);
        let permit = self.pool.enter().await?;
        let (node, held) = (self.clone(), session.clone());
        let ack = self
            .pool
            .run(permit, move || {
                let checked = Chunk::read(&held, chunk)?;
                node.store(&held, &checked)
            })
            .await??;
        // The acknowledgement of a durable session waits for the disk, beside the threads that attend.
        match session.log() {
            None => Ok(ack),
            Some(log) => Ok(v1::AppendAck { watermark: self.settled(&session, log).await?, ..ack }),
        }
    }

    /// Brings everything that a durable session was given to disk; returns the tokens that are there in all heads.
    pub(crate) async fn settled(&self, session: &Session, log: &Arc<Log>) -> Result<u64, Status> {
        let (_, cuts) = log.durable();
        // Rows are logged before they are counted.
        let seen = session.watermark();
        log.sync(log.last()).await.map_err(StoreError::from)?;
        log.raise(seen, cuts);
        Ok(log.durable().0)
    }

    /// Writes rows to the log of a durable session, for which alone they are asked: the last thing that can fail before they
    /// are stored.
    pub(crate) fn log<'r>(
        &self,
        session: &Session,
        rows: impl FnOnce() -> record::Rows<'r>,
    ) -> Result<(), Status> {
        if let (Some(store), Some(log)) = (&self.store, session.log()) {
            store.append(log, &Record::Rows(rows()))?;
        }
        Ok(())
    }

    fn store(&self, session: &Arc<Session>, chunk: &Chunk) -> Result<v1::AppendAck, Status> {
        let g = &session.terms.geometry;
        let heads = session.heads_of(chunk.layer, chunk.heads.clone())?;
        let ingest = session.ingest(chunk.layer);
        chunk.fits(&heads)?;
        let grants = heads
            .iter()
            .map(|h| h.grant(g, &session.purse, chunk.tokens, chunk.q_pos.len(), chunk.seal_to))
            .collect::<Result<Vec<Grant>, _>>()
            .map_err(|s| self.short("one head of the chunk", s))?;
        self.log(session, || chunk.record())?;
        let end = chunk.begin + chunk.tokens;
        for ((slot, kv_head), (head, grant)) in chunk.heads.clone().enumerate().zip(heads.iter().zip(grants))
        {
            let rows = Rows {
                k: &chunk.k,
                v: &chunk.v,
                q: &chunk.q,
                q_pos: &chunk.q_pos,
                q_window: chunk.q_window,
                heads: heads.len(),
                slot,
                seal_to: chunk.seal_to,
            };
            self.push(session, (chunk.layer, kv_head), head, rows, grant);
        }
        drop(ingest);
        self.metrics.appended.increment(chunk.tokens * heads.len() as u64);
        Ok(v1::AppendAck {
            session: session.id.to_vec(),
            layer: chunk.layer as u32,
            layer_end: end,
            watermark: session.watermark(),
            error: None,
        })
    }

    /// Stores rows of one head, counts a seal and queues what follows from it.
    pub(crate) fn push(
        &self,
        session: &Arc<Session>,
        (layer, kv_head): (usize, usize),
        head: &Head,
        rows: Rows<'_>,
        grant: Grant,
    ) {
        let pushed = head.push(&session.terms.geometry, rows, grant, self.sealing(session));
        let at = (layer, kv_head);
        if pushed.sealed {
            self.metrics.sealed.increment(1);
            self.keep(session, at);
        }
        if let Some(span) = pushed.wants_index {
            self.queue_index(session, at, &span);
        }
        if let Some(version) = pushed.wants_merge {
            self.queue(session, at, Work::Merge(Merge { session: Arc::downgrade(session), version }));
        }
    }
}

impl Chunk {
    fn read(session: &Session, c: v1::AppendChunk) -> Result<Self, Status> {
        let g = &session.terms.geometry;
        let heads = c.k.as_ref().and_then(|k| k.shape.get(1)).copied().unwrap_or(0);
        let heads = usize::try_from(heads).unwrap_or(usize::MAX);
        let dims = [Dim::Any("tokens"), Dim::Any("heads"), Dim::Is(g.key_dim)];
        let (k, shape) = read_f16(c.k.as_ref(), "k", &dims)?;
        let (layer, range) = g.heads("", c.layer, c.kv_head_begin, heads)?;
        let tokens = shape[0];
        let dims = [Dim::Is(tokens), Dim::Is(heads), Dim::Is(g.value_dim)];
        let (v, _) = read_f16(c.v.as_ref(), "v", &dims)?;
        let m = c.q_pos.len();
        let q = match &c.q {
            None if m == 0 => Vec::new(),
            q => {
                let dims = [Dim::Is(m), Dim::Is(heads * g.group), Dim::Is(g.key_dim)];
                read_f16(q.as_ref(), "q", &dims)?.0
            }
        };
        let end = c
            .begin
            .checked_add(tokens as u64)
            .ok_or_else(|| WireError::range("begin", c.begin, "a position that leaves room for the chunk"))?;
        if let Some(i) = c.q_pos.windows(2).position(|w| w[0] >= w[1]) {
            return Err(WireError::range(
                &format!("q_pos[{}]", i + 1),
                c.q_pos[i + 1],
                format!("above the one before it, {}", c.q_pos[i]),
            )
            .into());
        }
        if let Some(&last) = c.q_pos.last().filter(|&&p| p >= end) {
            return Err(WireError::range("q_pos", last, format!("below the chunk's end, {end}")).into());
        }
        Ok(Self {
            layer,
            heads: range,
            begin: c.begin,
            tokens: tokens as u64,
            k,
            v,
            q,
            q_pos: c.q_pos,
            q_window: c.q_window,
            seal_to: c.seal_to,
        })
    }

    /// As the log takes it.
    fn record(&self) -> record::Rows<'_> {
        record::Rows {
            layer: self.layer,
            kv_head: self.heads.start,
            begin: self.begin,
            tokens: self.tokens,
            seals: vec![self.seal_to.unwrap_or(0); self.heads.len()],
            k: &self.k,
            v: &self.v,
            q: &self.q,
            q_pos: self.q_pos.clone(),
            q_window: self.q_window,
        }
    }

    /// What depends on what is held; the caller holds the layer.
    fn fits(&self, heads: &[&Head]) -> Result<(), Status> {
        let end = self.begin + self.tokens;
        for (head, number) in heads.iter().zip(self.heads.clone()) {
            let held = head.len();
            if held != self.begin {
                return Err(Status::out_of_range(format!(
                    "begin is {}, but layer {}, KV head {number} holds {held} tokens",
                    self.begin, self.layer
                )));
            }
            let state = head.read();
            if let Some(to) = self.seal_to
                && !(state.fresh_begin()..=end).contains(&to)
            {
                return Err(Status::out_of_range(format!(
                    "seal_to is {to}, but fresh tokens are {}..{end} in layer {}, KV head {number}",
                    state.fresh_begin(),
                    self.layer
                )));
            }
            if let (Some(last), Some(&first)) = (state.last_sample(), self.q_pos.first())
                && first <= last
            {
                return Err(Status::invalid_argument(format!(
                    "q_pos[0] is {first}, but a sample at {last} is already held"
                )));
            }
        }
        Ok(())
    }
}
