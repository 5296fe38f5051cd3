//! One sequence on this shard.
//!
//! * `geometry`: the checked shape of its tensors
//! * `head`: what one (layer, KV head) holds
//! * `span`, `extent`, `fresh`, `samples`: its parts; `sampled`: the samples of all of them
//! * `size_tiered`: which spans merge; `merge`: the plan and the swap; `overlay`: a span whose rows move between RAM and files
//! * `compact`: what answers in the place of rows
//! * `stored`: what of it goes to disk, and back
//! * `lease`: how long it lives unheard of; `cuts`: what was taken back of it

pub mod compact;
pub mod cuts;
pub mod extent;
pub mod fresh;
pub mod geometry;
pub mod head;
pub mod lease;
pub mod merge;
pub mod overlay;
pub mod sampled;
pub mod samples;
pub mod size_tiered;
pub mod span;
pub mod stored;

use crate::admission::{Purse, Short};
use crate::builder::Pending;
use crate::store::kept::Kept;
use crate::store::log::Log;
use cuts::Cuts;
use geometry::Geometry;
use head::Head;
use lease::Lease;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tonic::Status;
use wire::{ID_BYTES, v1};

/// A session id.
pub type Id = [u8; ID_BYTES];

/// What the worker asked for at `Open`.
#[derive(Debug, Clone)]
pub struct Terms {
    /// As sent.
    pub fingerprint: v1::Fingerprint,
    /// As checked.
    pub geometry: Geometry,
    /// Index of its spans.
    pub index: index::Kind,
    /// Of its index builds.
    pub seed: u64,
    /// Answers wait for indexes.
    pub deterministic: bool,
}

/// One sequence on this shard.
pub struct Session {
    /// Chosen by the worker.
    pub id: Id,
    /// Fixed at `Open`.
    pub terms: Terms,
    /// By layer and KV head; None where another shard owns the head.
    heads: Vec<Option<Head>>,
    /// One for each layer: makes the check of positions and the store after it one step. Held by one append, decode
    /// append or truncation at a time, for its copies; readers never take it.
    ingest: Vec<Mutex<()>>,
    /// Its memory.
    pub purse: Arc<Purse>,
    /// Its life.
    pub lease: Lease,
    /// Its index builds that have not ended.
    pub pending: Arc<Pending>,
    /// What of it is on disk; None without storage.
    pub kept: Option<Arc<Kept>>,
    /// Its spans stay in RAM. For the life of the process.
    pub pinned: AtomicBool,
    /// Held while rows go to the archive or come back, by one thread of the background.
    pub moving: Mutex<()>,
    /// Requests that may read rows; while there are any, none go to the archive.
    reading: AtomicUsize,
    /// Its truncations.
    pub cuts: Cuts,
}

/// A request that may read rows of a session, for as long as this lives.
pub struct Reading(Arc<Session>);

impl Reading {
    /// Begins; what lies in the archive then is looked for after this.
    pub fn begin(session: &Arc<Session>) -> Self {
        session.reading.fetch_add(1, Ordering::AcqRel);
        Self(session.clone())
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.reading.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Session {
    /// An empty session that owns the heads marked in `owned`.
    pub fn new(
        (id, terms): (Id, Terms),
        owned: &[bool],
        purse: Arc<Purse>,
        lease: Duration,
        kept: Option<Arc<Kept>>,
    ) -> Result<Self, Short> {
        let heads = owned
            .iter()
            .map(|&own| own.then(|| Head::new(&terms.geometry, &purse)).transpose())
            .collect::<Result<_, _>>()?;
        Ok(Self {
            id,
            heads,
            ingest: (0..terms.geometry.layers).map(|_| Mutex::new(())).collect(),
            purse,
            lease: Lease::new(lease),
            pending: Arc::default(),
            kept,
            pinned: AtomicBool::new(false),
            moving: Mutex::default(),
            reading: AtomicUsize::new(0),
            cuts: Cuts::default(),
            terms,
        })
    }

    /// Takes over heads that were read back.
    pub fn set_heads(&mut self, found: HashMap<(usize, usize), Head>) {
        for ((layer, kv_head), head) in found {
            if let Some(slot) = self.heads.get_mut(layer * self.terms.geometry.kv_heads + kv_head) {
                *slot = Some(head);
            }
        }
    }

    /// A head by number; an error when another shard owns it.
    pub fn head(&self, layer: usize, kv_head: usize) -> Result<&Head, Status> {
        let slot = layer * self.terms.geometry.kv_heads + kv_head;
        self.heads.get(slot).and_then(Option::as_ref).ok_or_else(|| {
            Status::invalid_argument(format!(
                "layer {layer}, KV head {kv_head} is not owned by this shard for this session"
            ))
        })
    }

    /// Consecutive heads of a layer.
    pub fn heads_of(&self, layer: usize, range: Range<usize>) -> Result<Vec<&Head>, Status> {
        range.map(|h| self.head(layer, h)).collect()
    }

    /// Every owned head with its layer and number.
    pub fn owned(&self) -> impl Iterator<Item = (usize, usize, &Head)> {
        let n = self.terms.geometry.kv_heads;
        let numbered = self.heads.iter().enumerate();
        numbered.filter_map(move |(i, h)| Some((i / n, i % n, h.as_ref()?)))
    }

    /// Tokens held in all owned layers and heads.
    pub fn watermark(&self) -> u64 {
        self.owned().map(|(_, _, h)| h.len()).min().unwrap_or(0)
    }

    /// The watermark as it is told: of a durable session, tokens that are on disk.
    pub fn told_watermark(&self) -> u64 {
        self.log().map_or_else(|| self.watermark(), |log| log.durable().0)
    }

    /// The longest owned head.
    pub fn longest(&self) -> u64 {
        self.owned().map(|(_, _, h)| h.len()).max().unwrap_or(0)
    }

    /// Whether a request may be reading rows.
    pub fn is_read(&self) -> bool {
        self.reading.load(Ordering::Acquire) > 0
    }

    /// The log of a session whose appends are acknowledged once they are on disk.
    pub fn log(&self) -> Option<&Arc<Log>> {
        self.kept.as_ref()?.log.as_ref()
    }

    /// The right to change every layer.
    pub fn ingest_all(&self) -> Vec<MutexGuard<'_, ()>> {
        (0..self.ingest.len()).map(|layer| self.ingest(layer)).collect()
    }

    /// The right to change one layer.
    pub fn ingest(&self, layer: usize) -> MutexGuard<'_, ()> {
        self.ingest[layer].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
