//! The seam: one shard, whoever runs it. [`crate::GrpcShard`] is a shard behind a socket; an embedded one is the shard
//! library in the same process. Messages in, messages out, so that both pass through the same checks.

use async_trait::async_trait;
use std::future::Future;
use std::pin::Pin;
use tonic::Status;
use wire::v1;

/// The acknowledgement of a chunk that was submitted.
pub type PendingAck = Pin<Box<dyn Future<Output = Result<v1::AppendAck, Status>> + Send>>;

/// One shard server.
#[async_trait]
pub trait Shard: Send + Sync {
    /// Stable name: the address, or one that the embedding program gives. Placement hashes it, errors show it.
    fn name(&self) -> &str;

    /// Versions, limits, instance.
    async fn describe(&self, request: v1::DescribeRequest) -> Result<v1::DescribeResponse, Status>;

    /// Creates a session.
    async fn open(&self, request: v1::OpenRequest) -> Result<v1::OpenResponse, Status>;

    /// Stores a chunk and waits for the acknowledgement.
    async fn append(&self, chunk: v1::AppendChunk) -> Result<v1::AppendAck, Status>;

    /// Hands a chunk over and returns once it is in line behind those submitted before it, which may wait for room; the
    /// future returned resolves at the acknowledgement. Chunks are stored in the order in which calls return.
    async fn submit(&self, chunk: v1::AppendChunk) -> Result<PendingAck, Status> {
        let ack = self.append(chunk).await?;
        Ok(Box::pin(std::future::ready(Ok(ack))))
    }

    /// One decode message. The implementation chooses the id.
    async fn attend(&self, request: v1::AttendRequest) -> Result<v1::AttendResponse, Status>;

    /// Stored K and V.
    async fn read_rows(&self, request: v1::ReadRowsRequest) -> Result<v1::ReadRowsResponse, Status>;

    /// Drops the tokens at and beyond a position.
    async fn truncate(&self, request: v1::TruncateRequest) -> Result<v1::TruncateResponse, Status>;

    /// Extends a lease.
    async fn renew(&self, request: v1::RenewRequest) -> Result<v1::RenewResponse, Status>;

    /// Ends a session.
    async fn close(&self, request: v1::CloseRequest) -> Result<v1::CloseResponse, Status>;

    /// Sessions, spans, bytes.
    async fn inspect(&self, request: v1::InspectRequest) -> Result<v1::InspectResponse, Status>;

    /// Moves rows from RAM to files.
    async fn evict(&self, request: v1::EvictRequest) -> Result<v1::EvictResponse, Status>;

    /// Copies them back.
    async fn promote(&self, request: v1::PromoteRequest) -> Result<v1::PromoteResponse, Status>;

    /// Keeps a session in RAM.
    async fn pin(&self, request: v1::PinRequest) -> Result<v1::PinResponse, Status>;

    /// Takes that back.
    async fn unpin(&self, request: v1::UnpinRequest) -> Result<v1::UnpinResponse, Status>;

    /// Waits for the indexes of a session.
    async fn wait_ready(&self, request: v1::WaitReadyRequest) -> Result<v1::WaitReadyResponse, Status>;

    /// The sampled queries that a head keeps.
    async fn read_samples(&self, request: v1::ReadSamplesRequest) -> Result<v1::ReadSamplesResponse, Status>;
}
