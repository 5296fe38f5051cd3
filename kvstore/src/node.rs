//! One shard without sockets: wire message in, wire message out. The gRPC service and the embedded twin both call it.
//!
//! The verbs are in `crate::shard`, one file each.

use crate::admission::{Budget, Charge, Kind, Purse, Reclaim, Short};
use crate::archive;
use crate::builder::{Builder, Job, Work};
use crate::pool::Pool;
use crate::recipe::Recipe;
use crate::session::head::Sealing;
use crate::session::span::Span;
use crate::session::{Id, Session};
use crate::spill;
use crate::spill::cool::{self, Cooling};
use crate::store::Store;
use crate::store::archived::MoveError;
use crate::store::directory::DirectoryError;
use crate::store::recover::Refused;
use crate::telemetry::{Metrics, Snapshot};
use kernels::Kernels;
use rand::TryRngCore;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};
use tonic::{Code, Status};
use wire::ID_BYTES;

/// What a shard may use and how it serves.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// KV, indexes and working memory together, in bytes.
    pub memory_bytes: u64,
    /// Threads that attend; None: one for each core.
    pub threads: Option<usize>,
    /// Tasks (row x KV head) that may wait or run at once.
    pub queue: usize,
    /// Threads that build indexes; None: as many as attend, above four half as many.
    pub index_threads: Option<usize>,
    /// Spans below this many tokens are scanned exactly and get no index.
    pub index_min_tokens: u64,
    /// Recall that the search width of an index is calibrated for.
    pub index_recall: f32,
    /// Fresh tokens at which a decoding session seals a span.
    pub seal_tokens: u64,
    /// Whether small spans merge into larger ones in the background.
    pub merge: bool,
    /// Lease of a session that asks for none.
    pub lease: Duration,
    /// Largest message that the service takes, in bytes; `Describe` tells it.
    pub max_message_bytes: u64,
    /// Where sessions are stored, so that they outlive the process; None: nowhere.
    pub storage: Option<PathBuf>,
    /// Bytes that the catalogue of the storage may cache, a part of the memory. At most a sixteenth of it is used.
    pub catalogue_cache_bytes: u64,
    /// Where extents go that need not lie on this host; None: nowhere. Needs a storage.
    pub archive: Option<archive::Settings>,
    /// What becomes of spans that nobody asks for. Needs a storage.
    pub cooling: Cooling,
}

/// Bytes of the catalogue's cache: records are small and read once.
pub const CATALOGUE_CACHE: u64 = 16 << 20;
/// Largest part of the memory that the catalogue may cache.
const CATALOGUE_PART: u64 = 16;

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            memory_bytes: 4 << 30,
            threads: None,
            queue: 8192,
            index_threads: None,
            index_min_tokens: 1024,
            index_recall: 0.95,
            seal_tokens: 1024,
            merge: true,
            lease: Duration::from_secs(60),
            max_message_bytes: wire::DEFAULT_MAX_MESSAGE_BYTES,
            storage: None,
            catalogue_cache_bytes: CATALOGUE_CACHE,
            archive: None,
            cooling: Cooling::default(),
        }
    }
}

/// Why a node could not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Threads could not be started.
    #[error("cannot start threads: {0}")]
    Threads(String),
    /// The metrics recorder refused its settings.
    #[error("metrics: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
    /// The operating system gave no random bytes.
    #[error("no random bytes for the instance id: {0}")]
    Random(String),
    /// The data directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The archive cannot be used.
    #[error(transparent)]
    Archive(#[from] MoveError),
    /// Its catalogue failed while it was read.
    #[error("storage.path (--data): {0}")]
    Catalogue(String),
}

impl NodeError {
    /// Whether another setting would do: a directory that is not one, cannot be written, or belongs to something else.
    pub fn is_usage(&self) -> bool {
        match self {
            NodeError::Directory(e) => !matches!(e, DirectoryError::Locked(_)),
            NodeError::Archive(e) => e.code() == Code::FailedPrecondition,
            _ => false,
        }
    }
}

/// One shard.
pub struct Node {
    pub(crate) config: NodeConfig,
    /// New at each start: tells workers that their sessions are gone.
    pub(crate) instance: [u8; ID_BYTES],
    pub(crate) kernels: Kernels,
    pub(crate) budget: Arc<Budget>,
    pub(crate) pool: Pool,
    pub(crate) builder: Builder,
    pub(crate) metrics: Arc<Metrics>,
    /// Where sessions outlive the process, if anywhere.
    pub(crate) store: Option<Arc<Store>>,
    /// The memory of the catalogue's cache.
    _catalogue: Charge,
    /// Stored sessions of which something is missing; held for one look-up or change.
    refused: Mutex<HashMap<Id, Refused>>,
    /// Looked up by every message, changed by open, close and the reaper; never held across work.
    sessions: RwLock<HashMap<Id, Arc<Session>>>,
}

impl Node {
    /// Starts the pools, brings stored sessions back, starts the reaper of leases. No runtime is needed.
    pub fn new(config: NodeConfig) -> Result<Arc<Self>, NodeError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = config.threads.unwrap_or(cores);
        let index_threads = config.index_threads.unwrap_or(if threads > 4 { threads / 2 } else { threads });
        let metrics = Arc::new(Metrics::new()?);
        let budget = Budget::new(config.memory_bytes);
        let cache = config.catalogue_cache_bytes.min(config.memory_bytes / CATALOGUE_PART);
        let (store, cache) = match &config.storage {
            None => (None, 0),
            Some(path) => (Some(Store::open(path, cache, metrics.clone())?), cache),
        };
        if let (Some(store), Some(settings)) = (&store, &config.archive) {
            store.use_archive(settings)?;
        }
        // A part of the budget, so it fits.
        let catalogue = budget.purse(0).and_then(|purse| purse.charge(Kind::Catalogue, cache));
        let catalogue =
            catalogue.map_err(|s| NodeError::Catalogue(s.status("its cache").message().into()))?;
        let mut instance = [0; ID_BYTES];
        rand::rngs::OsRng.try_fill_bytes(&mut instance).map_err(|e| NodeError::Random(e.to_string()))?;
        let node = Arc::new(Self {
            instance,
            kernels: Kernels::native(),
            budget,
            pool: Pool::new("attend", threads, config.queue, "attend.queue")
                .map_err(|e| NodeError::Threads(e.to_string()))?,
            builder: Builder::start(index_threads, metrics.clone())
                .map_err(|e| NodeError::Threads(e.to_string()))?,
            metrics,
            store,
            _catalogue: catalogue,
            refused: Mutex::default(),
            sessions: RwLock::default(),
            config,
        });
        let reclaim: Weak<dyn Reclaim> = Arc::downgrade(&(node.clone() as Arc<dyn Reclaim>));
        node.budget.reclaim_from(reclaim);
        if let Some(store) = &node.store {
            node.recover(store).map_err(|e| NodeError::Catalogue(e.to_string()))?;
        }
        start_reaper(Arc::downgrade(&node)).map_err(|e| NodeError::Threads(e.to_string()))?;
        if node.store.is_some() {
            spill::start(Arc::downgrade(&node)).map_err(|e| NodeError::Threads(e.to_string()))?;
            if node.config.cooling.archive_after.is_some() {
                cool::start(Arc::downgrade(&node)).map_err(|e| NodeError::Threads(e.to_string()))?;
            }
        }
        Ok(node)
    }

    /// How this node was configured.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// The id of this start.
    pub fn instance(&self) -> [u8; ID_BYTES] {
        self.instance
    }

    /// The kernel path in use.
    pub fn kernel_path(&self) -> String {
        self.kernels.isa().to_string()
    }

    /// The gauges now.
    pub fn snapshot(&self) -> Snapshot {
        let usage = self.budget.usage();
        Snapshot {
            queued: self.pool.queued() as u64,
            sessions: self.sessions().len() as u64,
            kv_bytes: usage.kv,
            index_bytes: usage.index,
            compact_bytes: usage.compact,
            scratch_bytes: usage.scratch,
            catalogue_bytes: usage.catalogue,
            spilled_bytes: usage.spilled,
            archived_bytes: usage.archived,
            granted_bytes: self.budget.granted(),
            budget_bytes: self.budget.limit(),
            builds_pending: self.builder.waiting() as u64,
            unstored_heads: self.store.as_ref().map_or(0, |s| s.keeper().waiting()) as u64,
            quarantined_files: self.store.as_ref().map_or(0, |s| s.directory.quarantined()),
            refused_sessions: self.refused().len() as u64,
        }
    }

    /// The text of `/metrics`.
    pub fn render_metrics(&self) -> String {
        self.metrics.render(&self.snapshot())
    }

    /// A live session; its lease is not renewed.
    pub(crate) fn session(&self, id: &[u8], field: &str) -> Result<Arc<Session>, Status> {
        let id = wire::convert::id(id, field)?;
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        let found = sessions.get(&id).filter(|s| !s.lease.left(Instant::now()).is_zero());
        found.cloned().ok_or_else(|| {
            if let Some(refused) = self.refused().get(&id) {
                return refused.reason.clone();
            }
            let id = wire::convert::hex(&id);
            let lost = match self.store.as_ref().map_or(0, |s| s.directory.quarantined()) {
                0 => String::new(),
                files => format!(", or lost: {files} damaged or foreign files were put into quarantine"),
            };
            Status::not_found(format!("{field} {id} is unknown here: never opened, closed or expired{lost}"))
        })
    }

    /// Stored sessions that cannot be served.
    pub(crate) fn refused(&self) -> MutexGuard<'_, HashMap<Id, Refused>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All sessions, in no order.
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        sessions.values().cloned().collect()
    }

    /// Refuses an id that is taken.
    pub(crate) fn vacant(&self, id: &Id) -> Result<(), Status> {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        match sessions.contains_key(id) || self.refused().contains_key(id) {
            true => Err(taken(id)),
            false => Ok(()),
        }
    }

    /// Adds a session unless its id is taken.
    pub(crate) fn insert(&self, session: Arc<Session>) -> Result<(), Status> {
        let mut sessions = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        match sessions.entry(session.id) {
            std::collections::hash_map::Entry::Occupied(_) => Err(taken(&session.id)),
            std::collections::hash_map::Entry::Vacant(slot) => {
                slot.insert(session);
                Ok(())
            }
        }
    }

    /// Removes this very session, not another that took its id since, if `still` holds under the lock; gives its
    /// reservation back and removes it from the disk. Its rows go with the last request that uses them.
    pub(crate) fn remove(&self, session: &Arc<Session>, still: impl Fn(&Session) -> bool) -> bool {
        let mut sessions = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        if !sessions.get(&session.id).is_some_and(|s| Arc::ptr_eq(s, session) && still(s)) {
            return false;
        }
        sessions.remove(&session.id);
        drop(sessions);
        session.purse.end_reservation();
        if let (Some(store), Some(kept)) = (&self.store, &session.kept) {
            store.forget(kept);
        }
        true
    }

    /// A refusal for want of memory, counted.
    pub(crate) fn short(&self, what: &str, short: Short) -> Status {
        self.metrics.memory_refused.increment(1);
        short.status(what)
    }

    /// Queues work of the background for one head.
    pub(crate) fn queue(&self, session: &Session, (layer, kv_head): (usize, usize), work: Work) {
        let terms = &session.terms;
        self.builder.submit(Job {
            work,
            recipe: Recipe {
                index: terms.index,
                scale: terms.fingerprint.scale,
                seed: terms.seed,
                recall: self.config.index_recall,
                geometry: terms.geometry,
                at: (layer, kv_head),
                purse: Arc::clone(&session.purse),
                store: self.store.clone(),
            },
            pending: session.pending.clone(),
        });
    }

    /// Queues the index of a span.
    pub(crate) fn queue_index(&self, session: &Arc<Session>, at: (usize, usize), span: &Span) {
        self.queue(session, at, Work::Index(Arc::downgrade(session), Arc::downgrade(span.core())));
    }

    /// Queues a head whose spans have changed for the disk.
    pub(crate) fn keep(&self, session: &Arc<Session>, at: (usize, usize)) {
        if let (Some(store), Some(_)) = (&self.store, &session.kept) {
            store.keeper().submit(session, at);
        }
    }

    /// Waits until every sealed span is on disk, up to a time; whether they are.
    pub async fn stored_within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let waiting = || self.store.as_ref().map_or(0, |s| s.keeper().waiting());
        while waiting() > 0 {
            if Instant::now() >= until {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        true
    }

    /// How a session's spans are served.
    pub(crate) fn sealing(&self, session: &Session) -> Sealing {
        let indexed = session.terms.index != index::Kind::Flat;
        Sealing {
            index_from: indexed.then_some(self.config.index_min_tokens),
            merge: self.config.merge,
            stored: session.kept.is_some(),
        }
    }

    /// Ends the sessions whose lease has run out; returns how many.
    pub fn reap(&self) -> usize {
        let now = Instant::now();
        let mut ended = 0;
        for session in self.sessions() {
            if self.remove(&session, |s| s.lease.left(now).is_zero()) {
                ended += 1;
                self.metrics.expired.increment(1);
                tracing::info!(session = wire::convert::hex(&session.id), "lease ran out");
            }
        }
        let unserved: Vec<Id> = {
            let refused = self.refused();
            refused.iter().filter(|(_, r)| r.lease.left(now).is_zero()).map(|(id, _)| *id).collect()
        };
        for id in unserved {
            if self.drop_refused(&id) {
                ended += 1;
                self.metrics.expired.increment(1);
                tracing::info!(session = wire::convert::hex(&id), "lease of a refused session ran out");
            }
        }
        ended
    }

    /// Removes a session that is not served.
    pub(crate) fn drop_refused(&self, id: &Id) -> bool {
        let refused = self.refused().remove(id);
        if let (Some(store), Some(refused)) = (&self.store, &refused) {
            store.forget(&refused.kept);
        }
        refused.is_some()
    }

    /// A purse for a session that reserves so much, of which `spilled` bytes lie in files.
    pub(crate) fn purse(&self, reserved: u64, spilled: u64) -> Result<Arc<Purse>, Status> {
        self.budget.purse_beside(reserved, spilled).map_err(|s| self.short("reserve_tokens", s))
    }
}

fn taken(id: &Id) -> Status {
    Status::already_exists(format!("session {} is already open", wire::convert::hex(id)))
}

/// Looks at the leases twice a second until the node is gone.
fn start_reaper(node: Weak<Node>) -> std::io::Result<()> {
    std::thread::Builder::new().name("leases".into()).spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(500));
            match node.upgrade() {
                Some(node) => node.reap(),
                None => return,
            };
        }
    })?;
    Ok(())
}
