//! A shard behind a socket.
//!
//! Two connections, so that a chunk of megabytes never holds up a step: `step` carries Attend and the small calls, `bulk`
//! carries Append, ReadRows and ReadSamples. Each has one long-lived stream, opened when it is first needed and again after it
//! broke; what was in flight on a broken stream fails, it is never sent twice.

mod append;
mod attend;

use crate::error::innermost;
use crate::shard::PendingAck;
use crate::{Address, Error, Shard};
use async_trait::async_trait;
use std::future::Future;
use std::time::Duration;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};
use wire::v1;
use wire::v1::admin_client::AdminClient;
use wire::v1::kv_client::KvClient;

/// The least that a call may take which moves rows between RAM and disk, perhaps by the GiB.
const MOVE_TIMEOUT: Duration = Duration::from_secs(600);

/// Limits of one client. Every wait has one.
#[derive(Debug, Clone)]
pub struct Config {
    /// To establish a connection.
    pub connect_timeout: Duration,
    /// For a small call.
    pub call_timeout: Duration,
    /// For an attend message that names no deadline of its own; a [`crate::Session`] waits no longer than its own.
    pub attend_timeout: Duration,
    /// From the hand-over of a chunk to its acknowledgement, waiting for room included.
    pub append_timeout: Duration,
    /// Chunk bytes that may be without an acknowledgement, per shard.
    pub append_in_flight_bytes: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            connect_timeout: Duration::from_secs(5),
            call_timeout: Duration::from_secs(10),
            attend_timeout: Duration::from_secs(600),
            append_timeout: Duration::from_secs(60),
            append_in_flight_bytes: 32 << 20,
        }
    }
}

/// A shard server and the connections to it.
pub struct GrpcShard {
    name: String,
    config: Config,
    limit: usize,
    step: KvClient<Channel>,
    bulk: KvClient<Channel>,
    admin: AdminClient<Channel>,
    bulk_admin: AdminClient<Channel>,
    attend: attend::Attend,
    append: append::Append,
}

impl GrpcShard {
    /// Connects, asks the shard what it is and takes over its message limit.
    ///
    /// Errors: [`Error::Unavailable`] when nothing answers in time, [`Error::NotShard`] when something else does,
    /// [`Error::Protocol`] for another version.
    pub async fn connect(address: &Address, config: &Config) -> Result<GrpcShard, Error> {
        let name = address.to_string();
        let (step, bulk) = futures::try_join!(channel(address, config), channel(address, config))?;
        let request = v1::DescribeRequest { protocol: wire::PROTOCOL };
        let mut probe = KvClient::new(step.clone());
        let described = call(&name, config.call_timeout, probe.describe(request))
            .await
            .map_err(|status| Error::from_first_answer(&name, &status))?;
        check_protocol(&name, &described)?;
        let limit = usize::try_from(described.max_message_bytes).unwrap_or(usize::MAX);
        let limited = |channel: Channel| {
            KvClient::new(channel).max_decoding_message_size(limit).max_encoding_message_size(limit)
        };
        Ok(GrpcShard {
            admin: AdminClient::new(step.clone()).max_decoding_message_size(limit),
            bulk_admin: AdminClient::new(bulk.clone()).max_decoding_message_size(limit),
            step: limited(step),
            bulk: limited(bulk),
            attend: attend::Attend::default(),
            append: append::Append::new(config.append_in_flight_bytes),
            config: config.clone(),
            name,
            limit,
        })
    }

    /// Refuses what the shard would refuse, before it ends a stream that others share.
    fn check_size(&self, what: &str, bytes: usize) -> Result<(), Status> {
        if bytes <= self.limit {
            return Ok(());
        }
        let limit = self.limit;
        Err(Status::resource_exhausted(format!(
            "{what} of {bytes} bytes is over the shard's server.max_message = {limit}"
        )))
    }
}

/// Another protocol is refused even if the shard would go on.
pub(crate) fn check_protocol(shard: &str, described: &v1::DescribeResponse) -> Result<(), Error> {
    if described.protocol == wire::PROTOCOL {
        return Ok(());
    }
    Err(Error::Protocol { shard: shard.to_owned(), theirs: described.protocol, ours: wire::PROTOCOL })
}

async fn channel(address: &Address, config: &Config) -> Result<Channel, Error> {
    let unavailable = |error: &tonic::transport::Error| Error::Unavailable {
        shard: address.to_string(),
        reason: innermost(error),
    };
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| unavailable(&error))?
        .tcp_nodelay(true)
        .connect_timeout(config.connect_timeout)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(16 << 20)
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true);
    match timeout(config.connect_timeout, endpoint.connect()).await {
        Ok(connected) => connected.map_err(|error| unavailable(&error)),
        Err(_) => Err(Error::Unavailable {
            shard: address.to_string(),
            reason: format!("no connection within {:?}", config.connect_timeout),
        }),
    }
}

/// A call with a deadline; transport errors say their innermost cause.
async fn call<T>(
    shard: &str,
    limit: Duration,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Status> {
    match timeout(limit, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(plain(status)),
        Err(_) => {
            tracing::debug!(shard, ?limit, "no answer in time");
            Err(silent(limit))
        }
    }
}

fn silent(limit: Duration) -> Status {
    Status::deadline_exceeded(format!("no answer within {limit:?}"))
}

/// tonic reports a broken connection as "transport error" or as an h2 error with code Unknown; say what broke, and that
/// the shard is unavailable.
fn plain(status: Status) -> Status {
    let Some(source) = std::error::Error::source(&status) else { return status };
    let code = match status.code() {
        Code::Unknown | Code::Internal | Code::Cancelled => Code::Unavailable,
        code => code,
    };
    Status::new(code, innermost(source))
}

#[async_trait]
impl Shard for GrpcShard {
    fn name(&self) -> &str {
        &self.name
    }

    async fn describe(&self, request: v1::DescribeRequest) -> Result<v1::DescribeResponse, Status> {
        call(&self.name, self.config.call_timeout, self.step.clone().describe(request)).await
    }

    async fn open(&self, request: v1::OpenRequest) -> Result<v1::OpenResponse, Status> {
        call(&self.name, self.config.call_timeout, self.step.clone().open(request)).await
    }

    async fn append(&self, chunk: v1::AppendChunk) -> Result<v1::AppendAck, Status> {
        self.submit(chunk).await?.await
    }

    async fn submit(&self, chunk: v1::AppendChunk) -> Result<PendingAck, Status> {
        let bytes = prost::Message::encoded_len(&chunk);
        self.check_size("chunk", bytes)?;
        self.append.submit(&self.bulk, chunk, bytes, self.config.append_timeout).await
    }

    async fn attend(&self, request: v1::AttendRequest) -> Result<v1::AttendResponse, Status> {
        self.check_size("attend message", prost::Message::encoded_len(&request))?;
        self.attend.attend(&self.step, request, self.config.attend_timeout).await
    }

    async fn read_rows(&self, request: v1::ReadRowsRequest) -> Result<v1::ReadRowsResponse, Status> {
        call(&self.name, self.config.call_timeout, self.bulk.clone().read_rows(request)).await
    }

    async fn truncate(&self, request: v1::TruncateRequest) -> Result<v1::TruncateResponse, Status> {
        call(&self.name, self.config.call_timeout, self.step.clone().truncate(request)).await
    }

    async fn renew(&self, request: v1::RenewRequest) -> Result<v1::RenewResponse, Status> {
        call(&self.name, self.config.call_timeout, self.step.clone().renew(request)).await
    }

    async fn close(&self, request: v1::CloseRequest) -> Result<v1::CloseResponse, Status> {
        call(&self.name, self.config.call_timeout, self.step.clone().close(request)).await
    }

    async fn inspect(&self, request: v1::InspectRequest) -> Result<v1::InspectResponse, Status> {
        call(&self.name, self.config.call_timeout, self.admin.clone().inspect(request)).await
    }

    async fn evict(&self, request: v1::EvictRequest) -> Result<v1::EvictResponse, Status> {
        call(&self.name, self.config.call_timeout.max(MOVE_TIMEOUT), self.admin.clone().evict(request)).await
    }

    async fn promote(&self, request: v1::PromoteRequest) -> Result<v1::PromoteResponse, Status> {
        call(&self.name, self.config.call_timeout.max(MOVE_TIMEOUT), self.admin.clone().promote(request))
            .await
    }

    async fn pin(&self, request: v1::PinRequest) -> Result<v1::PinResponse, Status> {
        call(&self.name, self.config.call_timeout, self.admin.clone().pin(request)).await
    }

    async fn unpin(&self, request: v1::UnpinRequest) -> Result<v1::UnpinResponse, Status> {
        call(&self.name, self.config.call_timeout, self.admin.clone().unpin(request)).await
    }

    async fn wait_ready(&self, request: v1::WaitReadyRequest) -> Result<v1::WaitReadyResponse, Status> {
        let limit = self.config.call_timeout.saturating_add(Duration::from_millis(request.timeout_ms));
        call(&self.name, limit, self.admin.clone().wait_ready(request)).await
    }

    async fn read_samples(&self, request: v1::ReadSamplesRequest) -> Result<v1::ReadSamplesResponse, Status> {
        call(&self.name, self.config.call_timeout, self.bulk_admin.clone().read_samples(request)).await
    }
}
