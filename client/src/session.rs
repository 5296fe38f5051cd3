//! One sequence on the cluster: opened on every shard that holds some of its heads, kept alive by renewal, ended by
//! [`Session::close`] or, without waiting, by dropping it.

use crate::cluster::Described;
use crate::lease::Renewal;
use crate::{Cluster, Error, Shard};
use attention::Description;
use futures::future::{join_all, try_join_all};
use rand::TryRngCore;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tonic::{Code, Status};
use wire::v1;

/// What a session is to hold.
#[derive(Debug, Clone)]
pub struct SessionSpec {
    /// All that makes the KV bytes meaningful: geometry, dtype, scale, model.
    pub fingerprint: v1::Fingerprint,
    /// Soft-cap of the logits, if the model has one.
    pub softcap: Option<f32>,
    /// Tokens to reserve memory for; a shard that has not enough refuses with the amount.
    pub reserve_tokens: u64,
    /// How long a shard keeps the session without a sign of life; zero: the shard's default. Renewed in the background.
    pub lease: Duration,
    /// Which index to build at seal.
    pub index: v1::IndexKind,
    /// Of the index build.
    pub seed: u64,
    /// Tokens are acknowledged once they are on the disks of the shards, which must have one.
    pub durable: bool,
    /// Answers wait for indexes, and none is cut short by the deadline; the same calls give the same bits.
    pub deterministic: bool,
    /// What placement hashes. `None`: the session id, so that sessions spread; with `deterministic`, the seed.
    pub lineage: Option<Vec<u8>>,
    /// Inside which every attend is answered or fails.
    pub deadline: Duration,
}

impl SessionSpec {
    /// The usual: automatic index, default lease, ten seconds for an attend.
    pub fn new(fingerprint: v1::Fingerprint, reserve_tokens: u64) -> SessionSpec {
        SessionSpec {
            fingerprint,
            softcap: None,
            reserve_tokens,
            lease: Duration::ZERO,
            index: v1::IndexKind::Auto,
            seed: 0,
            durable: false,
            deterministic: false,
            lineage: None,
            deadline: Duration::from_secs(10),
        }
    }
}

/// Indexes of sealed spans, over all shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readiness {
    /// Sealed spans.
    pub spans: u64,
    /// Those with their index.
    pub ready: u64,
}

impl Readiness {
    /// Nothing is being built any more.
    pub fn is_ready(&self) -> bool {
        self.ready == self.spans
    }
}

/// A session. Its calls may run at the same time; chunks of one layer must not.
pub struct Session {
    pub(crate) inner: Arc<Inner>,
    renewal: Option<Renewal>,
}

/// What every call needs.
pub(crate) struct Inner {
    pub(crate) id: Vec<u8>,
    pub(crate) geometry: Geometry,
    pub(crate) description: Description,
    pub(crate) deadline: Duration,
    pub(crate) deterministic: bool,
    pub(crate) holders: Vec<Holder>,
    /// For every layer the runs in the order of the heads.
    pub(crate) plan: Vec<Vec<PlannedRun>>,
    /// Every shard knows that it has ended.
    pub(crate) ended: AtomicBool,
}

/// A shard that holds some of the session.
pub(crate) struct Holder {
    pub(crate) shard: Arc<dyn Shard>,
    pub(crate) instance: Vec<u8>,
    pub(crate) max_message_bytes: u64,
    /// Tokens that the shard last said to hold in all its layers and heads.
    pub(crate) watermark: AtomicU64,
    lease: Duration,
}

/// Consecutive KV heads of one layer on one holder.
#[derive(Debug, Clone)]
pub(crate) struct PlannedRun {
    pub(crate) holder: usize,
    pub(crate) kv_heads: Range<u32>,
}

/// Head counts and dims, checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    pub(crate) layers: u32,
    pub(crate) q_heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
}

impl Geometry {
    pub(crate) fn new(fingerprint: &v1::Fingerprint) -> Result<Geometry, Error> {
        let of = |n: u32| n as usize;
        let geometry = Geometry {
            layers: fingerprint.layers,
            q_heads: of(fingerprint.q_heads),
            kv_heads: of(fingerprint.kv_heads),
            key_dim: of(fingerprint.key_dim),
            value_dim: of(fingerprint.value_dim),
        };
        let sizes =
            [of(geometry.layers), geometry.q_heads, geometry.kv_heads, geometry.key_dim, geometry.value_dim];
        if sizes.contains(&0) || !geometry.q_heads.is_multiple_of(geometry.kv_heads) {
            return Err(Error::Input(format!("no attention has this geometry: {geometry:?}")));
        }
        Ok(geometry)
    }

    pub(crate) fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }
}

impl Session {
    pub(crate) async fn open(cluster: &Cluster, spec: SessionSpec) -> Result<Session, Error> {
        let geometry = Geometry::new(&spec.fingerprint)?;
        let id = random_id()?;
        let lineage = match (&spec.lineage, spec.deterministic) {
            (Some(lineage), _) => lineage.clone(),
            (None, true) => spec.seed.to_le_bytes().to_vec(),
            (None, false) => id.clone(),
        };
        let layout = cluster.layout(&lineage, &spec.fingerprint)?;
        let request = v1::OpenRequest {
            session: id.clone(),
            fingerprint: Some(spec.fingerprint),
            owned: Vec::new(),
            reserve_tokens: spec.reserve_tokens,
            lease_ms: u64::try_from(spec.lease.as_millis()).unwrap_or(u64::MAX),
            index: spec.index as i32,
            seed: spec.seed,
            deterministic: spec.deterministic,
            protocol: wire::PROTOCOL,
            durable: spec.durable,
        };
        let mut asked = Vec::new();
        let mut holder_of = vec![None; cluster.described().len()];
        for (i, described) in cluster.described().iter().enumerate() {
            let owned: Vec<v1::HeadRange> = layout.owned(i).iter().map(head_range).collect();
            if !owned.is_empty() {
                holder_of[i] = Some(asked.len());
                asked.push((described, v1::OpenRequest { owned, ..request.clone() }));
            }
        }
        let holders = open_all(&id, asked).await?;
        let plan = (0..geometry.layers).map(|layer| {
            let runs = layout.runs(layer).iter().filter_map(|run| {
                let holder = holder_of[*run.shards.first()?]?;
                Some(PlannedRun { holder, kv_heads: run.kv_heads.clone() })
            });
            runs.collect()
        });
        let description = Description {
            scale: request.fingerprint.as_ref().map_or(1.0, |f| f.scale),
            softcap: spec.softcap,
        };
        let plan = plan.collect();
        let SessionSpec { deadline, deterministic, .. } = spec;
        let ended = AtomicBool::new(false);
        let inner = Inner { id, geometry, description, deadline, deterministic, holders, plan, ended };
        let inner = Arc::new(inner);
        cluster.open_sessions().add(&inner);
        let renewal = Some(Renewal::start(&inner));
        Ok(Session { inner, renewal })
    }

    /// The id under which the shards know it: 16 bytes.
    pub fn id(&self) -> &[u8] {
        &self.inner.id
    }

    /// Tokens held in all layers and heads, as far as the shards have said so. A worker may drop these from its window.
    pub fn watermark(&self) -> u64 {
        let held = self.inner.holders.iter().map(|holder| holder.watermark.load(Ordering::Acquire));
        held.min().unwrap_or(0)
    }

    /// The shards that hold some of it, by name.
    pub fn shard_names(&self) -> impl Iterator<Item = &str> {
        self.inner.holders.iter().map(|holder| holder.shard.name())
    }

    /// Waits until every sealed span has its index, or for `limit`.
    pub async fn wait_ready(&self, limit: Duration) -> Result<Readiness, Error> {
        let timeout_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let request = v1::WaitReadyRequest { session: self.inner.id.clone(), timeout_ms };
        let answers = self.inner.on_all(|shard| shard.wait_ready(request.clone())).await?;
        let sum = |of: fn(&v1::WaitReadyResponse) -> u64| answers.iter().map(of).sum();
        Ok(Readiness { spans: sum(|a| a.spans), ready: sum(|a| a.ready) })
    }

    /// Drops every token at or beyond `length` on all shards; returns the new watermark. Not while other calls run.
    pub async fn truncate(&self, length: u64) -> Result<u64, Error> {
        let request = v1::TruncateRequest { session: self.inner.id.clone(), length };
        let answers = self.inner.on_all(|shard| shard.truncate(request.clone())).await?;
        for (holder, answer) in self.inner.holders.iter().zip(answers) {
            holder.watermark.store(answer.watermark, Ordering::Release);
        }
        Ok(self.watermark())
    }

    /// Extends the lease now. The background renewal does it anyway.
    pub async fn renew(&self) -> Result<(), Error> {
        self.inner.renew().await
    }

    /// What the shards hold of this session: one answer for each of [`Session::shard_names`].
    pub async fn inspect(&self) -> Result<Vec<v1::InspectResponse>, Error> {
        let request = v1::InspectRequest { session: self.inner.id.clone() };
        self.inner.on_all(|shard| shard.inspect(request.clone())).await
    }

    /// Leaves the session on its shards, for others to go on with until its leases run out; returns its id.
    pub fn leave(mut self) -> Vec<u8> {
        self.renewal = None;
        self.inner.ended.store(true, Ordering::Release);
        self.inner.id.clone()
    }

    /// Ends the session everywhere and returns the bytes that the shards freed.
    pub async fn close(mut self) -> Result<u64, Error> {
        self.renewal = None;
        let request = v1::CloseRequest { session: self.inner.id.clone() };
        let answers = self.inner.on_all(|shard| shard.close(request.clone())).await?;
        self.inner.ended.store(true, Ordering::Release);
        Ok(answers.iter().map(|answer| answer.freed_bytes).sum())
    }
}

impl Drop for Session {
    /// Best effort: what cannot be told now ends with the lease.
    fn drop(&mut self) {
        if let Some(renewal) = self.renewal.take() {
            renewal.say_farewell(Arc::clone(&self.inner));
        }
    }
}

impl Inner {
    /// The same call on all holders at the same time; the error of the first that fails.
    pub(crate) async fn on_all<'a, T, F>(&'a self, call: impl Fn(&'a dyn Shard) -> F) -> Result<Vec<T>, Error>
    where
        F: Future<Output = Result<T, Status>> + 'a,
    {
        let calls = self.holders.iter().map(|holder| {
            let answer = call(&*holder.shard);
            async move {
                match answer.await {
                    Ok(answer) => Ok(answer),
                    Err(status) => Err(holder.explain(&status).await),
                }
            }
        });
        try_join_all(calls).await
    }

    pub(crate) async fn renew(&self) -> Result<(), Error> {
        let calls = self.holders.iter().map(|holder| {
            let lease_ms = u64::try_from(holder.lease.as_millis()).unwrap_or(u64::MAX);
            let answer = holder.shard.renew(v1::RenewRequest { session: self.id.clone(), lease_ms });
            async move { answer.await.map_err(|status| Error::from_status(holder.shard.name(), &status)) }
        });
        // All are tried, whatever happens to one.
        join_all(calls).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(())
    }

    /// A third of the shortest lease.
    pub(crate) fn renewal_period(&self) -> Duration {
        let shortest =
            self.holders.iter().map(|holder| holder.lease).min().unwrap_or(Duration::from_secs(60));
        (shortest / 3).max(Duration::from_millis(50))
    }
}

impl Holder {
    /// What a failed call means for the session. After a loss the shard is asked who it is: another process under the
    /// same name holds nothing of the session. One that did not answer in time is not asked again.
    pub(crate) async fn explain(&self, status: &Status) -> Error {
        let may_be_another =
            matches!(status.code(), Code::NotFound | Code::FailedPrecondition | Code::Unavailable);
        if may_be_another {
            let request = v1::DescribeRequest { protocol: wire::PROTOCOL };
            let probe = tokio::time::timeout(Duration::from_millis(500), self.shard.describe(request));
            if matches!(probe.await, Ok(Ok(described)) if described.instance != self.instance) {
                return Error::Restarted { shard: self.shard.name().to_owned() };
            }
        }
        Error::from_status(self.shard.name(), status)
    }
}

/// Opens on all at the same time. When one refuses, the others are closed again and its error is returned.
async fn open_all(id: &[u8], asked: Vec<(&Described, v1::OpenRequest)>) -> Result<Vec<Holder>, Error> {
    let calls = asked.into_iter().map(|(described, request)| async move {
        let shard = Arc::clone(&described.shard);
        let opened = shard.open(request).await.map_err(|status| Error::from_status(shard.name(), &status))?;
        Ok(Holder {
            shard,
            instance: opened.instance,
            max_message_bytes: described.max_message_bytes,
            watermark: AtomicU64::new(0),
            lease: Duration::from_millis(opened.lease_ms.max(1)),
        })
    });
    let mut holders = Vec::new();
    let mut refused = None;
    for answer in join_all(calls).await {
        match answer {
            Ok(holder) => holders.push(holder),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let Some(error) = refused else { return Ok(holders) };
    let close = |holder: &Holder| {
        let shard = Arc::clone(&holder.shard);
        let request = v1::CloseRequest { session: id.to_vec() };
        async move { shard.close(request).await }
    };
    // A shard that fails here drops the session when the lease runs out.
    join_all(holders.iter().map(close)).await;
    Err(error)
}

fn head_range(block: &wire::placement::Block) -> v1::HeadRange {
    v1::HeadRange {
        layer_begin: block.layers.start,
        layer_end: block.layers.end,
        kv_head_begin: block.kv_heads.start,
        kv_head_end: block.kv_heads.end,
    }
}

fn random_id() -> Result<Vec<u8>, Error> {
    let mut id = vec![0u8; wire::ID_BYTES];
    let filled = rand::rngs::OsRng.try_fill_bytes(&mut id);
    filled.map_err(|error| Error::Input(format!("the system has no random numbers: {error}")))?;
    Ok(id)
}
