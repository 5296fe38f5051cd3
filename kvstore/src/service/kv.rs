//! The KV service over a node: unary calls pass through, streams become tasks.

use crate::node::Node;
use crate::serve::ended;
use crate::service::limits;
use prost::Message;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use wire::v1;

/// Answers that may wait for a slow reader before its stream is no longer read.
const IN_FLIGHT: u32 = 256;

/// Adapter.
#[derive(Clone)]
pub struct Kv {
    node: Arc<Node>,
    draining: watch::Receiver<bool>,
    limit: usize,
}

type Out<T> = mpsc::Sender<Result<T, Status>>;

fn stopping() -> Status {
    Status::unavailable("the server is stopping")
}

impl Kv {
    /// Over this node; `limit` is that of messages, in bytes.
    pub fn new(node: Arc<Node>, draining: watch::Receiver<bool>, limit: usize) -> Self {
        Self { node, draining, limit }
    }

    /// The next message; None at the end, at an error (which is passed on) and when the server drains.
    async fn next<T>(&self, inbound: &mut Streaming<T>) -> Result<Option<T>, Status> {
        tokio::select! {
            biased;
            () = ended(self.draining.clone()) => Err(stopping()),
            message = inbound.message() => message.map_err(|s| limits::explain(s, self.limit)),
        }
    }

    /// One acknowledgement for each chunk, in order.
    async fn append_stream(self, mut inbound: Streaming<v1::AppendChunk>, out: Out<v1::AppendAck>) {
        loop {
            let chunk = match self.next(&mut inbound).await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return,
                Err(status) => {
                    // The reader may be gone too.
                    let _ = out.send(Err(status)).await;
                    return;
                }
            };
            let (session, layer) = (chunk.session.clone(), chunk.layer);
            let ack = self.node.append(chunk).await.unwrap_or_else(|status| v1::AppendAck {
                session,
                layer,
                error: Some(status.into()),
                ..Default::default()
            });
            if out.send(Ok(ack)).await.is_err() {
                return;
            }
        }
    }

    /// Admits messages in order of receipt; each is answered when it is done.
    async fn attend_stream(self, mut inbound: Streaming<v1::AttendRequest>, out: Out<v1::AttendResponse>) {
        let slots = Arc::new(Semaphore::new(IN_FLIGHT as usize));
        let end = loop {
            let Ok(slot) = slots.clone().acquire_owned().await else {
                return;
            };
            let request = match self.next(&mut inbound).await {
                Ok(Some(request)) => request,
                Ok(None) => break None,
                Err(status) => break Some(status),
            };
            let id = request.id;
            let admitted = self.node.admit(request);
            let (node, out, limit) = (self.node.clone(), out.clone(), self.limit);
            tokio::spawn(async move {
                let answer = match admitted {
                    Ok(admitted) => node.answer(admitted).await,
                    Err(status) => Err(status),
                };
                let answer = answer.and_then(|a| match a.encoded_len() {
                    n if n > limit => Err(limits::answer_too_large(n, limit)),
                    _ => Ok(a),
                });
                let answer = answer.unwrap_or_else(|status| v1::AttendResponse {
                    id,
                    rows: Vec::new(),
                    error: Some(status.into()),
                });
                // A reader that went away wants no answer.
                let _ = out.send(Ok(answer)).await;
                drop(slot);
            });
        };
        // What was admitted is answered before the stream ends.
        let all = slots.acquire_many(IN_FLIGHT).await;
        if let (Some(status), Ok(_)) = (end, all) {
            let _ = out.send(Err(status)).await;
        }
    }
}

#[tonic::async_trait]
impl v1::kv_server::Kv for Kv {
    type AppendStream = ReceiverStream<Result<v1::AppendAck, Status>>;
    type AttendStream = ReceiverStream<Result<v1::AttendResponse, Status>>;

    async fn describe(
        &self,
        request: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeResponse>, Status> {
        self.node.describe(request.into_inner()).await.map(Response::new)
    }

    async fn open(&self, request: Request<v1::OpenRequest>) -> Result<Response<v1::OpenResponse>, Status> {
        if *self.draining.borrow() {
            return Err(stopping());
        }
        self.node.open(request.into_inner()).await.map(Response::new)
    }

    async fn append(
        &self,
        request: Request<Streaming<v1::AppendChunk>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        let (out, answers) = mpsc::channel(16);
        tokio::spawn(self.clone().append_stream(request.into_inner(), out));
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn attend(
        &self,
        request: Request<Streaming<v1::AttendRequest>>,
    ) -> Result<Response<Self::AttendStream>, Status> {
        let (out, answers) = mpsc::channel(16);
        tokio::spawn(self.clone().attend_stream(request.into_inner(), out));
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn read_rows(
        &self,
        request: Request<v1::ReadRowsRequest>,
    ) -> Result<Response<v1::ReadRowsResponse>, Status> {
        self.node.read_rows(request.into_inner()).await.map(Response::new)
    }

    async fn truncate(
        &self,
        request: Request<v1::TruncateRequest>,
    ) -> Result<Response<v1::TruncateResponse>, Status> {
        self.node.truncate(request.into_inner()).await.map(Response::new)
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        self.node.renew(request.into_inner()).await.map(Response::new)
    }

    async fn close(&self, request: Request<v1::CloseRequest>) -> Result<Response<v1::CloseResponse>, Status> {
        self.node.close(request.into_inner()).await.map(Response::new)
    }
}
