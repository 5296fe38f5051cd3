//! From a directory into shards, as a session of its own. What is held at once is a few blocks of a few heads.

use super::directory::Snapshot;
use super::error::FormatError;
use super::head_file::{Reader, SampleBlock, Shape};
use super::manifest::{Head, Manifest};
use super::plan::{Step, pieces, steps};
use super::save::HEADS_AT_ONCE;
use anyhow::{anyhow, ensure};
use client::{Cluster, HeadChunk, Session, SessionSpec};
use futures::stream::{self, StreamExt, TryStreamExt};
use std::fs::File;
use std::ops::Range;
use std::path::Path;

/// What a session is opened with to hold a snapshot.
pub fn spec(manifest: &Manifest) -> SessionSpec {
    SessionSpec {
        lease: std::time::Duration::from_millis(manifest.lease_ms),
        index: manifest.index,
        seed: manifest.seed,
        durable: manifest.durable,
        deterministic: manifest.deterministic,
        ..SessionSpec::new(manifest.fingerprint.clone(), manifest.tokens)
    }
}

/// Opens a session and brings everything of the snapshot into it; its files were checked, and every block is checked again.
/// `done` is called after each head. After an error the session ends when it is dropped.
pub async fn restore(
    cluster: &Cluster,
    snapshot: &Snapshot,
    spec: SessionSpec,
    done: impl Fn(),
) -> anyhow::Result<Session> {
    let session = cluster.open(spec).await?;
    let heads = stream::iter(snapshot.manifest.each()).map(|(layer, kv_head, head)| {
        let (session, done, manifest) = (&session, &done, &snapshot.manifest);
        async move {
            let path = snapshot.path(layer, kv_head);
            let shape = manifest.shape(layer, kv_head, head);
            restore_head(session, &shape, head, &path).await?;
            done();
            Ok::<(), anyhow::Error>(())
        }
    });
    heads.buffer_unordered(HEADS_AT_ONCE).try_collect::<()>().await?;
    let (held, tokens) = (session.watermark(), snapshot.manifest.tokens);
    ensure!(held == tokens, "the shards hold {held} tokens of {tokens}");
    // Whoever goes on with it has all of the lease for that.
    session.renew().await?;
    Ok(session)
}

async fn restore_head(session: &Session, shape: &Shape, head: &Head, path: &Path) -> anyhow::Result<()> {
    let named = |e: FormatError| anyhow!("{}: {e}", path.display());
    let open = || File::open(path).map(|file| Reader::new(file, *shape)).map_err(|e| named(e.into()));
    let mut rows = open()?;
    let mut samples = Samples { reader: open()?, next: 0, block: SampleBlock::default(), used: 0 };
    let step = shape.tokens_per_block();
    let (kd, vd, width) = (shape.key_dim as usize, shape.value_dim as usize, shape.query());
    let mut block = None;
    let mut loaded = 0..0;
    for Step { begin, end, seal_to } in steps(&head.ends, shape.tokens) {
        let mut at = begin;
        while at < end {
            if !loaded.contains(&at) {
                let i = at / step;
                block = rows.rows(i).map_err(named)?;
                loaded = i * step..shape.tokens.min((i + 1) * step);
            }
            let (k, v) = block.as_ref().ok_or_else(|| anyhow!("{}: ends too early", path.display()))?;
            let part = at..end.min(loaded.end);
            let of = samples.below(part.clone(), width).map_err(named)?;
            for piece in pieces(part.clone(), &of.pos, &of.seen) {
                let (from, to) = (
                    (piece.tokens.start - loaded.start) as usize,
                    (piece.tokens.end - loaded.start) as usize,
                );
                let chunk = HeadChunk {
                    layer: shape.layer,
                    kv_head: shape.kv_head,
                    begin: piece.tokens.start,
                    k: &k[from * kd..to * kd],
                    v: &v[from * vd..to * vd],
                    q: &of.q[piece.samples.start * width..piece.samples.end * width],
                    q_pos: &of.pos[piece.samples.clone()],
                    q_window: piece.window,
                    seal_to: seal_to.filter(|_| piece.tokens.end == end),
                };
                session.append_head(chunk).await?;
            }
            at = part.end;
        }
    }
    Ok(())
}

/// The samples of a file in order, a block at a time.
struct Samples {
    reader: Reader<File>,
    next: u64,
    block: SampleBlock,
    used: usize,
}

impl Samples {
    /// Those in `range`, which goes on where the one before it ended.
    fn below(&mut self, range: Range<u64>, width: usize) -> Result<SampleBlock, FormatError> {
        let mut taken = SampleBlock::default();
        loop {
            let left = &self.block.pos[self.used..];
            let n = left.partition_point(|&pos| pos < range.end);
            let (from, to) = (self.used, self.used + n);
            wire::samples::check(&left[..n], &self.block.seen[from..to], &range)?;
            taken.pos.extend_from_slice(&left[..n]);
            taken.seen.extend_from_slice(&self.block.seen[from..to]);
            taken.q.extend_from_slice(&self.block.q[from * width..to * width]);
            self.used = to;
            if self.used < self.block.pos.len() {
                return Ok(taken);
            }
            match self.reader.samples(self.next)? {
                None => return Ok(taken),
                Some(block) => self.block = block,
            }
            (self.used, self.next) = (0, self.next + 1);
        }
    }
}
