//! Who can be asked: a worker over its shards, and the baselines in this process.

use candle_core::Tensor;

use super::Asker;
use crate::baseline::FullCache;
use crate::forward::forward;
use crate::model::Llama;
use crate::sequence::{Checkpoint, Sequence, StepReport};

/// A worker's window and its shards.
pub struct OverShards<'a, 'm> {
    sequence: &'a mut Sequence<'m>,
    start: &'a Checkpoint,
    /// Time and work of single-token steps only.
    pub steps: Vec<StepReport>,
}

impl<'a, 'm> OverShards<'a, 'm> {
    /// Over a sequence that stands at `start`, the end of the document.
    pub fn new(sequence: &'a mut Sequence<'m>, start: &'a Checkpoint) -> Self {
        Self { sequence, start, steps: Vec::new() }
    }
}

impl Asker for OverShards<'_, '_> {
    fn extend(&mut self, ids: &[u32]) -> anyhow::Result<Tensor> {
        let logits = self.sequence.extend(ids)?;
        let report = self.sequence.take_report();
        if ids.len() == 1 {
            self.steps.push(report);
        }
        Ok(logits)
    }

    fn rewind(&mut self) -> anyhow::Result<()> {
        self.sequence.rewind(self.start)
    }
}

/// A baseline that holds all KV.
pub struct InProcess<'a> {
    model: &'a Llama,
    cache: &'a mut FullCache,
    document: usize,
    tokens: usize,
}

impl<'a> InProcess<'a> {
    /// Over a cache that holds a document of `document` tokens.
    pub fn new(model: &'a Llama, cache: &'a mut FullCache, document: usize) -> Self {
        Self { model, cache, document, tokens: document }
    }
}

impl Asker for InProcess<'_> {
    fn extend(&mut self, ids: &[u32]) -> anyhow::Result<Tensor> {
        let (hidden, _) = forward(self.model, ids, self.tokens as u64, self.cache)?;
        self.tokens += ids.len();
        Ok(self.model.head(&hidden)?)
    }

    fn rewind(&mut self) -> anyhow::Result<()> {
        self.cache.truncate(self.document);
        self.tokens = self.document;
        Ok(())
    }
}
