//! One sequence of the main job: a prompt that was prefilled into shards, and the tokens decoded after it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use attention::Description;
use candle_core::Tensor;
use client::{Cluster, Session, SessionSpec};
use tokio::runtime::Handle;
use wire::v1;

use crate::decode::{Decode, DecodeStats, Spending};
use crate::forward::{LayerAttention, LayerBlock, forward};
use crate::model::Llama;
use crate::prefill::Prefill;
use crate::window::{WindowCache, WindowSpec};

/// How long a caller waits for indexes: a million tokens on two cores, with room.
const INDEX_TIMEOUT: Duration = Duration::from_secs(3600);

/// How a sequence is served.
#[derive(Clone, Debug)]
pub struct SequenceSpec {
    /// What the worker attends to itself.
    pub window: WindowSpec,
    /// What a step may spend.
    pub spending: Spending,
    /// Index that the shards build.
    pub index: v1::IndexKind,
    /// Seed of sampling and of index builds.
    pub seed: u64,
    /// The same bits run after run: answers wait for indexes.
    pub deterministic: bool,
    /// Tokens that decode may add; memory for them is reserved at the start.
    pub max_new: u64,
}

/// Time and work of the steps since the last look.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepReport {
    /// Outside attention: projections, MLP, head.
    pub model: Duration,
    /// Attention of worker and shards.
    pub attention: DecodeStats,
    /// Tokens processed.
    pub tokens: u64,
}

/// A position to which a sequence can return.
pub struct Checkpoint {
    tokens: u64,
    window: WindowCache,
}

/// A prefilled prompt and what was decoded after it.
pub struct Sequence<'m> {
    model: &'m Llama,
    runtime: Handle,
    session: Arc<Session>,
    decode: Decode,
    tokens: u64,
    /// Most bytes of K and V that prefill held beside the window.
    pub prefill_kv_bytes: usize,
    report: StepReport,
}

impl<'m> Sequence<'m> {
    /// Opens a session on the cluster and prefills `prompt`. Returns the sequence and the logits `[1, vocab]` after
    /// the prompt's last token. `on_layer` sees each layer's block before it is attended to.
    pub fn start(
        model: &'m Llama,
        (runtime, cluster): (Handle, &Cluster),
        prompt: &[u32],
        spec: &SequenceSpec,
        mut on_layer: impl FnMut(&LayerBlock),
    ) -> anyhow::Result<(Self, Tensor)> {
        anyhow::ensure!(!prompt.is_empty(), "prompt: is empty; at least 1 token is needed");
        let shape = model.shape();
        let description = Description { scale: model.scale(), softcap: None };
        let session = runtime.block_on(cluster.open(SessionSpec {
            index: spec.index,
            seed: spec.seed,
            deterministic: spec.deterministic,
            ..SessionSpec::new(model.fingerprint(), (prompt.len() as u64).saturating_add(spec.max_new))
        }))?;
        let session = Arc::new(session);
        let window = WindowCache::new(spec.window, shape);
        let prefill = Prefill::new(
            session.clone(),
            runtime.clone(),
            shape,
            description,
            window,
            (prompt.len(), spec.seed),
        );
        let mut watched = Watched { inner: prefill, on_layer: &mut on_layer };
        let (hidden, _) = forward(model, prompt, 0, &mut watched)?;
        let (window, committed, prefill_kv_bytes) = watched.inner.finish()?;
        anyhow::ensure!(
            committed == prompt.len() as u64,
            "the shards committed {committed} of {} prompt tokens",
            prompt.len()
        );
        let logits = model.head(&hidden.narrow(0, prompt.len() - 1, 1)?)?;
        let decode = Decode::new(
            session.clone(),
            runtime.clone(),
            (shape, description),
            window,
            committed,
            spec.spending,
        );
        let tokens = prompt.len() as u64;
        let report = StepReport::default();
        let sequence = Self { model, runtime, session, decode, tokens, prefill_kv_bytes, report };
        if spec.deterministic {
            // Answers would wait anyway, but each inside its own deadline.
            sequence.wait_ready()?;
        }
        Ok((sequence, logits))
    }

    /// Tokens so far.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The session on the shards.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Changes what later steps may spend.
    pub fn set_spending(&mut self, spending: Spending) {
        self.decode.set_spending(spending);
    }

    /// KV held by the worker: tokens, bytes.
    pub fn worker_kv(&self) -> (u64, u64) {
        self.decode.window().held()
    }

    /// Waits until the shards have built every index.
    pub fn wait_ready(&self) -> anyhow::Result<()> {
        let readiness = self.runtime.block_on(self.session.wait_ready(INDEX_TIMEOUT))?;
        anyhow::ensure!(
            readiness.is_ready(),
            "{} of {} indexes were ready within {} s",
            readiness.ready,
            readiness.spans,
            INDEX_TIMEOUT.as_secs()
        );
        Ok(())
    }

    /// Decodes `ids` after what is there, in blocks of at most one append chunk. Returns logits `[n, vocab]`.
    pub fn extend(&mut self, ids: &[u32]) -> anyhow::Result<Tensor> {
        anyhow::ensure!(!ids.is_empty(), "no token to decode");
        let chunk = self.decode.window().spec().chunk as usize;
        let mut logits = Vec::new();
        for block in ids.chunks(chunk) {
            let (hidden, in_model) = forward(self.model, block, self.tokens, &mut self.decode)?;
            let clock = std::time::Instant::now();
            logits.push(self.model.head(&hidden)?);
            self.report.model += in_model + clock.elapsed();
            self.tokens += block.len() as u64;
            self.report.tokens += block.len() as u64;
        }
        Ok(Tensor::cat(&logits, 0)?)
    }

    /// Time and work since the last call.
    pub fn take_report(&mut self) -> StepReport {
        let mut report = std::mem::take(&mut self.report);
        report.attention = self.decode.take_stats();
        report
    }

    /// Remembers this position.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint { tokens: self.tokens, window: self.decode.window().clone() }
    }

    /// Drops every token after the checkpoint, on the shards too.
    pub fn rewind(&mut self, to: &Checkpoint) -> anyhow::Result<()> {
        let committed = self.runtime.block_on(self.session.truncate(to.tokens)).context("rewinding")?;
        anyhow::ensure!(
            committed == to.tokens,
            "the shards hold {committed} tokens after a truncation to {}",
            to.tokens
        );
        self.decode.rewind(to.window.clone(), committed);
        self.tokens = to.tokens;
        Ok(())
    }

    /// Ends the session on every shard.
    pub fn close(self) -> anyhow::Result<()> {
        let Self { runtime, session, decode, .. } = self;
        drop(decode);
        let session = Arc::try_unwrap(session).map_err(|_| anyhow::anyhow!("the session is still in use"))?;
        runtime.block_on(session.close())?;
        Ok(())
    }
}

/// Shows every block to an observer on its way: progress bars, baselines that want the same KV.
struct Watched<'a, A> {
    inner: A,
    on_layer: &'a mut dyn FnMut(&LayerBlock),
}

impl<A: LayerAttention> LayerAttention for Watched<'_, A> {
    fn attend(&mut self, block: LayerBlock) -> anyhow::Result<Vec<f32>> {
        (self.on_layer)(&block);
        self.inner.attend(block)
    }
}
