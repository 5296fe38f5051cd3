//! From shards into a directory. What is held at once is a few blocks of a few heads, however long the session is.

use super::directory::Draft;
use super::error::FormatError;
use super::head_file::{Shape, Writer};
use super::manifest::{Head, Manifest};
use anyhow::{Context, anyhow, ensure};
use client::{Cluster, HeldSession};
use futures::stream::{self, StreamExt, TryStreamExt};
use half::f16;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::Duration;

/// Heads that are on their way at the same time.
pub(super) const HEADS_AT_ONCE: usize = 4;

/// Takes a copy of a session as far as all its heads hold it now. The indexes that are being built are waited for, up to
/// `wait` each time one stands in the way. `progress` is called after each
/// head, with the number of all.
///
/// Errors: the session is on none of the shards or not whole ([`client::Error`]), was truncated meanwhile, `out` exists or cannot be
/// written. After an error nothing is left of it.
pub async fn save(
    cluster: &Cluster,
    session: &[u8; wire::ID_BYTES],
    out: &Path,
    wait: Duration,
    progress: impl Fn(u64),
) -> anyhow::Result<Manifest> {
    let draft = Draft::create(out)?;
    // Merges change where spans end.
    cluster.held(session).await?.wait_ready(wait).await?;
    let held = cluster.held(session).await?;
    ensure!(
        held.tokens() > 0,
        "session {}: no token is in all of its heads yet",
        wire::convert::hex(session)
    );
    let f = held.fingerprint().clone();
    let each = (0..f.layers).flat_map(|layer| (0..f.kv_heads).map(move |kv_head| (layer, kv_head)));
    let heads = stream::iter(each).map(|at| {
        let (draft, held, progress) = (&draft, &held, &progress);
        async move {
            let path = draft.path(&Manifest::file_name(at.0, at.1));
            let head = save_head(held, at, &path, wait).await?;
            progress(u64::from(held.fingerprint().layers) * u64::from(held.fingerprint().kv_heads));
            Ok::<Head, anyhow::Error>(head)
        }
    });
    let heads: Vec<Head> = heads.buffered(HEADS_AT_ONCE).try_collect().await?;
    held.unchanged(cluster).await?;
    let terms = held.terms();
    let manifest = Manifest {
        session: *session,
        tokens: held.tokens(),
        index: terms.index(),
        deterministic: terms.deterministic,
        durable: held.durable(),
        seed: terms.seed,
        lease_ms: terms.lease_ms,
        fingerprint: f,
        heads,
    };
    draft.publish(&manifest)?;
    Ok(manifest)
}

async fn save_head(
    held: &HeldSession,
    (layer, kv_head): (u32, u32),
    path: &Path,
    wait: Duration,
) -> anyhow::Result<Head> {
    let f = held.fingerprint();
    let tokens = held.tokens();
    let (group, key_dim, value_dim) = (f.q_heads / f.kv_heads, f.key_dim, f.value_dim);
    let shape = Shape { layer, kv_head, group, key_dim, value_dim, tokens, samples: 0 };
    let named = |e: FormatError| anyhow!("{}: {e}", path.display());
    let file = File::create(path).map_err(|e| named(e.into()))?;
    let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, file)).map_err(named)?;
    let step = shape.tokens_per_block();
    let per_read = held.tokens_per_read().min(step);
    let mut begin = 0;
    while begin < tokens {
        let end = tokens.min(begin + step);
        let (mut k, mut v) = (Vec::new(), Vec::new());
        // A shard's message limit may be below a block.
        let mut at = begin;
        while at < end {
            let to = end.min(at + per_read);
            let (more_k, more_v) = held.rows((layer, kv_head), at..to).await?;
            k.extend(more_k);
            v.extend(more_v);
            at = to;
        }
        writer.rows(&k, &v).map_err(named)?;
        held.renew().await?;
        begin = end;
    }
    let samples = save_samples(held, &shape, wait, (&mut writer, path)).await?;
    let shape = Shape { samples, ..shape };
    let (out, root) = writer.finish(&shape).map_err(named)?;
    let file = out.into_inner().map_err(|e| named(e.into_error().into()))?;
    file.sync_all().with_context(|| path.display().to_string())?;
    Ok(Head { root, samples, ends: held.span_ends(layer, kv_head) })
}

/// Pages of samples in blocks; returns how many there are.
async fn save_samples(
    held: &HeldSession,
    shape: &Shape,
    wait: Duration,
    (writer, path): (&mut Writer<BufWriter<File>>, &Path),
) -> anyhow::Result<u64> {
    let per_block = usize::try_from(shape.samples_per_block())?;
    let (mut pos, mut seen, mut q): (Vec<u64>, Vec<u64>, Vec<f16>) = Default::default();
    let (mut samples, mut from) = (0, Some(0));
    while let Some(begin) = from {
        let page = held.samples((shape.layer, shape.kv_head), begin..shape.tokens, wait).await?;
        samples += page.pos.len() as u64;
        pos.extend(page.pos);
        seen.extend(page.seen);
        q.extend(page.q);
        from = page.next;
        while pos.len() >= per_block || (from.is_none() && !pos.is_empty()) {
            let n = pos.len().min(per_block);
            writer
                .samples(&pos[..n], &seen[..n], &q[..n * shape.query()])
                .map_err(|e| anyhow!("{}: {e}", path.display()))?;
            pos.drain(..n);
            seen.drain(..n);
            q.drain(..n * shape.query());
        }
        held.renew().await?;
    }
    Ok(samples)
}
