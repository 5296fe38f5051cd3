//! A session as it lies on the shards, for who did not open it: found by its id, read head by head.

use crate::session::Geometry;
use crate::{Cluster, Error, Shard};
use futures::future::{join_all, try_join_all};
use half::f16;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Code, Status};
use wire::samples::Samples;
use wire::tensor::{Dim, read_f16};
use wire::v1;

/// A session that some shards hold, as it was when it was found.
pub struct HeldSession {
    id: Vec<u8>,
    parts: Vec<Part>,
    /// By layer and KV head, the part that holds it.
    owners: Vec<usize>,
    fingerprint: v1::Fingerprint,
    terms: v1::SessionTerms,
    tokens: u64,
}

/// What one shard holds of it.
struct Part {
    shard: Arc<dyn Shard>,
    instance: Vec<u8>,
    max_message_bytes: u64,
    info: v1::SessionInfo,
}

impl Part {
    fn truncations(&self) -> u64 {
        self.info.terms.as_ref().map_or(0, |t| t.truncations)
    }

    fn bad(&self, what: impl ToString) -> Error {
        Error::Answer { shard: self.shard.name().to_owned(), what: what.to_string() }
    }

    fn explain(&self, status: &Status) -> Error {
        Error::from_status(self.shard.name(), status)
    }
}

impl Cluster {
    /// Finds a session by its 16 bytes. Shards that do not know it are passed over.
    ///
    /// Errors: [`Error::SessionLost`] when none knows it; [`Error::Input`] when the shards together do not hold every head of
    /// it once, or hold different sessions under the id.
    pub async fn held(&self, session: &[u8]) -> Result<HeldSession, Error> {
        let request = v1::InspectRequest { session: session.to_vec() };
        let asked = self.described().iter().map(|described| async {
            let answers = futures::join!(
                described.shard.inspect(request.clone()),
                described.shard.describe(v1::DescribeRequest { protocol: wire::PROTOCOL })
            );
            let name = described.shard.name();
            let info = match answers.0 {
                Err(status) if status.code() == Code::NotFound => return Ok::<_, Error>(None),
                answer => answer.map_err(|status| Error::from_status(name, &status))?.sessions.pop(),
            };
            let instance = answers.1.map_err(|status| Error::from_status(name, &status))?.instance;
            Ok(info.map(|info| Part {
                shard: Arc::clone(&described.shard),
                instance,
                max_message_bytes: described.max_message_bytes,
                info,
            }))
        });
        let parts: Vec<Part> = try_join_all(asked).await?.into_iter().flatten().collect();
        HeldSession::of(session.to_vec(), parts).map_err(|error| match error {
            Error::SessionLost { reason, .. } => {
                let names: Vec<&str> = self.shards().map(|shard| shard.name()).collect();
                Error::SessionLost { shard: names.join(", "), reason }
            }
            error => error,
        })
    }
}

impl HeldSession {
    fn of(id: Vec<u8>, parts: Vec<Part>) -> Result<HeldSession, Error> {
        let unknown = || {
            let reason = format!("session {} is unknown", wire::convert::hex(&id));
            Error::SessionLost { shard: String::new(), reason }
        };
        let first = parts.first().ok_or_else(unknown)?;
        let missing =
            |part: &Part, what| part.bad(format!("a session without {what}; is it of this release?"));
        let fingerprint = first.info.fingerprint.clone().ok_or_else(|| missing(first, "its fingerprint"))?;
        let terms = first.info.terms.clone().ok_or_else(|| missing(first, "its terms"))?;
        Geometry::new(&fingerprint)?;
        let heads = fingerprint.kv_heads as usize;
        let mut owners = vec![None; fingerprint.layers as usize * heads];
        for (i, part) in parts.iter().enumerate() {
            let name = part.shard.name();
            let theirs = part.info.terms.as_ref().ok_or_else(|| missing(part, "its terms"))?;
            let same = part.info.fingerprint.as_ref() == Some(&fingerprint)
                && (theirs.index, theirs.seed, theirs.deterministic)
                    == (terms.index, terms.seed, terms.deterministic)
                && part.info.durable == first.info.durable;
            if !same {
                let other = first.shard.name();
                return Err(Error::Input(format!(
                    "shards {other} and {name} hold different sessions of this id"
                )));
            }
            for range in &theirs.owned {
                for layer in range.layer_begin..range.layer_end.min(fingerprint.layers) {
                    for head in range.kv_head_begin..range.kv_head_end.min(fingerprint.kv_heads) {
                        let owner = &mut owners[layer as usize * heads + head as usize];
                        if let Some(other) = owner.replace(i).map(|other: usize| parts[other].shard.name()) {
                            return Err(Error::Input(format!(
                                "layer {layer}, KV head {head} is on shard {other} and on shard {name}"
                            )));
                        }
                    }
                }
            }
        }
        let of_head = |slot: usize| (slot / heads, slot % heads);
        if let Some((layer, head)) = owners.iter().position(Option::is_none).map(of_head) {
            return Err(Error::Input(format!(
                "layer {layer}, KV head {head} of the session is on none of the shards given: name them all"
            )));
        }
        let tokens = parts.iter().map(|part| part.info.watermark).min().unwrap_or(0);
        Ok(HeldSession {
            id,
            parts,
            owners: owners.into_iter().flatten().collect(),
            fingerprint,
            terms,
            tokens,
        })
    }

    /// Tokens that all heads held when it was found: what may be read.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// What its rows mean.
    pub fn fingerprint(&self) -> &v1::Fingerprint {
        &self.fingerprint
    }

    /// What it was opened with.
    pub fn terms(&self) -> &v1::SessionTerms {
        &self.terms
    }

    /// Whether its tokens are acknowledged on disk.
    pub fn durable(&self) -> bool {
        self.parts.first().is_some_and(|part| part.info.durable)
    }

    /// Ends of the sealed spans of a head, ascending, none beyond [`HeldSession::tokens`].
    pub fn span_ends(&self, layer: u32, kv_head: u32) -> Vec<u64> {
        let spans = self.part(layer, kv_head).map_or(&[][..], |part| &part.info.spans);
        let mine = spans.iter().filter(|s| (s.layer, s.kv_head) == (layer, kv_head) && s.begin < self.tokens);
        mine.map(|s| s.end.min(self.tokens)).collect()
    }

    /// Most tokens of a head that one read can bring.
    pub fn tokens_per_read(&self) -> u64 {
        let row = 2 * (u64::from(self.fingerprint.key_dim) + u64::from(self.fingerprint.value_dim));
        let least = self.parts.iter().map(|part| part.max_message_bytes).min().unwrap_or(0);
        // What a shard sets aside for tags, shapes and framing.
        (least.saturating_sub(256) / row).max(1)
    }

    /// Keys `[n, key_dim]` and values `[n, value_dim]` of a range of a head, wherever the shard keeps them.
    pub async fn rows(
        &self,
        (layer, kv_head): (u32, u32),
        range: Range<u64>,
    ) -> Result<(Vec<f16>, Vec<f16>), Error> {
        let part = self.part(layer, kv_head)?;
        let (begin, end) = (range.start, range.end);
        let request = v1::ReadRowsRequest { session: self.id.clone(), layer, kv_head, begin, end };
        let answer = part.shard.read_rows(request).await.map_err(|status| part.explain(&status))?;
        let n = usize::try_from(end.saturating_sub(begin)).unwrap_or(usize::MAX);
        let read = |tensor: &Option<v1::Tensor>, field, dim: u32| {
            let rows = read_f16(tensor.as_ref(), field, &[Dim::Is(n), Dim::Is(dim as usize)]);
            rows.map(|(rows, _)| rows).map_err(|error| part.bad(error))
        };
        let key_dim = self.fingerprint.key_dim;
        Ok((read(&answer.k, "k", key_dim)?, read(&answer.v, "v", self.fingerprint.value_dim)?))
    }

    /// A page of the sampled queries of a head at `positions`; while an index is being built, which holds them, it is waited
    /// for, `limit` at most.
    pub async fn samples(
        &self,
        (layer, kv_head): (u32, u32),
        positions: Range<u64>,
        limit: Duration,
    ) -> Result<Samples, Error> {
        let part = self.part(layer, kv_head)?;
        let until = tokio::time::Instant::now() + limit;
        let (begin, end) = (positions.start, positions.end);
        let request = v1::ReadSamplesRequest { session: self.id.clone(), layer, kv_head, begin, end };
        let group = self.fingerprint.q_heads / self.fingerprint.kv_heads;
        let shape = (group as usize, self.fingerprint.key_dim as usize);
        loop {
            match part.shard.read_samples(request.clone()).await {
                Err(status) if status.code() == Code::Unavailable => {
                    let left = until.saturating_duration_since(tokio::time::Instant::now());
                    if left.is_zero() {
                        return Err(part.explain(&status));
                    }
                    let timeout_ms = left.as_millis().clamp(1, 1000) as u64;
                    let request = v1::WaitReadyRequest { session: self.id.clone(), timeout_ms };
                    part.shard.wait_ready(request).await.map_err(|status| part.explain(&status))?;
                }
                answer => {
                    let answer = answer.map_err(|status| part.explain(&status))?;
                    return Samples::read(answer, &positions, shape).map_err(|error| part.bad(error));
                }
            }
        }
    }

    /// Waits until no index or merge of it is being made, or for `limit`.
    pub async fn wait_ready(&self, limit: Duration) -> Result<(), Error> {
        let timeout_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let calls = self.parts.iter().map(|part| async move {
            let request = v1::WaitReadyRequest { session: self.id.clone(), timeout_ms };
            part.shard.wait_ready(request).await.map_err(|status| part.explain(&status))
        });
        try_join_all(calls).await?;
        Ok(())
    }

    /// Starts its leases anew, at the lengths that they have.
    pub async fn renew(&self) -> Result<(), Error> {
        let calls = self.parts.iter().map(|part| async {
            let request = v1::RenewRequest { session: self.id.clone(), lease_ms: 0 };
            part.shard.renew(request).await.map_err(|status| part.explain(&status))
        });
        join_all(calls).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(())
    }

    /// Whether what was read since it was found is of one state: no shard started anew, and none took tokens back.
    ///
    /// Errors: [`Error::Restarted`], or [`Error::Input`] that names the shard and the truncation.
    pub async fn unchanged(&self, cluster: &Cluster) -> Result<(), Error> {
        let now = cluster.held(&self.id).await?;
        for part in &self.parts {
            let shard = part.shard.name();
            let same = now.parts.iter().find(|p| p.shard.name() == shard && p.instance == part.instance);
            let same = same.ok_or_else(|| Error::Restarted { shard: shard.to_owned() })?;
            let lowest = same.info.terms.as_ref().and_then(|t| t.lowest_truncation);
            if let Some(length) =
                lowest.filter(|&l| same.truncations() != part.truncations() && l < self.tokens)
            {
                return Err(Error::Input(format!(
                    "shard {shard}: the session was truncated while it was read: to {length} tokens, of {} to be read",
                    self.tokens
                )));
            }
        }
        Ok(())
    }

    fn part(&self, layer: u32, kv_head: u32) -> Result<&Part, Error> {
        let slot = layer as usize * self.fingerprint.kv_heads as usize + kv_head as usize;
        let owner = self.owners.get(slot).filter(|_| kv_head < self.fingerprint.kv_heads);
        owner
            .and_then(|&i| self.parts.get(i))
            .ok_or_else(|| Error::Input(format!("the session has no layer {layer}, KV head {kv_head}")))
    }
}
