//! `recollect snapshot save|restore`: the KV of a session out of a pool of shards, and into another.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use client::{Cluster, Config};
use serde::Serialize;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::inspect::mib;
use crate::cli::service::shard_address;
use crate::cli::session_id::{SessionId, parse_session, refused};
use crate::cli::{print, usage};
use crate::progress::Progress;
use crate::snapshot::directory::Snapshot;
use crate::snapshot::manifest::Manifest;
use crate::snapshot::{FORMAT, restore, save};

/// Rows may have to come back from an archive before a shard answers.
const CALL_TIMEOUT: Duration = Duration::from_secs(300);

/// Which way.
#[derive(Args, Debug)]
pub struct SnapshotArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Copy a session from running shards into a new directory
    Save(SaveArgs),
    /// Bring the session of a directory into running shards, under a new id
    Restore(RestoreArgs),
}

#[derive(Args, Debug)]
struct SaveArgs {
    /// The session: 32 hexadecimal digits
    #[arg(value_name = "SESSION", value_parser = parse_session)]
    session: SessionId,
    /// Every shard server that holds some of it (default port: 7420)
    #[arg(long, required = true, value_name = "HOST[:PORT]", value_delimiter = ',', value_parser = shard_address)]
    shard: Vec<String>,
    /// The directory to write, which must not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Seconds to wait for indexes that are being built
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(..=86_400))]
    wait: u64,
    /// One JSON object: the summary
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct RestoreArgs {
    /// The shard servers that are to hold it (default port: 7420)
    #[arg(long, required = true, value_name = "HOST[:PORT]", value_delimiter = ',', value_parser = shard_address)]
    shard: Vec<String>,
    /// A directory that `snapshot save` wrote
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// Seconds that the shards keep it without a sign of life (default: as when it was saved)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    lease: Option<u64>,
    /// Whether its tokens go to the shards' disks before they are acknowledged (default: as when it was saved)
    #[arg(long, value_name = "BOOL")]
    durable: Option<bool>,
    /// One JSON object: the summary
    #[arg(long)]
    json: bool,
}

/// What was saved or restored. Bytes are those of keys and values; `session` is the one on the shards.
#[derive(Serialize)]
struct Summary<'a> {
    record: &'static str,
    verb: &'static str,
    directory: &'a Path,
    format: u32,
    session: String,
    saved_session: String,
    shards: Vec<String>,
    tokens: u64,
    layers: u32,
    kv_heads: u32,
    spans: usize,
    samples: u64,
    kv_bytes: u64,
    lease_ms: u64,
    durable: bool,
}

/// Runs the verb.
pub fn run(args: &SnapshotArgs) -> anyhow::Result<()> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match &args.verb {
        Verb::Save(args) => run_save(&runtime, args),
        Verb::Restore(args) => run_restore(&runtime, args),
    }
}

async fn connect(shards: &[String]) -> Result<Cluster, client::Error> {
    Cluster::connect_with(shards, &Config { call_timeout: CALL_TIMEOUT, ..Config::default() }).await
}

/// What a signal asks for, as a shell tells it: 128 and the signal's number.
async fn stopped() -> std::io::Result<i32> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let kind = tokio::select! {
        _ = interrupt.recv() => SignalKind::interrupt(),
        _ = terminate.recv() => SignalKind::terminate(),
    };
    Ok(128 + kind.as_raw_value())
}

fn run_save(runtime: &Runtime, args: &SaveArgs) -> anyhow::Result<()> {
    let saved = runtime.block_on(async {
        let cluster = connect(&args.shard).await?;
        let wait = Duration::from_secs(args.wait);
        let progress = Progress::new("heads saved", 0);
        // What is dropped takes the unfinished directory with it.
        let saved = tokio::select! {
            saved = save::save(&cluster, &args.session, &args.out, wait, |all| progress.step_of(all)) => Ok(saved),
            code = stopped() => Err(code),
        };
        progress.finish();
        match saved {
            Ok(saved) => saved.map_err(|error| lost(&args.session, error)),
            Err(code) => std::process::exit(code?),
        }
    })?;
    let summary = Summary { verb: "save", ..summary(&args.out, &saved, args.shard.clone()) };
    tell(args.json, &summary, format_args!("session {} saved in {}", summary.session, args.out.display()))
}

/// A session that no shard knows was named wrongly.
fn lost(session: &SessionId, error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<client::Error>() {
        Ok(client::Error::SessionLost { shard, .. }) => {
            usage(format!("session {}: not on shard {shard}", wire::convert::hex(session)))
        }
        Ok(error) => refused(None, error),
        Err(error) => error,
    }
}

fn run_restore(runtime: &Runtime, args: &RestoreArgs) -> anyhow::Result<()> {
    let snapshot = Snapshot::open(&args.from)?;
    let manifest = &snapshot.manifest;
    let files = manifest.heads.len() as u64;
    let progress = Progress::new("files checked", files);
    snapshot.check(|| progress.step())?;
    progress.finish();
    let mut spec = restore::spec(manifest);
    spec.durable = args.durable.unwrap_or(spec.durable);
    spec.lease = args.lease.map_or(spec.lease, Duration::from_secs);
    let (lease, durable) = (spec.lease, spec.durable);
    let (id, shards) = runtime.block_on(async {
        let cluster = connect(&args.shard).await?;
        let progress = Progress::new("heads restored", files);
        let restored = tokio::select! {
            restored = restore::restore(&cluster, &snapshot, spec, || progress.step()) => Ok(restored),
            code = stopped() => Err(code),
        };
        progress.finish();
        match restored {
            Ok(Ok(session)) => {
                let shards = session.shard_names().map(str::to_owned).collect();
                Ok((session.leave(), shards))
            }
            Ok(Err(error)) => {
                cluster.open_sessions().end().await;
                Err(match error.downcast::<client::Error>() {
                    Ok(error) => refused(None, error),
                    Err(error) => error,
                })
            }
            Err(code) => {
                cluster.open_sessions().end().await;
                std::process::exit(code?)
            }
        }
    })?;
    let summary = Summary {
        verb: "restore",
        session: wire::convert::hex(&id),
        lease_ms: u64::try_from(lease.as_millis())?,
        durable,
        ..summary(&args.from, manifest, shards)
    };
    tell(args.json, &summary, format_args!("{} restored as session {}", args.from.display(), summary.session))
}

fn summary<'a>(directory: &'a Path, manifest: &Manifest, shards: Vec<String>) -> Summary<'a> {
    let f = &manifest.fingerprint;
    let row_bytes = u64::from(f.key_dim + f.value_dim) * size_of::<half::f16>() as u64;
    let session = wire::convert::hex(&manifest.session);
    Summary {
        record: "summary",
        verb: "check",
        directory,
        format: FORMAT,
        session: session.clone(),
        saved_session: session,
        shards,
        tokens: manifest.tokens,
        layers: f.layers,
        kv_heads: f.kv_heads,
        spans: manifest.heads.iter().map(|head| head.ends.len()).sum(),
        samples: manifest.heads.iter().map(|head| head.samples).sum(),
        kv_bytes: manifest.tokens * manifest.heads.len() as u64 * row_bytes,
        lease_ms: manifest.lease_ms,
        durable: manifest.durable,
    }
}

/// `recollect inspect DIR`: what a snapshot holds, after a check of every byte.
pub(super) fn inspect(directory: &Path, json: bool) -> anyhow::Result<()> {
    let snapshot = Snapshot::open(directory)?;
    let progress = Progress::new("files checked", snapshot.manifest.heads.len() as u64);
    snapshot.check(|| progress.step())?;
    progress.finish();
    let summary = Summary { record: "snapshot", ..summary(directory, &snapshot.manifest, Vec::new()) };
    let what = format_args!(
        "{}: snapshot of session {}, format {FORMAT}, model {}, every checksum right",
        directory.display(),
        summary.session,
        snapshot.manifest.fingerprint.model
    );
    tell(json, &summary, what)
}

fn tell(json: bool, summary: &Summary<'_>, what: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    if json {
        return print::json(summary);
    }
    print::line(format_args!(
        "{what}: {} tokens of {} layers x {} KV heads, {} MiB of KV, {} spans, {} sampled queries; lease {} s{}{}",
        summary.tokens,
        summary.layers,
        summary.kv_heads,
        mib(summary.kv_bytes),
        summary.spans,
        summary.samples,
        summary.lease_ms / 1000,
        if summary.durable { ", durable" } else { "" },
        if summary.shards.is_empty() {
            String::new()
        } else {
            format!("; shards {}", summary.shards.join(", "))
        }
    ))
}
