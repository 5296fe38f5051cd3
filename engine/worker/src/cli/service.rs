//! Flags that say which shards serve and how; shared by every verb that runs the main job.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use attention::Description;
use clap::{Args, ValueEnum};
use client::{Cluster, OpenSessions, Session, Shard};
use kvstore::{Cooling, NodeConfig};
use tempfile::TempDir;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use wire::v1;

use crate::baseline::FullCache;
use crate::decode::Spending;
use crate::embedded::EmbeddedShard;
use crate::inventory::Inventory;
use crate::model::Llama;
use crate::progress::Progress;
use crate::sequence::{Checkpoint, Sequence, SequenceSpec};
use crate::window::WindowSpec;

/// Index kinds by the names that `--index` takes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Index {
    /// The cheapest kind that meets the recall target, for each head.
    Auto,
    /// Exact scan of every key.
    Flat,
    /// Scan of the best groups of a coarse summary.
    Summary,
    /// Attention-aware graph.
    Graph,
    /// hnsw over keys: the conventional baseline.
    Hnsw,
}

/// How long the handler of a signal may take.
const SIGNAL_PATIENCE: Duration = Duration::from_secs(10);

/// Most tokens of a sink or a window: the longest context that the worker could hold itself.
pub(crate) const MOST_LOCAL: u64 = 1 << 20;

/// Shards, and how a sequence lies on them.
#[derive(Args, Clone, Debug)]
pub struct ServiceArgs {
    /// Shard servers, host or host:port each (default port: 7420); without it shards run inside this process
    #[arg(long, value_name = "HOST[:PORT]", value_delimiter = ',', value_parser = shard_address)]
    pub shards: Vec<String>,
    /// In-process shards when no --shards are given
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64), conflicts_with = "shards")]
    pub embedded: u16,
    /// Memory budget of each in-process shard
    #[arg(long, default_value = "4GiB", value_name = "SIZE", value_parser = kvstore::config::parse_memory)]
    pub memory: u64,
    /// Threads for the model and for in-process shards (default: all cores)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// First tokens that the worker keeps
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(..=MOST_LOCAL))]
    pub sink: u64,
    /// Last tokens that the worker keeps
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=MOST_LOCAL))]
    pub window: u64,
    /// Index that the shards build
    #[arg(long, value_enum, default_value = "auto")]
    pub index: Index,
    /// Seed of sampling and of index builds
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// The same bits run after run: every answer waits for the indexes
    #[arg(long)]
    pub deterministic: bool,
}

/// The canonical form of a shard's address, refused before a model is loaded.
pub(super) fn shard_address(text: &str) -> Result<String, client::Error> {
    Cluster::address(text).map(|address| address.to_string())
}

/// A connected cluster and the runtime that carries its traffic.
pub struct Service {
    runtime: Runtime,
    /// The shards.
    pub cluster: Cluster,
    /// Their names, for people.
    pub names: Vec<String>,
    /// Where shards of this process store what has to leave RAM; removed with it.
    _storage: Option<TempDir>,
}

/// What shards hold for one session.
#[derive(Default)]
pub struct Held {
    /// Bytes of keys and values.
    pub kv_bytes: u64,
    /// Bytes of indexes.
    pub index_bytes: u64,
    /// Spans by kind, and how well they find.
    pub inventory: Inventory,
}

impl Service {
    /// Prefills `prompt` on the shards, beside the baseline that holds all of it here, and waits for the indexes. `doing`
    /// is what the progress says.
    pub fn start<'m>(
        &self,
        model: &'m Llama,
        prompt: &[u32],
        spec: &SequenceSpec,
        doing: &str,
    ) -> anyhow::Result<(Sequence<'m>, Checkpoint, FullCache)> {
        let shape = model.shape();
        let description = Description { scale: model.scale(), softcap: None };
        let mut cache = FullCache::new(shape, description, spec.window);
        let progress = Progress::new(doing, shape.layers as u64);
        let (sequence, _) = Sequence::start(model, (self.handle(), &self.cluster), prompt, spec, |block| {
            cache.push(block);
            progress.step();
        })?;
        progress.finish();
        sequence.wait_ready()?;
        let start = sequence.checkpoint();
        Ok((sequence, start, cache))
    }

    /// The runtime's handle.
    pub fn handle(&self) -> Handle {
        self.runtime.handle().clone()
    }

    /// Brings the spans of a session that have an index into a tier, and checks that they are there.
    pub fn bring(&self, session: &Session, (tier, percent): (v1::Tier, u32)) -> anyhow::Result<()> {
        self.runtime.block_on(self.cluster.evict(Some(session.id()), tier, percent))?;
        anyhow::ensure!(
            self.lies_in(session, tier)?,
            "no span is long enough for an index: only such go to a tier"
        );
        Ok(())
    }

    /// Whether all spans of a session that have an index are in a tier, and there are some.
    pub fn lies_in(&self, session: &Session, tier: v1::Tier) -> anyhow::Result<bool> {
        let shards = self.runtime.block_on(session.inspect())?;
        let sessions = shards.iter().flat_map(|shard| &shard.sessions);
        let mut spans = sessions.flat_map(|s| &s.spans).filter(|s| s.recall_target.is_some()).peekable();
        Ok(spans.peek().is_some() && spans.all(|s| s.tier() == tier))
    }

    /// Brings the rows of a session back into RAM.
    pub fn promote(&self, session: &Session) -> anyhow::Result<()> {
        self.runtime.block_on(self.cluster.promote(session.id()))?;
        Ok(())
    }

    /// What the shards hold for a session.
    pub fn held(&self, session: &Session) -> anyhow::Result<Held> {
        let shards = self.runtime.block_on(session.inspect())?;
        let mut held = Held::default();
        for part in shards.iter().flat_map(|shard| &shard.sessions) {
            held.kv_bytes += part.kv_bytes;
            held.index_bytes += part.index_bytes;
            held.inventory.add(&part.spans);
        }
        Ok(held)
    }
}

impl Drop for Service {
    /// What was not closed, for an error say, is ended before the process is: tasks do not outlive the runtime.
    fn drop(&mut self) {
        // Its task is on this runtime.
        yield_to_signal();
        self.runtime.block_on(self.cluster.open_sessions().end());
    }
}

/// A signal has come, whose handler ends the process.
static STOPPING: AtomicBool = AtomicBool::new(false);

/// Waits for the end of a process that a signal is ending: what fails because its sessions end under it is not told.
pub(super) fn yield_to_signal() {
    if STOPPING.load(Ordering::Acquire) {
        // The handler takes two seconds at most; then the process is gone.
        std::thread::sleep(SIGNAL_PATIENCE);
    }
}

/// Has SIGINT and SIGTERM end the sessions, so that shards do not hold them until their leases run out, and then the process,
/// with the exit code of a shell (128 and the signal's number).
fn end_at_signal(sessions: OpenSessions) -> std::io::Result<()> {
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let mut stop = signal(kind)?;
        let sessions = sessions.clone();
        tokio::spawn(async move {
            if stop.recv().await.is_some() {
                STOPPING.store(true, Ordering::Release);
                sessions.end().await;
                std::process::exit(128 + kind.as_raw_value());
            }
        });
    }
    Ok(())
}

impl ServiceArgs {
    /// Sizes the process-wide compute pool. Call once, first.
    pub fn set_threads(&self) -> anyhow::Result<()> {
        if let Some(threads) = self.threads {
            rayon::ThreadPoolBuilder::new().num_threads(threads.into()).build_global()?;
        }
        Ok(())
    }

    /// Connects to the shards, or starts them in this process.
    pub fn connect(&self) -> anyhow::Result<Service> {
        self.connect_stored(false)
    }

    /// The same; with `stored`, shards of this process store what they hold for as long as it lives, so that spans can go to
    /// other tiers, where they stay until they are promoted.
    pub fn connect_stored(&self, stored: bool) -> anyhow::Result<Service> {
        let storage = (stored && self.shards.is_empty()).then(TempDir::new).transpose();
        let storage = storage.context("a folder for what leaves RAM")?;
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (cluster, names) = if self.shards.is_empty() {
            let _inside = runtime.enter();
            let mut shards: Vec<Arc<dyn Shard>> = Vec::new();
            for i in 0..self.embedded {
                let name = format!("embedded-{i}");
                let config = NodeConfig {
                    memory_bytes: self.memory,
                    threads: self.threads.map(usize::from),
                    storage: storage.as_ref().map(|folder| folder.path().join(&name)),
                    cooling: Cooling { bring_back: !stored, ..Cooling::default() },
                    ..NodeConfig::default()
                };
                shards.push(Arc::new(EmbeddedShard::start(name, config)?));
            }
            let names = shards.iter().map(|s| s.name().to_owned()).collect();
            (runtime.block_on(Cluster::new(shards))?, names)
        } else {
            (runtime.block_on(Cluster::connect(&self.shards))?, self.shards.clone())
        };
        runtime.block_on(async { end_at_signal(cluster.open_sessions().clone()) })?;
        Ok(Service { runtime, cluster, names, _storage: storage })
    }

    /// The sequence that these flags describe.
    pub fn sequence(&self, spending: Spending, max_new: u64, chunk: u64) -> SequenceSpec {
        SequenceSpec {
            window: WindowSpec { n_sink: self.sink, n_window: self.window, chunk },
            spending,
            index: match self.index {
                Index::Auto => v1::IndexKind::Auto,
                Index::Flat => v1::IndexKind::Flat,
                Index::Summary => v1::IndexKind::Summary,
                Index::Graph => v1::IndexKind::Graph,
                Index::Hnsw => v1::IndexKind::Hnsw,
            },
            seed: self.seed,
            deterministic: self.deterministic,
            max_new,
        }
    }
}
