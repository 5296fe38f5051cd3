//! The admin service over a node.

use crate::node::Node;
use std::sync::Arc;
use tonic::{Request, Response, Status};
use wire::v1;

/// Adapter.
pub struct Admin {
    node: Arc<Node>,
}

impl Admin {
    /// Over this node.
    pub fn new(node: Arc<Node>) -> Self {
        Self { node }
    }
}

#[tonic::async_trait]
impl v1::admin_server::Admin for Admin {
    async fn inspect(
        &self,
        request: Request<v1::InspectRequest>,
    ) -> Result<Response<v1::InspectResponse>, Status> {
        self.node.inspect(request.into_inner()).await.map(Response::new)
    }

    async fn wait_ready(
        &self,
        request: Request<v1::WaitReadyRequest>,
    ) -> Result<Response<v1::WaitReadyResponse>, Status> {
        self.node.wait_ready(request.into_inner()).await.map(Response::new)
    }

    async fn evict(&self, request: Request<v1::EvictRequest>) -> Result<Response<v1::EvictResponse>, Status> {
        self.node.evict(request.into_inner()).await.map(Response::new)
    }

    async fn promote(
        &self,
        request: Request<v1::PromoteRequest>,
    ) -> Result<Response<v1::PromoteResponse>, Status> {
        self.node.promote(request.into_inner()).await.map(Response::new)
    }

    async fn pin(&self, request: Request<v1::PinRequest>) -> Result<Response<v1::PinResponse>, Status> {
        self.node.pin(request.into_inner()).await.map(Response::new)
    }

    async fn unpin(&self, request: Request<v1::UnpinRequest>) -> Result<Response<v1::UnpinResponse>, Status> {
        self.node.unpin(request.into_inner()).await.map(Response::new)
    }

    async fn read_samples(
        &self,
        request: Request<v1::ReadSamplesRequest>,
    ) -> Result<Response<v1::ReadSamplesResponse>, Status> {
        self.node.read_samples(request.into_inner()).await.map(Response::new)
    }
}
