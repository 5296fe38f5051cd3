//! Shards inside this process: the client's [`Shard`] over [`kvstore::Node`], the same code path minus the socket.

use std::sync::Arc;

use async_trait::async_trait;
use client::Shard;
use kvstore::{Node, NodeConfig};
use tonic::Status;
use wire::v1;

/// One in-process shard.
pub struct EmbeddedShard {
    name: String,
    node: Arc<Node>,
}

impl EmbeddedShard {
    /// Starts a shard of its own; `name` is what errors call it.
    pub fn start(name: String, config: NodeConfig) -> anyhow::Result<Self> {
        Ok(Self { name, node: Node::new(config)? })
    }
}

macro_rules! pass_through {
    ($($verb:ident: $request:ident => $response:ident;)*) => {
        #[async_trait]
        impl Shard for EmbeddedShard {
            fn name(&self) -> &str {
                &self.name
            }
            $(async fn $verb(&self, request: v1::$request) -> Result<v1::$response, Status> {
                self.node.$verb(request).await
            })*
        }
    };
}

pass_through! {
    describe: DescribeRequest => DescribeResponse;
    open: OpenRequest => OpenResponse;
    append: AppendChunk => AppendAck;
    attend: AttendRequest => AttendResponse;
    read_rows: ReadRowsRequest => ReadRowsResponse;
    truncate: TruncateRequest => TruncateResponse;
    renew: RenewRequest => RenewResponse;
    close: CloseRequest => CloseResponse;
    inspect: InspectRequest => InspectResponse;
    wait_ready: WaitReadyRequest => WaitReadyResponse;
    evict: EvictRequest => EvictResponse;
    promote: PromoteRequest => PromoteResponse;
    pin: PinRequest => PinResponse;
    unpin: UnpinRequest => UnpinResponse;
    read_samples: ReadSamplesRequest => ReadSamplesResponse;
}
