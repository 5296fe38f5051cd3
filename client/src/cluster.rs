//! The shards of one deployment as one thing to open sessions on.

use crate::grpc::check_protocol;
use crate::{Address, Config, Error, GrpcShard, OpenSessions, Session, SessionSpec, Shard};
use futures::future::try_join_all;
use std::future::Future;
use std::sync::Arc;
use tonic::Status;
use wire::placement::{Grid, Layout, Map, Member};
use wire::v1;

/// Connected shards and the map that places heads on them.
pub struct Cluster {
    shards: Vec<Described>,
    map: Map,
    open: OpenSessions,
}

/// A shard and what it said about itself.
#[derive(Clone)]
pub(crate) struct Described {
    pub(crate) shard: Arc<dyn Shard>,
    pub(crate) max_message_bytes: u64,
}

impl Cluster {
    /// Reads the address of a shard: `host` or `host:port`, with port 7420 when none is written.
    pub fn address(text: &str) -> Result<Address, Error> {
        let address = text.trim();
        Address::of_shard(address)
            .map_err(|reason| Error::Address { address: address.to_owned(), reason: reason.to_owned() })
    }

    /// Connects to every address under the default [`Config`]; all must answer.
    pub async fn connect(addresses: &[impl AsRef<str>]) -> Result<Cluster, Error> {
        Cluster::connect_with(addresses, &Config::default()).await
    }

    /// Connects to every address; all must answer.
    pub async fn connect_with(addresses: &[impl AsRef<str>], config: &Config) -> Result<Cluster, Error> {
        let parsed: Vec<Address> =
            addresses.iter().map(|text| Cluster::address(text.as_ref())).collect::<Result<_, _>>()?;
        let connected =
            try_join_all(parsed.iter().map(|address| GrpcShard::connect(address, config))).await?;
        Cluster::new(connected.into_iter().map(|shard| Arc::new(shard) as Arc<dyn Shard>).collect()).await
    }

    /// Of shards that run wherever they run. Their memory budgets are their weights in the placement.
    pub async fn new(shards: Vec<Arc<dyn Shard>>) -> Result<Cluster, Error> {
        let answers = try_join_all(shards.iter().map(describe)).await?;
        let members = shards.iter().zip(&answers).map(|(shard, described)| Member {
            name: shard.name().to_owned(),
            weight: weight(described.memory_budget_bytes),
        });
        let members: Vec<Member> = members.collect();
        for (i, described) in answers.iter().enumerate() {
            let twin =
                answers[..i].iter().position(|d| !d.instance.is_empty() && d.instance == described.instance);
            if let Some(twin) = twin.filter(|&twin| members[twin].name != members[i].name) {
                return Err(Error::Same { name: members[twin].name.clone(), other: members[i].name.clone() });
            }
        }
        let map = Map::new(1, Grid::default(), members)?;
        let shards = shards
            .into_iter()
            .zip(answers)
            .map(|(shard, described)| Described { shard, max_message_bytes: described.max_message_bytes })
            .collect();
        Ok(Cluster { shards, map, open: OpenSessions::default() })
    }

    /// The shards, in the order they were given.
    pub fn shards(&self) -> impl Iterator<Item = &Arc<dyn Shard>> {
        self.shards.iter().map(|described| &described.shard)
    }

    /// The map in use.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// The sessions that were opened here and have not ended.
    pub fn open_sessions(&self) -> &OpenSessions {
        &self.open
    }

    /// Opens a session on every shard that is to hold some of it; on none if one of them refuses.
    pub async fn open(&self, spec: SessionSpec) -> Result<Session, Error> {
        Session::open(self, spec).await
    }

    /// What the shards hold: one session by its 16 bytes, or every session. One answer for each of [`Cluster::shards`].
    ///
    /// Errors: [`Error::SessionLost`] when a shard does not know the session.
    pub async fn inspect(&self, session: Option<&[u8]>) -> Result<Vec<v1::InspectResponse>, Error> {
        let request = v1::InspectRequest { session: session.unwrap_or_default().to_vec() };
        try_join_all(self.shards().map(|shard| {
            let answer = shard.inspect(request.clone());
            async move { answer.await.map_err(|status| Error::from_status(shard.name(), &status)) }
        }))
        .await
    }

    /// Brings the rows of one session, or of all that are not pinned, to a tier; returns the bytes that left RAM, or that only
    /// the archive holds now. A sketch takes so many percent of the bytes of the rows; 0: the shard's default.
    pub async fn evict(
        &self,
        session: Option<&[u8]>,
        tier: v1::Tier,
        sketch_percent: u32,
    ) -> Result<u64, Error> {
        let session = session.unwrap_or_default().to_vec();
        let request = v1::EvictRequest { session, tier: tier.into(), sketch_percent };
        let bytes = self.on_all(|shard| {
            let request = request.clone();
            async move {
                let answer = shard.evict(request).await?;
                Ok(if tier == v1::Tier::Archived { answer.archived_bytes } else { answer.freed_bytes })
            }
        });
        Ok(bytes.await?.into_iter().sum())
    }

    /// Copies the rows of a session back into RAM; returns the bytes.
    pub async fn promote(&self, session: &[u8]) -> Result<u64, Error> {
        let request = v1::PromoteRequest { session: session.to_vec() };
        let bytes = self.on_all(|shard| {
            let request = request.clone();
            async move { Ok(shard.promote(request).await?.promoted_bytes) }
        });
        Ok(bytes.await?.into_iter().sum())
    }

    /// Keeps what a session has in RAM there; returns the bytes that lie in files all the same.
    pub async fn pin(&self, session: &[u8]) -> Result<u64, Error> {
        let request = v1::PinRequest { session: session.to_vec() };
        let bytes = self.on_all(|shard| {
            let request = request.clone();
            async move { Ok(shard.pin(request).await?.spilled_bytes) }
        });
        Ok(bytes.await?.into_iter().sum())
    }

    /// Takes [`Cluster::pin`] back.
    pub async fn unpin(&self, session: &[u8]) -> Result<(), Error> {
        let request = v1::UnpinRequest { session: session.to_vec() };
        let done = self.on_all(|shard| {
            let request = request.clone();
            async move { shard.unpin(request).await.map(drop) }
        });
        done.await.map(drop)
    }

    /// One call to every shard; the first error ends them.
    async fn on_all<T, F>(&self, call: impl Fn(Arc<dyn Shard>) -> F) -> Result<Vec<T>, Error>
    where
        F: Future<Output = Result<T, Status>>,
    {
        try_join_all(self.shards().map(|shard| {
            let answer = call(shard.clone());
            async move { answer.await.map_err(|status| Error::from_status(shard.name(), &status)) }
        }))
        .await
    }

    pub(crate) fn described(&self) -> &[Described] {
        &self.shards
    }

    /// One replica: a head lives on one shard.
    pub(crate) fn layout(&self, lineage: &[u8], fingerprint: &v1::Fingerprint) -> Result<Layout, Error> {
        Ok(self.map.layout(lineage, fingerprint.layers, fingerprint.kv_heads, 1)?)
    }
}

async fn describe(shard: &Arc<dyn Shard>) -> Result<v1::DescribeResponse, Error> {
    let described = shard
        .describe(v1::DescribeRequest { protocol: wire::PROTOCOL })
        .await
        .map_err(|status| Error::from_status(shard.name(), &status))?;
    check_protocol(shard.name(), &described)?;
    Ok(described)
}

/// In units of 64 MiB, so that small differences of the budget move nothing.
fn weight(memory_budget_bytes: u64) -> u32 {
    u32::try_from(memory_budget_bytes >> 26).unwrap_or(u32::MAX).max(1)
}
